//! What happened when: one ring of spans.
//!
//! Recording costs two clock reads and an uncontended lock, so it can stay on. When the ring is full the oldest
//! spans are overwritten; counters are never lost.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// What a span was spent on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Stage {
    /// Waiting for bytes from the store.
    Fetch = 0,
    /// Turning bytes into values in the slab.
    Decode = 1,
    /// Reading straight into the slab: fetch and decode in one.
    Copy = 2,
    /// Putting a step's exceptions right before it is handed out.
    Finish = 3,
    /// The caller waiting for a finished step.
    Wait = 4,
    /// From the request to the first byte: the part of a fetch that no bandwidth shortens.
    Request = 5,
}

impl Stage {
    /// All stages, by number.
    pub const ALL: [Stage; 6] = [
        Stage::Fetch,
        Stage::Decode,
        Stage::Copy,
        Stage::Finish,
        Stage::Wait,
        Stage::Request,
    ];

    /// The name that traces show.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Fetch => "fetch",
            Stage::Decode => "decode",
            Stage::Copy => "copy",
            Stage::Finish => "finish",
            Stage::Wait => "wait",
            Stage::Request => "request",
        }
    }
}

/// One stretch of work on one step.
#[derive(Debug, Clone, Copy)]
pub struct Span {
    /// What it was spent on.
    pub stage: Stage,
    /// Worker number; `u16::MAX` is the caller.
    pub thread: u16,
    /// Epoch of the step.
    pub epoch: u64,
    /// Step number in the epoch.
    pub step: u64,
    /// Samples worked on.
    pub samples: u32,
    /// Bytes read or written.
    pub bytes: u64,
    /// Nanoseconds since the trace began.
    pub start: u64,
    /// Nanoseconds since the trace began.
    pub end: u64,
}

/// Sums over the whole run for one stage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Total {
    /// Nanoseconds, summed over threads.
    pub nanos: u64,
    /// Samples.
    pub samples: u64,
    /// Bytes.
    pub bytes: u64,
}

#[derive(Default)]
struct Totals {
    nanos: AtomicU64,
    samples: AtomicU64,
    bytes: AtomicU64,
}

struct Ring {
    spans: Vec<Span>,
    next: usize,
}

/// The ring and the counters.
pub struct Trace {
    origin: Instant,
    capacity: usize,
    ring: Mutex<Ring>,
    totals: [Totals; Stage::ALL.len()],
}

impl Trace {
    /// A ring of `capacity` spans; 0 keeps counters only.
    pub fn new(capacity: usize) -> Self {
        Self {
            origin: Instant::now(),
            capacity,
            ring: Mutex::new(Ring {
                spans: Vec::new(),
                next: 0,
            }),
            totals: Default::default(),
        }
    }

    /// Nanoseconds since the trace began.
    pub fn now(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }

    /// `instant` on the clock of the spans.
    pub fn at(&self, instant: Instant) -> u64 {
        instant.saturating_duration_since(self.origin).as_nanos() as u64
    }

    /// Adds a span.
    pub fn record(&self, span: Span) {
        let totals = &self.totals[span.stage as usize];
        totals
            .nanos
            .fetch_add(span.end.saturating_sub(span.start), Ordering::Relaxed);
        totals
            .samples
            .fetch_add(u64::from(span.samples), Ordering::Relaxed);
        totals.bytes.fetch_add(span.bytes, Ordering::Relaxed);
        if self.capacity == 0 {
            return;
        }
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        if ring.spans.len() < self.capacity {
            ring.spans.push(span);
        } else {
            let at = ring.next;
            ring.spans[at] = span;
            ring.next = (at + 1) % self.capacity;
        }
    }

    /// The spans in the ring, oldest first.
    pub fn spans(&self) -> Vec<Span> {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let (newer, older) = ring.spans.split_at(ring.next);
        [older, newer].concat()
    }

    /// The counters of a stage.
    pub fn total(&self, stage: Stage) -> Total {
        let totals = &self.totals[stage as usize];
        Total {
            nanos: totals.nanos.load(Ordering::Relaxed),
            samples: totals.samples.load(Ordering::Relaxed),
            bytes: totals.bytes.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: u64) -> Span {
        Span {
            stage: Stage::Decode,
            thread: 0,
            epoch: 0,
            step: 0,
            samples: 2,
            bytes: 10,
            start,
            end: start + 5,
        }
    }

    #[test]
    fn a_full_ring_keeps_the_newest_and_the_counters_keep_all() {
        let trace = Trace::new(3);
        (0..5).for_each(|start| trace.record(span(start)));
        let starts: Vec<_> = trace.spans().iter().map(|s| s.start).collect();
        assert_eq!(starts, [2, 3, 4]);
        let total = trace.total(Stage::Decode);
        assert_eq!(
            total,
            Total {
                nanos: 25,
                samples: 10,
                bytes: 50
            }
        );
    }
}
