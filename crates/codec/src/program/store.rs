//! The last pass: from pixels to the slot, with flips, layout, scaling, normalisation and cast at once.

use half::{bf16, f16};

use super::cast::{cast, Element};
use super::ops::{Finish, Layout};
use super::simd;
use crate::dtype::DType;
use crate::error::{mismatch, Result};
use crate::image::Pixel;

/// How the pixels lie and how they are to lie.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame {
    pub width: usize,
    pub height: usize,
    pub pixel: Pixel,
    pub flip_x: bool,
    pub flip_y: bool,
    pub layout: Layout,
}

/// Most channels whose factors are kept on the stack.
const MAX_CHANNELS: usize = 64;

/// value × `factor` + `offset`, per channel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Affine {
    pub factor: [f32; MAX_CHANNELS],
    pub offset: [f32; MAX_CHANNELS],
}

impl Finish {
    /// The type that images of this element type come out with.
    pub fn output(&self, from: DType) -> DType {
        self.dtype.unwrap_or(from)
    }

    /// Whether values are left as they are, but for a cast.
    pub fn is_cast(&self, from: DType) -> bool {
        let scales = self.scale && from.unit() != self.output(from).unit();
        self.normalize.is_none() && !scales
    }

    /// The factors for pixels of `from`, whose values stand in units of `unit`.
    pub fn affine(&self, from: DType, channels: usize) -> Result<Affine> {
        if channels > MAX_CHANNELS {
            return Err(mismatch(format!(
                "an image of {channels} channels; {MAX_CHANNELS} can be scaled or normalised"
            )));
        }
        let to = self.output(from);
        let scale = if self.scale {
            to.unit() / from.unit()
        } else {
            1.0
        };
        let mut affine = Affine {
            factor: [scale as f32; MAX_CHANNELS],
            offset: [0.0; MAX_CHANNELS],
        };
        if let Some(normalize) = &self.normalize {
            let given = normalize.mean.len();
            if given != 1 && given != channels {
                return Err(mismatch(format!(
                    "an image of {channels} channels and a Normalize of {given}"
                )));
            }
            for channel in 0..channels {
                let (mean, std) = (
                    normalize.mean[channel % given],
                    normalize.std[channel % given],
                );
                affine.factor[channel] = (scale / std) as f32;
                affine.offset[channel] = (-mean / std) as f32;
            }
        }
        Ok(affine)
    }
}

/// Moves elements of any type without changing them.
pub(crate) fn store_plain(frame: &Frame, source: &[u8], out: &mut [u8]) {
    match frame.pixel.dtype.size() {
        1 => store::<[u8; 1], [u8; 1]>(frame, source, out, |value, _| value),
        2 => store::<[u8; 2], [u8; 2]>(frame, source, out, |value, _| value),
        4 => store::<[u8; 4], [u8; 4]>(frame, source, out, |value, _| value),
        _ => store::<[u8; 8], [u8; 8]>(frame, source, out, |value, _| value),
    }
}

/// Casts without scaling, then moves. `between` has room for the cast elements.
pub(crate) fn store_cast(
    frame: &Frame,
    to: DType,
    source: &[u8],
    between: &mut [u8],
    out: &mut [u8],
) {
    cast(source, frame.pixel.dtype, between, to);
    let pixel = Pixel {
        dtype: to,
        ..frame.pixel
    };
    store_plain(&Frame { pixel, ..*frame }, between, out);
}

/// Scales and normalises uint8, uint16 or float32 pixels into any type.
pub(crate) fn store_affine(
    frame: &Frame,
    to: DType,
    affine: &Affine,
    source: &[u8],
    out: &mut [u8],
) {
    if frame.pixel.dtype == DType::U8 && simd::store(frame, to, affine, source, out) {
        return;
    }
    match frame.pixel.dtype {
        DType::U16 => to_any(frame, to, affine, source, out, |value: u16| {
            f32::from(value)
        }),
        DType::F32 => to_any(frame, to, affine, source, out, |value: f32| value),
        _ => to_any(frame, to, affine, source, out, |value: u8| f32::from(value)),
    }
}

fn to_any<A: Element>(
    frame: &Frame,
    to: DType,
    affine: &Affine,
    source: &[u8],
    out: &mut [u8],
    read: impl Fn(A) -> f32 + Copy,
) {
    let map = move |value: A, channel: usize| {
        read(value).mul_add_fast(affine.factor[channel], affine.offset[channel])
    };
    macro_rules! rounded {
        ($type:ty) => {
            store::<A, $type>(frame, source, out, move |value, channel| {
                map(value, channel).round() as $type
            })
        };
    }
    match to {
        DType::F32 => store::<A, f32>(frame, source, out, map),
        DType::F16 => store::<A, f16>(frame, source, out, move |value, channel| {
            f16::from_f32(map(value, channel))
        }),
        DType::BF16 => store::<A, bf16>(frame, source, out, move |value, channel| {
            bf16::from_f32(map(value, channel))
        }),
        DType::F64 => store::<A, f64>(frame, source, out, move |value, channel| {
            f64::from(map(value, channel))
        }),
        DType::Bool => store::<A, u8>(frame, source, out, move |value, channel| {
            u8::from(map(value, channel) != 0.0)
        }),
        DType::U8 => rounded!(u8),
        DType::I8 => rounded!(i8),
        DType::U16 => rounded!(u16),
        DType::I16 => rounded!(i16),
        DType::U32 => rounded!(u32),
        DType::I32 => rounded!(i32),
        DType::U64 => rounded!(u64),
        DType::I64 => rounded!(i64),
    }
}

trait MulAdd {
    /// Fused where that is one instruction and two roundings elsewhere would be as good; here always two, so that the
    /// plain path needs no library call.
    fn mul_add_fast(self, factor: f32, offset: f32) -> f32;
}

impl MulAdd for f32 {
    #[inline(always)]
    fn mul_add_fast(self, factor: f32, offset: f32) -> f32 {
        self * factor + offset
    }
}

/// Walks the pixels in the order of the source's rows and writes each element to its place.
fn store<A: Element, B: Element>(
    frame: &Frame,
    source: &[u8],
    out: &mut [u8],
    map: impl Fn(A, usize) -> B,
) {
    let Frame {
        width,
        height,
        pixel,
        ..
    } = *frame;
    let channels = pixel.channels;
    let row_bytes = width * channels * A::SIZE;
    for y in 0..height {
        let from = if frame.flip_y { height - 1 - y } else { y };
        let row = &source[from * row_bytes..][..row_bytes];
        match frame.layout {
            Layout::Nhwc => {
                let out = &mut out[y * width * channels * B::SIZE..][..width * channels * B::SIZE];
                for (x, place) in out.chunks_exact_mut(channels * B::SIZE).enumerate() {
                    let at = if frame.flip_x { width - 1 - x } else { x } * channels * A::SIZE;
                    for (channel, element) in place.chunks_exact_mut(B::SIZE).enumerate() {
                        map(A::read(&row[at + channel * A::SIZE..][..A::SIZE]), channel)
                            .write(element);
                    }
                }
            }
            Layout::Nchw => {
                for channel in 0..channels {
                    let out =
                        &mut out[(channel * height + y) * width * B::SIZE..][..width * B::SIZE];
                    let values = row
                        .chunks_exact(channels * A::SIZE)
                        .map(|pixel| map(A::read(&pixel[channel * A::SIZE..][..A::SIZE]), channel));
                    if frame.flip_x {
                        out.chunks_exact_mut(B::SIZE)
                            .rev()
                            .zip(values)
                            .for_each(|(place, value)| value.write(place));
                    } else {
                        out.chunks_exact_mut(B::SIZE)
                            .zip(values)
                            .for_each(|(place, value)| value.write(place));
                    }
                }
            }
        }
    }
}

impl<const N: usize> Element for [u8; N] {
    const SIZE: usize = N;
    #[inline(always)]
    fn read(bytes: &[u8]) -> Self {
        let mut raw = [0; N];
        raw.copy_from_slice(bytes);
        raw
    }
    #[inline(always)]
    fn write(self, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self);
    }
}
