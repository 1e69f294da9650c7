//! The image that is encoded, in the caller's memory.

use crate::error::{Error, Result};
use crate::header::SampleType;
use crate::store::{Region, Strides};

/// An image in the caller's memory.
#[derive(Debug, Clone, Copy)]
pub struct Image<'a> {
    pub data: &'a [u8],
    pub width: u32,
    pub height: u32,
    pub depth: u32,
    pub channels: u16,
    pub volume: bool,
    pub sample_type: SampleType,
    pub strides: Strides,
}

impl<'a> Image<'a> {
    /// A picture whose channels lie together, without gaps.
    pub fn interleaved(data: &'a [u8], width: u32, height: u32, channels: u16, sample_type: SampleType) -> Self {
        let strides = Strides::interleaved(width, height, channels, sample_type);
        Image { data, width, height, depth: 1, channels, volume: false, sample_type, strides }
    }

    pub(crate) fn check(&self) -> Result<()> {
        for (what, side) in [("width", self.width), ("height", self.height), ("depth", self.depth)] {
            if side == 0 || side > i32::MAX as u32 {
                return Err(Error::Request(format!("{what} of {side}; it can be 1 to {}", i32::MAX)));
            }
        }
        if self.channels == 0 {
            return Err(Error::Request("an image without channels".into()));
        }
        let region = Region { x: 0, y: 0, z: 0, width: self.width, height: self.height, depth: self.depth };
        self.strides.check(&region, usize::from(self.channels), self.sample_type.bytes(), self.data.len())
    }

    #[inline(always)]
    pub(crate) fn bits(&self, at: usize) -> u32 {
        match self.sample_type.bytes() {
            1 => u32::from(self.data[at]),
            2 => u32::from(u16::from_le_bytes([self.data[at], self.data[at + 1]])),
            _ => u32::from_le_bytes([self.data[at], self.data[at + 1], self.data[at + 2], self.data[at + 3]]),
        }
    }

    /// Calls `each` with the bits of every sample, until it says stop.
    pub(crate) fn samples(&self, mut each: impl FnMut(u32) -> bool) {
        for z in 0..self.depth as usize {
            for y in 0..self.height as usize {
                for x in 0..self.width as usize {
                    for channel in 0..usize::from(self.channels) {
                        let at = z * self.strides.slice
                            + y * self.strides.row
                            + x * self.strides.column
                            + channel * self.strides.channel;
                        if !each(self.bits(at)) {
                            return;
                        }
                    }
                }
            }
        }
    }
}

/// The bytes of one pixel, all channels.
pub(crate) fn gather(image: &Image, x: usize, y: usize, z: usize, colour: &mut Vec<u8>) {
    let size = image.sample_type.bytes();
    let start = z * image.strides.slice + y * image.strides.row + x * image.strides.column;
    colour.clear();
    for channel in 0..usize::from(image.channels) {
        let at = start + channel * image.strides.channel;
        colour.extend_from_slice(&image.data[at..at + size]);
    }
}
