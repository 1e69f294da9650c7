//! Memory for bodies, used again and again: fresh pages cost more than the bytes that come into them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

/// Bytes that are kept for the next bodies.
const KEPT: usize = 64 << 20;
/// Larger bodies are not worth keeping memory for.
const LARGEST: usize = 8 << 20;

/// Buffers that wait for their next body.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    free: Mutex<Free>,
}

#[derive(Debug, Default)]
struct Free {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

/// A size of four steps to each doubling, so that buffers fit each other's bodies at no more than a quarter too much.
fn rounded(size: usize) -> usize {
    let size = size.max(4_096);
    let step = (size.next_power_of_two() / 8).max(512);
    size.div_ceil(step) * step
}

impl Buffers {
    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer of at least `size` bytes with anything in it.
    pub fn take(self: &Arc<Self>, size: usize) -> Buffer {
        let size = rounded(size);
        let found = {
            let mut free = self.free();
            // The last one given back is the likeliest to be in the CPU's cache.
            let place = free.buffers.iter().rposition(|buffer| buffer.len() == size);
            place.map(|place| {
                free.bytes -= size;
                free.buffers.swap_remove(place)
            })
        };
        let memory = found.unwrap_or_else(|| vec![0; size]);
        Buffer {
            memory,
            home: Arc::clone(self),
        }
    }
}

/// A buffer on loan; it goes back when it is dropped.
pub(super) struct Buffer {
    memory: Vec<u8>,
    home: Arc<Buffers>,
}

impl Buffer {
    pub fn memory(&mut self) -> &mut [u8] {
        &mut self.memory
    }

    /// The buffer as bytes without a copy; it goes back with the last of them.
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.memory
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.memory);
        let mut free = self.home.free();
        if memory.len() <= LARGEST && free.bytes + memory.len() <= KEPT {
            free.bytes += memory.len();
            free.buffers.push(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_with_the_last_of_its_bytes() {
        let home = Arc::new(Buffers::default());
        let mut buffer = home.take(110_000);
        let place = buffer.memory().as_ptr();
        let bytes = buffer.into_bytes().slice(5..10);
        let copy = bytes.clone();
        drop(bytes);
        assert_ne!(home.take(110_000).memory().as_ptr(), place);
        drop(copy);
        assert_eq!(home.take(112_000).memory().as_ptr(), place);
    }

    #[test]
    fn sizes_are_rounded_by_a_quarter_at_most() {
        for size in (1..100_000).step_by(37).chain([1 << 20, (1 << 20) + 1]) {
            let found = rounded(size);
            assert!(
                found >= size && found <= (size + size / 4).max(4_096),
                "{found} for {size}"
            );
        }
    }
}
