//! Where decoded samples stand between the inverse DCT and the pixels: a band of two MCU rows a component.
#![forbid(unsafe_code)]

use crate::frame::{Component, Frame};
use crate::idct::GROUP_WIDTH;
use crate::Region;

/// Room before and after each row for the filter's margin and for whole vectors.
const PAD: usize = 64;

/// How a component comes to the picture's resolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Upsample {
    /// It has it.
    None,
    /// Triangle filter along the rows, between them, or both.
    Wide,
    High,
    Both,
    /// Each sample so many times across and down.
    Repeat(usize, usize),
}

impl Upsample {
    /// What libjpeg does by default.
    fn choose(frame: &Frame, c: &Component) -> Self {
        let ratio = (frame.h_max / c.h, frame.v_max / c.v);
        match ratio {
            (1, 1) => Self::None,
            (2, 1) if c.width > 2 => Self::Wide,
            (1, 2) => Self::High,
            (2, 2) if c.width > 2 => Self::Both,
            (h, v) => Self::Repeat(h, v),
        }
    }

    fn ratio(self) -> (usize, usize) {
        match self {
            Self::None => (1, 1),
            Self::Wide => (2, 1),
            Self::High => (1, 2),
            Self::Both => (2, 2),
            Self::Repeat(h, v) => (h, v),
        }
    }

    /// Samples that the filter wants beside those of the region, across and down.
    fn margin(self) -> (usize, usize) {
        match self {
            Self::Wide => (1, 0),
            Self::High => (0, 1),
            Self::Both => (1, 1),
            Self::None | Self::Repeat(..) => (0, 0),
        }
    }
}

/// A half-open range of blocks, samples or rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub from: usize,
    pub to: usize,
}

impl Span {
    #[inline(always)]
    pub fn contains(self, i: usize) -> bool {
        (self.from..self.to).contains(&i)
    }

    /// The same in units `size` times as large, whatever they touch.
    pub fn in_units_of(self, size: usize) -> Self {
        Self {
            from: self.from / size,
            to: self.to.div_ceil(size),
        }
    }

    fn widened(self, margin: usize, end: usize) -> Self {
        Self {
            from: self.from.saturating_sub(margin),
            to: (self.to + margin).min(end),
        }
    }

    pub fn joined(self, other: Self) -> Self {
        Self {
            from: self.from.min(other.from),
            to: self.to.max(other.to),
        }
    }
}

/// What is needed of a component, and the band that holds it.
pub(crate) struct Plane {
    pub upsample: Upsample,
    /// Samples across that pixels of the region are made from, without the margin.
    pub samples: Span,
    /// Blocks that are needed, with the margin.
    pub columns: Span,
    pub rows: Span,
    width: usize,
    stride: usize,
    band: usize,
    data: Vec<u8>,
}

impl Plane {
    /// Lays out the band; `memory` is what an earlier picture left.
    pub fn new(frame: &Frame, c: &Component, region: &Region, memory: Vec<u8>) -> Self {
        let upsample = Upsample::choose(frame, c);
        let ((h, v), (across, down)) = (upsample.ratio(), upsample.margin());
        let (x, y) = (region.x as usize, region.y as usize);
        let samples = Span {
            from: x,
            to: x + region.width as usize,
        }
        .in_units_of(h);
        let lines = Span {
            from: y,
            to: y + region.height as usize,
        }
        .in_units_of(v);
        let columns = samples.widened(across, c.width).in_units_of(8);
        let rows = lines.widened(down, c.height).in_units_of(8);
        let band = 2 * 8 * c.v;
        let width = (8 * (columns.to - columns.from)).next_multiple_of(GROUP_WIDTH);
        let stride = width + 2 * PAD;
        let mut data = memory;
        if data.len() < band * stride {
            data.resize(band * stride, 0);
        }
        Self {
            upsample,
            samples,
            columns,
            rows,
            width: c.width,
            stride,
            band,
            data,
        }
    }

    pub fn into_memory(self) -> Vec<u8> {
        self.data
    }

    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Eight rows from the first sample of a block on.
    #[inline(always)]
    pub fn block(&mut self, column: usize, row: usize) -> &mut [u8] {
        let line = row * 8 % self.band;
        let at = line * self.stride + PAD + (column - self.columns.from) * 8;
        let end = (line + 8) * self.stride;
        &mut self.data[at..end]
    }

    /// Continues the picture's edges by a sample, which is how libjpeg's filter treats them.
    pub fn extend_edges(&mut self, row: usize) {
        let first = self.columns.from * 8;
        for line in row * 8..row * 8 + 8 {
            let at = line % self.band * self.stride + PAD;
            if first == 0 {
                self.data[at - 1] = self.data[at];
            }
            if self.columns.to * 8 >= self.width {
                let end = at + self.width - first;
                self.data[end] = self.data[end - 1];
            }
        }
    }

    /// A row from sample `x` less `before` on, to the end of the row's room.
    #[inline(always)]
    pub fn line(&self, y: usize, x: usize, before: usize) -> &[u8] {
        let line = y % self.band * self.stride;
        let at = line + PAD + x - self.columns.from * 8 - before;
        &self.data[at..line + self.stride]
    }
}
