//! Antialiased resampling as Pillow does it: a filter that widens with the reduction, horizontally first.
//! 8-bit pixels go through `fast_image_resize`; 16-bit and float pixels, which are rare, through plain loops.

use fast_image_resize::images::{Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer as FastResizer};

use super::ops::Interpolation;
use super::plan::Stage;
use crate::dtype::DType;
use crate::error::{unsupported, Result};
use crate::image::Pixel;

/// How far a filter reaches from the centre, in pixels of the larger grid.
pub(crate) fn support(interpolation: Interpolation) -> f64 {
    match interpolation {
        Interpolation::Nearest => 0.5,
        Interpolation::Bilinear => 1.0,
        Interpolation::Bicubic => 2.0,
    }
}

fn weight(interpolation: Interpolation, x: f64) -> f64 {
    let x = x.abs();
    match interpolation {
        Interpolation::Nearest => f64::from(u8::from(x <= 0.5)),
        Interpolation::Bilinear => (1.0 - x).max(0.0),
        Interpolation::Bicubic => {
            // Keys' cubic with a = −0.5.
            const A: f64 = -0.5;
            if x < 1.0 {
                ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
            } else if x < 2.0 {
                (((x - 5.0) * x + 8.0) * x - 4.0) * A
            } else {
                0.0
            }
        }
    }
}

#[derive(Default)]
pub(crate) struct Resampler {
    fast: FastResizer,
    across: Taps,
    down: Taps,
    between: Vec<f32>,
}

/// The source pixels and weights of each pixel along one axis.
#[derive(Default)]
struct Taps {
    begins: Vec<(usize, usize)>,
    weights: Vec<f32>,
}

/// One axis of a stage: where on the input the output's window lies.
struct Line {
    /// In pixels of the narrowed input.
    begin: f64,
    scale: f64,
    outputs: usize,
    inputs: usize,
}

impl Line {
    fn of(
        input: usize,
        full: usize,
        window: usize,
        outputs: usize,
        origin: usize,
        inputs: usize,
    ) -> Line {
        let scale = input as f64 / full as f64;
        Line {
            begin: window as f64 * scale - origin as f64,
            scale,
            outputs,
            inputs,
        }
    }
}

impl Taps {
    fn fill(&mut self, line: &Line, interpolation: Interpolation) {
        self.begins.clear();
        self.weights.clear();
        let widen = line.scale.max(1.0);
        let reach = support(interpolation) * widen;
        for place in 0..line.outputs {
            let centre = line.begin + (place as f64 + 0.5) * line.scale;
            let first = ((centre - reach).floor().max(0.0) as usize).min(line.inputs - 1);
            let last = ((centre + reach).ceil() as usize).clamp(first + 1, line.inputs);
            let from = self.weights.len();
            self.begins.push((first, last - first));
            self.weights.extend(
                (first..last)
                    .map(|at| weight(interpolation, (at as f64 + 0.5 - centre) / widen) as f32),
            );
            let sum: f32 = self.weights[from..].iter().sum();
            if sum != 0.0 {
                self.weights[from..]
                    .iter_mut()
                    .for_each(|weight| *weight /= sum);
            }
        }
    }

    fn iter(&self) -> impl Iterator<Item = (usize, &[f32])> {
        let mut at = 0;
        self.begins.iter().map(move |&(first, count)| {
            let weights = &self.weights[at..at + count];
            at += count;
            (first, weights)
        })
    }
}

impl Resampler {
    /// Runs a resampling stage from `source` (`size` pixels, beginning at the stage's origin) into `out`.
    pub fn run(
        &mut self,
        stage: &Stage,
        interpolation: Interpolation,
        pixel: Pixel,
        alpha: bool,
        source: &[u8],
        size: (usize, usize),
        out: &mut [u8],
    ) -> Result<()> {
        let across = Line::of(
            stage.input.0,
            stage.full.0,
            stage.window.x,
            stage.window.w,
            stage.origin.0,
            size.0,
        );
        let down = Line::of(
            stage.input.1,
            stage.full.1,
            stage.window.y,
            stage.window.h,
            stage.origin.1,
            size.1,
        );
        if interpolation == Interpolation::Nearest {
            nearest(stage, pixel.size(), source, size, out);
            return Ok(());
        }
        match pixel.dtype {
            DType::U8 if pixel.channels <= 4 => self.bytes(
                &across,
                &down,
                interpolation,
                pixel.channels,
                alpha,
                source,
                out,
            ),
            DType::U8 => {
                self.plain(
                    &across,
                    &down,
                    interpolation,
                    pixel.channels,
                    |at| f32::from(source[at]),
                    |at, value| {
                        out[at] = value.round().clamp(0.0, 255.0) as u8;
                    },
                );
                Ok(())
            }
            DType::U16 => {
                let read =
                    |at: usize| f32::from(u16::from_le_bytes([source[2 * at], source[2 * at + 1]]));
                self.plain(
                    &across,
                    &down,
                    interpolation,
                    pixel.channels,
                    read,
                    |at, value| {
                        let value = value.round().clamp(0.0, 65_535.0) as u16;
                        out[2 * at..2 * at + 2].copy_from_slice(&value.to_le_bytes());
                    },
                );
                Ok(())
            }
            DType::F32 => {
                let read = |at: usize| {
                    f32::from_le_bytes([
                        source[4 * at],
                        source[4 * at + 1],
                        source[4 * at + 2],
                        source[4 * at + 3],
                    ])
                };
                self.plain(
                    &across,
                    &down,
                    interpolation,
                    pixel.channels,
                    read,
                    |at, value| {
                        out[4 * at..4 * at + 4].copy_from_slice(&value.to_le_bytes());
                    },
                );
                Ok(())
            }
            other => Err(unsupported(format!(
                "resampling of {} pixels",
                other.name()
            ))),
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn bytes(
        &mut self,
        across: &Line,
        down: &Line,
        interpolation: Interpolation,
        channels: usize,
        alpha: bool,
        source: &[u8],
        out: &mut [u8],
    ) -> Result<()> {
        let kind = [
            PixelType::U8,
            PixelType::U8x2,
            PixelType::U8x3,
            PixelType::U8x4,
        ][channels - 1];
        let filter = match interpolation {
            Interpolation::Bicubic => FilterType::CatmullRom,
            _ => FilterType::Bilinear,
        };
        let inside = |line: &Line| {
            let begin = line.begin.clamp(0.0, line.inputs as f64);
            (
                begin,
                (line.outputs as f64 * line.scale).min(line.inputs as f64 - begin),
            )
        };
        let ((x, w), (y, h)) = (inside(across), inside(down));
        let options = ResizeOptions::new()
            .resize_alg(ResizeAlg::Convolution(filter))
            .crop(x, y, w, h)
            .use_alpha(alpha);
        let from = ImageRef::new(across.inputs as u32, down.inputs as u32, source, kind)
            .map_err(cannot)?;
        let mut to = Image::from_slice_u8(across.outputs as u32, down.outputs as u32, out, kind)
            .map_err(cannot)?;
        self.fast.resize(&from, &mut to, &options).map_err(cannot)
    }

    fn plain(
        &mut self,
        across: &Line,
        down: &Line,
        interpolation: Interpolation,
        channels: usize,
        read: impl Fn(usize) -> f32,
        mut write: impl FnMut(usize, f32),
    ) {
        self.across.fill(across, interpolation);
        self.down.fill(down, interpolation);
        self.between.clear();
        for y in 0..down.inputs {
            for (first, weights) in self.across.iter() {
                for channel in 0..channels {
                    let at = (y * across.inputs + first) * channels + channel;
                    let sum = weights
                        .iter()
                        .enumerate()
                        .map(|(tap, weight)| read(at + tap * channels) * weight)
                        .sum();
                    self.between.push(sum);
                }
            }
        }
        let row = across.outputs * channels;
        for (y, (first, weights)) in self.down.iter().enumerate() {
            for at in 0..row {
                let sum: f32 = weights
                    .iter()
                    .enumerate()
                    .map(|(tap, weight)| self.between[(first + tap) * row + at] * weight)
                    .sum();
                write(y * row + at, sum);
            }
        }
    }
}

fn nearest(stage: &Stage, pixel: usize, source: &[u8], size: (usize, usize), out: &mut [u8]) {
    let place = |at: usize, input: usize, full: usize, origin: usize, inputs: usize| {
        (((2 * at + 1) * input / (2 * full)).saturating_sub(origin)).min(inputs - 1)
    };
    for (line, row) in out.chunks_exact_mut(stage.window.w * pixel).enumerate() {
        let y = place(
            stage.window.y + line,
            stage.input.1,
            stage.full.1,
            stage.origin.1,
            size.1,
        );
        for (column, value) in row.chunks_exact_mut(pixel).enumerate() {
            let x = place(
                stage.window.x + column,
                stage.input.0,
                stage.full.0,
                stage.origin.0,
                size.0,
            );
            let at = (y * size.0 + x) * pixel;
            value.copy_from_slice(&source[at..at + pixel]);
        }
    }
}

fn cannot(error: impl std::fmt::Display) -> crate::CodecError {
    unsupported(format!("an image that cannot be resampled: {error}"))
}
