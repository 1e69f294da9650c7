//! What a worker does with one slot: read, check, decode into the slab.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use penstock_codec::{
    CodecError, CodecErrorKind, Draw, FieldSpec, Format, Kind, Limits, Program, Scratch, TensorSpec,
};

use crate::checksum::{crc32c, crc32c_of_parts};
use crate::encoded;
use crate::keys::Keys;
use crate::rows::Copied;
use crate::slab::{aligned, Lease, Overflow, Pool};
use crate::step::{
    Address, Failure, FailureKind, Finished, Output, Placed, StepRequest, LACKING, NO_OBJECT, WHOLE,
};
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

/// A step's slab and where its fields are in it.
pub(crate) struct Layout {
    pub lease: Arc<Lease>,
    pub areas: Vec<Area>,
}

impl Layout {
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
}

/// A step under way.
pub(crate) struct StepWork {
    pub seq: u64,
    pub request: StepRequest,
    /// Made when the first sample is there: a step that only waits for its bytes holds no slab, and more is known then
    /// of what samples look like.
    layout: OnceLock<Result<Layout, String>>,
    /// What the slab is expected to take.
    expected_bytes: usize,
    /// Bytes that are on their way for this step or wait to be decoded.
    reserved: AtomicU64,
    /// In arrival order, what came: slot, id, row.
    came: Mutex<Vec<(usize, u64, u64)>>,
    overflow: Overflow,
    pub remaining: AtomicUsize,
    pub retries: AtomicU64,
    exceptions: Mutex<Exceptions>,
}

impl StepWork {
    /// A step of which nothing is done.
    pub fn new(seq: u64, request: StepRequest, shared: &Shared) -> Self {
        let slots = request.ids.len();
        let fields = 0..shared.fields.len();
        let expected = fields.filter_map(|field| shared.expectation(field));
        Self {
            seq,
            layout: OnceLock::new(),
            expected_bytes: expected.map(|e| aligned(e.bytes * slots)).sum(),
            reserved: AtomicU64::new(0),
            came: Mutex::default(),
            overflow: Overflow::new(
                Arc::clone(&shared.pool),
                encoded::room(&request, &shared.fields),
            ),
            remaining: AtomicUsize::new(slots),
            retries: AtomicU64::new(0),
            exceptions: Mutex::default(),
            request,
        }
    }

    /// The slab and the areas in it, as far as is known by now what samples look like.
    pub fn layout(&self, shared: &Shared) -> Result<&Layout, &str> {
        let slots = self.request.ids.len();
        let made = self.layout.get_or_init(|| {
            let mut end = 0;
            let areas = (0..shared.fields.len()).map(|field| {
                let expected = shared.expectation(field);
                let offset = end;
                end += expected.as_ref().map_or(0, |e| aligned(e.bytes * slots));
                Area { expected, offset }
            });
            let areas = areas.collect();
            match shared.pool.lease(end) {
                Ok(lease) => Ok(Layout {
                    lease: Arc::new(lease),
                    areas,
                }),
                Err(error) => Err(format!("no memory for a step of {end} bytes: {error}")),
            }
        });
        made.as_ref().map_err(String::as_str)
    }

    /// Bytes of memory that the step holds or will hold.
    pub fn bytes(&self) -> usize {
        let slab = match self.layout.get() {
            Some(Ok(layout)) => layout.lease.len(),
            _ => self.expected_bytes,
        };
        slab + self.overflow.bytes() + self.reserved.load(Ordering::Relaxed) as usize
    }

    /// Counts bytes that are on their way.
    pub fn reserve(&self, bytes: u64) {
        self.reserved.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The bytes of a sample are no longer held.
    pub fn release(&self, bytes: u64) {
        let less = |held: u64| Some(held.saturating_sub(bytes));
        let _ = self
            .reserved
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// In arrival order: which sample is in `slot`.
    pub fn put(&self, slot: usize, id: u64, row: u64) {
        let mut came = self.came.lock().unwrap_or_else(PoisonError::into_inner);
        came.push((slot, id, row));
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
    pub fn finish(&self, shared: &Shared, skip: bool) -> std::io::Result<Finished> {
        let layout = self.layout(shared);
        let layout =
            layout.map_err(|text| std::io::Error::new(std::io::ErrorKind::OutOfMemory, text))?;
        let slots = self.request.ids.len();
        let (mut ids, mut rows) = (self.request.ids.clone(), self.request.rows.clone());
        for &(slot, id, row) in self
            .came
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
        {
            (ids[slot], rows[slot]) = (id, row);
        }
        let mut finished = Finished {
            epoch: self.request.epoch,
            step: self.request.step,
            ids,
            rows,
            fields: Vec::new(),
            failures: Vec::new(),
            retries: self.retries.load(Ordering::Relaxed),
        };
        if !self.has_exceptions() && layout.areas.iter().all(|area| area.expected.is_some()) {
            finished.fields = layout
                .areas
                .iter()
                .map(|area| layout.whole_area(area, slots))
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
        finished.ids = keep(&finished.ids);
        finished.rows = keep(&finished.rows);
        for (field, area) in layout.areas.iter().enumerate() {
            let mut placed: Vec<Option<Placed>> =
                (0..slots).map(|slot| layout.in_area(area, slot)).collect();
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
                Some(_) if members.is_empty() => layout.whole_area(area, 0),
                // Files stay where they are: each begins at a cache line.
                _ if shared.fields[field].kind == Kind::Encoded => Output::Ragged(members),
                _ => self.gather(members)?,
            });
        }
        Ok(finished)
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
    pub pool: Arc<Pool>,
    pub keys: Arc<dyn Keys>,
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
            if object == NO_OBJECT {
                return bad(FailureKind::Missing, LACKING);
            }
            let count = self.keys.len();
            bad(
                FailureKind::Decode,
                format!("the catalog names object {object} of {count}, or its key is not text"),
            )
        })
    }

    /// Whether samples of a field are expected to lie in the store as they will lie in the slab.
    pub fn is_copied(&self, field: usize) -> bool {
        let expected = self.expectation(field);
        expected.is_some_and(|expected| expected.header.is_some())
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
    pub copied: Copied,
}

/// A read buffer that one huge sample inflated is let go when it is more than this.
const KEPT_BUFFER: usize = 16 << 20;

/// What one slot cost.
#[derive(Default, Clone, Copy)]
pub(crate) struct Cost {
    pub bytes: u64,
    /// When the bytes of the last field had been read, if reading was apart from decoding.
    pub read_done: Option<Instant>,
    /// Whether a field could not be had.
    pub failed: bool,
}

/// A sample and the slot that it is to be put into.
#[derive(Clone, Copy)]
pub(crate) struct Task<'a> {
    /// The step that planned it, and its place there.
    pub from: &'a StepWork,
    pub from_slot: usize,
    /// The step that gets it, and its slot there.
    pub to: &'a StepWork,
    pub slot: usize,
}

impl<'a> Task<'a> {
    /// A sample that stays where it was planned.
    pub fn own(step: &'a StepWork, slot: usize) -> Self {
        Self {
            from: step,
            from_slot: slot,
            to: step,
            slot,
        }
    }

    fn id(&self) -> u64 {
        self.from.request.ids[self.from_slot]
    }

    fn address(&self, field: usize) -> Result<Address, Bad> {
        let address = self.from.request.fields[field].address(self.from_slot);
        address.map_err(|message| bad(FailureKind::Decode, message))
    }

    fn fail(&self, shared: &Shared, field: usize, bad: Bad) {
        let requests = &self.from.request.fields[field];
        let key = shared.keys.get(requests.object[self.from_slot]);
        self.to.exceptions().failures.push(Failure {
            id: self.id(),
            slot: self.slot,
            field,
            key: key.unwrap_or("?").to_owned(),
            offset: requests.offset[self.from_slot],
            kind: bad.kind,
            message: bad.message,
        });
    }
}

/// Reads and decodes every field of a sample but those that are `done`. Never panics, never leaves the slot unsettled.
pub(crate) fn do_slot(
    shared: &Shared,
    store: &dyn BlockingStore,
    task: Task<'_>,
    done: &[bool],
    buffers: &mut Buffers,
) -> Cost {
    let mut cost = Cost::default();
    for field in 0..shared.fields.len() {
        if done.get(field).is_some_and(|&done| done) {
            continue;
        }
        let mut attempt = 1;
        while let Err(failed) = try_field(
            shared,
            &Source::Store(store),
            task,
            field,
            buffers,
            &mut cost,
        ) {
            if attempt >= shared.attempts {
                task.fail(shared, field, failed);
                break;
            }
            attempt += 1;
            task.to.retries.fetch_add(1, Ordering::Relaxed);
        }
    }
    if buffers.bytes.capacity() > KEPT_BUFFER {
        buffers.bytes = Vec::new();
    }
    cost
}

/// Bytes that came damaged are fetched so often, the first time included: over a wire that damages one in fifty, a sample
/// in three hundred million is lost.
const DAMAGED_TRIES: u32 = 5;

/// Decodes every field of a sample that was fetched `tries` times. None: fetch it again. Never panics, and the slot is
/// settled where there is a cost.
pub(crate) fn do_fetched(
    shared: &Shared,
    parts: &[Result<Bytes, StoreError>],
    task: Task<'_>,
    tries: u32,
    buffers: &mut Buffers,
) -> Option<Cost> {
    let mut cost = Cost::default();
    let mut failures = Vec::new();
    for field in 0..shared.fields.len() {
        let Err(failed) = try_field(
            shared,
            &Source::Fetched(parts),
            task,
            field,
            buffers,
            &mut cost,
        ) else {
            continue;
        };
        let allowed = match failed.kind {
            FailureKind::Checksum => shared.attempts.max(DAMAGED_TRIES),
            // Tried for as long as it may take.
            FailureKind::Store | FailureKind::Deadline => 1,
            FailureKind::Missing | FailureKind::Truncated | FailureKind::Decode => shared.attempts,
        };
        if tries < allowed {
            task.to.retries.fetch_add(1, Ordering::Relaxed);
            task.to
                .exceptions()
                .placed
                .retain(|(slot, ..)| *slot != task.slot);
            return None;
        }
        failures.push((field, failed));
    }
    cost.failed = !failures.is_empty();
    for (field, failed) in failures {
        task.fail(shared, field, failed);
    }
    Some(cost)
}

/// Where the bytes of a slot come from.
enum Source<'a> {
    /// Read here and now.
    Store(&'a dyn BlockingStore),
    /// Read already, field by field: by fetch threads.
    Fetched(&'a [Result<Bytes, StoreError>]),
}

/// One field of one sample; a panic of a decoder is a failure.
fn try_field(
    shared: &Shared,
    source: &Source<'_>,
    task: Task<'_>,
    field: usize,
    buffers: &mut Buffers,
    cost: &mut Cost,
) -> Result<(), Bad> {
    let work = || do_field(shared, source, task, field, buffers, cost);
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        let text = "decoding it panicked; this is a bug in penstock";
        Err(bad(FailureKind::Decode, text))
    })
}

fn do_field(
    shared: &Shared,
    source: &Source<'_>,
    task: Task<'_>,
    field: usize,
    buffers: &mut Buffers,
    cost: &mut Cost,
) -> Result<(), Bad> {
    let spec = &shared.fields[field];
    let address = task.address(field)?;
    let layout = task
        .to
        .layout(shared)
        .map_err(|text| bad(FailureKind::Store, text))?;
    let area = &layout.areas[field];
    let slot = task.slot;
    let Buffers { bytes, scratch, .. } = buffers;
    let bytes: &[u8] = match source {
        Source::Store(store) => {
            let key = shared.key(address.object)?;
            let object = Object {
                index: address.object,
                key,
            };
            let deadline = Instant::now() + shared.read_timeout;
            if let Some(expected) = area.expected.as_deref() {
                if read_into_slot(
                    *store, object, &address, layout, area, slot, expected, bytes, deadline,
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
        Source::Fetched(fields) => {
            if address.length != WHOLE {
                checked_length(address.length, &shared.limits)?;
            }
            let fetched = fields[field]
                .as_ref()
                .map_err(|error| Bad::from(error.clone()))?;
            checked_length(fetched.len() as u64, &shared.limits)?;
            fetched
        }
    };
    cost.bytes += bytes.len() as u64;
    cost.read_done = Some(Instant::now());
    check(bytes.len(), address.crc32c, || crc32c(bytes))?;
    if let (Source::Fetched(_), Some(expected)) = (source, area.expected.as_deref()) {
        if copy_into_slot(&address, layout, area, slot, expected, bytes) {
            return Ok(());
        }
    }
    decode(
        shared,
        task,
        layout,
        field,
        spec,
        address.format,
        bytes,
        scratch,
    )
}

/// The fast path of fetched values that lie in the store as they will lie in the slab. False where they are not of that
/// kind.
fn copy_into_slot(
    address: &Address,
    layout: &Layout,
    area: &Area,
    slot: usize,
    expected: &Expected,
    bytes: &[u8],
) -> bool {
    let Some(values) = expected
        .header
        .as_ref()
        .and_then(|header| bytes.strip_prefix(header.as_slice()))
    else {
        return false;
    };
    if !matches!(address.format, Format::Raw | Format::Npy) || values.len() != expected.bytes {
        return false;
    }
    // SAFETY: the slot was claimed by this worker alone, and areas of slots and fields are disjoint.
    let target = unsafe {
        layout
            .lease
            .bytes_mut(area.offset + slot * expected.bytes, expected.bytes)
    };
    target.copy_from_slice(values);
    true
}

/// The fast path: values that lie in the store as they will lie in the slab. False where the sample is not of that
/// kind; the slot is then written again by the ordinary path.
#[allow(clippy::too_many_arguments)] // One call site; each names one thing of the slot.
fn read_into_slot(
    store: &dyn BlockingStore,
    object: Object<'_>,
    address: &Address,
    layout: &Layout,
    area: &Area,
    slot: usize,
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
    let offset = area.offset + slot * expected.bytes;
    // SAFETY: the slot was claimed by this worker alone, and areas of slots and fields are disjoint.
    let target = unsafe { layout.lease.bytes_mut(offset, expected.bytes) };
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
    task: Task<'_>,
    layout: &Layout,
    field: usize,
    spec: &FieldSpec,
    format: Format,
    bytes: &[u8],
    scratch: &mut Scratch,
) -> Result<(), Bad> {
    let (step, slot) = (task.to, task.slot);
    let draw = Draw::new(shared.seed, step.request.epoch, task.id());
    let area = &layout.areas[field];
    let fixed = area
        .expected
        .as_deref()
        .filter(|_| shared.program.fixed_output(spec).is_some());
    let actual;
    let output = match fixed {
        Some(expected) => &expected.spec,
        None => {
            actual = shared
                .program
                .output(spec, format, bytes, &draw, &shared.limits)?;
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
            layout
                .lease
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
    if spec.kind != Kind::Encoded {
        shared.learn(field, output, header); // no two files are of one length
    }
    let placed = Placed {
        spec: output.clone(),
        lease,
        offset,
    };
    step.exceptions().placed.push((slot, field, placed));
    Ok(())
}
