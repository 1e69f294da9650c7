//! Fetch threads: many requests in flight, as many as the wire can use.
//!
//! A [`Fetcher`] takes requests and gives bytes, in whatever order they come. Inside:
//!
//! - `queue`: what waits, the oldest step first; neighbours in an object become one read.
//! - `pace`: how many reads may be in flight; it looks for the fewest that fill the wire.
//! - `attempt`: one read until it is there: retries, patience, a second copy for a straggler.
//! - `latency`: what a request usually takes.
//!
//! Each thread runs a single-threaded runtime with connections of its own; the threads share the queue and the pace
//! and nothing else. **Who waits for whom:** a thread waits for the network and for requests; the caller waits for
//! nothing, neither in [`Fetcher::submit`] nor elsewhere. Whoever takes the bytes must not block in the callback.
//! On success each ticket comes back once; on failure once, with an error; after [`Fetcher::cancel`] not at all.
//! Memory: what is in flight plus what the callback keeps. The caller bounds both by what it submits.

mod attempt;
mod latency;
mod pace;
mod queue;

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::Notify;

pub use pace::{Decision, Reason};
pub use queue::FetchRequest;

use crate::keys::Keys;
use crate::step::{LACKING, NO_OBJECT};
use crate::store::{Ahead, AsyncStore, StoreError, StoreErrorKind};
use attempt::{carry_out, Outcome};
use latency::Latencies;
use pace::Pace;
use queue::{Joining, Queue, Read};

/// Decisions that the log keeps.
const LOG: usize = 4_096;
/// What a request costs besides the wire, in seconds: work on both sides. A gap that is over sooner is read along.
const REQUEST_COST: f64 = 30e-6;
/// A joined read is no longer than this: one straggler must not hold up too much.
const JOINED_MOST: u64 = 4 << 20;
/// A gap is no longer than this, whatever was measured.
const GAP_MOST: u64 = 1 << 20;
/// Before anything was measured.
const GAP_FIRST: u64 = 16 << 10;
/// One in so many reads may be far later than usual before the wire counts as slow.
const STRAGGLERS: usize = 4;
/// Connections that are opened ahead, at most, by one thread.
const AHEAD_MOST: usize = 128;
/// How long `close` waits for a thread. They wait for nothing that can't be woken.
const CLOSE_WAIT: Duration = Duration::from_secs(5);

/// How to fetch. The defaults need no tuning.
#[derive(Debug, Clone)]
pub struct FetchOptions {
    /// Threads with a runtime of their own; one carries about 4 GB/s.
    pub threads: usize,
    /// A read fails when it did not come within this time, retries included.
    pub timeout: Duration,
    /// Never more requests in flight.
    pub in_flight: usize,
    /// Second copies of stragglers, as a share of all reads.
    pub hedges: f64,
    /// Whether neighbours in an object may be read together.
    pub join: bool,
}

impl Default for FetchOptions {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            threads: (cores / 8).clamp(1, 4),
            timeout: Duration::from_secs(60),
            in_flight: 1_024,
            hedges: 0.02,
            join: true,
        }
    }
}

/// A request's bytes, or why they did not come.
#[derive(Debug)]
pub struct Completion {
    /// Of the request.
    pub ticket: u64,
    /// Step of the request.
    pub step: u64,
    /// The bytes asked for.
    pub result: Result<Bytes, StoreError>,
    /// When its read began.
    pub began: Instant,
    /// When its first byte came, if the store says so.
    pub first_byte: Option<Instant>,
    /// When its read ended.
    pub ended: Instant,
    /// Attempts that it took.
    pub attempts: u32,
    /// Whether a second copy was sent.
    pub hedged: bool,
}

/// Takes completions; called on a fetch thread with some at once. Empty the vector, never block.
pub type Deliver = Arc<dyn Fn(&mut Vec<Completion>) + Send + Sync>;

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident),+ $(,)?) => {
        /// What was done since the beginning.
        #[derive(Debug, Default)]
        struct Counters { $($name: AtomicU64),+ }

        /// What was done since the beginning.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Counts { $($(#[doc = $doc])+ pub $name: u64),+ }

        impl Counters {
            fn counts(&self) -> Counts {
                Counts { $($name: self.$name.load(Relaxed)),+ }
            }
        }

        impl Counts {
            /// Names and values, for traces.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name)),+]
            }
        }
    };
}

counters! {
    /// Requests submitted.
    requests,
    /// Reads made of them.
    reads,
    /// Reads done.
    done,
    /// Reads that failed for good.
    failed,
    /// Bytes delivered.
    bytes,
    /// Bytes read along because a gap cost less than a request.
    gap_bytes,
    /// Requests to the store, without second copies.
    attempts,
    /// Attempts after a failed one.
    retries,
    /// Attempts given up because they took far longer than usual.
    given_up,
    /// Answers that asked for fewer requests.
    busy,
    /// Second copies.
    hedges,
    /// Second copies that came first.
    hedges_won,
    /// The most in flight at once.
    in_flight_peak,
}

impl Counters {
    /// A counter as a share of the attempts.
    fn share(&self, counter: &AtomicU64) -> f64 {
        counter.load(Relaxed) as f64 / self.attempts.load(Relaxed).max(50) as f64
    }
}

struct Tempo {
    pace: Pace,
    latencies: Latencies,
    log: VecDeque<Decision>,
}

/// What the threads and the fetcher share.
pub(crate) struct Shared {
    keys: Arc<dyn Keys>,
    options: FetchOptions,
    queue: Mutex<Queue>,
    tempo: Mutex<Tempo>,
    limit: AtomicUsize,
    /// Whether the pace still looks for the knee.
    growing: AtomicBool,
    in_flight: AtomicUsize,
    /// Of those in flight: attempts that take far longer than usual, and pauses before a retry.
    absent: AtomicUsize,
    counters: Counters,
    generation: AtomicU64,
    closed: AtomicBool,
    /// Threads that run.
    alive: Mutex<usize>,
    ended: Condvar,
    began: Instant,
    wake: Vec<Notify>,
    /// When an attempt last failed, and why.
    trouble: Mutex<Option<(Instant, String)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn usual(&self, bytes: u64) -> Option<Duration> {
        lock(&self.tempo).latencies.usual(bytes)
    }

    fn record_latency(&self, latency: Duration, bytes: u64) {
        lock(&self.tempo).latencies.record(latency, bytes);
    }

    fn note(&self, trouble: &str) {
        *lock(&self.trouble) = Some((Instant::now(), trouble.to_owned()));
    }

    fn slow_down(&self) {
        lock(&self.tempo).pace.slow_down();
    }

    /// Takes one second copy out of the budget.
    fn may_hedge(&self) -> bool {
        let most = self.options.hedges * self.counters.attempts.load(Relaxed) as f64;
        let taken = self
            .counters
            .hedges
            .fetch_update(Relaxed, Relaxed, |hedges| {
                ((hedges + 1) as f64 <= most).then_some(hedges + 1)
            });
        taken.is_ok()
    }

    /// Says that a read does not use the wire, for as long as the answer lives: another may take its place.
    fn absent(&self) -> Absent<'_> {
        self.absent.fetch_add(1, Relaxed);
        self.wake.iter().for_each(Notify::notify_one);
        Absent(self)
    }

    /// Requests that may be in flight now. Those that are absent do not count, as long as they are few: many of them are
    /// no stragglers but a wire that has become slow.
    fn places(&self) -> usize {
        let (limit, absent) = (self.limit.load(Relaxed), self.absent.load(Relaxed));
        let absent = if absent <= limit / STRAGGLERS {
            absent
        } else {
            0
        };
        (limit + absent).min(self.options.in_flight)
    }

    /// Takes a place in flight and the read to fill it with.
    fn start(&self, generation: u64) -> Option<Read> {
        let limit = self.places();
        let place = self.in_flight.fetch_update(Relaxed, Relaxed, |count| {
            (count < limit).then_some(count + 1)
        });
        let Ok(before) = place else { return None };
        let read = lock(&self.queue).take(generation);
        if read.is_none() {
            self.in_flight.fetch_sub(1, Relaxed);
            lock(&self.tempo).pace.starved();
            return None;
        }
        self.counters
            .in_flight_peak
            .fetch_max(before as u64 + 1, Relaxed);
        read
    }

    /// A read is over: learns from it.
    fn learn(&self, read: &Read, outcome: &Outcome) {
        self.in_flight.fetch_sub(1, Relaxed);
        match &outcome.result {
            Ok(bytes) => {
                self.counters.done.fetch_add(1, Relaxed);
                let wanted: u64 = read.parts.iter().filter_map(|part| part.length).sum();
                let count = bytes.len() as u64;
                self.counters.bytes.fetch_add(count, Relaxed);
                if wanted > 0 {
                    self.counters
                        .gap_bytes
                        .fetch_add(count.saturating_sub(wanted), Relaxed);
                }
                let mut tempo = lock(&self.tempo);
                tempo.latencies.record(outcome.latency, count);
                if let Some(decision) =
                    tempo
                        .pace
                        .answered(self.began.elapsed(), outcome.latency, count)
                {
                    if tempo.log.len() == LOG {
                        tempo.log.pop_front();
                    }
                    tempo.log.push_back(decision);
                }
                self.limit.store(tempo.pace.limit(), Relaxed);
                self.growing.store(tempo.pace.is_growing(), Relaxed);
            }
            Err(_) => {
                self.counters.failed.fetch_add(1, Relaxed);
            }
        }
    }

    /// Which gap costs less than a request: a request costs work on both sides and, while the wire is not full, its
    /// share of a round trip.
    fn joining(&self) -> Joining {
        if !self.options.join {
            return Joining { gap: 0, most: 0 };
        }
        let tempo = lock(&self.tempo);
        let gap = tempo.pace.wire().map_or(GAP_FIRST, |(rate, unloaded)| {
            let share = if tempo.pace.is_growing() {
                unloaded / tempo.pace.limit() as f64
            } else {
                0.0
            };
            (rate * (REQUEST_COST + share)) as u64
        });
        Joining {
            gap: gap.min(GAP_MOST),
            most: JOINED_MOST,
        }
    }
}

/// Requests in, bytes out. See the module's text.
pub struct Fetcher {
    /// In a forked child there are no threads to end.
    pid: u32,
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Fetcher {
    /// Starts the threads.
    pub fn new(
        store: &Arc<dyn AsyncStore>,
        keys: Arc<dyn Keys>,
        options: FetchOptions,
        deliver: Deliver,
    ) -> std::io::Result<Self> {
        let threads = options.threads.clamp(1, 64);
        let pace = Pace::new(options.in_flight);
        let shared = Arc::new(Shared {
            keys,
            queue: Mutex::default(),
            limit: AtomicUsize::new(pace.limit()),
            growing: AtomicBool::new(pace.is_growing()),
            tempo: Mutex::new(Tempo {
                pace,
                latencies: Latencies::default(),
                log: VecDeque::new(),
            }),
            in_flight: AtomicUsize::new(0),
            absent: AtomicUsize::new(0),
            counters: Counters::default(),
            generation: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            alive: Mutex::new(0),
            ended: Condvar::new(),
            began: Instant::now(),
            wake: (0..threads).map(|_| Notify::new()).collect(),
            trouble: Mutex::default(),
            options,
        });
        let fetcher = Self {
            pid: std::process::id(),
            shared,
            threads: Mutex::default(),
        };
        for number in 0..threads {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            let shared = Arc::clone(&fetcher.shared);
            let store = store.private().unwrap_or_else(|| Arc::clone(store));
            let deliver = Arc::clone(&deliver);
            *lock(&fetcher.shared.alive) += 1;
            let handle = std::thread::Builder::new()
                .name(format!("penstock-fetch-{number}"))
                .spawn(move || {
                    let alive = Alive(Arc::clone(&shared));
                    runtime.block_on(run(&shared, &*store, &deliver, number));
                    drop(runtime);
                    drop(alive);
                })?;
            lock(&fetcher.threads).push(handle);
        }
        Ok(fetcher)
    }

    /// Hands over requests. Returns at once. Requests of one step that are near each other are read together.
    pub fn submit(&self, requests: &[FetchRequest]) {
        let joining = self.shared.joining();
        let made = {
            let mut queue = lock(&self.shared.queue);
            if self.shared.in_flight.load(Relaxed) == 0 && queue.len() == 0 {
                lock(&self.shared.tempo)
                    .pace
                    .resume(self.shared.began.elapsed());
            }
            queue.add(requests, joining)
        };
        self.shared
            .counters
            .requests
            .fetch_add(requests.len() as u64, Relaxed);
        self.shared.counters.reads.fetch_add(made as u64, Relaxed);
        self.wake();
    }

    /// Forgets everything that waits and everything in flight. None of it will be delivered, except what a thread is
    /// handing over this moment: give each epoch tickets of its own.
    pub fn cancel(&self) {
        let mut queue = lock(&self.shared.queue);
        queue.clear();
        self.shared
            .generation
            .store(queue.generation(), Ordering::Release);
        drop(queue);
        self.wake();
    }

    /// What was done.
    pub fn counts(&self) -> Counts {
        self.shared.counters.counts()
    }

    /// Requests to the store in flight, and how many may be.
    pub fn in_flight(&self) -> (usize, usize) {
        (
            self.shared.in_flight.load(Relaxed),
            self.shared.limit.load(Relaxed),
        )
    }

    /// Reads that wait for their turn.
    pub fn waiting(&self) -> usize {
        lock(&self.shared.queue).len()
    }

    /// The last attempt that failed: how long ago, and why.
    pub fn trouble(&self) -> Option<(Duration, String)> {
        let last = lock(&self.shared.trouble);
        last.as_ref().map(|(at, text)| (at.elapsed(), text.clone()))
    }

    /// The last decisions about how many requests may be in flight, oldest first.
    pub fn decisions(&self) -> Vec<Decision> {
        lock(&self.shared.tempo).log.iter().cloned().collect()
    }

    /// Ends the threads and everything in flight. Returns how many threads did not end; there should be none.
    pub fn close(&self) -> usize {
        if std::process::id() != self.pid {
            return 0;
        }
        self.shared.closed.store(true, Ordering::Release);
        self.cancel();
        let deadline = Instant::now() + CLOSE_WAIT;
        let mut alive = lock(&self.shared.alive);
        while *alive > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            alive = self
                .shared
                .ended
                .wait_timeout(alive, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        let stuck = *alive;
        drop(alive);
        let threads = std::mem::take(&mut *lock(&self.threads));
        if stuck == 0 {
            for thread in threads {
                // It has said that it is over. A callback that panicked has been heard already.
                let _ = thread.join();
            }
        }
        stuck
    }

    fn wake(&self) {
        self.shared.wake.iter().for_each(Notify::notify_one);
    }
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        self.close();
    }
}

/// Says at its end, however that comes, that a thread is over.
struct Alive(Arc<Shared>);

impl Drop for Alive {
    fn drop(&mut self) {
        *lock(&self.0.alive) -= 1;
        self.0.ended.notify_all();
    }
}

/// A read that does not use the wire. See [`Shared::absent`].
struct Absent<'a>(&'a Shared);

impl Drop for Absent<'_> {
    fn drop(&mut self) {
        self.0.absent.fetch_sub(1, Relaxed);
    }
}

type Flight<'a> = Pin<Box<dyn std::future::Future<Output = (Read, Outcome)> + Send + 'a>>;

fn flight<'a>(shared: &'a Shared, store: &'a dyn AsyncStore, read: Read) -> Flight<'a> {
    Box::pin(async move {
        let range = read
            .length
            .map(|length| read.offset..read.offset.saturating_add(length));
        let outcome = match shared.keys.get(read.object) {
            Some(key) => carry_out(shared, store, key, range).await,
            None => Outcome {
                result: Err(StoreError::new(
                    StoreErrorKind::Missing,
                    match read.object {
                        NO_OBJECT => LACKING.to_owned(),
                        object => format!("the catalog has no object {object} in {}", store.name()),
                    },
                )),
                began: Instant::now(),
                first_byte: None,
                latency: Duration::ZERO,
                attempts: 0,
                hedged: false,
            },
        };
        (read, outcome)
    })
}

/// Cuts what a read brought into what was asked for.
fn complete(read: &Read, outcome: Outcome, into: &mut Vec<Completion>) {
    let ended = Instant::now();
    for part in &read.parts {
        let result = match (&outcome.result, part.length) {
            (Ok(bytes), Some(length)) => {
                // The store gave exactly the range, so that the part is inside of it.
                Ok(bytes.slice(part.offset as usize..(part.offset + length) as usize))
            }
            (other, _) => other.clone(),
        };
        into.push(Completion {
            ticket: part.ticket,
            step: read.step,
            result,
            began: outcome.began,
            first_byte: outcome.first_byte,
            ended,
            attempts: outcome.attempts,
            hedged: outcome.hedged,
        });
    }
}

async fn run(shared: &Shared, store: &dyn AsyncStore, deliver: &Deliver, number: usize) {
    let mut flights: FuturesUnordered<Flight<'_>> = FuturesUnordered::new();
    let mut done: Vec<Completion> = Vec::new();
    let mut ahead: FuturesUnordered<Ahead<'_>> = FuturesUnordered::new();
    let mut generation = shared.generation.load(Ordering::Acquire);
    loop {
        let now = shared.generation.load(Ordering::Acquire);
        if now != generation {
            generation = now;
            shared.in_flight.fetch_sub(flights.len(), Relaxed);
            flights.clear();
            done.clear();
        }
        if shared.closed.load(Ordering::Acquire) {
            return;
        }
        while let Some(read) = shared.start(generation) {
            flights.push(flight(shared, store, read));
        }
        // The limit may double with the next answers: their requests shall find connections that are open.
        if shared.growing.load(Relaxed) && !flights.is_empty() {
            let spare = flights.len().min(AHEAD_MOST);
            ahead.extend(std::iter::from_fn(|| store.connect_ahead(spare)));
        }
        tokio::select! {
            biased;
            Some((read, outcome)) = flights.next(), if !flights.is_empty() => {
                shared.learn(&read, &outcome);
                complete(&read, outcome, &mut done);
            }
            Some(()) = ahead.next(), if !ahead.is_empty() => continue,
            () = shared.wake[number].notified() => continue,
        }
        // Whatever else has come meanwhile goes along.
        while let Some(Some((read, outcome))) =
            futures_util::FutureExt::now_or_never(flights.next())
        {
            shared.learn(&read, &outcome);
            complete(&read, outcome, &mut done);
        }
        if !done.is_empty() && shared.generation.load(Ordering::Acquire) == generation {
            deliver(&mut done);
            done.clear();
        }
    }
}
