//! What a worker does with one slot: read, check, decode into the slab.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use penstock_codec::{
    CodecError, CodecErrorKind, Draw, FieldSpec, Format, Limits, Program, Scratch, TensorSpec,
};

use crate::checksum::{crc32c, crc32c_of_parts};
use crate::keys::Keys;
use crate::slab::{aligned, Lease, Overflow, Pool};
use crate::step::{Address, Failure, FailureKind, Finished, Output, Placed, StepRequest, WHOLE};
use crate::store::{BlockingStore, Object, StoreError, StoreErrorKind};

/// What all samples of a field are expected to look like: what the first one looked like, or what the transform
/// makes of any. A sample that differs goes to the overflow.
pub(crate) struct Expected {
    pub spec: TensorSpec,
    pub bytes: usize,
    /// Header after which the sample's own bytes are its values, to be read straight into the slot.
    pub header: Option<Vec<u8>>,
}

/// Where the slots of a field are in a step's slab.
pub(crate) struct Area {
    pub expected: Option<Arc<Expected>>,
    pub offset: usize,
}

#[derive(Default)]
struct Exceptions {
    placed: Vec<(usize, usize, Placed)>,
    failures: Vec<Failure>,
}

/// A step under way.
pub(crate) struct StepWork {
    pub seq: u64,
    pub request: StepRequest,
    pub lease: Arc<Lease>,
    pub areas: Vec<Area>,
    pub overflow: Overflow,
    pub remaining: AtomicUsize,
    pub retries: AtomicU64,
    exceptions: Mutex<Exceptions>,
}

impl StepWork {
    /// Takes a slab for the step and lays its fields out in it.
    pub fn new(
        seq: u64,
        request: StepRequest,
        expected: Vec<Option<Arc<Expected>>>,
        pool: &Arc<Pool>,
    ) -> std::io::Result<Self> {
        let slots = request.ids.len();
        let mut end = 0;
        let areas = expected
            .into_iter()
            .map(|expected| {
                let offset = end;
                end += expected.as_ref().map_or(0, |e| aligned(e.bytes * slots));
                Area { expected, offset }
            })
            .collect();
        Ok(Self {
            seq,
            lease: Arc::new(pool.lease(end)?),
            areas,
            overflow: Overflow::new(Arc::clone(pool)),
            remaining: AtomicUsize::new(slots),
            retries: AtomicU64::new(0),
            exceptions: Mutex::default(),
            request,
        })
    }

    /// Bytes of memory that the step holds.
    pub fn bytes(&self) -> usize {
        self.lease.len() + self.overflow.bytes()
    }

    fn fail(&self, shared: &Shared, slot: usize, field: usize, bad: Bad) {
        let requests = &self.request.fields[field];
        let key = shared
            .keys
            .get(requests.object[slot])
            .unwrap_or("?")
            .to_owned();
        self.exceptions().failures.push(Failure {
            id: self.request.ids[slot],
            slot,
            field,
            key,
            offset: requests.offset[slot],
            kind: bad.kind,
            message: bad.message,
        });
    }

    fn exceptions(&self) -> std::sync::MutexGuard<'_, Exceptions> {
        self.exceptions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether any slot needs more than being handed out as it is.
    fn has_exceptions(&self) -> bool {
        let exceptions = self.exceptions();
        !exceptions.placed.is_empty() || !exceptions.failures.is_empty()
    }

    /// The finished step. With `skip`, failed samples are left out and the others close up.
    pub fn finish(self: &Arc<Self>, skip: bool) -> std::io::Result<Finished> {
        let slots = self.request.ids.len();
        let mut finished = Finished {
            epoch: self.request.epoch,
            step: self.request.step,
            ids: self.request.ids.clone(),
            rows: self.request.rows.clone(),
            fields: Vec::new(),
            failures: Vec::new(),
            retries: self.retries.load(Ordering::Relaxed),
        };
        if !self.has_exceptions() && self.areas.iter().all(|area| area.expected.is_some()) {
            finished.fields = self
                .areas
                .iter()
                .map(|area| self.whole_area(area, slots))
                .collect();
            return Ok(finished);
        }
        let mut exceptions = std::mem::take(&mut *self.exceptions());
        exceptions
            .failures
            .sort_by_key(|failure| (failure.slot, failure.field));
        let mut kept = vec![true; slots];
        exceptions
            .failures
            .iter()
            .for_each(|failure| kept[failure.slot] = false);
        finished.failures = exceptions.failures;
        if !finished.failures.is_empty() && !skip {
            return Ok(finished);
        }
        let keep = |values: &[u64]| {
            values
                .iter()
                .zip(&kept)
                .filter(|(_, &k)| k)
                .map(|(&v, _)| v)
                .collect()
        };
        finished.ids = keep(&self.request.ids);
        finished.rows = keep(&self.request.rows);
        for (field, area) in self.areas.iter().enumerate() {
            let mut placed: Vec<Option<Placed>> =
                (0..slots).map(|slot| self.in_area(area, slot)).collect();
            for (slot, of_field, place) in &exceptions.placed {
                if *of_field == field {
                    placed[*slot] = Some(place.clone());
                }
            }
            let members: Vec<Placed> = placed
                .into_iter()
                .zip(&kept)
                .filter(|(_, &k)| k)
                .filter_map(|(p, _)| p)
                .collect();
            finished.fields.push(match &area.expected {
                // All were bad: no samples, of the shape that they would have had.
                Some(_) if members.is_empty() => self.whole_area(area, 0),
                _ => self.gather(members)?,
            });
        }
        Ok(finished)
    }

    fn in_area(&self, area: &Area, slot: usize) -> Option<Placed> {
        area.expected.as_ref().map(|expected| Placed {
            spec: expected.spec.clone(),
            lease: Arc::clone(&self.lease),
            offset: area.offset + slot * expected.bytes,
        })
    }

    fn whole_area(&self, area: &Area, slots: usize) -> Output {
        let mut first = self
            .in_area(area, 0)
            .expect("asked only for areas with an expectation");
        first.spec.shape.insert(0, slots);
        Output::Stacked(first)
    }

    /// One array where all members have one shape, copied together; a list of views where they have not.
    fn gather(&self, members: Vec<Placed>) -> std::io::Result<Output> {
        let uniform = members.windows(2).all(|pair| pair[0].spec == pair[1].spec);
        let Some(first) = members.first().filter(|_| uniform) else {
            return Ok(Output::Ragged(members));
        };
        let mut spec = first.spec.clone();
        let bytes = spec.bytes().unwrap_or(0);
        spec.shape.insert(0, members.len());
        let (lease, start) = self.overflow.take(bytes * members.len())?;
        for (slot, member) in members.iter().enumerate() {
            // SAFETY: all workers are done with this step, the source belongs to it, and the target area was just
            // taken for this call alone.
            let (from, to) = unsafe {
                (
                    member.lease.bytes_mut(member.offset, bytes),
                    lease.bytes_mut(start + slot * bytes, bytes),
                )
            };
            to.copy_from_slice(from);
        }
        Ok(Output::Stacked(Placed {
            spec,
            lease,
            offset: start,
        }))
    }
}

/// A failure before it is given a place.
pub(crate) struct Bad {
    pub kind: FailureKind,
    pub message: String,
}

impl From<StoreError> for Bad {
    fn from(error: StoreError) -> Self {
        let kind = match error.kind {
            StoreErrorKind::Missing => FailureKind::Missing,
            StoreErrorKind::Truncated => FailureKind::Truncated,
            StoreErrorKind::Deadline | StoreErrorKind::Cancelled => FailureKind::Deadline,
            StoreErrorKind::Denied
            | StoreErrorKind::Unreachable
            | StoreErrorKind::Busy
            | StoreErrorKind::Other => FailureKind::Store,
        };
        Self {
            kind,
            message: error.message,
        }
    }
}

impl From<CodecError> for Bad {
    fn from(error: CodecError) -> Self {
        let kind = match error.kind {
            CodecErrorKind::Truncated => FailureKind::Truncated,
            _ => FailureKind::Decode,
        };
        Self {
            kind,
            message: error.message,
        }
    }
}

fn bad(kind: FailureKind, message: impl Into<String>) -> Bad {
    Bad {
        kind,
        message: message.into(),
    }
}

/// What every worker of a pipeline shares.
pub(crate) struct Shared {
    pub keys: Box<dyn Keys>,
    pub fields: Vec<FieldSpec>,
    pub program: Program,
    pub limits: Limits,
    pub seed: u64,
    /// Reads of one sample, the first included, before it counts as failed.
    pub attempts: u32,
    pub read_timeout: std::time::Duration,
    /// What the samples of each field look like, once one was seen.
    pub expected: Vec<Mutex<Option<Arc<Expected>>>>,
}

impl Shared {
    fn key(&self, object: u32) -> Result<&str, Bad> {
        self.keys.get(object).ok_or_else(|| {
            let count = self.keys.len();
            bad(
                FailureKind::Decode,
                format!("the catalog names object {object} of {count}, or its key is not text"),
            )
        })
    }

    /// What is expected of a field now.
    pub fn expectation(&self, field: usize) -> Option<Arc<Expected>> {
        self.expected[field]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn learn(&self, field: usize, spec: &TensorSpec, header: Option<&[u8]>) {
        let mut expected = self.expected[field]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let known = expected
            .as_ref()
            .is_some_and(|e| e.spec != *spec || e.header.is_some() || header.is_none());
        if let (false, Ok(bytes)) = (known, spec.bytes()) {
            *expected = Some(Arc::new(Expected {
                spec: spec.clone(),
                bytes,
                header: header.map(<[u8]>::to_vec),
            }));
        }
    }
}

/// A worker's own buffers.
#[derive(Default)]
pub(crate) struct Buffers {
    bytes: Vec<u8>,
    scratch: Scratch,
}

/// A read buffer that one huge sample inflated is let go when it is more than this.
const KEPT_BUFFER: usize = 16 << 20;

/// What one slot cost.
#[derive(Default, Clone, Copy)]
pub(crate) struct Cost {
    pub bytes: u64,
    /// When the bytes of the last field had been read, if reading was apart from decoding.
    pub read_done: Option<Instant>,
}

/// Reads and decodes every field of `slot`. Never panics, never leaves the slot unsettled.
pub(crate) fn do_slot(
    shared: &Shared,
    source: &Source<'_>,
    step: &StepWork,
    slot: usize,
    buffers: &mut Buffers,
) -> Cost {
    let mut cost = Cost::default();
    for field in 0..shared.fields.len() {
        let mut attempt = 1;
        loop {
            let work = || do_field(shared, source, step, slot, field, buffers, &mut cost);
            let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
                Err(bad(
                    FailureKind::Decode,
                    "decoding it panicked; this is a bug in penstock",
                ))
            });
            match result {
                Ok(()) => break,
                Err(_) if attempt < shared.attempts => {
                    attempt += 1;
                    step.retries.fetch_add(1, Ordering::Relaxed);
                }
                Err(failed) => {
                    step.fail(shared, slot, field, failed);
                    break;
                }
            }
        }
    }
    if buffers.bytes.capacity() > KEPT_BUFFER {
        buffers.bytes = Vec::new();
    }
    cost
}

/// Where the bytes of a slot come from.
pub(crate) enum Source<'a> {
    /// Read here and now.
    Store(&'a dyn BlockingStore),
    /// Read already, field by field: by fetch threads.
    #[allow(dead_code)] // Constructed once pipelines take async stores.
    Fetched(&'a [Result<Bytes, StoreError>]),
}

fn do_field(
    shared: &Shared,
    source: &Source<'_>,
    step: &StepWork,
    slot: usize,
    field: usize,
    buffers: &mut Buffers,
    cost: &mut Cost,
) -> Result<(), Bad> {
    let spec = &shared.fields[field];
    let address = step.request.fields[field]
        .address(slot)
        .map_err(|message| bad(FailureKind::Decode, message))?;
    let expected = step.areas[field].expected.as_deref();
    let Buffers { bytes, scratch } = buffers;
    let bytes: &[u8] = match source {
        Source::Store(store) => {
            let key = shared.key(address.object)?;
            let object = Object {
                index: address.object,
                key,
            };
            let deadline = Instant::now() + shared.read_timeout;
            if let Some(expected) = expected {
                if read_into_slot(
                    *store, object, &address, step, slot, field, expected, bytes, deadline,
                )? {
                    cost.bytes += expected.bytes as u64;
                    return Ok(());
                }
            }
            let length = match address.length {
                WHOLE => store.size(object, deadline)?.saturating_sub(address.offset),
                length => length,
            };
            let length = checked_length(length, &shared.limits)?;
            // Growing a vector fills it; its old content is as good, so it only ever grows.
            if bytes.len() < length {
                bytes.resize(length, 0);
            }
            store.read_at(
                object,
                address.offset,
                &mut [&mut bytes[..length]],
                deadline,
            )?;
            &bytes[..length]
        }
        Source::Fetched(fields) => match &fields[field] {
            Ok(fetched) => fetched,
            Err(error) => return Err(error.clone().into()),
        },
    };
    cost.bytes += bytes.len() as u64;
    cost.read_done = Some(Instant::now());
    check(bytes.len(), address.crc32c, || crc32c(bytes))?;
    decode(
        shared,
        step,
        slot,
        field,
        spec,
        address.format,
        bytes,
        scratch,
    )
}

/// The fast path: values that lie in the store as they will lie in the slab. False where the sample is not of that
/// kind; the slot is then written again by the ordinary path.
#[allow(clippy::too_many_arguments)] // One call site; each names one thing of the slot.
fn read_into_slot(
    store: &dyn BlockingStore,
    object: Object<'_>,
    address: &Address,
    step: &StepWork,
    slot: usize,
    field: usize,
    expected: &Expected,
    buffer: &mut Vec<u8>,
    deadline: Instant,
) -> Result<bool, Bad> {
    let Some(header) = &expected.header else {
        return Ok(false);
    };
    let is_plain = matches!(address.format, Format::Raw | Format::Npy);
    if !is_plain || address.length != (header.len() + expected.bytes) as u64 {
        return Ok(false);
    }
    let offset = step.areas[field].offset + slot * expected.bytes;
    // SAFETY: the slot was claimed by this worker alone, and areas of slots and fields are disjoint.
    let target = unsafe { step.lease.bytes_mut(offset, expected.bytes) };
    if header.is_empty() {
        store.read_at(object, address.offset, &mut [target], deadline)?;
        check(target.len(), address.crc32c, || crc32c(target))?;
        return Ok(true);
    }
    if buffer.len() < header.len() {
        buffer.resize(header.len(), 0);
    }
    let head = &mut buffer[..header.len()];
    store.read_at(object, address.offset, &mut [head, target], deadline)?;
    if head != header.as_slice() {
        return Ok(false);
    }
    check(target.len(), address.crc32c, || {
        crc32c_of_parts(&[head, target])
    })?;
    Ok(true)
}

fn check(length: usize, crc: Option<u32>, actual: impl FnOnce() -> u32) -> Result<(), Bad> {
    let Some(wanted) = crc else { return Ok(()) };
    let actual = actual();
    if actual == wanted {
        return Ok(());
    }
    Err(bad(
        FailureKind::Checksum,
        format!("its {length} bytes have crc32c {actual:08x}, but {wanted:08x} was packed: the data changed since"),
    ))
}

fn checked_length(length: u64, limits: &Limits) -> Result<usize, Bad> {
    if length > limits.max_bytes {
        return Err(bad(
            FailureKind::Decode,
            format!(
                "it has {length} bytes; at most {} are read as one sample",
                limits.max_bytes
            ),
        ));
    }
    Ok(length as usize)
}

#[allow(clippy::too_many_arguments)] // One call site; each names one thing of the slot.
fn decode(
    shared: &Shared,
    step: &StepWork,
    slot: usize,
    field: usize,
    spec: &FieldSpec,
    format: Format,
    bytes: &[u8],
    scratch: &mut Scratch,
) -> Result<(), Bad> {
    let draw = Draw::new(shared.seed, step.request.epoch, step.request.ids[slot]);
    let area = &step.areas[field];
    let fixed = area
        .expected
        .as_deref()
        .filter(|_| shared.program.fixed_output(spec).is_some());
    let actual;
    let output = match fixed {
        Some(expected) => &expected.spec,
        None => {
            actual = shared.program.output(spec, format, bytes, &draw)?;
            &actual
        }
    };
    if let Some(expected) = area
        .expected
        .as_deref()
        .filter(|expected| expected.spec == *output)
    {
        // SAFETY: the slot was claimed by this worker alone, and areas of slots and fields are disjoint.
        let target = unsafe {
            step.lease
                .bytes_mut(area.offset + slot * expected.bytes, expected.bytes)
        };
        shared
            .program
            .run(spec, format, bytes, &draw, target, scratch, &shared.limits)?;
        return Ok(());
    }
    let size = output.bytes()?;
    if size as u64 > shared.limits.max_bytes {
        return Err(bad(
            FailureKind::Decode,
            format!(
                "it would decode to {size} bytes; at most {} are allowed",
                shared.limits.max_bytes
            ),
        ));
    }
    let (lease, offset) = step.overflow.take(size).map_err(|error| {
        bad(
            FailureKind::Store,
            format!("no memory for its {size} bytes: {error}"),
        )
    })?;
    // SAFETY: the area was just taken for this slot alone.
    let target = unsafe { lease.bytes_mut(offset, size) };
    shared
        .program
        .run(spec, format, bytes, &draw, target, scratch, &shared.limits)?;
    let payload = shared
        .program
        .payload(spec, format, bytes, bytes.len() as u64)?;
    let header = payload.and_then(|payload| bytes.get(..payload.offset as usize));
    shared.learn(field, output, header);
    let placed = Placed {
        spec: output.clone(),
        lease,
        offset,
    };
    step.exceptions().placed.push((slot, field, placed));
    Ok(())
}
