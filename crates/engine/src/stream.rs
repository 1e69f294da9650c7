//! Reads whose order is known, fetched ahead: what packing, verifying and indexing read a far store with.
//!
//! [`Stream::submit`] says what will be read, [`Stream::next`] gives it in that order. As many are in flight as the
//! [`Fetcher`] finds useful, at most `window` bytes of them asked for or waiting to be taken (one read goes always).
//! **Who waits:** the caller of `next`, until its deadline; nobody else.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use bytes::Bytes;

use crate::fetch::{Completion, Deliver, FetchOptions, FetchRequest, Fetcher};
use crate::keys::Keys;
use crate::store::{AsyncStore, StoreError};

/// Requests handed to the fetcher together, so that neighbours can become one read.
const TOGETHER: usize = 64;

/// One read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamRead {
    /// Row in the key table.
    pub object: u32,
    /// First byte.
    pub offset: u64,
    /// How many bytes; None is the whole object.
    pub length: Option<u64>,
    /// How many bytes it is thought to bring: counts against the window.
    pub weight: u64,
}

/// What a call of [`Stream::next`] gives.
#[derive(Debug)]
pub enum Next {
    /// The next read's bytes, or why they did not come.
    Read(Result<Bytes, StoreError>),
    /// It did not come before the deadline, and is still the next.
    NotYet,
    /// All that was said has been taken.
    Done,
}

#[derive(Default)]
struct Arrived {
    results: Mutex<HashMap<u64, Result<Bytes, StoreError>>>,
    more: Condvar,
}

/// See the module's text.
pub struct Stream {
    fetcher: Fetcher,
    arrived: Arc<Arrived>,
    window: u64,
    /// Said and not yet asked for.
    waiting: VecDeque<StreamRead>,
    /// Weights of what was asked for and not yet taken.
    open: VecDeque<u64>,
    open_bytes: u64,
    /// Ticket of the next to be taken.
    next: u64,
    /// Calls of `fill`: the fetcher's steps, so that earlier ones go first.
    fills: u64,
}

impl Stream {
    /// Starts the fetch threads.
    pub fn new(
        store: &Arc<dyn AsyncStore>,
        keys: Arc<dyn Keys>,
        window: u64,
        options: FetchOptions,
    ) -> std::io::Result<Self> {
        let arrived = Arc::<Arrived>::default();
        let here = Arc::clone(&arrived);
        let deliver: Deliver = Arc::new(move |completions: &mut Vec<Completion>| {
            let mut results = here.results.lock().unwrap_or_else(PoisonError::into_inner);
            for completion in completions.drain(..) {
                results.insert(completion.ticket, completion.result);
            }
            drop(results);
            here.more.notify_all();
        });
        Ok(Self {
            fetcher: Fetcher::new(store, keys, options, deliver)?,
            arrived,
            window,
            waiting: VecDeque::new(),
            open: VecDeque::new(),
            open_bytes: 0,
            next: 0,
            fills: 0,
        })
    }

    /// Says what will be read after all that was said before.
    pub fn submit(&mut self, reads: impl IntoIterator<Item = StreamRead>) {
        self.waiting.extend(reads);
        self.fill();
    }

    /// Reads said and not yet taken.
    pub fn left(&self) -> usize {
        self.waiting.len() + self.open.len()
    }

    /// Forgets all that was said.
    pub fn clear(&mut self) {
        self.fetcher.cancel();
        self.waiting.clear();
        self.next += self.open.len() as u64;
        self.open.clear();
        self.open_bytes = 0;
        let mut results = self
            .arrived
            .results
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        results.clear();
    }

    fn fill(&mut self) {
        let room = |stream: &Self| stream.open_bytes < stream.window || stream.open.is_empty();
        // Refilled when half is free, so that requests go in batches whose neighbours can be joined.
        if self.open_bytes > self.window / 2 && !self.open.is_empty() {
            return;
        }
        let mut requests = Vec::new();
        while room(self) {
            let Some(read) = self.waiting.pop_front() else {
                break;
            };
            requests.push(FetchRequest {
                ticket: self.next + self.open.len() as u64,
                object: read.object,
                offset: read.offset,
                length: read.length,
                step: self.fills,
            });
            self.open.push_back(read.weight);
            self.open_bytes += read.weight;
            if requests.len() == TOGETHER {
                self.fills += 1;
                self.fetcher.submit(&requests);
                requests.clear();
            }
        }
        if !requests.is_empty() {
            self.fills += 1;
            self.fetcher.submit(&requests);
        }
    }

    /// The next read.
    pub fn next(&mut self, deadline: Instant) -> Next {
        if self.left() == 0 {
            return Next::Done;
        }
        let results = self.arrived.results.lock();
        let mut results = results.unwrap_or_else(PoisonError::into_inner);
        let result = loop {
            if let Some(result) = results.remove(&self.next) {
                break result;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Next::NotYet;
            }
            let waited = self.arrived.more.wait_timeout(results, left);
            results = waited.unwrap_or_else(PoisonError::into_inner).0;
        };
        drop(results);
        self.next += 1;
        self.open_bytes -= self.open.pop_front().unwrap_or(0);
        self.fill();
        Next::Read(result)
    }
}
