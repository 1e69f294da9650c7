//! The store of 8-bit pixels as planes of floats, with AVX2: deinterleave, mirror, widen, scale, cast, write.
//!
//! Products and sums are rounded one after the other, as in the plain path, so that both give the same bits.

use super::ops::Layout;
use super::store::{Affine, Frame};
use crate::dtype::DType;

/// Does the whole store if this machine and this combination allow; false if the plain path must.
pub(crate) fn store(
    frame: &Frame,
    to: DType,
    affine: &Affine,
    source: &[u8],
    out: &mut [u8],
) -> bool {
    let planes = frame.layout == Layout::Nchw || frame.pixel.channels == 1;
    if !planes || frame.width < BLOCK || !matches!(frame.pixel.channels, 1 | 3) {
        return false;
    }
    let Some(pixels) = frame
        .width
        .checked_mul(frame.height)
        .and_then(|n| n.checked_mul(frame.pixel.channels))
    else {
        return false;
    };
    // The bounds that the vector code relies on.
    assert!(source.len() >= pixels && out.len() / to.size() >= pixels);
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("f16c") {
        // SAFETY: AVX2 and F16C are there; the lengths were checked above.
        return unsafe { avx2::store(frame, to, affine, source, out) };
    }
    false
}

/// Pixels a step.
const BLOCK: usize = 16;

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::*;

    /// Shuffle masks that take channel `c` of 16 interleaved RGB pixels out of three vectors, in order or
    /// mirrored: `MASKS[mirrored][channel][vector]`.
    const MASKS: [[[[u8; 16]; 3]; 3]; 2] = masks();

    const fn masks() -> [[[[u8; 16]; 3]; 3]; 2] {
        let mut masks = [[[[0x80; 16]; 3]; 3]; 2];
        let mut mirrored = 0;
        while mirrored < 2 {
            let mut channel = 0;
            while channel < 3 {
                let mut lane = 0;
                while lane < 16 {
                    let pixel = if mirrored == 1 { 15 - lane } else { lane };
                    let byte = 3 * pixel + channel;
                    masks[mirrored][channel][byte / 16][lane] = (byte % 16) as u8;
                    lane += 1;
                }
                channel += 1;
            }
            mirrored += 1;
        }
        masks
    }

    /// SAFETY: needs AVX2 and F16C, `frame.width` of at least 16, `source` and `out` of the frame's size.
    #[target_feature(enable = "avx2,f16c")]
    pub unsafe fn store(
        frame: &Frame,
        to: DType,
        affine: &Affine,
        source: &[u8],
        out: &mut [u8],
    ) -> bool {
        let (source, out) = (source.as_ptr(), out.as_mut_ptr());
        // SAFETY: as promised by the caller; what the closures get has room for 16 elements.
        unsafe {
            match (frame.pixel.channels, to) {
                (3, DType::F32) => planes::<3, 4>(frame, affine, source, out, |a, b, at| {
                    _mm256_storeu_ps(at.cast(), a);
                    _mm256_storeu_ps(at.cast::<f32>().add(8), b);
                }),
                (1, DType::F32) => planes::<1, 4>(frame, affine, source, out, |a, b, at| {
                    _mm256_storeu_ps(at.cast(), a);
                    _mm256_storeu_ps(at.cast::<f32>().add(8), b);
                }),
                (3, DType::F16) => planes::<3, 2>(frame, affine, source, out, |a, b, at| {
                    _mm256_storeu_si256(at.cast(), halves(a, b));
                }),
                (1, DType::F16) => planes::<1, 2>(frame, affine, source, out, |a, b, at| {
                    _mm256_storeu_si256(at.cast(), halves(a, b));
                }),
                (3, DType::BF16) => planes::<3, 2>(frame, affine, source, out, |a, b, at| {
                    _mm256_storeu_si256(at.cast(), brain_halves(a, b));
                }),
                (1, DType::BF16) => planes::<1, 2>(frame, affine, source, out, |a, b, at| {
                    _mm256_storeu_si256(at.cast(), brain_halves(a, b));
                }),
                _ => return false,
            }
        }
        true
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn halves(a: __m256, b: __m256) -> __m256i {
        _mm256_set_m128i(
            _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(b),
            _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(a),
        )
    }

    /// The upper halves, rounded to even.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn brain_halves(a: __m256, b: __m256) -> __m256i {
        #[inline(always)]
        unsafe fn round(value: __m256) -> __m256i {
            // SAFETY: inlined into a function with AVX2.
            unsafe {
                let bits = _mm256_castps_si256(value);
                let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
                let up = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
                _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, up))
            }
        }
        // SAFETY: AVX2 is enabled here.
        unsafe {
            _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(round(a), round(b)))
        }
    }

    /// SAFETY: as `store`; `write` may write 16 elements of `SIZE` bytes.
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn planes<const CHANNELS: usize, const SIZE: usize>(
        frame: &Frame,
        affine: &Affine,
        source: *const u8,
        out: *mut u8,
        write: impl Fn(__m256, __m256, *mut u8),
    ) {
        let (width, height) = (frame.width, frame.height);
        // SAFETY: of the whole body: the last block of a row is moved back so that it ends with the row, hence blocks
        // read 16 pixels inside their row and write 16 elements inside the row of their plane.
        unsafe {
            let mut shuffles = [[_mm_setzero_si128(); 3]; 3];
            for channel in 0..3 {
                for vector in 0..3 {
                    let mask = &MASKS[usize::from(frame.flip_x)][channel][vector];
                    shuffles[channel][vector] = _mm_loadu_si128(mask.as_ptr().cast());
                }
            }
            let mirror = _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            for y in 0..height {
                let line = if frame.flip_y { height - 1 - y } else { y };
                let row = source.add(line * width * CHANNELS);
                let mut x = 0;
                loop {
                    let begin = x.min(width - BLOCK);
                    let place = if frame.flip_x {
                        width - BLOCK - begin
                    } else {
                        begin
                    };
                    let at = row.add(begin * CHANNELS);
                    let first = _mm_loadu_si128(at.cast());
                    let (second, third) = if CHANNELS == 3 {
                        (
                            _mm_loadu_si128(at.add(16).cast()),
                            _mm_loadu_si128(at.add(32).cast()),
                        )
                    } else {
                        (first, first)
                    };
                    for (channel, shuffle) in shuffles.iter().enumerate().take(CHANNELS) {
                        let bytes = if CHANNELS == 3 {
                            _mm_or_si128(
                                _mm_or_si128(
                                    _mm_shuffle_epi8(first, shuffle[0]),
                                    _mm_shuffle_epi8(second, shuffle[1]),
                                ),
                                _mm_shuffle_epi8(third, shuffle[2]),
                            )
                        } else if frame.flip_x {
                            _mm_shuffle_epi8(first, mirror)
                        } else {
                            first
                        };
                        let factor = _mm256_set1_ps(affine.factor[channel]);
                        let offset = _mm256_set1_ps(affine.offset[channel]);
                        let low = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
                        let high =
                            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128::<8>(bytes)));
                        write(
                            _mm256_add_ps(_mm256_mul_ps(low, factor), offset),
                            _mm256_add_ps(_mm256_mul_ps(high, factor), offset),
                            out.add(((channel * height + y) * width + place) * SIZE),
                        );
                    }
                    x += BLOCK;
                    if x >= width {
                        break;
                    }
                }
            }
        }
    }
}
