//! Raw deflate around a .npy, as the members of an .npz are: inflated straight into the slot, and never
//! beyond what the npy header promises.

use flate2::{Decompress, FlushDecompress, Status};

use super::npy;
use crate::error::{malformed, truncated, Result};
use crate::scratch::Limits;

/// An inflate state and the beginning of the stream, reused.
#[derive(Default)]
pub(crate) struct Inflater {
    /// Made by the first sample that needs it: it holds a window of 32 KiB.
    state: Option<Decompress>,
    head: Vec<u8>,
}

impl Inflater {
    /// Inflates just enough to read the header, and checks what it promises against the limits.
    pub fn header(&mut self, bytes: &[u8], limits: &Limits) -> Result<npy::Header> {
        self.state
            .get_or_insert_with(|| Decompress::new(false))
            .reset(false);
        self.head.clear();
        self.grow(bytes, 12)?;
        let ends = npy::header_length(&self.head)?.ends;
        self.grow(bytes, ends)?;
        let header = npy::parse(&self.head)?;
        let promised = header.spec.bytes()? as u64;
        header.check(ends as u64 + promised, limits)?;
        // Deflate codes at most 1,032 bytes in one: less input than that cannot keep the promise.
        if promised / 1032 > bytes.len() as u64 {
            return Err(truncated(format!(
                "{} deflated bytes that cannot hold the {promised} their npy header promises",
                bytes.len()
            )));
        }
        Ok(header)
    }

    /// Goes on after `header` and fills `out`, which has the size that the header says.
    pub fn data(&mut self, bytes: &[u8], out: &mut [u8]) -> Result<()> {
        let mut filled = 0;
        while filled < out.len() {
            let step = self.step(bytes, &mut out[filled..])?;
            filled += step.0;
            if step.1 || step.0 == 0 {
                break;
            }
        }
        if filled < out.len() {
            return Err(truncated(format!(
                "a deflated npy that ends after {filled} of {} bytes of data",
                out.len()
            )));
        }
        // The end-of-stream mark is still to come; more data would be a lie in the header.
        let (more, ended) = self.step(bytes, &mut [0; 1])?;
        if more > 0 {
            return Err(malformed(
                "a deflated npy with more data than its header says",
            ));
        }
        if !ended {
            return Err(truncated("a deflated npy without the end of its stream"));
        }
        Ok(())
    }

    fn grow(&mut self, bytes: &[u8], length: usize) -> Result<()> {
        let mut filled = self.head.len();
        self.head.resize(length.max(filled), 0);
        while filled < length {
            let mut head = std::mem::take(&mut self.head);
            let step = self.step(bytes, &mut head[filled..]);
            self.head = head;
            let (written, ended) = step?;
            filled += written;
            if ended || written == 0 {
                break;
            }
        }
        if filled < length {
            self.head.truncate(filled);
            return Err(truncated(format!(
                "a deflated npy that ends after {filled} bytes, inside its header"
            )));
        }
        Ok(())
    }

    /// One call of the decompressor: how many bytes it wrote, and whether the stream has ended.
    fn step(&mut self, bytes: &[u8], out: &mut [u8]) -> Result<(usize, bool)> {
        let state = self.state.get_or_insert_with(|| Decompress::new(false));
        let before = state.total_out();
        let input = &bytes[(state.total_in() as usize).min(bytes.len())..];
        let status = state
            .decompress(input, out, FlushDecompress::None)
            .map_err(|error| malformed(format!("deflated data that do not inflate: {error}")))?;
        Ok((
            (state.total_out() - before) as usize,
            matches!(status, Status::StreamEnd),
        ))
    }
}
