//! Where bytes lie.
//!
//! A store gives the bytes of an address (key, offset, length) or a typed error. There are two kinds, because
//! there are two ways to wait: a **blocking** store is read from the worker that will decode the bytes (a local
//! file in the page cache costs less than handing it over), an **async** store is read by fetch threads with many
//! requests in flight. Both honour a deadline: a store never waits past it.

pub mod local;
pub mod object;
pub mod retry;

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use local::map::Map;

/// Why a store could not give the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreErrorKind {
    /// There is no object of that key.
    Missing,
    /// The object ends before the range does.
    Truncated,
    /// The store refuses: credentials or permissions.
    Denied,
    /// The store does not answer, or the connection broke.
    Unreachable,
    /// The store asks for fewer requests (503, 429).
    Busy,
    /// The deadline passed.
    Deadline,
    /// The caller gave up.
    Cancelled,
    /// Anything else; the message says it.
    Other,
}

/// A failed read, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreError {
    /// What kind of failure.
    pub kind: StoreErrorKind,
    /// One sentence: what happened and to what.
    pub message: String,
}

impl StoreError {
    /// An error of `kind` that says `message`.
    pub fn new(kind: StoreErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for StoreError {}

/// What a listing says of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key, relative to the store's root.
    pub key: String,
    /// Its size in bytes.
    pub size: u64,
    /// A version mark that changes when the object does (ETag, or modification time in nanoseconds).
    pub version: String,
}

/// An object by its place in the catalog's key table and by its key.
///
/// The index lets a store keep something per object (an open file) without hashing the key for each sample.
#[derive(Debug, Clone, Copy)]
pub struct Object<'a> {
    /// Row in the key table.
    pub index: u32,
    /// Key, relative to the store's root.
    pub key: &'a str,
}

/// A store that is read where the bytes are needed.
pub trait BlockingStore: Send + Sync {
    /// Fills `parts`, one after the other, from `offset` of `object` on. All of it, or an error.
    fn read_at(
        &self,
        object: Object<'_>,
        offset: u64,
        parts: &mut [&mut [u8]],
        deadline: Instant,
    ) -> Result<(), StoreError>;

    /// Size of an object in bytes.
    fn size(&self, object: Object<'_>, deadline: Instant) -> Result<u64, StoreError>;

    /// The object in memory, if it was read from before and the store can map it: to be copied from without a call.
    fn map(&self, _object: Object<'_>) -> Option<&Map> {
        None
    }

    /// All objects below `prefix`, sorted by key.
    fn list(&self, prefix: &str, deadline: Instant) -> Result<Vec<Entry>, StoreError>;

    /// The store's name in messages: never holds a secret.
    fn name(&self) -> String;
}

/// A read under way.
pub type Get<'a> = Pin<Box<dyn Future<Output = Result<Bytes, StoreError>> + Send + 'a>>;

/// When the first byte of an answer came, for traces.
#[derive(Debug, Default)]
pub struct FirstByte(std::sync::OnceLock<Instant>);

impl FirstByte {
    /// It came now.
    pub fn came(&self) {
        let _ = self.0.set(Instant::now());
    }

    /// When it came, if the store said so.
    pub fn at(&self) -> Option<Instant> {
        self.0.get().copied()
    }
}

/// A connection that is being opened, for a request to come. What fails is found out by that request.
pub type Ahead<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// A listing under way.
pub type List<'a> = Pin<Box<dyn Future<Output = Result<Vec<Entry>, StoreError>> + Send + 'a>>;

/// A store behind a network: many reads in flight, each cancelled by dropping its future.
pub trait AsyncStore: Send + Sync {
    /// Bytes of `range` (or of the whole object). Exactly as many as asked for, or an error.
    fn get<'a>(&'a self, key: &'a str, range: Option<Range<u64>>, deadline: Instant) -> Get<'a>;

    /// As [`AsyncStore::get`], and says when the first byte came, if the store knows.
    fn get_noting<'a>(
        &'a self,
        key: &'a str,
        range: Option<Range<u64>>,
        deadline: Instant,
        first: &'a FirstByte,
    ) -> Get<'a> {
        let _ = first;
        self.get(key, range, deadline)
    }

    /// Opens one more connection ahead of its request, unless `spare` are open and idle or on their way; None also
    /// where the store keeps its connections to itself.
    fn connect_ahead(&self, spare: usize) -> Option<Ahead<'_>> {
        let _ = spare;
        None
    }

    /// All objects below `prefix`, sorted by key.
    fn list<'a>(&'a self, prefix: &'a str, deadline: Instant) -> List<'a>;

    /// The store's name in messages: never holds a secret.
    fn name(&self) -> String;

    /// The same store with connections of its own, for one fetch thread; None where sharing costs nothing.
    fn private(&self) -> Option<Arc<dyn AsyncStore>> {
        None
    }
}

/// Either kind.
#[derive(Clone)]
pub enum Store {
    /// Read by the workers.
    Blocking(Arc<dyn BlockingStore>),
    /// Read by the fetch threads.
    Async(Arc<dyn AsyncStore>),
}

impl Store {
    /// The store's name in messages.
    pub fn name(&self) -> String {
        match self {
            Store::Blocking(store) => store.name(),
            Store::Async(store) => store.name(),
        }
    }
}
