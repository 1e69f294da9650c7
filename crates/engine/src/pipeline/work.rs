//! What the workers do: they claim slots of the oldest step, or samples that have been fetched, and settle them.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use super::{Activity, Inner, FETCH_THREAD, GRAIN_BYTES, GRAIN_SLOTS};
use crate::copiers::Copying;
use crate::fetch::Completion;
use crate::rows::copy_rows;
use crate::store::BlockingStore;
use crate::trace::{Span, Stage};
use crate::window::Ready;
use crate::worker::{do_fetched, do_slot, Buffers, StepWork, Task};

/// Some slots of a step that a worker took.
struct Claim {
    step: Arc<StepWork>,
    slots: std::ops::Range<usize>,
    copying: Option<Copying>,
}

/// What a claim came to.
struct Outcome {
    bytes: u64,
    nanos: u64,
    /// All of it was copied from memory.
    warm: bool,
}

impl Inner {
    /// Takes what a fetch thread brings.
    pub(super) fn arrived(&self, came: &mut Vec<Completion>) {
        let mut queue = self.lock();
        let Some(window) = &mut queue.window else {
            return;
        };
        let ready = window.arrived(came);
        // A wake costs as much as a small sample: nobody is woken who would look and sleep again.
        if queue.wants_room && self.has_room(&queue) {
            self.done.notify_all();
        }
        let wake = ready > 0 && queue.idle > 0;
        drop(queue);
        if wake {
            self.work.notify_one();
        }
    }

    /// The next fetched samples to work on; false when the pipeline closes.
    fn claim_ready(&self, into: &mut Vec<Ready>) -> bool {
        let mut queue = self.lock();
        loop {
            if queue.closed {
                return false;
            }
            if let Some(window) = queue.window.as_mut().filter(|window| window.has_ready()) {
                window.take(GRAIN_BYTES as usize, GRAIN_SLOTS, into);
                // There is more than one worker's share: each wakes the next.
                let more = window.has_ready() && queue.idle > 0;
                drop(queue);
                if more {
                    self.work.notify_one();
                }
                return true;
            }
            queue.idle += 1;
            queue = self
                .work
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
            queue.idle -= 1;
        }
    }

    fn do_ready(&self, number: u16, activity: &Activity, mut ready: Ready, buffers: &mut Buffers) {
        let start = self.trace.now();
        if !self.read_cached(&mut ready) {
            ready.tries -= 1;
            self.fetch_again(&ready);
            return;
        }
        let Ready {
            from,
            from_slot,
            to,
            to_slot,
            ..
        } = &ready;
        activity.slot.store(*to_slot, Ordering::Relaxed);
        activity.since.store(start, Ordering::Relaxed);
        activity.seq.store(to.seq + 1, Ordering::Release);
        let task = Task {
            from,
            from_slot: *from_slot,
            to,
            slot: *to_slot,
        };
        let done = do_fetched(&self.shared, &ready.parts, task, ready.tries, buffers);
        activity.seq.store(0, Ordering::Release);
        let bytes = ready
            .parts
            .iter()
            .flatten()
            .map(|part| part.len() as u64)
            .sum();
        let span = |stage, thread, start, end| Span {
            stage,
            thread,
            epoch: to.request.epoch,
            step: to.request.step,
            samples: 1,
            bytes,
            start,
            end,
        };
        if let Some(journey) = &ready.journey {
            let (began, ended) = (self.trace.at(journey.began), self.trace.at(journey.ended));
            if let Some(first) = journey.first_byte {
                let span = span(Stage::Request, FETCH_THREAD, began, self.trace.at(first));
                self.trace.record(Span { bytes: 0, ..span });
            }
            self.trace
                .record(span(Stage::Fetch, FETCH_THREAD, began, ended));
        }
        self.trace
            .record(span(Stage::Decode, number, start, self.trace.now()));
        let Some(cost) = done else {
            self.fetch_again(&ready);
            return;
        };
        if !cost.failed {
            self.keep(&ready);
        }
        from.release(bytes);
        if to.remaining.fetch_sub(1, Ordering::AcqRel) == 1 {
            // Under the lock, so that a caller between its check and its wait does not miss it.
            drop(self.lock());
            self.done.notify_all();
        }
    }

    /// Reads what is in the cache; false where it is no longer what it was.
    fn read_cached(&self, ready: &mut Ready) -> bool {
        let Some(cache) = &self.cache else {
            return true;
        };
        for (field, which, place) in &ready.cached {
            match cache.read(*which, place) {
                Some(bytes) => ready.parts[*field] = Ok(bytes.into()),
                None => return false,
            }
        }
        true
    }

    /// Keeps what was fetched and is known to be good.
    fn keep(&self, ready: &Ready) {
        let Some(cache) = &self.cache else { return };
        for (field, part) in ready.parts.iter().enumerate() {
            let was_there = ready.cached.iter().any(|(cached, ..)| *cached == field);
            let address = ready.from.request.fields[field].address(ready.from_slot);
            if let (false, Ok(bytes), Ok(address)) = (was_there, part, address) {
                if !bytes.is_empty() {
                    cache.put((address.object, address.offset, address.length), bytes);
                }
            }
        }
    }

    fn fetch_again(&self, ready: &Ready) {
        let mut queue = self.lock();
        let Some(window) = &mut queue.window else {
            return;
        };
        let requests = window.again(ready, self.shared.limits.max_bytes);
        drop(queue);
        if let Some(fetcher) = self.fetcher.get() {
            fetcher.submit(&requests);
        }
        self.work.notify_all();
    }

    /// The next slots to work on, after what came of the last; None when the pipeline closes.
    fn claim(&self, last: Option<(Copying, Outcome)>) -> Option<Claim> {
        let mut queue = self.lock();
        if let Some((copying, outcome)) = last {
            let Outcome { bytes, nanos, warm } = outcome;
            queue.copiers.end(copying, bytes, nanos, warm);
        }
        loop {
            if queue.closed {
                return None;
            }
            let room = queue.copiers.has_room();
            if let Some(front) = queue.claimable.front_mut().filter(|f| room || !f.copies) {
                let slots = front.step.request.ids.len();
                let start = front.next;
                let end = (start + front.grain).min(slots);
                front.next = end;
                let (step, copies) = (Arc::clone(&front.step), front.copies);
                if end == slots {
                    queue.claimable.pop_front();
                }
                let copying = copies.then(|| queue.copiers.begin());
                if copies && !queue.claimable.is_empty() && queue.copiers.has_room() {
                    self.work.notify_one();
                }
                return Some(Claim {
                    step,
                    slots: start..end,
                    copying,
                });
            }
            queue = self
                .work
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(super) fn run_worker(&self, number: u16, activity: &Activity) {
        let mut buffers = Buffers::default();
        let store = self.lock().store.clone();
        if let Some(store) = store {
            let mut last = None;
            while let Some(claim) = self.claim(last.take()) {
                let Claim {
                    step,
                    slots,
                    copying,
                } = claim;
                let outcome = self.do_slots(number, activity, &*store, &step, slots, &mut buffers);
                last = copying.map(|copying| (copying, outcome));
            }
        } else {
            let mut ready = Vec::new();
            while self.claim_ready(&mut ready) {
                for sample in ready.drain(..) {
                    self.do_ready(number, activity, sample, &mut buffers);
                }
            }
        }
        self.lock().alive -= 1;
        self.done.notify_all();
    }

    fn do_slots(
        &self,
        number: u16,
        activity: &Activity,
        store: &dyn BlockingStore,
        step: &StepWork,
        slots: std::ops::Range<usize>,
        buffers: &mut Buffers,
    ) -> Outcome {
        let count = slots.len();
        let span = |stage, samples, bytes, start, end| Span {
            stage,
            thread: number,
            epoch: step.request.epoch,
            step: step.request.step,
            samples,
            bytes,
            start,
            end,
        };
        activity.seq.store(step.seq + 1, Ordering::Release);
        let begun = self.trace.now();
        let mut start = begun;
        activity.slot.store(slots.start, Ordering::Relaxed);
        activity.since.store(start, Ordering::Relaxed);
        // Time spent in reads; it was slept away only where the thread gave up its core meanwhile.
        let (mut reading, waits_before) = (0, Waits::of_this_thread());
        // Samples that go straight into their slots are many and small: one span for the lot.
        let mut done = std::mem::take(&mut buffers.copied);
        let maps = copy_rows(&self.shared, store, step, slots.clone(), &mut done);
        let (mut copied, mut copied_bytes) = (0, done.bytes);
        let first = slots.start;
        if done.is_all() {
            copied = count as u32;
        } else if copied_bytes > 0 {
            start = self.trace.now();
        }
        for slot in slots.skip(copied as usize) {
            activity.slot.store(slot, Ordering::Relaxed);
            activity.since.store(start, Ordering::Relaxed);
            let read_from = Instant::now();
            let known = done.of(slot - first);
            let cost = do_slot(&self.shared, store, Task::own(step, slot), known, buffers);
            match cost.read_done {
                None => {
                    copied += 1;
                    copied_bytes += cost.bytes;
                }
                Some(read_done) => {
                    let end = self.trace.now();
                    let middle = start + read_done.duration_since(read_from).as_nanos() as u64;
                    reading += middle - start;
                    self.trace
                        .record(span(Stage::Fetch, 1, cost.bytes, start, middle.min(end)));
                    self.trace
                        .record(span(Stage::Decode, 1, cost.bytes, middle.min(end), end));
                    start = end;
                }
            }
        }
        if copied > 0 {
            let end = self.trace.now();
            self.trace
                .record(span(Stage::Copy, copied, copied_bytes, begun, end));
            reading = end - begun;
        }
        let outcome = Outcome {
            bytes: copied_bytes,
            nanos: self.trace.now() - begun,
            warm: done.is_all(),
        };
        buffers.copied = done;
        let waits = Waits::of_this_thread();
        if waits.sleeps > waits_before.sleeps {
            self.slept.fetch_add(reading, Ordering::Relaxed);
        }
        if waits.faults > waits_before.faults {
            maps.iter().for_each(|map| map.forget());
        }
        activity.seq.store(0, Ordering::Release);
        if step.remaining.fetch_sub(count, Ordering::AcqRel) == count {
            // Under the lock, so that a caller between its check and its wait does not miss it.
            drop(self.lock());
            self.done.notify_all();
        }
        outcome
    }
}

/// How often this thread had to wait.
struct Waits {
    /// It gave up the core of itself: it slept, rather than being pushed aside.
    sleeps: i64,
    /// A page that it touched was not in memory.
    faults: i64,
}

impl Waits {
    fn of_this_thread() -> Self {
        // SAFETY: all zeros is a valid `rusage`, and the call fills it.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
            usage
        };
        Self {
            sleeps: usage.ru_nvcsw,
            faults: usage.ru_majflt,
        }
    }
}
