//! The window: samples on their way from a far store to a slot.
//!
//! The fetch threads say what has arrived; when a sample is whole it gets a slot and becomes ready for the workers.
//! Which slot is a matter of the order: its own ([`Order::Strict`]), or the first free one of the oldest open step that
//! may have it ([`Order::Arrival`], see `arrangement`). The window knows neither threads nor time: its owner locks it.
//!
//! On success every sample becomes ready once. A sample whose request failed becomes ready too, with the error in it.
//! After [`Window::clear`] nothing of before becomes ready: what arrives late is unknown and dropped.

mod arrangement;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use crate::cache::{Cache, Place, Which};
use crate::fetch::{Completion, FetchRequest};
use crate::step::{Address, WHOLE};
use crate::store::StoreError;
use crate::worker::StepWork;
use arrangement::Arrangement;

/// Which sample comes in which batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// As planned.
    #[default]
    Strict,
    /// What arrives fills the oldest open step, no more than `displacement` steps before or after its own.
    Arrival {
        /// In steps.
        displacement: u64,
    },
}

/// How the requests of a ready sample went.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Journey {
    pub began: Instant,
    pub first_byte: Option<Instant>,
    pub ended: Instant,
    pub attempts: u32,
    pub hedged: bool,
}

/// A sample whose bytes are there, and its slot.
pub(crate) struct Ready {
    /// The step that planned it, and its place there: id, row, addresses.
    pub from: Arc<StepWork>,
    pub from_slot: usize,
    /// The step that gets it, and its slot there.
    pub to: Arc<StepWork>,
    pub to_slot: usize,
    /// Field by field.
    pub parts: Vec<Result<Bytes, StoreError>>,
    /// Fields whose bytes are in the cache, still to be read.
    pub cached: Vec<(usize, Which, Place)>,
    /// None where no request was made.
    pub journey: Option<Journey>,
    /// How often it was fetched, this time included.
    pub tries: u32,
}

impl Ready {
    fn bytes(&self) -> usize {
        let parts = self.parts.iter();
        parts.map(|part| part.as_ref().map_or(0, Bytes::len)).sum()
    }
}

struct Sample {
    from: Arc<StepWork>,
    from_slot: usize,
    /// The slot that it has already: when it is fetched again.
    to: Option<(Arc<StepWork>, usize)>,
    parts: Vec<Option<Result<Bytes, StoreError>>>,
    cached: Vec<(usize, Which, Place)>,
    missing: usize,
    journey: Option<Journey>,
    tries: u32,
}

/// The samples on their way, and those that are ready.
pub(crate) struct Window {
    fields: u64,
    cache: Option<Arc<Cache>>,
    /// By number, from `first` on; None are ready already.
    samples: VecDeque<Option<Sample>>,
    first: u64,
    arrangement: Option<Arrangement<Arc<StepWork>>>,
    /// By the step that gets them, the oldest first.
    ready: BTreeMap<u64, VecDeque<Ready>>,
    /// What objects of unknown length turned out to have, on average.
    whole: f64,
}

/// Assumed of an object of unknown length before one was seen.
const WHOLE_FIRST: f64 = 128e3;

impl Window {
    pub fn new(fields: usize, order: Order, cache: Option<Arc<Cache>>) -> Self {
        let arrangement = match order {
            Order::Strict => None,
            Order::Arrival { displacement } => Some(Arrangement::new(displacement)),
        };
        Self {
            fields: fields.max(1) as u64,
            cache,
            samples: VecDeque::new(),
            first: 0,
            arrangement,
            ready: BTreeMap::new(),
            whole: WHOLE_FIRST,
        }
    }

    /// Expects all samples of `step`, and says what to ask the store for. Fields without an address that makes sense are
    /// ready at once, without bytes: the worker finds out what is wrong with them.
    pub fn open(&mut self, step: &Arc<StepWork>, limit: u64) -> Vec<FetchRequest> {
        let slots = step.request.ids.len();
        let request = &step.request;
        if let (Some(arrangement), false) = (&mut self.arrangement, request.fenced) {
            let planned = (0..slots).map(|slot| request.planned(slot));
            arrangement.open(
                Arc::clone(step),
                request.epoch,
                request.step,
                slots,
                planned,
            );
        }
        let mut requests = Vec::with_capacity(slots * self.fields as usize);
        let mut reserved = 0;
        for slot in 0..slots {
            reserved += self.expect(Arc::clone(step), slot, None, 1, limit, &mut requests);
        }
        step.reserve(reserved);
        requests
    }

    /// Expects a sample anew that came damaged, for the slot that it has.
    pub fn again(&mut self, ready: &Ready, limit: u64) -> Vec<FetchRequest> {
        let mut requests = Vec::new();
        let to = Some((Arc::clone(&ready.to), ready.to_slot));
        self.expect(
            Arc::clone(&ready.from),
            ready.from_slot,
            to,
            ready.tries + 1,
            limit,
            &mut requests,
        );
        requests
    }

    /// Adds the sample and its requests. Returns how many bytes it will bring.
    fn expect(
        &mut self,
        from: Arc<StepWork>,
        from_slot: usize,
        to: Option<(Arc<StepWork>, usize)>,
        tries: u32,
        limit: u64,
        requests: &mut Vec<FetchRequest>,
    ) -> u64 {
        let number = self.first + self.samples.len() as u64;
        let urgency = to.as_ref().map_or(from.seq, |(step, _)| step.seq);
        let mut reserved = 0;
        let mut missing = 0;
        let mut cached = Vec::new();
        let cache = &self.cache;
        let parts = (0..self.fields as usize).map(|field| {
            let address = from.request.fields[field].address(from_slot);
            match address {
                Ok(address) if address.length == WHOLE || address.length <= limit => {
                    reserved += if address.length == WHOLE {
                        self.whole as u64
                    } else {
                        address.length
                    };
                    let which = (address.object, address.offset, address.length);
                    if let Some(place) = cache.as_ref().and_then(|cache| cache.find(which)) {
                        cached.push((field, which, place));
                        return Some(Ok(Bytes::new()));
                    }
                    requests.push(FetchRequest {
                        ticket: number * self.fields + field as u64,
                        object: address.object,
                        offset: address.offset,
                        length: (address.length != WHOLE).then_some(address.length),
                        step: urgency,
                    });
                    missing += 1;
                    None
                }
                _ => Some(Ok(Bytes::new())),
            }
        });
        let parts = parts.collect();
        self.samples.push_back(Some(Sample {
            from,
            from_slot,
            to,
            parts,
            cached,
            missing,
            journey: None,
            tries,
        }));
        if missing == 0 {
            self.settle(number);
        }
        reserved
    }

    /// Takes what the fetch threads bring. Returns how many samples became ready.
    pub fn arrived(&mut self, completions: &mut Vec<Completion>) -> usize {
        let mut ready = 0;
        for completion in completions.drain(..) {
            let (number, field) = (
                completion.ticket / self.fields,
                (completion.ticket % self.fields) as usize,
            );
            let Some(at) = number.checked_sub(self.first) else {
                continue;
            };
            let Some(Some(sample)) = self.samples.get_mut(at as usize) else {
                continue;
            };
            if sample.parts[field].is_some() {
                continue;
            }
            let address = sample.from.request.fields[field].address(sample.from_slot);
            sample.parts[field] = Some(match (completion.result, address) {
                (Ok(bytes), Ok(address)) if address.length == WHOLE => {
                    self.whole += (bytes.len() as f64 - self.whole) / 64.0;
                    Ok(from_offset(bytes, &address))
                }
                (result, _) => result,
            });
            sample.missing -= 1;
            let journey = sample.journey.get_or_insert(Journey {
                began: completion.began,
                first_byte: completion.first_byte,
                ended: completion.ended,
                attempts: 0,
                hedged: false,
            });
            journey.began = journey.began.min(completion.began);
            journey.first_byte = journey.first_byte.min(completion.first_byte);
            journey.ended = journey.ended.max(completion.ended);
            journey.attempts += completion.attempts;
            journey.hedged |= completion.hedged;
            if sample.missing == 0 {
                self.settle(number);
                ready += 1;
            }
        }
        ready
    }

    /// A sample is whole: gives it a slot and makes it ready.
    fn settle(&mut self, number: u64) {
        let Some(sample) = self
            .samples
            .get_mut((number - self.first) as usize)
            .and_then(Option::take)
        else {
            return;
        };
        while let Some(None) = self.samples.front() {
            self.samples.pop_front();
            self.first += 1;
        }
        let (to, to_slot) = match (sample.to, &mut self.arrangement) {
            (Some(place), _) => place,
            (None, None) => (Arc::clone(&sample.from), sample.from_slot),
            (None, Some(arrangement)) => {
                let (request, slot) = (&sample.from.request, sample.from_slot);
                let found = if request.fenced {
                    None
                } else {
                    arrangement.place(request.epoch, request.planned(slot))
                };
                let (to, to_slot) = found.unwrap_or_else(|| (Arc::clone(&sample.from), slot));
                to.put(to_slot, request.ids[slot], request.rows[slot]);
                (to, to_slot)
            }
        };
        let parts = sample.parts.into_iter().flatten().collect();
        let ready = Ready {
            from: sample.from,
            from_slot: sample.from_slot,
            to,
            to_slot,
            parts,
            cached: sample.cached,
            journey: sample.journey,
            tries: sample.tries,
        };
        self.ready.entry(ready.to.seq).or_default().push_back(ready);
    }

    /// Moves ready samples into `into`, those of the oldest step first: some `bytes`, at least one, at most `most`.
    pub fn take(&mut self, bytes: usize, most: usize, into: &mut Vec<Ready>) {
        let mut taken = 0;
        while let Some(mut oldest) = self.ready.first_entry() {
            while let Some(ready) = oldest.get_mut().pop_front() {
                taken += ready.bytes();
                into.push(ready);
                if taken >= bytes || into.len() >= most {
                    break;
                }
            }
            if oldest.get().is_empty() {
                oldest.remove();
            }
            if taken >= bytes || into.len() >= most {
                return;
            }
        }
    }

    /// Whether anything is ready.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Samples that have not arrived and that the oldest step may be waiting for: `(step, slot)` of their plan.
    pub fn awaited(&self, oldest: &StepWork) -> impl Iterator<Item = (&Arc<StepWork>, usize)> {
        let all = self.arrangement.is_some();
        let seq = oldest.seq;
        self.samples.iter().flatten().filter_map(move |sample| {
            let wanted = match &sample.to {
                Some((step, _)) => step.seq == seq,
                None => all || sample.from.seq == seq,
            };
            wanted.then_some((&sample.from, sample.from_slot))
        })
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.first += self.samples.len() as u64;
        self.samples.clear();
        self.ready.clear();
        if let Some(arrangement) = &mut self.arrangement {
            arrangement.clear();
        }
    }
}

/// The bytes behind the offset of an address that goes to the object's end.
fn from_offset(bytes: Bytes, address: &Address) -> Bytes {
    let start = usize::try_from(address.offset)
        .unwrap_or(usize::MAX)
        .min(bytes.len());
    bytes.slice(start..)
}
