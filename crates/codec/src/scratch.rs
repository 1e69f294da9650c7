//! What a worker thread keeps between samples, and the bounds on what a sample may ask for.

use crate::formats::deflate::Inflater;
use crate::formats::jpeg::JpegScratch;
use crate::formats::npy::HeaderCache;
use crate::program::plan::Plan;
use crate::program::resample::Resampler;

/// Bounds on one sample, checked against its header before anything is allocated for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most pixels of an image (width × height).
    pub max_pixels: u64,
    /// Most bytes of a decoded array or image, and about the most that decoding it may take besides.
    pub max_bytes: u64,
}

impl Default for Limits {
    /// 256 million pixels, 4 GiB.
    fn default() -> Self {
        Limits {
            max_pixels: 1 << 28,
            max_bytes: 1 << 32,
        }
    }
}

/// Memory that one thread reuses from sample to sample. Nothing in it changes a result.
#[derive(Default)]
pub struct Scratch {
    pub(crate) buffers: Buffers,
    pub(crate) codecs: Codecs,
    pub(crate) npy: HeaderCache,
    pub(crate) inflater: Inflater,
    pub(crate) resampler: Resampler,
    pub(crate) plan: Plan,
    pub(crate) columns: Vec<i32>,
    pub(crate) rows: Vec<i32>,
}

/// What the codecs of pictures keep.
#[derive(Default)]
pub(crate) struct Codecs {
    pub jpeg: JpegScratch,
    pub psi: penstock_psi::Scratch,
}

/// The pixel buffers that a sample's stages go back and forth between.
#[derive(Default)]
pub(crate) struct Buffers {
    /// What a codec decoded that cannot give only a region.
    pub whole: Buffer,
    pub front: Buffer,
    pub back: Buffer,
}

/// A buffer above this size is given back when the samples that follow do not need it.
const KEEP: usize = 16 << 20;
/// … after this many of them.
const PATIENCE: u32 = 64;

/// Bytes that are allocated once and used again.
#[derive(Default)]
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    unneeded: u32,
}

impl Buffer {
    /// `length` bytes with any content.
    pub fn take(&mut self, length: usize) -> &mut [u8] {
        if self.bytes.len() < length {
            self.unneeded = 0;
            // What was there is worthless, so it is not copied to the new place.
            self.bytes = Vec::new();
            self.bytes.resize(length, 0);
        } else if self.bytes.len() > KEEP && length < self.bytes.len() / 4 {
            self.unneeded += 1;
            if self.unneeded > PATIENCE {
                self.unneeded = 0;
                self.bytes = vec![0; length.max(1 << 20)];
            }
        } else {
            self.unneeded = 0;
        }
        &mut self.bytes[..length]
    }

    /// What `take` last gave, read again.
    pub fn get(&self, length: usize) -> &[u8] {
        &self.bytes[..length]
    }

    #[cfg(test)]
    pub fn held(&self) -> usize {
        self.bytes.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_huge_sample_does_not_keep_its_memory_for_good() {
        let mut buffer = Buffer::default();
        buffer.take(KEEP * 4);
        assert!(buffer.held() >= KEEP * 4);
        for _ in 0..=PATIENCE {
            buffer.take(1000);
        }
        assert!(buffer.held() <= KEEP, "{}", buffer.held());
    }
}
