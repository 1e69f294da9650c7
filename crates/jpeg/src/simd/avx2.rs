//! AVX2 code. Every function needs AVX2, BMI1, BMI2 and LZCNT, and memory as it says.

use std::arch::x86_64::*;

use crate::idct::{
    Group, Quantiser, EVEN_2, EVEN_3, ODD_0, ODD_1, ODD_2, ODD_3, ODD_Z3, ODD_Z4, SHIFT_1, SHIFT_2,
};
use crate::planes::Span;
use crate::sequential::{Fault, Plan, State};

/// # Safety
/// AVX2, BMI1, BMI2 and LZCNT must be there.
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
pub(crate) unsafe fn decode_run(
    plan: &Plan,
    state: &mut State,
    row: usize,
    run: Span,
) -> Result<(), Fault> {
    crate::sequential::decode_run(plan, state, row, run)
}

/// Position of the first 0xFF, or the length.
///
/// # Safety
/// AVX2 must be there.
#[target_feature(enable = "avx2,bmi1")]
pub(crate) unsafe fn find_ff(bytes: &[u8]) -> usize {
    let all = _mm256_set1_epi8(-1);
    let mut at = 0;
    while at + 32 <= bytes.len() {
        // SAFETY: 32 bytes from `at` lie within the slice.
        let chunk = unsafe { _mm256_loadu_si256(bytes.as_ptr().add(at).cast()) };
        let mask = _mm256_movemask_epi8(_mm256_cmpeq_epi8(chunk, all)) as u32;
        if mask != 0 {
            return at + mask.trailing_zeros() as usize;
        }
        at += 32;
    }
    at + crate::bits::find_ff(&bytes[at..])
}

/// A pair of multipliers for two interleaved inputs.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn pair(of: (i32, i32)) -> __m256i {
    _mm256_set1_epi32((of.0 & 0xFFFF) | (of.1 << 16))
}

/// One dimension over eight vectors of 16 values, down to 16 bits.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn transform<const SHIFT: i32>(x: [__m256i; 8]) -> [__m256i; 8] {
    // SAFETY: all of this is arithmetic on registers, with the features this function has.
    unsafe {
        let rounding = _mm256_set1_epi32(1 << (SHIFT - 1));
        let mut halves = [[_mm256_setzero_si256(); 2]; 8];
        let sums = [
            _mm256_add_epi16(x[0], x[4]),
            _mm256_sub_epi16(x[0], x[4]),
            _mm256_add_epi16(x[7], x[3]),
            _mm256_add_epi16(x[5], x[1]),
        ];
        let zero = _mm256_setzero_si256();
        #[allow(clippy::needless_range_loop)] // outputs are met in pairs from both ends
        for half in 0..2 {
            let unpack = |a, b| match half {
                0 => _mm256_unpacklo_epi16(a, b),
                _ => _mm256_unpackhi_epi16(a, b),
            };
            let dot = |inputs, by| _mm256_madd_epi16(inputs, pair(by));
            let x26 = unpack(x[2], x[6]);
            let tmp2 = dot(x26, EVEN_2);
            let tmp3 = dot(x26, EVEN_3);
            // value << 16, then down to << CONST_BITS, sign kept
            let tmp0 = _mm256_srai_epi32::<3>(unpack(zero, sums[0]));
            let tmp1 = _mm256_srai_epi32::<3>(unpack(zero, sums[1]));
            let tmp0 = _mm256_add_epi32(tmp0, rounding);
            let tmp1 = _mm256_add_epi32(tmp1, rounding);
            let even = [
                _mm256_add_epi32(tmp0, tmp3),
                _mm256_add_epi32(tmp1, tmp2),
                _mm256_sub_epi32(tmp1, tmp2),
                _mm256_sub_epi32(tmp0, tmp3),
            ];
            let z = unpack(sums[2], sums[3]);
            let z3 = dot(z, ODD_Z3);
            let z4 = dot(z, ODD_Z4);
            let x71 = unpack(x[7], x[1]);
            let x53 = unpack(x[5], x[3]);
            let odd = [
                _mm256_add_epi32(dot(x71, ODD_3), z4),
                _mm256_add_epi32(dot(x53, ODD_2), z3),
                _mm256_add_epi32(dot(x53, ODD_1), z4),
                _mm256_add_epi32(dot(x71, ODD_0), z3),
            ];
            for i in 0..4 {
                halves[i][half] = _mm256_srai_epi32::<SHIFT>(_mm256_add_epi32(even[i], odd[i]));
                halves[7 - i][half] = _mm256_srai_epi32::<SHIFT>(_mm256_sub_epi32(even[i], odd[i]));
            }
        }
        halves.map(|[low, high]| _mm256_packs_epi32(low, high))
    }
}

/// Transposes 8x8 values in each half of the vectors.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn transpose(x: [__m256i; 8]) -> [__m256i; 8] {
    let lo16 = |a, b| _mm256_unpacklo_epi16(a, b);
    let hi16 = |a, b| _mm256_unpackhi_epi16(a, b);
    let a = [
        lo16(x[0], x[1]),
        hi16(x[0], x[1]),
        lo16(x[2], x[3]),
        hi16(x[2], x[3]),
        lo16(x[4], x[5]),
        hi16(x[4], x[5]),
        lo16(x[6], x[7]),
        hi16(x[6], x[7]),
    ];
    let lo32 = |a, b| _mm256_unpacklo_epi32(a, b);
    let hi32 = |a, b| _mm256_unpackhi_epi32(a, b);
    let b = [
        lo32(a[0], a[2]), // columns 0, 1 of rows 0..4
        hi32(a[0], a[2]), // 2, 3
        lo32(a[1], a[3]), // 4, 5
        hi32(a[1], a[3]), // 6, 7
        lo32(a[4], a[6]), // the same of rows 4..8
        hi32(a[4], a[6]),
        lo32(a[5], a[7]),
        hi32(a[5], a[7]),
    ];
    [
        _mm256_unpacklo_epi64(b[0], b[4]),
        _mm256_unpackhi_epi64(b[0], b[4]),
        _mm256_unpacklo_epi64(b[1], b[5]),
        _mm256_unpackhi_epi64(b[1], b[5]),
        _mm256_unpacklo_epi64(b[2], b[6]),
        _mm256_unpackhi_epi64(b[2], b[6]),
        _mm256_unpacklo_epi64(b[3], b[7]),
        _mm256_unpackhi_epi64(b[3], b[7]),
    ]
}

/// See [`crate::idct::inverse`].
///
/// # Safety
/// AVX2 must be there; `out` must be good for eight rows of 32 bytes, `stride` apart.
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn inverse(group: &Group, quantiser: &Quantiser, out: *mut u8, stride: usize) {
    for half in 0..2 {
        let mut x = [_mm256_setzero_si256(); 8];
        for (row, x) in x.iter_mut().enumerate() {
            let at = row * 32 + half * 16;
            // SAFETY: at + 16 <= 256 values, which both arrays have.
            *x = unsafe {
                _mm256_mullo_epi16(
                    _mm256_loadu_si256(group.values.as_ptr().add(at).cast()),
                    _mm256_loadu_si256(quantiser.values.as_ptr().add(at).cast()),
                )
            };
        }
        // SAFETY: this function has the features that these need.
        let c = unsafe { transform::<SHIFT_2>(transpose(transform::<SHIFT_1>(x))) };
        // registers are columns now; as bytes, back to rows
        let lo8 = |a, b| _mm256_unpacklo_epi8(a, b);
        let hi8 = |a, b| _mm256_unpackhi_epi8(a, b);
        let four = |a, b, c, d| {
            let (ac, bd) = (_mm256_packs_epi16(a, c), _mm256_packs_epi16(b, d));
            let (ab, cd) = (lo8(ac, bd), hi8(ac, bd));
            [
                _mm256_unpacklo_epi16(ab, cd), // rows 0..4
                _mm256_unpackhi_epi16(ab, cd), // rows 4..8
            ]
        };
        let left = four(c[0], c[1], c[2], c[3]);
        let right = four(c[4], c[5], c[6], c[7]);
        let bias = _mm256_set1_epi8(-128);
        for i in 0..2 {
            let pairs = [
                _mm256_unpacklo_epi32(left[i], right[i]),
                _mm256_unpackhi_epi32(left[i], right[i]),
            ];
            for (j, rows) in pairs.into_iter().enumerate() {
                let rows = _mm256_permute4x64_epi64::<0xD8>(_mm256_xor_si256(rows, bias));
                let row = 4 * i + 2 * j;
                // SAFETY: rows below 8, and 16 bytes at 0 or 16 of each.
                unsafe {
                    let to = out.add(row * stride + half * 16);
                    _mm_storeu_si128(to.cast(), _mm256_castsi256_si128(rows));
                    _mm_storeu_si128(to.add(stride).cast(), _mm256_extracti128_si256::<1>(rows));
                }
            }
        }
    }
}

/// See [`crate::rows::widen`].
///
/// # Safety
/// AVX2 must be there; `count` must be a multiple of 16; `count + 2` bytes must be readable and
/// `2 * count` writable.
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn widen(row: *const u8, count: usize, out: *mut u8) {
    let (one, two) = (_mm256_set1_epi16(1), _mm256_set1_epi16(2));
    for at in (0..count).step_by(16) {
        // SAFETY: at + 2 + 16 <= count + 2.
        let load =
            |i: usize| unsafe { _mm256_cvtepu8_epi16(_mm_loadu_si128(row.add(at + i).cast())) };
        let this = load(1);
        let three = _mm256_add_epi16(this, _mm256_add_epi16(this, this));
        let even = _mm256_add_epi16(_mm256_add_epi16(three, load(0)), one);
        let odd = _mm256_add_epi16(_mm256_add_epi16(three, load(2)), two);
        let even = _mm256_srli_epi16::<2>(even);
        let odd = _mm256_slli_epi16::<8>(_mm256_srli_epi16::<2>(odd));
        // SAFETY: 2 * at + 32 <= 2 * count.
        unsafe { _mm256_storeu_si256(out.add(2 * at).cast(), _mm256_or_si256(even, odd)) };
    }
}

/// See [`crate::rows::widen_between`].
///
/// # Safety
/// As for [`widen`], for both rows.
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn widen_between(near: *const u8, far: *const u8, count: usize, out: *mut u8) {
    let (seven, eight) = (_mm256_set1_epi16(7), _mm256_set1_epi16(8));
    for at in (0..count).step_by(16) {
        // SAFETY: at + 2 + 16 <= count + 2.
        let sum = |i: usize| unsafe {
            let near = _mm256_cvtepu8_epi16(_mm_loadu_si128(near.add(at + i).cast()));
            let far = _mm256_cvtepu8_epi16(_mm_loadu_si128(far.add(at + i).cast()));
            _mm256_add_epi16(_mm256_add_epi16(near, far), _mm256_add_epi16(near, near))
        };
        let this = sum(1);
        let three = _mm256_add_epi16(this, _mm256_add_epi16(this, this));
        let even = _mm256_add_epi16(_mm256_add_epi16(three, sum(0)), eight);
        let odd = _mm256_add_epi16(_mm256_add_epi16(three, sum(2)), seven);
        let even = _mm256_srli_epi16::<4>(even);
        let odd = _mm256_slli_epi16::<8>(_mm256_srli_epi16::<4>(odd));
        // SAFETY: 2 * at + 32 <= 2 * count.
        unsafe { _mm256_storeu_si256(out.add(2 * at).cast(), _mm256_or_si256(even, odd)) };
    }
}

/// Red, green and blue of 32 pixels.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn rgb32(y: __m256i, cb: __m256i, cr: __m256i) -> [__m256i; 3] {
    let zero = _mm256_setzero_si256();
    let centre = _mm256_set1_epi16(128);
    let one = _mm256_set1_epi16(1);
    let half = _mm256_set1_epi32(1 << 15);
    // 1.402 = 1 + 26345 / 65536; 1.772 = 2 - 14942 / 65536; 0.71414 = 1 - 18734 / 65536
    let (red, blue) = (_mm256_set1_epi16(26345), _mm256_set1_epi16(-14942));
    let green = _mm256_set1_epi32((-22554 & 0xFFFF) | (18734 << 16));
    let part = |y, cb, cr| {
        let (cb, cr) = (_mm256_sub_epi16(cb, centre), _mm256_sub_epi16(cr, centre));
        let (cb2, cr2) = (_mm256_add_epi16(cb, cb), _mm256_add_epi16(cr, cr));
        let round = |v| _mm256_srai_epi16::<1>(_mm256_add_epi16(v, one));
        let r = round(_mm256_mulhi_epi16(cr2, red));
        let r = _mm256_add_epi16(_mm256_add_epi16(y, cr), r);
        let b = round(_mm256_mulhi_epi16(cb2, blue));
        let b = _mm256_add_epi16(_mm256_add_epi16(y, cb2), b);
        let low = _mm256_madd_epi16(_mm256_unpacklo_epi16(cb, cr), green);
        let high = _mm256_madd_epi16(_mm256_unpackhi_epi16(cb, cr), green);
        let low = _mm256_srai_epi32::<16>(_mm256_add_epi32(low, half));
        let high = _mm256_srai_epi32::<16>(_mm256_add_epi32(high, half));
        let g = _mm256_add_epi16(_mm256_sub_epi16(y, cr), _mm256_packs_epi32(low, high));
        [r, g, b]
    };
    let low = part(
        _mm256_unpacklo_epi8(y, zero),
        _mm256_unpacklo_epi8(cb, zero),
        _mm256_unpacklo_epi8(cr, zero),
    );
    let high = part(
        _mm256_unpackhi_epi8(y, zero),
        _mm256_unpackhi_epi8(cb, zero),
        _mm256_unpackhi_epi8(cr, zero),
    );
    [
        _mm256_packus_epi16(low[0], high[0]),
        _mm256_packus_epi16(low[1], high[1]),
        _mm256_packus_epi16(low[2], high[2]),
    ]
}

/// Shuffle that puts byte i of a channel (0..3) to 3 i + channel, as far as that lies in the `part`th 16 bytes.
const fn spread(channel: usize, part: usize) -> [i8; 32] {
    let mut mask = [-1i8; 32];
    let mut i = 0;
    while i < 16 {
        let to = 3 * i + channel;
        if to / 16 == part {
            mask[to % 16] = i as i8;
            mask[16 + to % 16] = i as i8;
        }
        i += 1;
    }
    mask
}

static SPREAD: [[[i8; 32]; 3]; 3] = [
    [spread(0, 0), spread(1, 0), spread(2, 0)],
    [spread(0, 1), spread(1, 1), spread(2, 1)],
    [spread(0, 2), spread(1, 2), spread(2, 2)],
];

/// See [`crate::rows::ycc_to_rgb`].
///
/// # Safety
/// AVX2 must be there; the inputs must be readable for `count` rounded up to 32, `out` writable for `3 * count`.
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn ycc_to_rgb(
    y: *const u8,
    cb: *const u8,
    cr: *const u8,
    count: usize,
    out: *mut u8,
) {
    for at in (0..count).step_by(32) {
        // SAFETY: `at` is below `count`, to whose next multiple of 32 the inputs are readable; SPREAD's masks
        // are 32 bytes each; and 96 bytes of the output are within bounds, or a copy stands in for them.
        unsafe {
            let load = |from: *const u8| _mm256_loadu_si256(from.add(at).cast());
            let rgb = rgb32(load(y), load(cb), load(cr));
            let mask = |m: &[i8; 32]| _mm256_loadu_si256(m.as_ptr().cast());
            let mix = |part: usize| {
                let m = &SPREAD[part];
                _mm256_or_si256(
                    _mm256_or_si256(
                        _mm256_shuffle_epi8(rgb[0], mask(&m[0])),
                        _mm256_shuffle_epi8(rgb[1], mask(&m[1])),
                    ),
                    _mm256_shuffle_epi8(rgb[2], mask(&m[2])),
                )
            };
            let (a, b, c) = (mix(0), mix(1), mix(2));
            let mut last = [0u8; 96];
            let whole = at + 32 <= count;
            let to = if whole {
                out.add(3 * at)
            } else {
                last.as_mut_ptr()
            };
            _mm256_storeu_si256(to.cast(), _mm256_permute2x128_si256::<0x20>(a, b));
            _mm256_storeu_si256(to.add(32).cast(), _mm256_permute2x128_si256::<0x30>(c, a));
            _mm256_storeu_si256(to.add(64).cast(), _mm256_permute2x128_si256::<0x31>(b, c));
            if !whole {
                std::ptr::copy_nonoverlapping(to, out.add(3 * at), 3 * (count - at));
            }
        }
    }
}
