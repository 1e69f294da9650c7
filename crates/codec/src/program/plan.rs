//! The geometry of one sample: which region of the source is needed and what is done with it, found from the
//! size of the picture and the draw, before any pixel is decoded.
//!
//! Flips are not done where they stand but carried to the end, where the store mirrors for nothing: crops and
//! pads that follow a flip are mirrored instead. Crops narrow the window of what is before them, and
//! [`Plan::narrow`] carries that back through resampling and padding to the source.

use super::ops::{Axis, Interpolation, Op, Size};
use crate::draw::{Draw, Stream};
use crate::error::{mismatch, too_large, Result};
use crate::image::Rect;
use crate::scratch::Limits;

/// The factors of a ColorJitter; 1 (0 for hue) changes nothing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Jitter {
    /// Which of brightness, contrast, saturation, hue (0 to 3) comes when.
    pub order: [u8; 4],
    pub factors: [f64; 4],
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Step {
    Resample(Interpolation),
    Pad {
        left: usize,
        top: usize,
        fill: f64,
        mask_fill: i64,
    },
    Jitter(Jitter),
    Grey,
}

/// One stage after decoding.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Stage {
    pub step: Step,
    /// Size of what goes in, before anything was narrowed.
    pub input: (usize, usize),
    /// Size of what would come out.
    pub full: (usize, usize),
    /// The part of it that is made.
    pub window: Rect,
    /// Where the narrowed input begins inside the input.
    pub origin: (usize, usize),
}

#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// The part of the (oriented) picture that is decoded.
    pub source: Rect,
    pub stages: Vec<Stage>,
    pub flip_x: bool,
    pub flip_y: bool,
}

impl Plan {
    /// Plans for a picture of this size. For masks the colour operations are left out, but draw all the same.
    pub fn build(
        &mut self,
        ops: &[(u64, Op)],
        width: usize,
        height: usize,
        mask: bool,
        draw: &Draw,
    ) -> Result<()> {
        self.source = Rect::whole(width, height);
        self.stages.clear();
        self.flip_x = false;
        self.flip_y = false;
        for (place, op) in ops {
            let mut stream = draw.stream(*place);
            let (w, h) = self.size();
            match op {
                Op::Orient {} | Op::Normalize { .. } | Op::ToDtype { .. } => {}
                Op::Resize {
                    size,
                    interpolation,
                } => {
                    let (new_w, new_h) = resized(*size, w, h);
                    self.resample(new_w, new_h, *interpolation);
                }
                Op::RandomResizedCrop {
                    size,
                    scale,
                    ratio,
                    interpolation,
                } => {
                    let window = random_box(w, h, *scale, *ratio, &mut stream);
                    self.crop(window);
                    self.resample(size[1], size[0], *interpolation);
                }
                Op::CenterCrop {
                    size: [new_h, new_w],
                } => {
                    let (missing_w, missing_h) = (new_w.saturating_sub(w), new_h.saturating_sub(h));
                    self.pad(
                        [
                            missing_w / 2,
                            missing_h / 2,
                            missing_w.div_ceil(2),
                            missing_h.div_ceil(2),
                        ],
                        0.0,
                        0,
                    );
                    let (w, h) = self.size();
                    let (x, y) = (half(w - new_w), half(h - new_h));
                    self.crop(Rect {
                        x,
                        y,
                        w: *new_w,
                        h: *new_h,
                    });
                }
                Op::RandomCrop {
                    size: [new_h, new_w],
                    padding,
                    fill,
                    mask_fill,
                } => {
                    self.pad(*padding, *fill, *mask_fill);
                    let (w, h) = self.size();
                    if w < *new_w || h < *new_h {
                        return Err(mismatch(format!(
                            "an image of {w}×{h} pixels is smaller than RandomCrop's {new_w}×{new_h}; resize or pad it before"
                        )));
                    }
                    let y = stream.range((h - new_h + 1) as u64) as usize;
                    let x = stream.range((w - new_w + 1) as u64) as usize;
                    self.crop(Rect {
                        x,
                        y,
                        w: *new_w,
                        h: *new_h,
                    });
                }
                Op::Pad {
                    padding,
                    fill,
                    mask_fill,
                } => self.pad(*padding, *fill, *mask_fill),
                Op::Flip { p, axis } => {
                    let flip = stream.f64() < *p;
                    match axis {
                        Axis::Horizontal => self.flip_x ^= flip,
                        Axis::Vertical => self.flip_y ^= flip,
                    }
                }
                Op::ColorJitter {
                    brightness,
                    contrast,
                    saturation,
                    hue,
                } => {
                    let jitter =
                        draw_jitter([*brightness, *contrast, *saturation, *hue], &mut stream);
                    if !mask {
                        self.colour(Step::Jitter(jitter));
                    }
                }
                Op::Grayscale { p } => {
                    if stream.f64() < *p && !mask {
                        self.colour(Step::Grey);
                    }
                }
            }
        }
        Ok(())
    }

    /// Width and height of what comes out.
    pub fn size(&self) -> (usize, usize) {
        let window = self.stages.last().map_or(self.source, |stage| stage.window);
        (window.w, window.h)
    }

    /// Whether the stages only move pixels, so that index tables can do all of it at once.
    pub fn only_moves(&self) -> bool {
        self.stages.iter().all(|stage| {
            matches!(
                stage.step,
                Step::Resample(Interpolation::Nearest) | Step::Pad { .. }
            )
        })
    }

    fn push(&mut self, step: Step, w: usize, h: usize) {
        let input = self.size();
        self.stages.push(Stage {
            step,
            input,
            full: (w, h),
            window: Rect::whole(w, h),
            origin: (0, 0),
        });
    }

    fn resample(&mut self, w: usize, h: usize, interpolation: Interpolation) {
        if self.size() != (w, h) {
            self.push(Step::Resample(interpolation), w, h);
        }
    }

    fn colour(&mut self, step: Step) {
        let (w, h) = self.size();
        self.push(step, w, h);
    }

    /// `padding`: left, top, right, bottom, as the user sees the picture.
    fn pad(&mut self, [left, top, right, bottom]: [usize; 4], fill: f64, mask_fill: i64) {
        if [left, top, right, bottom] == [0; 4] {
            return;
        }
        let (w, h) = self.size();
        let (begin_x, begin_y) = (
            if self.flip_x { right } else { left },
            if self.flip_y { bottom } else { top },
        );
        self.push(
            Step::Pad {
                left: begin_x,
                top: begin_y,
                fill,
                mask_fill,
            },
            w + left + right,
            h + top + bottom,
        );
    }

    /// Narrows what comes out to `window`, which lies inside it as the user sees it.
    fn crop(&mut self, window: Rect) {
        let (w, h) = self.size();
        let x = if self.flip_x {
            w - window.x - window.w
        } else {
            window.x
        };
        let y = if self.flip_y {
            h - window.y - window.h
        } else {
            window.y
        };
        let last = self
            .stages
            .last_mut()
            .map_or(&mut self.source, |stage| &mut stage.window);
        *last = Rect {
            x: last.x + x,
            y: last.y + y,
            w: window.w,
            h: window.h,
        };
    }

    /// Carries the windows back, so that each stage makes, and the codec decodes, only what is needed.
    pub fn narrow(&mut self) {
        for index in (0..self.stages.len()).rev() {
            let stage = &mut self.stages[index];
            let need = |from: usize, length: usize, input: usize, full: usize, pad: usize| {
                match stage.step {
                    Step::Resample(interpolation) => {
                        let scale = input as f64 / full as f64;
                        let reach = super::resample::support(interpolation) * scale.max(1.0);
                        // One more pixel on each side than the filter reaches: rounding must not matter.
                        let begin = ((from as f64 + 0.5) * scale - reach).floor() - 1.0;
                        let end = ((from + length) as f64 * scale + reach).ceil() + 1.0;
                        let begin = begin.max(0.0) as usize;
                        (begin.min(input - 1), (end as usize).min(input))
                    }
                    Step::Pad { .. } => {
                        let begin = from.saturating_sub(pad).min(input - 1);
                        (
                            begin,
                            (from + length).saturating_sub(pad).clamp(begin + 1, input),
                        )
                    }
                    Step::Jitter(_) | Step::Grey => (0, input),
                }
            };
            let (left, top) = match stage.step {
                Step::Pad { left, top, .. } => (left, top),
                _ => (0, 0),
            };
            let (x0, x1) = need(
                stage.window.x,
                stage.window.w,
                stage.input.0,
                stage.full.0,
                left,
            );
            let (y0, y1) = need(
                stage.window.y,
                stage.window.h,
                stage.input.1,
                stage.full.1,
                top,
            );
            stage.origin = (x0, y0);
            let before = match index {
                0 => &mut self.source,
                _ => &mut self.stages[index - 1].window,
            };
            *before = Rect {
                x: before.x + x0,
                y: before.y + y0,
                w: x1 - x0,
                h: y1 - y0,
            };
        }
    }

    /// No stage may make more than the limits allow, whatever the picture's proportions.
    pub fn check(&self, limits: &Limits) -> Result<()> {
        for stage in &self.stages {
            let pixels = stage.window.w as u128 * stage.window.h as u128;
            if pixels > u128::from(limits.max_pixels) {
                return Err(too_large(format!(
                    "an image that the transform makes {}×{} pixels large; {} pixels are allowed",
                    stage.window.w, stage.window.h, limits.max_pixels
                )));
            }
        }
        Ok(())
    }

    /// For each column of the output the column of the picture, or −1−n where stage n pads. The picture's own
    /// window is not subtracted.
    pub fn columns(&self, table: &mut Vec<i32>) {
        self.table(table, self.size().0, self.flip_x, self.source.x, |stage| {
            (
                stage.window.x,
                stage.input.0,
                stage.full.0,
                matches!(stage.step, Step::Pad { .. }).then(|| stage.pads().0),
            )
        });
    }

    /// The same for rows.
    pub fn rows(&self, table: &mut Vec<i32>) {
        self.table(table, self.size().1, self.flip_y, self.source.y, |stage| {
            (
                stage.window.y,
                stage.input.1,
                stage.full.1,
                matches!(stage.step, Step::Pad { .. }).then(|| stage.pads().1),
            )
        });
    }

    fn table(
        &self,
        table: &mut Vec<i32>,
        length: usize,
        flip: bool,
        source: usize,
        axis: impl Fn(&Stage) -> (usize, usize, usize, Option<usize>),
    ) {
        table.clear();
        table.extend((0..length).map(|place| {
            let mut at = if flip { length - 1 - place } else { place };
            for (number, stage) in self.stages.iter().enumerate().rev() {
                let (window, input, full, pad) = axis(stage);
                at += window;
                match (stage.step, pad) {
                    (_, Some(pad)) => {
                        if at < pad || at - pad >= input {
                            return -1 - number as i32;
                        }
                        at -= pad;
                    }
                    // The pixel under the centre of the new one, in integers.
                    (Step::Resample(_), None) => {
                        at = ((2 * at + 1) * input / (2 * full)).min(input - 1)
                    }
                    _ => {}
                }
            }
            (at + source) as i32
        }));
    }
}

impl Stage {
    fn pads(&self) -> (usize, usize) {
        match self.step {
            Step::Pad { left, top, .. } => (left, top),
            _ => (0, 0),
        }
    }
}

/// Python's `round(n / 2)`: halves go to the even neighbour.
fn half(n: usize) -> usize {
    let floor = n / 2;
    floor + usize::from(n % 2 == 1 && floor % 2 == 1)
}

pub(super) fn resized(size: Size, w: usize, h: usize) -> (usize, usize) {
    match size {
        Size::Exact([new_h, new_w]) => (new_w, new_h),
        Size::Short(short) => {
            let long = |short_side: usize, long_side: usize| {
                (short as u128 * long_side as u128 / short_side as u128).clamp(1, 1 << 40) as usize
            };
            if w <= h {
                (short, long(w, h))
            } else {
                (long(h, w), short)
            }
        }
    }
}

/// torchvision's box: ten tries, then the largest central one of an allowed ratio.
fn random_box(w: usize, h: usize, scale: [f64; 2], ratio: [f64; 2], stream: &mut Stream) -> Rect {
    let area = w as f64 * h as f64;
    let log_ratio = [ratio[0].ln(), ratio[1].ln()];
    for _ in 0..10 {
        let target = area * stream.uniform(scale[0], scale[1]);
        let aspect = stream.uniform(log_ratio[0], log_ratio[1]).exp();
        // Drawn in every try, so that pictures of different sizes go through the same numbers.
        let (place_y, place_x) = (stream.place(), stream.place());
        let new_w = (target * aspect).sqrt().round_ties_even() as usize;
        let new_h = (target / aspect).sqrt().round_ties_even() as usize;
        if (1..=w).contains(&new_w) && (1..=h).contains(&new_h) {
            let y = place_y.range((h - new_h + 1) as u64) as usize;
            let x = place_x.range((w - new_w + 1) as u64) as usize;
            return Rect {
                x,
                y,
                w: new_w,
                h: new_h,
            };
        }
    }
    let own = w as f64 / h as f64;
    let (new_w, new_h) = if own < ratio[0] {
        (
            w,
            ((w as f64 / ratio[0]).round_ties_even() as usize).clamp(1, h),
        )
    } else if own > ratio[1] {
        (
            ((h as f64 * ratio[1]).round_ties_even() as usize).clamp(1, w),
            h,
        )
    } else {
        (w, h)
    };
    Rect {
        x: (w - new_w) / 2,
        y: (h - new_h) / 2,
        w: new_w,
        h: new_h,
    }
}

fn draw_jitter(ranges: [[f64; 2]; 4], stream: &mut Stream) -> Jitter {
    let factors = ranges.map(|[low, high]| stream.uniform(low, high));
    let mut order = [0, 1, 2, 3];
    for last in (1..4).rev() {
        order.swap(last, stream.range(last as u64 + 1) as usize);
    }
    Jitter { order, factors }
}
