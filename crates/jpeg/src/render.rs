//! From bands of samples to rows of pixels, as soon as their samples are there.
#![forbid(unsafe_code)]

use crate::frame::Frame;
use crate::header::Colour;
use crate::planes::{Plane, Upsample};
use crate::simd::{self, Level};
use crate::{rows, Output, Region};

/// Room after a row for whole vectors.
const SLACK: usize = 64;

/// Rows at the picture's resolution, one for each component, and one of RGB.
#[derive(Default)]
pub(crate) struct RowMemory {
    full: [Vec<u8>; 4],
    rgb: Vec<u8>,
}

pub(crate) struct Renderer<'a> {
    level: Level,
    frame: &'a Frame,
    colour: Colour,
    output: Output,
    region: Region,
    out: &'a mut [u8],
    stride: usize,
    memory: &'a mut RowMemory,
    /// The next row of the picture to be written.
    next: usize,
}

impl<'a> Renderer<'a> {
    #[allow(clippy::too_many_arguments)] // one call, in lib.rs
    pub fn new(
        level: Level,
        frame: &'a Frame,
        colour: Colour,
        output: Output,
        region: Region,
        out: &'a mut [u8],
        stride: usize,
        memory: &'a mut RowMemory,
    ) -> Self {
        let width = region.width as usize;
        for row in &mut memory.full {
            let room = width + 8 + SLACK;
            if row.len() < room {
                row.resize(room, 0);
            }
        }
        if memory.rgb.len() < 3 * width {
            memory.rgb.resize(3 * width, 0);
        }
        Self {
            level,
            frame,
            colour,
            output,
            region,
            out,
            stride,
            memory,
            next: region.y as usize,
        }
    }

    /// Writes the rows that can be made once MCU rows up to `row` are in the bands.
    pub fn rows_until(&mut self, planes: &[Plane], row: usize) {
        let end = (self.region.y + self.region.height) as usize;
        let mut ready = (row + 1) * 8 * self.frame.v_max;
        if ready < self.frame.height {
            let waits = |p: &Plane| matches!(p.upsample, Upsample::High | Upsample::Both);
            ready -= usize::from(planes.iter().any(waits)); // for the row below
        }
        while self.next < end.min(ready) {
            self.row(planes, self.next);
            self.next += 1;
        }
    }

    fn row(&mut self, planes: &[Plane], y: usize) {
        let width = self.region.width as usize;
        let x = self.region.x as usize;
        let at = (y - self.region.y as usize) * self.stride;
        let RowMemory { full, rgb } = &mut *self.memory;
        let level = self.level;
        let mut lines: [&[u8]; 4] = [&[]; 4];
        for (i, (plane, memory)) in planes.iter().zip(full).enumerate() {
            let height = self.frame.components[i].height;
            lines[i] = full_line(level, plane, height, x, y, memory);
        }
        let [a, b, c, d] = lines;
        let bytes = match self.output {
            Output::Grey => width,
            Output::Rgb => 3 * width,
        };
        let out = &mut self.out[at..at + bytes];
        if self.colour == Colour::Grey {
            return match self.output {
                Output::Grey => out.copy_from_slice(&a[..width]),
                Output::Rgb => rows::grey_to_rgb(a, out),
            };
        }
        let target = match self.output {
            Output::Grey => &mut rgb[..3 * width],
            Output::Rgb => &mut *out,
        };
        match self.colour {
            Colour::YCbCr => simd::ycc_to_rgb(level, a, b, c, target),
            Colour::Rgb => rows::interleave(a, b, c, target),
            Colour::Cmyk => rows::cmyk_to_rgb(lines, false, target),
            Colour::Ycck => rows::cmyk_to_rgb([a, b, c, d], true, target),
            Colour::Grey => {}
        }
        if self.output == Output::Grey {
            rows::rgb_to_grey(&rgb[..3 * width], out);
        }
    }
}

/// Row `y` of the picture from column `x` on, of one component.
fn full_line<'p>(
    level: Level,
    plane: &'p Plane,
    height: usize,
    x: usize,
    y: usize,
    memory: &'p mut [u8],
) -> &'p [u8] {
    let (from, count) = (plane.samples.from, plane.samples.to - plane.samples.from);
    // the nearer of the two rows that lie about row y at half the height, and the other
    let near = y / 2;
    let far = if y % 2 == 1 {
        (near + 1).min(height - 1)
    } else {
        near.saturating_sub(1)
    };
    match plane.upsample {
        Upsample::None => plane.line(y, x, 0),
        Upsample::Repeat(1, v) => plane.line(y / v, x, 0),
        Upsample::Repeat(h, v) => {
            // only the first sample may begin outside the region
            rows::repeat(
                &plane.line(y / v, from, 0)[..count],
                h,
                memory_of(memory, h * count),
            );
            &memory[x - from * h..]
        }
        Upsample::Wide => {
            simd::widen(level, plane.line(y, from, 1), count, memory);
            &memory[x - from * 2..]
        }
        Upsample::High => {
            let bias = if y % 2 == 1 { 2 } else { 1 };
            let (near, far) = (plane.line(near, from, 0), plane.line(far, from, 0));
            rows::between(&near[..count], &far[..count], bias, memory);
            &memory[x - from..]
        }
        Upsample::Both => {
            let (near, far) = (plane.line(near, from, 1), plane.line(far, from, 1));
            simd::widen_between(level, near, far, count, memory);
            &memory[x - from * 2..]
        }
    }
}

fn memory_of(memory: &mut [u8], length: usize) -> &mut [u8] {
    &mut memory[..length]
}
