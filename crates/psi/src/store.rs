//! Where decoded rows go: from the lane layout and coded words to the caller's samples and strides.

use crate::error::{Error, Result};
use crate::header::{Header, Order, Place, SampleType, COLUMNS, GROUP, LANES};
use crate::predict::Row;
use crate::simd::{Engine, ROW};
use crate::word::Word;

/// A box of the image, in pixels; `z` and `depth` count slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    pub x: u32,
    pub y: u32,
    pub z: u32,
    pub width: u32,
    pub height: u32,
    pub depth: u32,
}

/// Distances in bytes between neighbours in the caller's buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strides {
    pub slice: usize,
    pub row: usize,
    pub column: usize,
    pub channel: usize,
}

impl Strides {
    /// Channels last and without gaps: `[depth][height][width][channels]`.
    pub fn interleaved(width: u32, height: u32, channels: u16, sample: SampleType) -> Self {
        let column = usize::from(channels) * sample.bytes();
        let row = column * width as usize;
        Strides { slice: row * height as usize, row, column, channel: sample.bytes() }
    }

    /// Channels first and without gaps: `[depth][channels][height][width]`.
    pub fn planar(width: u32, height: u32, channels: u16, sample: SampleType) -> Self {
        let row = width as usize * sample.bytes();
        let channel = row * height as usize;
        Strides { slice: channel * usize::from(channels), row, column: sample.bytes(), channel }
    }

    /// Checks that a box of that size lies inside `length` bytes.
    pub(crate) fn check(&self, region: &Region, channels: usize, sample: usize, length: usize) -> Result<()> {
        let last = [
            (self.slice, region.depth as usize),
            (self.row, region.height as usize),
            (self.column, region.width as usize),
            (self.channel, channels),
        ]
        .into_iter()
        .try_fold(0usize, |sum, (stride, count)| stride.checked_mul(count - 1).and_then(|part| sum.checked_add(part)))
        .and_then(|last| last.checked_add(sample));
        match last {
            Some(end) if end <= length => Ok(()),
            _ => Err(Error::Request(format!("the strides reach past the buffer of {length} bytes"))),
        }
    }
}

/// The caller's buffer and how a coded word becomes a sample in it.
pub(crate) struct Target<'a> {
    pub out: &'a mut [u8],
    pub strides: Strides,
    pub region: Region,
    pub order: Order,
    pub offset: u32,
    pub shift: u32,
    /// Colours, each a run of samples; empty where there is no palette.
    pub palette: &'a [u8],
    pub channels: usize,
}

impl<'a> Target<'a> {
    pub fn new(out: &'a mut [u8], strides: Strides, region: Region, header: &Header<'a>) -> Self {
        Target {
            out,
            strides,
            region,
            order: header.order,
            offset: header.offset,
            shift: u32::from(header.shift),
            palette: header.palette,
            channels: usize::from(header.info.channels),
        }
    }

    /// Stores the part of row `y` of a tile that lies in the region.
    #[inline(always)]
    pub fn store<W: Word, E: Engine>(&mut self, place: &Place, y: usize, rows: &[Row<W>; GROUP]) {
        let row = place.y + y;
        let (top, left) = (self.region.y as usize, self.region.x as usize);
        if row < top || row >= top + self.region.height as usize {
            return;
        }
        let first = left.saturating_sub(place.x);
        let last = (left + self.region.width as usize - place.x).min(place.width);
        let start = (place.slice - self.region.z as usize) * self.strides.slice
            + (row - top) * self.strides.row
            + (place.x + first - left) * self.strides.column;
        let plain = W::BITS == 8
            && self.order.sample == SampleType::U8
            && self.offset == 0
            && self.shift == 0
            && self.palette.is_empty();
        if plain
            && place.channels == 3
            && self.strides.column == 3
            && self.strides.channel == 1
            && place.first_channel == 0
        {
            let [red, green, blue, _] = rows;
            if let (Some(red), Some(green), Some(blue)) = (W::bytes(red), W::bytes(green), W::bytes(blue)) {
                let pixels = E::pixels([red, green, blue]);
                let out = &mut self.out[start..start + 3 * (last - first)];
                match <&mut [u8; 3 * ROW]>::try_from(&mut *out) {
                    Ok(out) => *out = pixels,
                    Err(_) => out.copy_from_slice(&pixels[3 * first..3 * last]),
                }
                return;
            }
        }
        let mut flat = [[W::default(); LANES * COLUMNS]; GROUP];
        for (line, row) in flat.iter_mut().zip(rows).take(place.channels) {
            *line = E::flat(row);
        }
        if !self.palette.is_empty() {
            let (size, colour) = (self.order.sample.bytes(), self.channels * self.order.sample.bytes());
            for (step, index) in flat[0][first..last].iter().enumerate() {
                // An index past the palette stands for its first colour: the checksum says that it was never written.
                let at = index.get() as usize * colour;
                let entry = self.palette.get(at..at + colour).unwrap_or(&self.palette[..colour]);
                for (channel, value) in entry.chunks_exact(size).enumerate() {
                    let to = start + step * self.strides.column + channel * self.strides.channel;
                    self.out[to..to + size].copy_from_slice(value);
                }
            }
            return;
        }
        for (channel, line) in flat.iter().enumerate().take(place.channels) {
            let start = start + (place.first_channel + channel) * self.strides.channel;
            let line = &line[first..last];
            if plain {
                self.bytes(start, line, |word| [word.get() as u8]);
                continue;
            }
            let (order, offset, shift) = (self.order, self.offset, self.shift);
            let bits = move |word: W| order.sample_bits((word.get() << shift).wrapping_add(offset));
            match self.order.sample.bytes() {
                1 => self.bytes(start, line, |word| (bits(word) as u8).to_le_bytes()),
                2 => self.bytes(start, line, |word| (bits(word) as u16).to_le_bytes()),
                _ => self.bytes(start, line, |word| bits(word).to_le_bytes()),
            }
        }
    }

    #[inline(always)]
    fn bytes<W: Word, const N: usize>(&mut self, start: usize, line: &[W], sample: impl Fn(W) -> [u8; N]) {
        if self.strides.column == N {
            for (to, &word) in self.out[start..start + N * line.len()].chunks_exact_mut(N).zip(line) {
                to.copy_from_slice(&sample(word));
            }
        } else {
            for (step, &word) in line.iter().enumerate() {
                let to = start + step * self.strides.column;
                self.out[to..to + N].copy_from_slice(&sample(word));
            }
        }
    }
}
