//! Pictures that are decoded somewhere else, on a GPU: here the geometry is drawn, and the file is handed on as it is.
//!
//! A field of kind [`Kind::Encoded`] becomes a [`RECORD`] and the bytes of a PSI file. The record says, in words that a
//! device can follow without knowing of programs, what `run` would do to the picture: which box to decode, what size to
//! bring it to, which part of that to keep, where it lies in the output, what to mirror. The draws are the same, so the
//! same sample comes out. `python/penstock/psi/encoded.py` mirrors the record.
//!
//! What a device does not know is made plain first, on the CPU: a picture that its EXIF orientation turns, one with a
//! palette in its metadata, one in another format.

use std::borrow::Cow;

use penstock_psi as psi;

use super::ops::{fixed_size, Interpolation, Mode, Op};
use super::plan::{Plan, Step};
use super::run::oriented;
use super::Program;
use crate::dtype::DType;
use crate::error::{malformed, unsupported, Result};
use crate::field::Kind;
use crate::formats::ImageCodec;
use crate::image::{ImageHeader, Rect, Want};
use crate::scratch::{Limits, Scratch};
use crate::Draw;

/// Bytes of the record in front of each file: 32 words of 32 bits, little-endian.
pub const RECORD: usize = 128;
const VERSION: i32 = 1;

impl Program {
    /// What keeps a device from doing to pictures what the program says; None where nothing does.
    pub fn device_obstacle(&self) -> Option<&'static str> {
        let ops = &self.parts.pixel_ops;
        let (mut resamples, mut pads) = (0, 0);
        for (place, (_, op)) in ops.iter().enumerate() {
            match op {
                Op::ColorJitter { .. } => return Some("ColorJitter changes colours"),
                Op::Grayscale { .. } => return Some("Grayscale changes colours"),
                Op::Resize { .. } | Op::RandomResizedCrop { .. } => {
                    if pads > 0 {
                        return Some("a picture is padded before it is resized");
                    }
                    resamples += 1;
                }
                Op::Pad { .. } => pads += 1,
                Op::RandomCrop { padding, .. } => pads += usize::from(*padding != [0; 4]),
                Op::CenterCrop { size: [h, w] } => {
                    let covers = |(have_w, have_h)| have_w >= *w && have_h >= *h;
                    pads += usize::from(!fixed_size(&ops[..place]).is_some_and(covers));
                }
                Op::Orient {} | Op::Flip { .. } | Op::Normalize { .. } | Op::ToDtype { .. } => {}
            }
        }
        match (resamples, pads) {
            (2.., _) => Some("a picture is resized twice"),
            (_, 2..) => Some("a picture is padded twice"),
            _ => None,
        }
    }

    /// The file that goes to the device: the sample's own bytes, or what they were made into.
    pub(super) fn plain_file<'a>(
        &self,
        bytes: &'a [u8],
        scratch: &mut Scratch,
        limits: &Limits,
    ) -> Result<Cow<'a, [u8]>> {
        let header = ImageHeader::read(bytes, limits)?;
        let orientation = self.orientation(Kind::Image, &header);
        let is_plain = header.codec == ImageCodec::Psi
            && orientation == 1
            && usize::from(info(bytes)?.channels) == header.stored.channels;
        if is_plain {
            return Ok(Cow::Borrowed(bytes));
        }
        let want = self.want(Kind::Image);
        let pixel = header.pixel(want)?;
        let (width, height) = self.oriented(Kind::Image, &header);
        let Scratch {
            buffers, codecs, ..
        } = scratch;
        let pixels = buffers.front.take(width * height * pixel.size());
        oriented(
            &header,
            bytes,
            want,
            orientation,
            pixel,
            Rect::whole(width, height),
            pixels,
            &mut buffers.whole,
            &mut buffers.back,
            codecs,
            limits,
        )?;
        let kind = psi::SampleType::from_name(pixel.dtype.name())
            .ok_or_else(|| unsupported(format!("a picture of {}", pixel.dtype.name())))?;
        let image = psi::Image::interleaved(
            pixels,
            width as u32,
            height as u32,
            pixel.channels as u16,
            kind,
        );
        let options = psi::Options {
            level: psi::Level::Fast,
            ..psi::Options::default()
        };
        psi::encode(&image, &options)
            .map(Cow::Owned)
            .map_err(|error| malformed(error.to_string()))
    }

    /// Writes the record of a plain PSI file into `out`, having compared the checksums of what will be decoded.
    pub(super) fn write_record(
        &self,
        file: &[u8],
        draw: &Draw,
        out: &mut [u8],
        scratch: &mut Scratch,
        limits: &Limits,
    ) -> Result<()> {
        let header = ImageHeader::read(file, limits)?;
        let info = info(file)?;
        let (dtype, channels) = (header.stored.dtype, header.stored.channels);
        if self.want(Kind::Image) != Want::Unchanged
            && (channels > 4 || !matches!(dtype, DType::U8 | DType::U16))
        {
            return Err(unsupported(format!(
                "a picture of {channels} channels of {} as {}; mode=\"unchanged\" gives it as it is",
                dtype.name(),
                if self.parts.mode == Mode::Rgb { "rgb" } else { "grey" }
            )));
        }
        let plan = &mut scratch.plan;
        plan.build(
            &self.parts.pixel_ops,
            header.width,
            header.height,
            false,
            draw,
        )?;
        plan.check(limits)?;
        let way = Way::of(plan)?;
        if way.interpolation != 0 && !matches!(dtype, DType::U8 | DType::U16 | DType::F32) {
            return Err(unsupported(format!(
                "an image of {}: uint8, uint16 and float32 are resampled",
                dtype.name()
            )));
        }
        let area = psi::Region {
            x: way.decoded.x as u32,
            y: way.decoded.y as u32,
            z: 0,
            width: way.decoded.w as u32,
            height: way.decoded.h as u32,
            depth: 1,
        };
        psi::device::verify(file, area).map_err(|error| malformed(error.to_string()))?;
        let (out_w, out_h) = plan.size();
        let words = [
            VERSION,
            header.width as i32,
            header.height as i32,
            channels as i32,
            info.sample_type as i32,
            way.decoded.x as i32,
            way.decoded.y as i32,
            way.decoded.w as i32,
            way.decoded.h as i32,
            way.resized.0 as i32,
            way.resized.1 as i32,
            way.interpolation,
            way.window.x as i32,
            way.window.y as i32,
            way.window.w as i32,
            way.window.h as i32,
            way.at.0 as i32,
            way.at.1 as i32,
            out_w as i32,
            out_h as i32,
            i32::from(plan.flip_x),
            i32::from(plan.flip_y),
            (way.fill as f32).to_bits() as i32,
        ];
        out.fill(0);
        for (word, place) in words.iter().zip(out.chunks_exact_mut(4)) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        Ok(())
    }
}

fn info(file: &[u8]) -> Result<psi::Info> {
    psi::info(file).map_err(|error| malformed(error.to_string()))
}

/// A plan as a straight way: decode, resize, keep a window, put it into the output.
struct Way {
    decoded: Rect,
    resized: (usize, usize),
    /// 0 none, 1 nearest, 2 bilinear, 3 bicubic.
    interpolation: i32,
    window: Rect,
    /// Where the window lies in the output, which is `fill` around it.
    at: (usize, usize),
    fill: f64,
}

impl Way {
    fn of(plan: &Plan) -> Result<Way> {
        let mut way = Way {
            decoded: plan.source,
            resized: (plan.source.w, plan.source.h),
            interpolation: 0,
            window: Rect::whole(plan.source.w, plan.source.h),
            at: (0, 0),
            fill: 0.0,
        };
        let mut padded = false;
        for (number, stage) in plan.stages.iter().enumerate() {
            match stage.step {
                Step::Resample(interpolation) if number == 0 => {
                    way.interpolation = match interpolation {
                        Interpolation::Nearest => 1,
                        Interpolation::Bilinear => 2,
                        Interpolation::Bicubic => 3,
                    };
                    way.resized = stage.full;
                    way.window = stage.window;
                }
                Step::Pad {
                    left, top, fill, ..
                } if !padded => {
                    padded = true;
                    way.fill = fill;
                    let kept = stage.window;
                    // Of content at `at` in a canvas of which `kept` from `from` on is cut out: what is cut off at
                    // its begin, what is left, and where that begins.
                    let clip = |at: usize, length: usize, from: usize, kept: usize| {
                        let (begin, end) = (at.max(from), (at + length).min(from + kept));
                        match end.checked_sub(begin) {
                            None | Some(0) => (0, 0, 0),
                            Some(left) => (begin - at, left, begin - from),
                        }
                    };
                    let (cut_x, w, x) = clip(left, way.window.w, kept.x, kept.w);
                    let (cut_y, h, y) = clip(top, way.window.h, kept.y, kept.h);
                    way.at = (x, y);
                    way.window = Rect {
                        x: way.window.x + cut_x,
                        y: way.window.y + cut_y,
                        w,
                        h,
                    };
                    if w == 0 || h == 0 {
                        (way.window.w, way.window.h) = (0, 0);
                    }
                }
                _ => {
                    return Err(unsupported(
                        "a transform that the device cannot follow; this is a bug in penstock",
                    ))
                }
            }
        }
        if way.interpolation == 0 && way.window.w > 0 {
            // Nothing is resized: what is kept is all that needs to be decoded.
            way.decoded = Rect {
                x: way.decoded.x + way.window.x,
                y: way.decoded.y + way.window.y,
                ..way.window
            };
            way.resized = (way.window.w, way.window.h);
            way.window = Rect::whole(way.window.w, way.window.h);
        }
        Ok(way)
    }
}
