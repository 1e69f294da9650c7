//! AVX-512 with VBMI and VBMI2: sixteen lanes a vector.
//!
//! The functions here are inlined into [`run`], whose attribute gives them the instructions; [`super::run`] calls it only
//! where the processor has them. That is the first half of every SAFETY reason below; the second is in its comment.

use std::arch::x86_64::*;

use super::{active, avx2, Engine, Work, ROW};
use crate::error::Result;
use crate::header::{COLUMNS, LANES};
use crate::predict::{Masks, Row};
use crate::rans::{exhausted, Coder, LOWEST};
use crate::tables::{SLOTS, SLOT_BITS};
use crate::tile::{unpack_band, Packed, BAND};
use crate::token::CONTEXTS;
use crate::word::Word;

pub(super) fn present() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512cd")
        && is_x86_feature_detected!("avx512vbmi")
        && is_x86_feature_detected!("avx512vbmi2")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("popcnt")
}

/// # Safety
/// The processor must have what [`present`] asks for.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512cd,avx512vbmi,avx512vbmi2,bmi2,popcnt,lzcnt")]
pub(super) unsafe fn run(work: impl Work) -> Result<()> {
    work.run::<Avx512>()
}

pub(crate) struct Avx512;

/// Where byte `i` of a row in image order lies in the lane layout: lane `i / 4`, column `i % 4`.
const TO_FLAT: [u8; ROW] = {
    let mut out = [0; ROW];
    let mut index = 0;
    while index < ROW {
        out[index] = ((index % COLUMNS) * LANES + index / COLUMNS) as u8;
        index += 1;
    }
    out
};

/// The inverse of [`TO_FLAT`].
const TO_LANES: [u8; ROW] = {
    let mut out = [0; ROW];
    let mut index = 0;
    while index < ROW {
        out[TO_FLAT[index] as usize] = index as u8;
        index += 1;
    }
    out
};

/// For each third of 64 pixels of three bytes: which byte of (red, green), or of blue, each of 64 bytes is.
const PIXELS: [([u8; 64], [u8; 64], u64); 3] = {
    let mut out = [([0; 64], [0; 64], 0); 3];
    let mut index = 0;
    while index < 192 {
        let (third, at, pixel) = (index / 64, index % 64, (index / 3) as u8);
        match index % 3 {
            0 => out[third].0[at] = pixel,
            1 => out[third].0[at] = 64 + pixel,
            _ => {
                out[third].1[at] = pixel;
                out[third].2 |= 1 << at;
            }
        }
        index += 1;
    }
    out
};

/// Which bytes of sixteen hold values 0–7 and 8–15 of a unit of `bits` bits, and where the values lie in those eight bytes.
const UNITS: [([u8; 16], [u8; 16]); 9] = {
    let mut out = [([0; 16], [0; 16]); 9];
    let mut bits = 0;
    while bits <= 8 {
        let mut index = 0;
        while index < 8 {
            out[bits].0[index] = index as u8;
            out[bits].0[8 + index] = (bits + index) as u8;
            out[bits].1[index] = (index * bits) as u8;
            out[bits].1[8 + index] = (index * bits) as u8;
            index += 1;
        }
        bits += 1;
    }
    out
};

/// Takes words for the lanes of `state` that are in `active` and ran low, and moves `at` past them.
///
/// # Safety
/// 32 bytes can be read at `words + at`.
#[inline(always)]
unsafe fn refill(state: __m512i, active: __mmask16, words: *const u8, at: &mut usize) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let low = _mm512_mask_cmplt_epu32_mask(active, state, _mm512_set1_epi32(LOWEST as i32));
        let next = _mm512_cvtepu16_epi32(_mm256_loadu_si256(words.add(*at).cast()));
        *at += 2 * low.count_ones() as usize;
        let next = _mm512_maskz_expand_epi32(low, next);
        _mm512_mask_or_epi32(state, low, _mm512_slli_epi32::<16>(state), next)
    }
}

impl Engine for Avx512 {
    #[inline(always)]
    fn tables(contexts: &[u8; LANES], map: &[u8; CONTEXTS]) -> [u32; LANES] {
        let mut out = [0; LANES];
        // SAFETY: reads are of 32 bytes of `contexts` and four times 64 of `map`; writes are of two times 16 words of `out`.
        unsafe {
            let (first, second) = two(map.as_ptr());
            let (third, fourth) = two(map.as_ptr().add(128));
            let contexts = _mm512_castsi256_si512(_mm256_loadu_si256(contexts.as_ptr().cast()));
            let low = _mm512_permutex2var_epi8(first, contexts, second);
            let high = _mm512_permutex2var_epi8(third, contexts, fourth);
            let table = _mm512_mask_blend_epi8(_mm512_movepi8_mask(contexts), low, high);
            let shift = SLOTS.trailing_zeros();
            let first = _mm512_cvtepu8_epi32(_mm512_castsi512_si128(table));
            let second = _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32::<1>(table));
            let shift = _mm_cvtsi32_si128(shift as i32);
            _mm512_storeu_si512(out.as_mut_ptr().cast(), _mm512_sll_epi32(first, shift));
            _mm512_storeu_si512(out.as_mut_ptr().add(16).cast(), _mm512_sll_epi32(second, shift));
        }
        out
    }

    #[inline(always)]
    fn row<W: Word>(coder: &mut Coder, tables: &[u32; LANES], width: usize, out: &mut Row<W>) -> Result<[u32; LANES]> {
        let mut energies = [0; LANES];
        let mut at = coder.at;
        // SAFETY: states, tables and energies are read and written as two times 16 words. Slots: an index is a table's
        // first slot, of at most 16 tables, plus ten bits of state, and there are 16 × 1,024 slots. Words: `at` is at most
        // `end` when a row starts, a row moves it by at most 768, a read takes 32 from it, and `PADDING` more than that
        // follows `end`. Residuals: 16 words at lanes 0 and 16 of a column of 32.
        unsafe {
            let mut states: [__m512i; 2] = two(coder.states.as_ptr().cast()).into();
            let tables: [__m512i; 2] = two(tables.as_ptr().cast()).into();
            let mut sums = [_mm512_setzero_si512(); 2];
            let words = coder.padded.as_ptr();
            let slots = coder.slots.as_ptr().cast::<i32>();
            let one = _mm512_set1_epi32(1);
            let slot_mask = _mm512_set1_epi32(SLOTS as i32 - 1);
            for (column, out) in out.iter_mut().enumerate() {
                let active = ((1u64 << active(width, column)) - 1) as u32;
                let active = [active as __mmask16, (active >> 16) as __mmask16];
                let mut values = [_mm512_setzero_si512(); 2];
                let mut found = values;
                for half in 0..2 {
                    let state = states[half];
                    let index = _mm512_add_epi32(tables[half], _mm512_and_si512(state, slot_mask));
                    let slot = _mm512_i32gather_epi32::<4>(index, slots);
                    let frequency = _mm512_and_si512(slot, _mm512_set1_epi32(0x7FF));
                    let within = _mm512_and_si512(_mm512_srli_epi32::<11>(slot), slot_mask);
                    let state =
                        _mm512_add_epi32(_mm512_mullo_epi32(frequency, _mm512_srli_epi32::<SLOT_BITS>(state)), within);
                    states[half] = _mm512_mask_mov_epi32(states[half], active[half], state);
                    found[half] = slot;
                }
                if W::BITS == 8 {
                    for half in 0..2 {
                        let (state, slot) = (states[half], found[half]);
                        let raw = _mm512_and_si512(_mm512_srli_epi32::<21>(slot), _mm512_set1_epi32(7));
                        let raw = _mm512_maskz_mov_epi32(active[half], raw);
                        let mask = _mm512_sub_epi32(_mm512_sllv_epi32(one, raw), one);
                        let value = _mm512_add_epi32(_mm512_srli_epi32::<24>(slot), _mm512_and_si512(state, mask));
                        values[half] = _mm512_maskz_mov_epi32(active[half], value);
                        states[half] = refill(_mm512_srlv_epi32(state, raw), active[half], words, &mut at);
                    }
                } else {
                    for half in 0..2 {
                        states[half] = refill(states[half], active[half], words, &mut at);
                    }
                    let mut raws = values;
                    for half in 0..2 {
                        let token = _mm512_srli_epi32::<21>(found[half]);
                        let wide = _mm512_mask_cmpgt_epu32_mask(active[half], token, _mm512_set1_epi32(15));
                        let all = _mm512_maskz_sub_epi32(wide, _mm512_srli_epi32::<1>(token), _mm512_set1_epi32(5));
                        let leading = _mm512_or_si512(_mm512_and_si512(token, one), _mm512_set1_epi32(2));
                        let base = _mm512_mask_sllv_epi32(token, wide, leading, all);
                        let raw = _mm512_min_epu32(all, _mm512_set1_epi32(16));
                        let mask = _mm512_sub_epi32(_mm512_sllv_epi32(one, raw), one);
                        let value = _mm512_add_epi32(base, _mm512_and_si512(states[half], mask));
                        values[half] = _mm512_maskz_mov_epi32(active[half], value);
                        states[half] = refill(_mm512_srlv_epi32(states[half], raw), active[half], words, &mut at);
                        raws[half] = _mm512_sub_epi32(all, raw);
                    }
                    if W::BITS == 32 {
                        for half in 0..2 {
                            let raw = raws[half];
                            let mask = _mm512_sub_epi32(_mm512_sllv_epi32(one, raw), one);
                            let high = _mm512_slli_epi32::<16>(_mm512_and_si512(states[half], mask));
                            values[half] = _mm512_mask_add_epi32(values[half], active[half], values[half], high);
                            states[half] = refill(_mm512_srlv_epi32(states[half], raw), active[half], words, &mut at);
                        }
                    }
                }
                for half in 0..2 {
                    let to = out.as_mut_ptr().add(16 * half);
                    let value = values[half];
                    match W::BITS {
                        8 => _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(value)),
                        16 => _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(value)),
                        _ => _mm512_storeu_si512(to.cast(), value),
                    }
                    let energy = if W::BITS == 32 { _mm512_srli_epi32::<16>(value) } else { value };
                    sums[half] = _mm512_add_epi32(sums[half], energy);
                }
            }
            for half in 0..2 {
                _mm512_storeu_si512(coder.states.as_mut_ptr().add(16 * half).cast(), states[half]);
                _mm512_storeu_si512(energies.as_mut_ptr().add(16 * half).cast(), sums[half]);
            }
        }
        if at > coder.end {
            return Err(exhausted());
        }
        coder.at = at;
        Ok(energies)
    }

    #[inline(always)]
    fn reconstruct<W: Word>(residuals: &Row<W>, masks: &Masks<W>, row: &mut Row<W>) {
        avx2::reconstruct(residuals, masks, row);
    }

    #[inline(always)]
    fn unpack<W: Word>(packed: &mut Packed, out: &mut [Row<W>; BAND]) -> Result<()> {
        if W::BITS != 8 {
            return unpack_band(packed, out);
        }
        let mut rows = [[0u32; LANES]; BAND];
        let mut at = packed.at;
        // SAFETY: a read takes 16 bytes at `at`, which is at most `end` at first and moves by at most 512, and `PADDING` is more
        // than both; widths are at most 8. Rows: four words at `lane`, a multiple of 4 below 32; then two times 64 bytes
        // of each, and as many of a row of 128 bytes, for `W` is a byte.
        unsafe {
            for lane in (0..packed.lanes).step_by(4) {
                let mut units = [_mm_setzero_si128(); 4];
                for (step, to) in units.iter_mut().enumerate() {
                    if lane + step < packed.lanes {
                        let bits = packed.bits::<W>(lane + step).min(8) as usize;
                        let bytes = _mm_loadu_si128(packed.padded.as_ptr().add(at).cast());
                        at += 2 * bits;
                        let (halves, shifts) = &UNITS[bits];
                        let halves = _mm_shuffle_epi8(bytes, _mm_loadu_si128(halves.as_ptr().cast()));
                        let values = _mm_multishift_epi64_epi8(_mm_loadu_si128(shifts.as_ptr().cast()), halves);
                        *to = _mm_and_si128(values, _mm_set1_epi8(((1u32 << bits) - 1) as i8));
                    }
                }
                let [a, b, c, d] = units;
                let (ab, cd) = (_mm_unpacklo_epi32(a, b), _mm_unpacklo_epi32(c, d));
                let (ef, gh) = (_mm_unpackhi_epi32(a, b), _mm_unpackhi_epi32(c, d));
                let turned = [
                    _mm_unpacklo_epi64(ab, cd),
                    _mm_unpackhi_epi64(ab, cd),
                    _mm_unpacklo_epi64(ef, gh),
                    _mm_unpackhi_epi64(ef, gh),
                ];
                for (row, four) in rows.iter_mut().zip(turned) {
                    _mm_storeu_si128(row.as_mut_ptr().add(lane).cast(), four);
                }
            }
            for (row, out) in rows.iter().zip(out) {
                let (low, high) = two(row.as_ptr().cast());
                let (first, second) = two(TO_LANES.as_ptr());
                let to = out.as_mut_ptr().cast::<u8>();
                _mm512_storeu_si512(to.cast(), _mm512_permutex2var_epi8(low, first, high));
                _mm512_storeu_si512(to.add(64).cast(), _mm512_permutex2var_epi8(low, second, high));
            }
        }
        packed.advance(at)
    }

    #[inline(always)]
    fn flat<W: Word>(row: &Row<W>) -> [W; ROW] {
        let mut out = [W::default(); ROW];
        if W::BITS == 8 {
            // SAFETY: rows of bytes: 128 are read and 128 are written.
            unsafe {
                let (low, high) = flat(row.as_ptr().cast());
                _mm512_storeu_si512(out.as_mut_ptr().cast(), low);
                _mm512_storeu_si512(out.as_mut_ptr().cast::<u8>().add(64).cast(), high);
            }
            return out;
        }
        for lane in 0..LANES {
            for column in 0..COLUMNS {
                out[lane * COLUMNS + column] = row[column][lane];
            }
        }
        out
    }

    #[inline(always)]
    fn pixels(rows: [&Row<u8>; 3]) -> [u8; 3 * ROW] {
        let mut out = [0; 3 * ROW];
        // SAFETY: each row is 128 bytes; six times 64 bytes are written.
        unsafe {
            let [red, green, blue] =
                [flat(rows[0].as_ptr().cast()), flat(rows[1].as_ptr().cast()), flat(rows[2].as_ptr().cast())];
            for (part, (r, g, b)) in [(red.0, green.0, blue.0), (red.1, green.1, blue.1)].into_iter().enumerate() {
                for (third, (pairs, singles, mask)) in PIXELS.iter().enumerate() {
                    let pairs = _mm512_loadu_si512(pairs.as_ptr().cast());
                    let singles = _mm512_loadu_si512(singles.as_ptr().cast());
                    let mixed = _mm512_mask_permutexvar_epi8(_mm512_permutex2var_epi8(r, pairs, g), *mask, singles, b);
                    _mm512_storeu_si512(out.as_mut_ptr().add(192 * part + 64 * third).cast(), mixed);
                }
            }
        }
        out
    }
}

/// 128 bytes.
///
/// # Safety
/// They can be read.
#[inline(always)]
unsafe fn two(from: *const u8) -> (__m512i, __m512i) {
    // SAFETY: the caller's promise.
    unsafe { (_mm512_loadu_si512(from.cast()), _mm512_loadu_si512(from.add(64).cast())) }
}

/// A row of bytes in image order.
///
/// # Safety
/// 128 bytes can be read.
#[inline(always)]
unsafe fn flat(row: *const u8) -> (__m512i, __m512i) {
    // SAFETY: the caller's promise.
    unsafe {
        let (low, high) = two(row);
        let (first, second) = two(TO_FLAT.as_ptr());
        (_mm512_permutex2var_epi8(low, first, high), _mm512_permutex2var_epi8(low, second, high))
    }
}
