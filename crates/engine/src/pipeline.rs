//! The pipeline: steps in, finished steps out, in order.
//!
//! **Who waits for whom.** Workers wait for claimable slots. The caller of [`Pipeline::next`] waits for the oldest
//! step, up to its own deadline. Nobody waits for the caller: a caller that stops asking leaves at most the window
//! in memory. [`Pipeline::close`] wakes everyone; it waits for the workers for [`CLOSE_WAIT`] and then lets go of
//! those that a dead disk holds, saying which.
//!
//! On success a step is handed out exactly once, in submission order. On failure of a slot the step is handed out
//! with the failure in it. On close every later call says so.

mod work;

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use penstock_codec::{FieldSpec, Format, Limits, Program};

use crate::cache::Cache;
use crate::copiers::Copiers;
use crate::fetch::{Completion, Counts, Decision, FetchOptions, Fetcher};
use crate::keys::Keys;
use crate::slab::Pool;
use crate::step::{Finished, StepRequest, WHOLE};
use crate::store::{BlockingStore, Store};
use crate::trace::{Span, Stage, Trace};
use crate::window::{Order, Window};
use crate::worker::{Expected, Shared, StepWork};

/// How long `close` waits for workers that are in the middle of a read. Ctrl-C closes a loader too, and has to be over
/// within a second; a worker that comes back later finds the pipeline closed and ends.
pub const CLOSE_WAIT: Duration = Duration::from_millis(500);

/// Workers claim about this many bytes at once: enough to make a claim cheap, little enough to share a step evenly.
const GRAIN_BYTES: u64 = 256 << 10;

/// And never more than this many slots.
const GRAIN_SLOTS: usize = 64;

/// The same where samples are only copied: then claims are what costs.
const COPY_GRAIN_BYTES: u64 = 2 << 20;
const COPY_GRAIN_SLOTS: usize = 1024;

/// A pipeline that tunes its own threads never has more than this many for each core.
const THREADS_PER_CORE: usize = 8;

/// How often a pipeline considers another thread, and the share of their time that its workers must have slept.
const GROWTH_INTERVAL: Duration = Duration::from_millis(100);
const ASLEEP: f64 = 0.3;

/// Steps that may be open where the store is far: the window in bytes is the limit that is meant to be met.
const FAR_STEPS: usize = 4_096;

/// Reads that wait for their turn before no further step is asked for.
const WAITING_LEAST: usize = 2_048;

/// The thread that traces show for requests.
const FETCH_THREAD: u16 = u16::MAX - 1;

/// Samples that are named when a wait is described.
const AWAITED_NAMED: usize = 3;

/// What a pipeline is made of.
pub struct Options {
    /// Stored fields of a sample.
    pub fields: Vec<FieldSpec>,
    /// The compiled transform.
    pub program: Program,
    /// Seed of the random draws.
    pub seed: u64,
    /// Worker threads; None starts one a core and adds more while the cores idle and the caller waits.
    pub threads: Option<usize>,
    /// Memory for steps under way, in bytes. One step is always allowed.
    pub window_bytes: usize,
    /// Reads of a sample before it counts as failed.
    pub attempts: u32,
    /// How long one read may take.
    pub read_timeout: Duration,
    /// Sizes above which a sample is refused.
    pub limits: Limits,
    /// Spans that the trace keeps.
    pub trace_capacity: usize,
    /// Which sample comes in which batch, where the store is far.
    pub order: Order,
    /// How to fetch from a far store; its timeout is `read_timeout`.
    pub fetch: FetchOptions,
    /// Where the bytes of far samples are kept for the next epochs.
    pub cache: Option<Arc<Cache>>,
    /// Never unmap a slab before the pipeline ends: someone holds its address (a GPU driver that pinned it).
    pub keep_slabs: bool,
}

/// Why a call on a pipeline failed.
#[derive(Debug)]
pub enum PipelineError {
    /// It was closed.
    Closed,
    /// It belongs to the parent process.
    Forked,
    /// The request makes no sense; the text says how.
    Misuse(String),
    /// The system refused memory or a thread.
    System(std::io::Error),
}

impl fmt::Display for PipelineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PipelineError::Closed => f.write_str("the loader was closed; make a new one to go on"),
            PipelineError::Forked => f.write_str(
                "the loader was made in another process: its threads did not come along through fork(). Make a loader \
                 in each process, or start processes with the spawn method",
            ),
            PipelineError::Misuse(text) => f.write_str(text),
            PipelineError::System(error) => write!(f, "the system refused memory or a thread: {error}"),
        }
    }
}

impl From<std::io::Error> for PipelineError {
    fn from(error: std::io::Error) -> Self {
        PipelineError::System(error)
    }
}

struct Claimable {
    step: Arc<StepWork>,
    next: usize,
    grain: usize,
    /// Its samples are expected to be copied from memory.
    copies: bool,
}

#[derive(Default)]
struct Queue {
    /// Where the store is near, until the close: each worker holds it while it runs.
    store: Option<Arc<dyn BlockingStore>>,
    /// Samples on their way, where the store is far.
    window: Option<Window>,
    /// Whether the caller that waits wants to hear of room in the window.
    wants_room: bool,
    open: VecDeque<Arc<StepWork>>,
    claimable: VecDeque<Claimable>,
    copiers: Copiers,
    /// The last step is expected to be copied from memory.
    copies: bool,
    next_seq: u64,
    closed: bool,
    /// Workers that wait for fetched samples.
    idle: usize,
    alive: usize,
    activities: Vec<Arc<Activity>>,
}

/// What a worker is at, for messages.
#[derive(Default)]
struct Activity {
    /// Step sequence number + 1, or 0 when idle.
    seq: AtomicU64,
    slot: AtomicUsize,
    since: AtomicU64,
}

struct Inner {
    shared: Shared,
    store_name: String,
    cache: Option<Arc<Cache>>,
    /// Where the store is far. Set once, before the first step.
    fetcher: OnceLock<Fetcher>,
    trace: Trace,
    queue: Mutex<Queue>,
    /// Wakes workers.
    work: Condvar,
    /// Wakes the caller: a step is done, or a worker has gone.
    done: Condvar,
    window_bytes: usize,
    max_steps: usize,
    /// Nanoseconds that workers slept in reads, summed.
    slept: AtomicU64,
}

/// Steps in, finished steps out.
pub struct Pipeline {
    inner: Arc<Inner>,
    workers: Mutex<Vec<JoinHandle<()>>>,
    grow_to: usize,
    last_growth: Mutex<(Instant, u64)>,
    pid: u32,
}

impl Pipeline {
    /// Starts the workers.
    pub fn new(store: Store, keys: Arc<dyn Keys>, options: Options) -> Result<Self, PipelineError> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = options.threads.unwrap_or(cores).clamp(1, 1024);
        let expected = options
            .fields
            .iter()
            .map(|field| Mutex::new(expect(field, &options.program)));
        let far = match &store {
            Store::Async(store) => Some(Arc::clone(store)),
            Store::Blocking(_) => None,
        };
        let count = options.fields.len();
        let fetch = FetchOptions {
            // Before the caller's own deadline, so that it hears why.
            timeout: options.read_timeout.mul_f64(0.9),
            ..options.fetch
        };
        let inner = Arc::new(Inner {
            shared: Shared {
                pool: Pool::new(if options.keep_slabs {
                    usize::MAX
                } else {
                    options.window_bytes
                }),
                keys,
                expected: expected.collect(),
                fields: options.fields,
                program: options.program,
                limits: options.limits,
                seed: options.seed,
                attempts: options.attempts.max(1),
                read_timeout: options.read_timeout,
            },
            cache: options.cache.clone(),
            fetcher: OnceLock::new(),
            trace: Trace::new(options.trace_capacity),
            queue: Mutex::new(Queue {
                window: matches!(store, Store::Async(_))
                    .then(|| Window::new(count, options.order, options.cache)),
                copiers: Copiers::new(threads),
                store: match &store {
                    Store::Blocking(store) => Some(Arc::clone(store)),
                    Store::Async(_) => None,
                },
                ..Queue::default()
            }),
            store_name: store.name(),
            work: Condvar::new(),
            done: Condvar::new(),
            window_bytes: options.window_bytes,
            // Enough to ride out a slow step; more would only push the slabs out of the CPU's cache.
            max_steps: if far.is_some() {
                FAR_STEPS
            } else {
                (2 * threads).max(4)
            },
            slept: AtomicU64::new(0),
        });
        let pipeline = Self {
            inner,
            workers: Mutex::default(),
            grow_to: if options.threads.is_some() {
                threads
            } else {
                cores * THREADS_PER_CORE
            },
            last_growth: Mutex::new((Instant::now(), 0)),
            pid: std::process::id(),
        };
        if let Some(store) = far {
            let inner = Arc::downgrade(&pipeline.inner);
            let deliver = Arc::new(move |came: &mut Vec<Completion>| {
                if let Some(inner) = Weak::upgrade(&inner) {
                    inner.arrived(came);
                }
            });
            let keys = Arc::clone(&pipeline.inner.shared.keys);
            let fetcher = Fetcher::new(&store, keys, fetch, deliver)?;
            let _ = pipeline.inner.fetcher.set(fetcher);
        }
        for _ in 0..threads {
            pipeline.add_worker()?;
        }
        Ok(pipeline)
    }

    fn add_worker(&self) -> Result<(), PipelineError> {
        let activity = Arc::new(Activity::default());
        let number = {
            let mut queue = self.inner.lock();
            queue.activities.push(Arc::clone(&activity));
            queue.alive += 1;
            queue.activities.len() - 1
        };
        let inner = Arc::clone(&self.inner);
        let spawned = std::thread::Builder::new()
            .name(format!("penstock-{number}"))
            .spawn(move || inner.run_worker(number as u16, &activity));
        match spawned {
            Ok(handle) => {
                self.workers
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(handle);
                Ok(())
            }
            Err(error) => {
                self.inner.lock().alive -= 1;
                Err(error.into())
            }
        }
    }

    fn check_process(&self) -> Result<(), PipelineError> {
        if std::process::id() == self.pid {
            Ok(())
        } else {
            Err(PipelineError::Forked)
        }
    }

    /// Starts work on a step. Returns at once.
    pub fn submit(&self, request: StepRequest) -> Result<(), PipelineError> {
        self.check_process()?;
        let shared = &self.inner.shared;
        if !request.is_consistent(shared.fields.len()) {
            return Err(PipelineError::Misuse(
                "a step's address columns differ in length".into(),
            ));
        }
        let copies = (0..shared.fields.len()).all(|field| shared.is_copied(field));
        let grain = grain(&request, copies);
        let slots = request.ids.len();
        if let Some(cache) = &self.inner.cache {
            cache.refresh();
        }
        let mut queue = self.inner.lock();
        if queue.closed {
            return Err(PipelineError::Closed);
        }
        let seq = queue.next_seq;
        queue.next_seq += 1;
        let step = Arc::new(StepWork::new(seq, request, shared));
        queue.open.push_back(Arc::clone(&step));
        if slots == 0 || shared.fields.is_empty() {
            step.remaining.store(0, Ordering::Release);
            self.inner.done.notify_all();
        } else if let (Some(window), Some(fetcher)) = (&mut queue.window, self.inner.fetcher.get())
        {
            let requests = window.open(&step, shared.limits.max_bytes);
            let ready = window.has_ready();
            drop(queue);
            fetcher.submit(&requests);
            if ready {
                self.inner.work.notify_all();
            }
        } else {
            queue.claimable.push_back(Claimable {
                step,
                next: 0,
                grain,
                copies,
            });
            queue.copies = copies;
            if !copies {
                self.inner.work.notify_all();
            } else if queue.copiers.has_room() {
                self.inner.work.notify_one();
            }
        }
        Ok(())
    }

    /// Whether the window has room for one more step like those in it.
    pub fn has_room(&self) -> bool {
        self.inner.has_room(&self.inner.lock())
    }

    /// Steps submitted and not yet handed out.
    pub fn open_steps(&self) -> usize {
        self.inner.lock().open.len()
    }

    /// Bytes of all slabs, in use or kept for the next step.
    pub fn mapped_bytes(&self) -> usize {
        self.inner.shared.pool.mapped()
    }

    /// Worker threads now.
    pub fn threads(&self) -> usize {
        self.inner.lock().alive
    }

    /// Spans and counters.
    pub fn trace(&self) -> &Trace {
        &self.inner.trace
    }

    /// What was fetched, where the store is far.
    pub fn fetched(&self) -> Option<Counts> {
        self.inner.fetcher.get().map(Fetcher::counts)
    }

    /// The cache, where there is one.
    pub fn cache(&self) -> Option<&Cache> {
        self.inner.cache.as_deref()
    }

    /// Requests in flight and how many may be, where the store is far.
    pub fn in_flight(&self) -> Option<(usize, usize)> {
        self.inner.fetcher.get().map(Fetcher::in_flight)
    }

    /// How the number of requests in flight came to be, where the store is far: the last decisions, oldest first.
    pub fn decisions(&self) -> Vec<Decision> {
        self.inner
            .fetcher
            .get()
            .map(Fetcher::decisions)
            .unwrap_or_default()
    }

    /// The oldest step, if it is finished within `timeout`. With `skip`, failed samples are left out of it. With `more`,
    /// None comes as soon as the window has room for another step.
    pub fn next(
        &self,
        timeout: Duration,
        skip: bool,
        more: bool,
    ) -> Result<Option<Finished>, PipelineError> {
        self.check_process()?;
        let deadline = Instant::now() + timeout;
        let started = self.inner.trace.now();
        let mut queue = self.inner.lock();
        let step = loop {
            if queue.closed {
                return Err(PipelineError::Closed);
            }
            let Some(oldest) = queue.open.front() else {
                return Err(PipelineError::Misuse(
                    "there is no step to wait for: submit one first".into(),
                ));
            };
            if oldest.remaining.load(Ordering::Acquire) == 0 {
                break queue
                    .open
                    .pop_front()
                    .expect("the front was just looked at");
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let room = more && self.inner.has_room(&queue);
            if room || left.is_zero() {
                // The caller comes back for the same step: this part of its wait counts too.
                self.inner.trace.record(Span {
                    stage: Stage::Wait,
                    thread: u16::MAX,
                    epoch: oldest.request.epoch,
                    step: oldest.request.step,
                    samples: 0,
                    bytes: 0,
                    start: started,
                    end: self.inner.trace.now(),
                });
                drop(queue);
                if !room {
                    self.grow_if_asleep()?;
                }
                return Ok(None);
            }
            queue.wants_room = more;
            queue = self
                .inner
                .done
                .wait_timeout(queue, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            queue.wants_room = false;
        };
        drop(queue);
        let waited = self.inner.trace.now();
        let finished = step.finish(&self.inner.shared, skip)?;
        let span = |stage, start, end| Span {
            stage,
            thread: u16::MAX,
            epoch: finished.epoch,
            step: finished.step,
            samples: finished.ids.len() as u32,
            bytes: step.bytes() as u64,
            start,
            end,
        };
        self.inner.trace.record(span(Stage::Wait, started, waited));
        self.inner
            .trace
            .record(span(Stage::Finish, waited, self.inner.trace.now()));
        Ok(Some(finished))
    }

    /// Forgets every step that was not handed out. What workers are in the middle of goes nowhere.
    pub fn discard(&self) -> Result<(), PipelineError> {
        self.check_process()?;
        let mut queue = self.inner.lock();
        queue.claimable.clear();
        let open = std::mem::take(&mut queue.open);
        if let Some(window) = &mut queue.window {
            window.clear();
        }
        drop(queue);
        if let Some(fetcher) = self.inner.fetcher.get() {
            fetcher.cancel();
        }
        drop(open);
        Ok(())
    }

    /// Adds a worker where the caller waits while workers sleep in reads: the disk is slow, not the cores.
    fn grow_if_asleep(&self) -> Result<(), PipelineError> {
        let mut last = self
            .last_growth
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let (at, slept_before) = *last;
        let elapsed = at.elapsed();
        let threads = self.threads();
        if elapsed < GROWTH_INTERVAL || threads >= self.grow_to {
            return Ok(());
        }
        let slept = self.inner.slept.load(Ordering::Relaxed);
        *last = (Instant::now(), slept);
        drop(last);
        if (slept - slept_before) as f64 > ASLEEP * threads as f64 * elapsed.as_nanos() as f64 {
            self.add_worker()?;
        }
        Ok(())
    }

    /// What the oldest step still waits for, in words.
    pub fn describe_wait(&self) -> String {
        let queue = self.inner.lock();
        let Some(step) = queue.open.front() else {
            return "nothing was submitted".into();
        };
        let request = &step.request;
        let mut text = format!(
            "step {} of epoch {} waits for {} of {} samples from {}",
            request.step,
            request.epoch,
            step.remaining.load(Ordering::Relaxed),
            request.ids.len(),
            self.inner.store_name,
        );
        let now = self.inner.trace.now();
        for (number, activity) in queue.activities.iter().enumerate() {
            if activity.seq.load(Ordering::Acquire) != step.seq + 1 {
                continue;
            }
            let slot = activity.slot.load(Ordering::Relaxed);
            let seconds = now.saturating_sub(activity.since.load(Ordering::Relaxed)) as f64 / 1e9;
            let object = request
                .fields
                .first()
                .and_then(|field| field.object.get(slot));
            let key = object
                .and_then(|&object| self.inner.shared.keys.get(object))
                .unwrap_or("?");
            let id = request.ids.get(slot).copied().unwrap_or_default();
            text +=
                &format!("; worker {number} has been at sample {id} ({key}) for {seconds:.1} s");
        }
        if let (Some(window), Some(fetcher)) = (&queue.window, self.inner.fetcher.get()) {
            for (from, slot) in window.awaited(step).take(AWAITED_NAMED) {
                let object = from
                    .request
                    .fields
                    .first()
                    .and_then(|field| field.object.get(slot));
                let key = object.and_then(|&object| self.inner.shared.keys.get(object));
                let id = from.request.ids[slot];
                text += &format!("; sample {id} ({}) has not come", key.unwrap_or("?"));
            }
            let (flying, limit) = fetcher.in_flight();
            text += &format!("; {flying} requests are in flight of {limit} that may be");
            if let Some((ago, trouble)) = fetcher.trouble() {
                text += &format!(
                    "; the last trouble, {:.1} s ago: {trouble}",
                    ago.as_secs_f64()
                );
            }
        }
        text
    }

    /// Ends all work. Returns how many workers could not be ended because a read holds them.
    pub fn close(&self) -> usize {
        if self.check_process().is_err() {
            return 0;
        }
        let deadline = Instant::now() + CLOSE_WAIT;
        let mut queue = self.inner.lock();
        queue.closed = true;
        // With the last worker the store lets go of its files.
        queue.store = None;
        queue.open.clear();
        queue.claimable.clear();
        if let Some(window) = &mut queue.window {
            window.clear();
        }
        self.inner.work.notify_all();
        self.inner.done.notify_all();
        while queue.alive > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            queue = self
                .inner
                .done
                .wait_timeout(queue, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        let mut stuck = queue.alive;
        drop(queue);
        if let Some(fetcher) = self.inner.fetcher.get() {
            stuck += fetcher.close();
        }
        let workers =
            std::mem::take(&mut *self.workers.lock().unwrap_or_else(PoisonError::into_inner));
        if stuck == 0 {
            for worker in workers {
                // A worker cannot panic outside of a slot, and there panics are caught.
                let _ = worker.join();
            }
        }
        self.inner.shared.pool.close();
        stuck
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        self.close();
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_room(&self, queue: &Queue) -> bool {
        let open = queue.open.len();
        if open == 0 {
            return true;
        }
        if let Some(fetcher) = self.fetcher.get() {
            // More than the wire can take at once need not be asked for yet.
            let (_, limit) = fetcher.in_flight();
            if fetcher.waiting() > WAITING_LEAST.max(4 * limit) {
                return false;
            }
        }
        let used: usize = queue.open.iter().map(|step| step.bytes()).sum();
        let steps = if queue.copies {
            // Copying has no slow steps to ride out, and memory that was just used is still in the CPU's cache.
            queue.copiers.limit().saturating_add(1).min(self.max_steps)
        } else {
            self.max_steps
        };
        open < steps && used + used / open <= self.window_bytes
    }
}

/// What is known of a field before any sample was seen.
fn expect(field: &FieldSpec, program: &Program) -> Option<Arc<Expected>> {
    let spec = program.fixed_output(field)?;
    let bytes = spec.bytes().ok()?;
    // Raw rows have no header: their bytes are their values, unless the transform changes them.
    let raw = field.raw.as_ref().and_then(|raw| raw.bytes().ok());
    let payload = raw.and_then(|total| {
        program
            .payload(field, Format::Raw, &[], total as u64)
            .ok()
            .flatten()
    });
    let header = payload
        .filter(|payload| payload.offset == 0 && payload.spec == spec)
        .map(|_| Vec::new());
    Some(Arc::new(Expected {
        spec,
        bytes,
        header,
    }))
}

fn grain(request: &StepRequest, copies: bool) -> usize {
    let (most_bytes, most_slots) = if copies {
        (COPY_GRAIN_BYTES, COPY_GRAIN_SLOTS)
    } else {
        (GRAIN_BYTES, GRAIN_SLOTS)
    };
    let slots = request.ids.len().max(1);
    let lengths = request.fields.iter().flat_map(|field| &field.length);
    let bytes: u64 = lengths
        .map(|&length| if length == WHOLE { most_bytes } else { length })
        .fold(0, u64::saturating_add);
    let average = (bytes / slots as u64).max(1);
    ((most_bytes / average) as usize).clamp(1, most_slots)
}
