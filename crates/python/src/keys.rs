//! The catalog's key table, read where Arrow has it.

use std::sync::Arc;

use penstock_engine::keys::Keys;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// An Arrow (large) string array: its offsets and its text.
pub struct ArrowKeys {
    offsets: Offsets,
    text: PyBuffer<u8>,
    first: usize,
    len: usize,
}

enum Offsets {
    Narrow(PyBuffer<u8>),
    Wide(PyBuffer<u8>),
}

/// From `(offsets, text, first, len, wide)`, or from a list of strings.
pub fn from_python(object: &Bound<'_, PyAny>) -> PyResult<Arc<dyn Keys>> {
    if let Ok(keys) = object.extract::<Vec<String>>() {
        return Ok(Arc::new(keys));
    }
    let (offsets, text, first, len, wide): (PyBuffer<u8>, PyBuffer<u8>, usize, usize, bool) =
        object.extract()?;
    let width = if wide { 8 } else { 4 };
    let enough = first
        .checked_add(len)
        .and_then(|n| n.checked_add(1))
        .and_then(|n| n.checked_mul(width));
    if enough.is_none_or(|bytes| offsets.item_count() < bytes)
        || !offsets.is_c_contiguous()
        || !text.is_c_contiguous()
    {
        return Err(PyValueError::new_err(
            "the key table's offsets are shorter than its length",
        ));
    }
    let offsets = if wide {
        Offsets::Wide(offsets)
    } else {
        Offsets::Narrow(offsets)
    };
    Ok(Arc::new(ArrowKeys {
        offsets,
        text,
        first,
        len,
    }))
}

impl ArrowKeys {
    fn offset(&self, row: usize) -> usize {
        // SAFETY: `from_python` checked that the buffer has an entry for every row and one more; Arrow buffers are
        // immutable, and the PyBuffer keeps this one alive. Reads are unaligned, so no alignment is assumed.
        unsafe {
            match &self.offsets {
                Offsets::Narrow(buffer) => {
                    let at = buffer.buf_ptr().cast::<u8>().add(row * 4).cast::<u32>();
                    at.read_unaligned() as usize
                }
                Offsets::Wide(buffer) => {
                    let at = buffer.buf_ptr().cast::<u8>().add(row * 8).cast::<u64>();
                    at.read_unaligned() as usize
                }
            }
        }
    }
}

impl Keys for ArrowKeys {
    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: u32) -> Option<&str> {
        let row = index as usize;
        if row >= self.len {
            return None;
        }
        let (start, end) = (
            self.offset(self.first + row),
            self.offset(self.first + row + 1),
        );
        if start > end || end > self.text.item_count() {
            return None;
        }
        // SAFETY: inside the buffer (just checked), immutable and alive as above.
        let bytes = unsafe {
            std::slice::from_raw_parts(self.text.buf_ptr().cast::<u8>().add(start), end - start)
        };
        std::str::from_utf8(bytes).ok()
    }
}
