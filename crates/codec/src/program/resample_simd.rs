//! The two passes over 8-bit pixels with AVX2.
//!
//! Horizontally, 16 rows at a time are turned on their side, so that a tap is one load of 16 rows' values and one
//! product; the results are turned back into planes. Vertically, a tap is a load of 16 neighbours. The sums are
//! those of the plain path, bit for bit.

use super::resample::{Taps, Value};

/// Sixteen rows on their side, and what is made of them, at 7 fractional bits.
#[derive(Default)]
pub(super) struct Turned {
    columns: Vec<i16>,
    made: Vec<i16>,
}

/// What the horizontal pass goes over: `rows` of `inputs` pixels, to planes of `width`.
pub(super) struct Shape {
    pub inputs: usize,
    pub channels: usize,
    pub width: usize,
    pub rows: usize,
}

/// What rows can be turned from.
pub(super) trait Turn: Value {
    /// SAFETY: needs AVX2, `stride` of at least 32, `rows` rows in `source`, 16 values for each of `stride` in `columns`.
    #[cfg(target_arch = "x86_64")]
    unsafe fn turn(source: &[Self], stride: usize, block: usize, rows: usize, columns: &mut [i16]);
}

#[cfg(target_arch = "x86_64")]
impl Turn for u8 {
    unsafe fn turn(source: &[u8], stride: usize, block: usize, rows: usize, columns: &mut [i16]) {
        // SAFETY: as promised by the caller.
        unsafe { avx2::turn_bytes(source, stride, block, rows, columns) }
    }
}

#[cfg(target_arch = "x86_64")]
impl Turn for i16 {
    unsafe fn turn(source: &[i16], stride: usize, block: usize, rows: usize, columns: &mut [i16]) {
        // SAFETY: as promised by the caller.
        unsafe { avx2::turn_values(source, stride, block, rows, columns) }
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl<V: Value> Turn for V {}

/// Rows a block.
const ROWS: usize = 16;
/// The narrowest row and result, in bytes and pixels, that the tiles fit.
const NARROWEST: usize = 32;

/// Whether the vector code may be used at all.
fn available() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::is_x86_feature_detected!("avx2");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// The horizontal pass; false if the plain path must.
pub(super) fn across<V: Turn>(
    source: &[V],
    shape: &Shape,
    taps: &Taps,
    planes: &mut [i16],
    turned: &mut Turned,
) -> bool {
    let &Shape {
        inputs,
        channels,
        width,
        rows,
    } = shape;
    let stride = inputs * channels;
    if !available() || stride < NARROWEST || width < NARROWEST {
        return false;
    }
    // The bounds that the vector code relies on.
    assert!(
        source.len() >= rows * stride
            && planes.len() >= channels * rows * width
            && taps.spans.len() == width
    );
    assert!(taps
        .fixed()
        .all(|(first, weights)| first + weights.len() <= inputs));
    turned.columns.resize(stride * ROWS, 0);
    turned.made.resize(width * channels * ROWS, 0);
    #[cfg(target_arch = "x86_64")]
    for block in (0..rows).step_by(ROWS) {
        // SAFETY: AVX2 is there, and the lengths were checked.
        unsafe {
            V::turn(source, stride, block, rows, &mut turned.columns);
            avx2::filter(&turned.columns, channels, taps, &mut turned.made);
            avx2::turn_back(&turned.made, channels, width, block, rows, planes);
        }
    }
    true
}

/// The vertical pass: the weighted sum of the rows that follow each other in `source`; false if the plain path must.
pub(super) fn down(source: &[i16], weights: &[i16], out: &mut [u8]) -> bool {
    if !available() || out.len() < NARROWEST {
        return false;
    }
    assert!(source.len() >= weights.len() * out.len());
    #[cfg(target_arch = "x86_64")]
    // SAFETY: AVX2 is there, and the length was checked.
    unsafe {
        avx2::down(source, weights, out);
    }
    true
}

/// The vertical pass where it is the first one; false if the plain path must.
pub(super) fn lower(source: &[u8], weights: &[i16], out: &mut [i16]) -> bool {
    if !available() || out.len() < NARROWEST {
        return false;
    }
    assert!(source.len() >= weights.len() * out.len());
    #[cfg(target_arch = "x86_64")]
    // SAFETY: AVX2 is there, and the length was checked.
    unsafe {
        avx2::lower(source, weights, out);
    }
    true
}

/// Three planes to RGB pixels; false if the plain path must.
pub(super) fn interleave(red: &[u8], green: &[u8], blue: &[u8], out: &mut [u8]) -> bool {
    let width = red.len();
    if !available() || width < ROWS {
        return false;
    }
    assert!(green.len() == width && blue.len() == width && out.len() >= 3 * width);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: AVX2 is there, and the lengths were checked.
    unsafe {
        avx2::interleave(red, green, blue, out);
    }
    true
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::{Taps, ROWS};
    use crate::program::resample::WHITE;

    /// Transposes two tiles of 16×16 bytes, one in each half of the registers. A round rotates the address (row,
    /// column) of every byte by one bit; after four, rows and columns have changed places.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn transpose(mut tile: [__m256i; 16]) -> [__m256i; 16] {
        for _ in 0..4 {
            let mut next = tile;
            for at in 0..8 {
                next[2 * at] = _mm256_unpacklo_epi8(tile[at], tile[at + 8]);
                next[2 * at + 1] = _mm256_unpackhi_epi8(tile[at], tile[at + 8]);
            }
            tile = next;
        }
        tile
    }

    /// SAFETY: needs AVX2, `stride` of at least 32, `rows` rows in `source`, 16 columns of `stride` in `columns`.
    #[target_feature(enable = "avx2")]
    pub unsafe fn turn_bytes(
        source: &[u8],
        stride: usize,
        block: usize,
        rows: usize,
        columns: &mut [i16],
    ) {
        let mut begin = 0;
        // SAFETY: the last tile is moved back to end with the row; rows beyond the last repeat it.
        unsafe {
            loop {
                let at = begin.min(stride - 32);
                let mut tile = [_mm256_setzero_si256(); 16];
                for (row, part) in tile.iter_mut().enumerate() {
                    let line = (block + row).min(rows - 1);
                    *part = _mm256_loadu_si256(source.as_ptr().add(line * stride + at).cast());
                }
                let tile = transpose(tile);
                for (column, part) in tile.into_iter().enumerate() {
                    let low = _mm256_cvtepu8_epi16(_mm256_castsi256_si128(part));
                    let high = _mm256_cvtepu8_epi16(_mm256_extracti128_si256::<1>(part));
                    let place = columns.as_mut_ptr().add((at + column) * ROWS);
                    _mm256_storeu_si256(place.cast(), _mm256_slli_epi16::<7>(low));
                    _mm256_storeu_si256(place.add(16 * ROWS).cast(), _mm256_slli_epi16::<7>(high));
                }
                begin += 32;
                if begin >= stride {
                    break;
                }
            }
        }
    }

    /// SAFETY: needs AVX2; the taps lie inside `columns`, and `made` has 16 values for each of their channels.
    #[target_feature(enable = "avx2")]
    pub unsafe fn filter(columns: &[i16], channels: usize, taps: &Taps, made: &mut [i16]) {
        // SAFETY: as promised by the caller.
        unsafe {
            match channels {
                3 => filter_channels::<3>(columns, 3, 0, taps, made),
                1 => filter_channels::<1>(columns, 1, 0, taps, made),
                _ => {
                    for channel in 0..channels {
                        filter_channels::<1>(columns, channels, channel, taps, made);
                    }
                }
            }
        }
    }

    /// `N` channels from `first` on, of pixels of `channels`.
    ///
    /// SAFETY: as `filter`.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn filter_channels<const N: usize>(
        columns: &[i16],
        channels: usize,
        first: usize,
        taps: &Taps,
        made: &mut [i16],
    ) {
        // SAFETY: as promised by the caller.
        unsafe {
            for (x, (begin, weights)) in taps.fixed().enumerate() {
                let mut sums = [_mm256_setzero_si256(); N];
                let mut at = columns.as_ptr().add((begin * channels + first) * ROWS);
                for &weight in weights {
                    let weight = _mm256_set1_epi16(weight);
                    for (channel, sum) in sums.iter_mut().enumerate() {
                        let values = _mm256_loadu_si256(at.add(channel * ROWS).cast());
                        *sum = _mm256_add_epi16(*sum, _mm256_mulhrs_epi16(values, weight));
                    }
                    at = at.add(channels * ROWS);
                }
                let place = made.as_mut_ptr().add((x * channels + first) * ROWS);
                for (channel, sum) in sums.into_iter().enumerate() {
                    _mm256_storeu_si256(place.add(channel * ROWS).cast(), keep(sum));
                }
            }
        }
    }

    /// From 6 fractional bits to 7, clipped.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn keep(sum: __m256i) -> __m256i {
        let sum = _mm256_max_epi16(sum, _mm256_setzero_si256());
        _mm256_slli_epi16::<1>(_mm256_min_epi16(sum, _mm256_set1_epi16(WHITE)))
    }

    /// Transposes two tiles of 8×8 values, one in each half of the registers: see [`transpose`].
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn transpose_values(mut tile: [__m256i; 8]) -> [__m256i; 8] {
        for _ in 0..3 {
            let mut next = tile;
            for at in 0..4 {
                next[2 * at] = _mm256_unpacklo_epi16(tile[at], tile[at + 4]);
                next[2 * at + 1] = _mm256_unpackhi_epi16(tile[at], tile[at + 4]);
            }
            tile = next;
        }
        tile
    }

    /// SAFETY: as `turn_bytes`.
    #[target_feature(enable = "avx2")]
    pub unsafe fn turn_values(
        source: &[i16],
        stride: usize,
        block: usize,
        rows: usize,
        columns: &mut [i16],
    ) {
        let mut begin = 0;
        // SAFETY: the last tile is moved back to end with the row; rows beyond the last repeat it.
        unsafe {
            loop {
                let at = begin.min(stride - 8);
                let line = |row: usize| {
                    let line = (block + row).min(rows - 1);
                    _mm_loadu_si128(source.as_ptr().add(line * stride + at).cast())
                };
                let mut tile = [_mm256_setzero_si256(); 8];
                for (row, part) in tile.iter_mut().enumerate() {
                    *part = _mm256_set_m128i(line(row + 8), line(row));
                }
                for (column, part) in transpose_values(tile).into_iter().enumerate() {
                    let place = columns.as_mut_ptr().add((at + column) * ROWS);
                    _mm256_storeu_si256(place.cast(), part);
                }
                begin += 8;
                if begin >= stride {
                    break;
                }
            }
        }
    }

    /// SAFETY: needs AVX2, `width` of at least 32, `made` of `width` × `channels` × 16, and planes of `rows` rows.
    #[target_feature(enable = "avx2")]
    pub unsafe fn turn_back(
        made: &[i16],
        channels: usize,
        width: usize,
        block: usize,
        rows: usize,
        planes: &mut [i16],
    ) {
        let count = ROWS.min(rows - block);
        // SAFETY: the last tile is moved back to end with the row; only rows that are there are written.
        unsafe {
            for channel in 0..channels {
                let mut begin = 0;
                loop {
                    let x = begin.min(width - 16);
                    for first in [0, 8] {
                        let line = |column: usize| {
                            let at = ((x + column) * channels + channel) * ROWS + first;
                            _mm_loadu_si128(made.as_ptr().add(at).cast())
                        };
                        let mut tile = [_mm256_setzero_si256(); 8];
                        for (column, part) in tile.iter_mut().enumerate() {
                            *part = _mm256_set_m128i(line(column + 8), line(column));
                        }
                        let there = count.saturating_sub(first);
                        for (row, part) in
                            transpose_values(tile).into_iter().enumerate().take(there)
                        {
                            let row = channel * rows + block + first + row;
                            _mm256_storeu_si256(
                                planes.as_mut_ptr().add(row * width + x).cast(),
                                part,
                            );
                        }
                    }
                    begin += 16;
                    if begin >= width {
                        break;
                    }
                }
            }
        }
    }

    /// SAFETY: needs AVX2, `out` of at least 32, and as many rows of its length in `source` as there are weights.
    #[target_feature(enable = "avx2")]
    pub unsafe fn down(source: &[i16], weights: &[i16], out: &mut [u8]) {
        let width = out.len();
        let mut begin = 0;
        // SAFETY: the last step is moved back to end with the row.
        unsafe {
            loop {
                let x = begin.min(width - 32);
                let mut low = _mm256_set1_epi16(32);
                let mut high = low;
                let mut at = source.as_ptr().add(x);
                for &weight in weights {
                    let weight = _mm256_set1_epi16(weight);
                    let first = _mm256_loadu_si256(at.cast());
                    let second = _mm256_loadu_si256(at.add(16).cast());
                    low = _mm256_add_epi16(low, _mm256_mulhrs_epi16(first, weight));
                    high = _mm256_add_epi16(high, _mm256_mulhrs_epi16(second, weight));
                    at = at.add(width);
                }
                let packed =
                    _mm256_packus_epi16(_mm256_srai_epi16::<6>(low), _mm256_srai_epi16::<6>(high));
                let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(packed);
                _mm256_storeu_si256(out.as_mut_ptr().add(x).cast(), packed);
                begin += 32;
                if begin >= width {
                    break;
                }
            }
        }
    }

    /// SAFETY: as `down`.
    #[target_feature(enable = "avx2")]
    pub unsafe fn lower(source: &[u8], weights: &[i16], out: &mut [i16]) {
        let width = out.len();
        let mut begin = 0;
        // SAFETY: the last step is moved back to end with the row.
        unsafe {
            loop {
                let x = begin.min(width - 16);
                let mut sum = _mm256_setzero_si256();
                let mut at = source.as_ptr().add(x);
                for &weight in weights {
                    let values = _mm256_cvtepu8_epi16(_mm_loadu_si128(at.cast()));
                    let values = _mm256_slli_epi16::<7>(values);
                    sum = _mm256_add_epi16(
                        sum,
                        _mm256_mulhrs_epi16(values, _mm256_set1_epi16(weight)),
                    );
                    at = at.add(width);
                }
                _mm256_storeu_si256(out.as_mut_ptr().add(x).cast(), keep(sum));
                begin += 16;
                if begin >= width {
                    break;
                }
            }
        }
    }

    /// Where byte `lane` of part `part` of 16 interleaved pixels comes from in plane `channel`.
    const fn masks() -> [[[u8; 16]; 3]; 3] {
        let mut masks = [[[0x80; 16]; 3]; 3];
        let mut byte = 0;
        while byte < 48 {
            masks[byte / 16][byte % 3][byte % 16] = (byte / 3) as u8;
            byte += 1;
        }
        masks
    }

    const MASKS: [[[u8; 16]; 3]; 3] = masks();

    /// SAFETY: needs AVX2, planes of the same length of at least 16, and three times that in `out`.
    #[target_feature(enable = "avx2")]
    pub unsafe fn interleave(red: &[u8], green: &[u8], blue: &[u8], out: &mut [u8]) {
        let width = red.len();
        let mut begin = 0;
        // SAFETY: the last step is moved back to end with the row.
        unsafe {
            loop {
                let x = begin.min(width - 16);
                let planes =
                    [red, green, blue].map(|plane| _mm_loadu_si128(plane.as_ptr().add(x).cast()));
                for (part, masks) in MASKS.iter().enumerate() {
                    let take = |channel: usize| {
                        _mm_shuffle_epi8(
                            planes[channel],
                            _mm_loadu_si128(masks[channel].as_ptr().cast()),
                        )
                    };
                    let bytes = _mm_or_si128(_mm_or_si128(take(0), take(1)), take(2));
                    _mm_storeu_si128(out.as_mut_ptr().add(3 * x + 16 * part).cast(), bytes);
                }
                begin += 16;
                if begin >= width {
                    break;
                }
            }
        }
    }
}
