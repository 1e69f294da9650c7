//! Antialiased resampling as Pillow does it: a filter that widens with the reduction, horizontally first (but see
//! [`Task::down_first`]), clipped between the two passes. Pillow rounds there as well; since what is summed here keeps its
//! fraction, the results are less than a level apart before they are rounded, and at most one after.
//!
//! 8-bit pixels are summed in 16 bits: a pixel stands at 7 fractional bits, a weight at 14, and each product is
//! rounded to 6 bits, so that the sum of up to [`MOST_TAPS`] is off by far less than half a level. The plain path
//! and the vectors of [`super::resample_simd`] do the same arithmetic and give the same bits. Other pixels, and
//! larger reductions, are summed in floats.

use super::ops::Interpolation;
use super::plan::Stage;
use super::resample_simd as simd;
use crate::dtype::DType;
use crate::error::{unsupported, Result};
use crate::image::Pixel;

/// Products of one pixel beyond which their rounding could be seen.
const MOST_TAPS: usize = 48;

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
    across: Taps,
    down: Taps,
    /// 8-bit pixels after the horizontal pass, plane by plane, at 7 fractional bits.
    planes: Vec<i16>,
    /// The same after the vertical pass, where that one is first.
    lowered: Vec<i16>,
    /// The planes are the result.
    lowered_first: bool,
    /// Rows of each plane.
    rows: usize,
    /// A row that is ready.
    row: Vec<u8>,
    /// Pixels multiplied by their alpha.
    premultiplied: Vec<u8>,
    /// Other pixels after the horizontal pass.
    between: Vec<f32>,
    turned: simd::Turned,
}

/// The source pixels and weights of each pixel along one axis.
#[derive(Default)]
pub(super) struct Taps {
    /// The first source pixel and where its weights begin and end.
    pub spans: Vec<(usize, std::ops::Range<usize>)>,
    /// The weights, one span after the other.
    pub weights: Vec<f32>,
    /// The same in units of 2^−14.
    pub fixed: Vec<i16>,
    most: usize,
}

/// One axis of a stage: where on the input the output's window lies.
struct Line {
    /// In pixels of the narrowed input.
    begin: f64,
    scale: f64,
    outputs: usize,
    inputs: usize,
}

impl Taps {
    fn fill(&mut self, line: &Line, interpolation: Interpolation) {
        self.spans.clear();
        self.weights.clear();
        self.fixed.clear();
        self.most = 0;
        let widen = line.scale.max(1.0);
        let reach = support(interpolation) * widen;
        let narrow = 1.0 / widen;
        let mut window: [f64; 64] = [0.0; 64];
        for place in 0..line.outputs {
            let centre = line.begin + (place as f64 + 0.5) * line.scale;
            let first = ((centre - reach + 0.5).max(0.0) as usize).min(line.inputs - 1);
            let last = ((centre + reach + 0.5) as usize).clamp(first + 1, line.inputs);
            let count = last - first;
            let begin = self.weights.len();
            self.spans.push((first, begin..begin + count));
            self.most = self.most.max(count);
            let at = |tap: usize| {
                weight(
                    interpolation,
                    ((first + tap) as f64 + 0.5 - centre) * narrow,
                )
            };
            if count <= window.len() {
                let window = &mut window[..count];
                window
                    .iter_mut()
                    .enumerate()
                    .for_each(|(tap, value)| *value = at(tap));
                let sum = normalisation(window.iter().sum());
                self.weights
                    .extend(window.iter().map(|value| (value * sum) as f32));
                // Rounded so that the weights add up to one: a flat area stays flat.
                let (mut exact, mut given) = (0.0, 0);
                self.fixed.extend(window.iter().map(|value| {
                    exact += value * sum * 16_384.0;
                    let next = (exact + 0.5).floor() as i32;
                    let fixed = next - given;
                    given = next;
                    fixed.clamp(-32_768, 32_767) as i16
                }));
            } else {
                let sum = normalisation((0..count).map(at).sum());
                self.weights
                    .extend((0..count).map(|tap| (at(tap) * sum) as f32));
            }
        }
    }

    fn iter(&self) -> impl Iterator<Item = (usize, &[f32])> {
        self.spans
            .iter()
            .map(|(first, span)| (*first, &self.weights[span.clone()]))
    }

    /// Each output's first source pixel and fixed weights.
    pub fn fixed(&self) -> impl Iterator<Item = (usize, &[i16])> {
        self.spans
            .iter()
            .map(|(first, span)| (*first, &self.fixed[span.clone()]))
    }
}

fn normalisation(sum: f64) -> f64 {
    if sum == 0.0 {
        0.0
    } else {
        1.0 / sum
    }
}

/// A byte or a value between the passes.
pub(super) trait Value: Copy {
    /// At 7 fractional bits.
    fn raised(self) -> i32;
}

impl Value for u8 {
    #[inline(always)]
    fn raised(self) -> i32 {
        i32::from(self) << 7
    }
}

impl Value for i16 {
    #[inline(always)]
    fn raised(self) -> i32 {
        i32::from(self)
    }
}

/// One product: a value at 7 fractional bits times a weight at 14, rounded to 6.
#[inline(always)]
fn product(value: impl Value, weight: i16) -> i32 {
    (value.raised() * i32::from(weight) + 0x4000) >> 15
}

/// The largest sum that is kept between the passes: white.
pub(super) const WHITE: i16 = 255 << 6;

/// From 6 fractional bits to 7, clipped.
#[inline(always)]
fn keep(sum: i32) -> i16 {
    (sum.clamp(0, i32::from(WHITE)) << 1) as i16
}

/// From 6 fractional bits to a byte.
#[inline(always)]
fn settle(sum: i32) -> u8 {
    ((sum + 32) >> 6).clamp(0, 255) as u8
}

/// What a resampling works on.
pub(crate) struct Task<'a> {
    pub stage: &'a Stage,
    pub interpolation: Interpolation,
    pub pixel: Pixel,
    /// The last channel is one that the others are to be weighted with.
    pub alpha: bool,
    pub source: &'a [u8],
    /// Width and height of `source`, which begins at the stage's origin.
    pub size: (usize, usize),
}

impl Task<'_> {
    /// Whether the vertical pass comes first, as with Pillow 13: where it takes rows away, and more than twice as many
    /// as the other takes columns.
    fn down_first(&self) -> bool {
        let less = |input: usize, full: usize| input as i64 - full as i64;
        let (columns, rows) = (
            less(self.stage.input.0, self.stage.full.0),
            less(self.stage.input.1, self.stage.full.1),
        );
        rows > 0 && rows > 2 * columns
    }

    fn lines(&self) -> (Line, Line) {
        let (stage, size) = (self.stage, self.size);
        let line = |input: usize,
                    full: usize,
                    window: usize,
                    outputs: usize,
                    origin: usize,
                    inputs: usize| {
            let scale = input as f64 / full as f64;
            Line {
                begin: window as f64 * scale - origin as f64,
                scale,
                outputs,
                inputs,
            }
        };
        (
            line(
                stage.input.0,
                stage.full.0,
                stage.window.x,
                stage.window.w,
                stage.origin.0,
                size.0,
            ),
            line(
                stage.input.1,
                stage.full.1,
                stage.window.y,
                stage.window.h,
                stage.origin.1,
                size.1,
            ),
        )
    }
}

impl Resampler {
    /// Resamples into `out`, pixel by pixel as they come.
    pub fn run(&mut self, task: &Task<'_>, out: &mut [u8]) -> Result<()> {
        if task.interpolation == Interpolation::Nearest {
            nearest(task, out);
            return Ok(());
        }
        let channels = task.pixel.channels;
        let width = task.stage.window.w;
        if self.begin_planes(task) {
            let mut row = std::mem::take(&mut self.row);
            for (y, target) in out.chunks_exact_mut(width * channels).enumerate() {
                if channels == 1 {
                    self.plane_row(0, y, target);
                    continue;
                }
                row.resize(width * channels, 0);
                for (channel, part) in row.chunks_exact_mut(width).enumerate() {
                    self.plane_row(channel, y, part);
                }
                interleave(&row, width, channels, target);
            }
            self.row = row;
            if task.alpha {
                divide_alpha(out, channels);
            }
            return Ok(());
        }
        let source = task.source;
        match task.pixel.dtype {
            DType::U8 => self.plain(
                task,
                |at| f32::from(source[at]),
                |value| value.clamp(0.0, 255.0),
                |at, value| out[at] = value.round() as u8,
            ),
            DType::U16 => self.plain(
                task,
                |at| f32::from(u16::from_le_bytes([source[2 * at], source[2 * at + 1]])),
                |value| value.clamp(0.0, 65_535.0),
                |at, value| {
                    out[2 * at..2 * at + 2].copy_from_slice(&(value.round() as u16).to_le_bytes())
                },
            ),
            DType::F32 => self.plain(
                task,
                |at| {
                    f32::from_le_bytes([
                        source[4 * at],
                        source[4 * at + 1],
                        source[4 * at + 2],
                        source[4 * at + 3],
                    ])
                },
                |value| value,
                |at, value| out[4 * at..4 * at + 4].copy_from_slice(&value.to_le_bytes()),
            ),
            other => {
                return Err(unsupported(format!(
                    "resampling of {} pixels",
                    other.name()
                )))
            }
        }
        Ok(())
    }

    /// The passes up to the horizontal one, for 8-bit pixels; false if they must be summed in floats.
    /// [`Resampler::plane_row`] then gives the rows of the result, channel by channel.
    pub fn begin_planes(&mut self, task: &Task<'_>) -> bool {
        if task.pixel.dtype != DType::U8 || task.interpolation == Interpolation::Nearest {
            return false;
        }
        let (across, down) = task.lines();
        self.across.fill(&across, task.interpolation);
        self.down.fill(&down, task.interpolation);
        if self.across.most > MOST_TAPS || self.down.most > MOST_TAPS {
            return false;
        }
        let channels = task.pixel.channels;
        let source = if task.alpha {
            multiply_alpha(task.source, channels, &mut self.premultiplied);
            &self.premultiplied
        } else {
            task.source
        };
        // Only where a filter overshoots does it show which pass was first.
        self.lowered_first = task.interpolation == Interpolation::Bicubic && task.down_first();
        let (width, stride) = (across.outputs, across.inputs * channels);
        self.rows = if self.lowered_first {
            self.lowered.resize(down.outputs * stride, 0);
            for (line, (first, weights)) in
                self.lowered.chunks_exact_mut(stride).zip(self.down.fixed())
            {
                let source = &source[first * stride..][..weights.len() * stride];
                if !simd::lower(source, weights, line) {
                    sum_rows(source, weights, line, keep);
                }
            }
            down.outputs
        } else {
            down.inputs
        };
        let length = width * self.rows * channels;
        // The planes of one huge picture are not kept.
        if self.planes.len() > (8 << 20) && length < self.planes.len() / 4 {
            self.planes = Vec::new();
        }
        if self.planes.len() < length {
            self.planes.resize(length, 0);
        }
        let planes = &mut self.planes[..length];
        let shape = simd::Shape {
            inputs: across.inputs,
            channels,
            width,
            rows: self.rows,
        };
        if self.lowered_first {
            narrow(
                &self.lowered,
                &shape,
                &self.across,
                planes,
                &mut self.turned,
            );
        } else {
            narrow(source, &shape, &self.across, planes, &mut self.turned);
        }
        true
    }

    /// Row `y` of a channel, after [`Resampler::begin_planes`].
    pub fn plane_row(&self, channel: usize, y: usize, out: &mut [u8]) {
        let width = out.len();
        let plane = &self.planes[channel * self.rows * width..][..self.rows * width];
        if self.lowered_first {
            for (byte, &value) in out.iter_mut().zip(&plane[y * width..]) {
                *byte = ((value + 64) >> 7) as u8;
            }
            return;
        }
        let (first, span) = &self.down.spans[y];
        let weights = &self.down.fixed[span.clone()];
        let source = &plane[first * width..][..weights.len() * width];
        if !simd::down(source, weights, out) {
            sum_rows(source, weights, out, settle);
        }
    }

    /// In floats: any type, any reduction. `clip` is what happens to a value after each of the passes.
    fn plain(
        &mut self,
        task: &Task<'_>,
        read: impl Fn(usize) -> f32,
        clip: impl Fn(f32) -> f32,
        mut write: impl FnMut(usize, f32),
    ) {
        let (across, down) = task.lines();
        let channels = task.pixel.channels;
        self.across.fill(&across, task.interpolation);
        self.down.fill(&down, task.interpolation);
        self.between.clear();
        let row = across.outputs * channels;
        if task.down_first() {
            let wide = across.inputs * channels;
            for (first, weights) in self.down.iter() {
                for at in 0..wide {
                    let column = (first * wide + at..).step_by(wide);
                    let sum = weights
                        .iter()
                        .zip(column)
                        .map(|(weight, at)| read(at) * weight)
                        .sum();
                    self.between.push(clip(sum));
                }
            }
            for (y, line) in self.between.chunks_exact(wide).enumerate() {
                for (x, (first, weights)) in self.across.iter().enumerate() {
                    for channel in 0..channels {
                        let pixels = line[first * channels + channel..].iter().step_by(channels);
                        let sum = weights
                            .iter()
                            .zip(pixels)
                            .map(|(weight, value)| weight * value)
                            .sum();
                        write(y * row + x * channels + channel, clip(sum));
                    }
                }
            }
            return;
        }
        for y in 0..down.inputs {
            for (first, weights) in self.across.iter() {
                for channel in 0..channels {
                    let at = (y * across.inputs + first) * channels + channel;
                    let sum = weights
                        .iter()
                        .enumerate()
                        .map(|(tap, weight)| read(at + tap * channels) * weight)
                        .sum();
                    self.between.push(clip(sum));
                }
            }
        }
        for (y, (first, weights)) in self.down.iter().enumerate() {
            for at in 0..row {
                let column = self.between[first * row + at..].iter().step_by(row);
                write(
                    y * row + at,
                    clip(
                        weights
                            .iter()
                            .zip(column)
                            .map(|(weight, value)| weight * value)
                            .sum(),
                    ),
                );
            }
        }
    }
}

/// One row of the vertical pass: as many rows of `source` as there are weights, summed.
fn sum_rows<V: Value, T>(source: &[V], weights: &[i16], out: &mut [T], end: impl Fn(i32) -> T) {
    let width = out.len();
    for (x, value) in out.iter_mut().enumerate() {
        let column = source[x..].iter().step_by(width);
        *value = end(weights
            .iter()
            .zip(column)
            .map(|(&weight, &value)| product(value, weight))
            .sum());
    }
}

/// The horizontal pass, by vectors where they fit.
fn narrow<V: simd::Turn>(
    source: &[V],
    shape: &simd::Shape,
    taps: &Taps,
    planes: &mut [i16],
    turned: &mut simd::Turned,
) {
    if simd::across(source, shape, taps, planes, turned) {
        return;
    }
    let &simd::Shape {
        inputs,
        channels,
        width,
        rows,
    } = shape;
    for (y, row) in source.chunks_exact(inputs * channels).enumerate() {
        for (x, (first, weights)) in taps.fixed().enumerate() {
            for channel in 0..channels {
                let values = row[first * channels + channel..].iter().step_by(channels);
                let sum = weights
                    .iter()
                    .zip(values)
                    .map(|(&weight, &value)| product(value, weight))
                    .sum();
                planes[(channel * rows + y) * width + x] = keep(sum);
            }
        }
    }
}

/// Planes of a row to pixels.
fn interleave(planes: &[u8], width: usize, channels: usize, out: &mut [u8]) {
    match channels {
        3 => {
            let (red, rest) = planes.split_at(width);
            let (green, blue) = rest.split_at(width);
            if !simd::interleave(red, green, blue, out) {
                for (((pixel, &r), &g), &b) in out.chunks_exact_mut(3).zip(red).zip(green).zip(blue)
                {
                    pixel.copy_from_slice(&[r, g, b]);
                }
            }
        }
        _ => {
            for (channel, plane) in planes.chunks_exact(width).enumerate() {
                for (pixel, &value) in out.chunks_exact_mut(channels).zip(plane) {
                    pixel[channel] = value;
                }
            }
        }
    }
}

fn multiply_alpha(source: &[u8], channels: usize, out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(source);
    for pixel in out.chunks_exact_mut(channels) {
        let alpha = u32::from(pixel[channels - 1]);
        for value in &mut pixel[..channels - 1] {
            // Division by 255, rounded.
            let product = u32::from(*value) * alpha + 128;
            *value = (((product >> 8) + product) >> 8) as u8;
        }
    }
}

fn divide_alpha(pixels: &mut [u8], channels: usize) {
    for pixel in pixels.chunks_exact_mut(channels) {
        let alpha = u32::from(pixel[channels - 1]);
        if alpha != 0 && alpha != 255 {
            for value in &mut pixel[..channels - 1] {
                *value = (u32::from(*value) * 255 / alpha).min(255) as u8;
            }
        }
    }
}

fn nearest(task: &Task<'_>, out: &mut [u8]) {
    let (stage, size, pixel) = (task.stage, task.size, task.pixel.size());
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
            value.copy_from_slice(&task.source[at..at + pixel]);
        }
    }
}
