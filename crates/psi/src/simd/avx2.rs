//! AVX2: eight lanes a vector.
//!
//! The functions here are inlined into [`run`], or into that of AVX-512, whose attributes give them the instructions;
//! [`super::run`] calls those only where the processor has them. That is the first half of every SAFETY reason below.

use std::arch::x86_64::*;

use super::{active, Engine, Work};
use crate::error::Result;
use crate::header::{COLUMNS, LANES};
use crate::predict::{self, Masks, Row};
use crate::rans::{exhausted, Coder};
use crate::tables::{SLOTS, SLOT_BITS};
use crate::word::Word;

pub(super) fn present() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi2") && is_x86_feature_detected!("popcnt")
}

/// # Safety
/// The processor must have what [`present`] asks for.
#[target_feature(enable = "avx2,bmi2,popcnt")]
pub(super) unsafe fn run(work: impl Work) -> Result<()> {
    work.run::<Avx2>()
}

pub(crate) struct Avx2;

/// For each set of eight lanes, the word that each lane takes: as many as there are lanes of the set before it.
const TAKES: [u64; 256] = {
    let mut out = [0u64; 256];
    let mut set = 0;
    while set < 256 {
        let (mut lane, mut next) = (0, 0);
        while lane < 8 {
            if set >> lane & 1 == 1 {
                out[set] |= next << (8 * lane);
                next += 1;
            }
            lane += 1;
        }
        set += 1;
    }
    out
};

/// Takes words for the lanes of `state` that are in `active` (all ones) and ran low, and moves `at` past them.
///
/// # Safety
/// 16 bytes can be read at `words + at`.
#[inline(always)]
unsafe fn refill(state: __m256i, active: __m256i, words: *const u8, at: &mut usize) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        let low = _mm256_and_si256(active, _mm256_cmpeq_epi32(_mm256_srli_epi32::<16>(state), _mm256_setzero_si256()));
        let set = _mm256_movemask_ps(_mm256_castsi256_ps(low)) as usize & 255;
        let next = _mm256_cvtepu16_epi32(_mm_loadu_si128(words.add(*at).cast()));
        *at += 2 * set.count_ones() as usize;
        let next = _mm256_permutevar8x32_epi32(next, _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(TAKES[set] as i64)));
        _mm256_blendv_epi8(state, _mm256_or_si256(_mm256_slli_epi32::<16>(state), next), low)
    }
}

impl Engine for Avx2 {
    #[inline(always)]
    fn row<W: Word>(coder: &mut Coder, tables: &[u32; LANES], width: usize, out: &mut Row<W>) -> Result<[u32; LANES]> {
        let mut energies = [0; LANES];
        let mut at = coder.at;
        // SAFETY: states, tables, values and energies are read and written as four times 8 words. Slots: an index is a table's
        // first slot, of at most 16 tables, plus ten bits of state, and there are 16 × 1,024 slots. Words: `at` is at most
        // `end` when a row starts, a row moves it by at most 768, a read takes 16 from it, and `PADDING` more than that
        // follows `end`.
        unsafe {
            let mut sums = [_mm256_setzero_si256(); 4];
            let (mut states, mut first) = (sums, sums);
            for part in 0..4 {
                states[part] = _mm256_loadu_si256(coder.states.as_ptr().add(8 * part).cast());
                first[part] = _mm256_loadu_si256(tables.as_ptr().add(8 * part).cast());
            }
            let words = coder.padded.as_ptr();
            let slots = coder.slots.as_ptr().cast::<i32>();
            let one = _mm256_set1_epi32(1);
            let slot_mask = _mm256_set1_epi32(SLOTS as i32 - 1);
            let order = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            for (column, out) in out.iter_mut().enumerate() {
                let count = _mm256_set1_epi32(active(width, column) as i32);
                let mut values = [_mm256_setzero_si256(); 4];
                let mut active = values;
                for part in 0..4 {
                    let lanes = _mm256_add_epi32(order, _mm256_set1_epi32(8 * part as i32));
                    active[part] = _mm256_cmpgt_epi32(count, lanes);
                }
                let mut found = values;
                for part in 0..4 {
                    let state = states[part];
                    let index = _mm256_add_epi32(first[part], _mm256_and_si256(state, slot_mask));
                    let slot = _mm256_i32gather_epi32::<4>(slots, index);
                    let frequency = _mm256_and_si256(slot, _mm256_set1_epi32(0x7FF));
                    let within = _mm256_and_si256(_mm256_srli_epi32::<11>(slot), slot_mask);
                    let high = _mm256_srli_epi32::<{ SLOT_BITS as i32 }>(state);
                    let state = _mm256_add_epi32(_mm256_mullo_epi32(frequency, high), within);
                    states[part] = _mm256_blendv_epi8(states[part], state, active[part]);
                    found[part] = _mm256_and_si256(slot, active[part]);
                }
                if W::BITS == 8 {
                    for part in 0..4 {
                        let (state, slot) = (states[part], found[part]);
                        let raw = _mm256_and_si256(_mm256_srli_epi32::<21>(slot), _mm256_set1_epi32(7));
                        let mask = _mm256_sub_epi32(_mm256_sllv_epi32(one, raw), one);
                        values[part] = _mm256_add_epi32(_mm256_srli_epi32::<24>(slot), _mm256_and_si256(state, mask));
                        states[part] = refill(_mm256_srlv_epi32(state, raw), active[part], words, &mut at);
                    }
                } else {
                    for part in 0..4 {
                        states[part] = refill(states[part], active[part], words, &mut at);
                    }
                    let mut raws = values;
                    for part in 0..4 {
                        let token = _mm256_srli_epi32::<21>(found[part]);
                        let wide = _mm256_cmpgt_epi32(token, _mm256_set1_epi32(15));
                        let all = _mm256_and_si256(
                            wide,
                            _mm256_sub_epi32(_mm256_srli_epi32::<1>(token), _mm256_set1_epi32(5)),
                        );
                        let leading = _mm256_or_si256(_mm256_and_si256(token, one), _mm256_set1_epi32(2));
                        let base = _mm256_blendv_epi8(token, _mm256_sllv_epi32(leading, all), wide);
                        let raw = _mm256_min_epu32(all, _mm256_set1_epi32(16));
                        let mask = _mm256_sub_epi32(_mm256_sllv_epi32(one, raw), one);
                        values[part] = _mm256_add_epi32(base, _mm256_and_si256(states[part], mask));
                        states[part] = refill(_mm256_srlv_epi32(states[part], raw), active[part], words, &mut at);
                        raws[part] = _mm256_sub_epi32(all, raw);
                    }
                    if W::BITS == 32 {
                        for part in 0..4 {
                            let mask = _mm256_sub_epi32(_mm256_sllv_epi32(one, raws[part]), one);
                            let high = _mm256_slli_epi32::<16>(_mm256_and_si256(states[part], mask));
                            values[part] = _mm256_add_epi32(values[part], high);
                            states[part] =
                                refill(_mm256_srlv_epi32(states[part], raws[part]), active[part], words, &mut at);
                        }
                    }
                }
                let mut words = [0u32; LANES];
                for part in 0..4 {
                    _mm256_storeu_si256(words.as_mut_ptr().add(8 * part).cast(), values[part]);
                    let energy = if W::BITS == 32 { _mm256_srli_epi32::<16>(values[part]) } else { values[part] };
                    sums[part] = _mm256_add_epi32(sums[part], energy);
                }
                for (to, word) in out.iter_mut().zip(words) {
                    *to = W::of(word);
                }
            }
            for part in 0..4 {
                _mm256_storeu_si256(coder.states.as_mut_ptr().add(8 * part).cast(), states[part]);
                _mm256_storeu_si256(energies.as_mut_ptr().add(8 * part).cast(), sums[part]);
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
        reconstruct(residuals, masks, row);
    }
}

/// Moves bytes to the next place, across all 32; the first becomes 0.
#[inline(always)]
unsafe fn next(bytes: __m256i) -> __m256i {
    // SAFETY: no memory is touched.
    unsafe { _mm256_alignr_epi8::<15>(bytes, _mm256_permute2x128_si256::<0x08>(bytes, bytes)) }
}

/// [`predict::reconstruct`] for bytes, with the running sum in five steps; wider words go the plain way.
#[inline(always)]
pub(super) fn reconstruct<W: Word>(residuals: &Row<W>, masks: &Masks<W>, row: &mut Row<W>) {
    if W::BITS != 8 {
        return predict::reconstruct(residuals, masks, row);
    }
    // SAFETY: 32 bytes each: lanes of a column, for `W` is a byte.
    unsafe {
        let low7 = _mm256_set1_epi8(0x7F);
        let zero = _mm256_setzero_si256();
        let one = _mm256_set1_epi8(1);
        let only_first = _mm256_setr_epi32(0xFF, 0, 0, 0, 0, 0, 0, 0);
        let above = _mm256_loadu_si256(masks.above.as_ptr().cast());
        let plane = _mm256_loadu_si256(masks.plane.as_ptr().cast());
        let half = _mm256_loadu_si256(masks.half.as_ptr().cast());
        let mut up = [zero; COLUMNS];
        for column in 0..COLUMNS {
            up[column] = _mm256_loadu_si256(row[column].as_ptr().cast());
        }
        let start = _mm256_and_si256(up[0], only_first);
        let mut north_west = _mm256_or_si256(next(up[COLUMNS - 1]), start);
        let mut sums = [zero; COLUMNS];
        let mut left = zero;
        for column in 0..COLUMNS {
            let residual = _mm256_loadu_si256(residuals[column].as_ptr().cast());
            let sign = _mm256_sub_epi8(zero, _mm256_and_si256(residual, one));
            let residual = _mm256_xor_si256(_mm256_and_si256(_mm256_srli_epi16::<1>(residual), low7), sign);
            let slope = _mm256_sub_epi8(up[column], north_west);
            north_west = up[column];
            // An arithmetic shift of each byte: a logical one of it, and the sign again.
            let halved = _mm256_or_si256(
                _mm256_and_si256(_mm256_srli_epi16::<1>(slope), low7),
                _mm256_andnot_si256(low7, slope),
            );
            let known = _mm256_add_epi8(
                _mm256_and_si256(up[column], above),
                _mm256_add_epi8(_mm256_and_si256(slope, plane), _mm256_and_si256(halved, half)),
            );
            left = _mm256_add_epi8(_mm256_add_epi8(residual, known), _mm256_andnot_si256(above, left));
            sums[column] = left;
        }
        let first = _mm256_andnot_si256(above, start);
        let mut leaving = _mm256_add_epi8(left, first);
        macro_rules! step {
            ($index:literal, $moved:expr) => {
                let flow = _mm256_loadu_si256(masks.flows[$index].as_ptr().cast());
                leaving = _mm256_add_epi8(leaving, _mm256_and_si256($moved, flow));
            };
        }
        step!(0, next(leaving));
        step!(1, _mm256_alignr_epi8::<14>(leaving, _mm256_permute2x128_si256::<0x08>(leaving, leaving)));
        step!(2, _mm256_alignr_epi8::<12>(leaving, _mm256_permute2x128_si256::<0x08>(leaving, leaving)));
        step!(3, _mm256_alignr_epi8::<8>(leaving, _mm256_permute2x128_si256::<0x08>(leaving, leaving)));
        step!(4, _mm256_permute2x128_si256::<0x08>(leaving, leaving));
        let carry = _mm256_andnot_si256(above, _mm256_or_si256(next(leaving), first));
        for column in 0..COLUMNS {
            _mm256_storeu_si256(row[column].as_mut_ptr().cast(), _mm256_add_epi8(sums[column], carry));
        }
    }
}
