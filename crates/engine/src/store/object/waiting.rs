//! An object store for callers that wait: indexing, packing, single reads.
//!
//! It has a runtime of its own, driven by the threads that wait, so that there is no thread while nobody does. It does the
//! retries itself. Every call ends by its deadline; what fails
//! again and again fails earlier, after [`ATTEMPTS`].

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream::{self, StreamExt, TryStreamExt};

use super::listing::Level;
use super::refusal::misuse;
use super::ObjectStorage;
use crate::store::retry::{is_passing, pause};
use crate::store::{AsyncStore, BlockingStore, Entry, Object, StoreError, StoreErrorKind};

/// A call is tried so often; the pauses between them are 5 s in all.
const ATTEMPTS: u32 = 9;
/// An attempt that moves nothing is given up after this time and what its bytes take at [`SLOWEST`], doubled each time.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes per second below which an attempt is given up.
const SLOWEST: f64 = 1e6;
/// How often a call that waits looks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);
/// Parts of one upload in flight.
const PARTS_AT_ONCE: usize = 4;

/// Bytes that are wanted: key, first byte, how many (None: the whole object).
pub type Wanted = (String, u64, Option<u64>);

/// An object that is being written in parts.
#[derive(Debug, Clone, Copy)]
pub struct Upload<'a> {
    /// The object's key.
    pub key: &'a str,
    /// The upload's id.
    pub id: &'a str,
}

/// Tries until it works, is hopeless, or the deadline has passed. `bytes`: how many an attempt moves.
async fn persist<T, W>(
    deadline: Instant,
    bytes: u64,
    attempt: impl Fn(Instant) -> W,
) -> Result<T, StoreError>
where
    W: Future<Output = Result<T, StoreError>>,
{
    let began = Instant::now();
    let mut attempts = 0;
    loop {
        let patience =
            (PATIENCE + Duration::from_secs_f64(bytes as f64 / SLOWEST)) * (1 << attempts.min(4));
        let result = attempt(deadline.min(Instant::now() + patience)).await;
        let Err(mut error) = result else {
            return result;
        };
        attempts += 1;
        let wait = pause(attempts);
        if !is_passing(error.kind) || attempts == ATTEMPTS || Instant::now() + wait >= deadline {
            if is_passing(error.kind) {
                error.message += &format!(
                    " ({attempts} attempts in {:.1} s)",
                    began.elapsed().as_secs_f64()
                );
            }
            return Err(error);
        }
        tokio::time::sleep(wait).await;
    }
}

impl ObjectStorage {
    /// Size and version of an object, asked until there is an answer.
    pub(super) async fn persistent_stat(
        &self,
        key: &str,
        deadline: Instant,
    ) -> Result<Entry, StoreError> {
        persist(deadline, 0, |until| self.stat(key, until)).await
    }

    async fn persistent_get(
        &self,
        key: &str,
        range: Option<Range<u64>>,
        deadline: Instant,
    ) -> Result<Bytes, StoreError> {
        let bytes = range
            .as_ref()
            .map_or(256 << 20, |range| range.end.saturating_sub(range.start));
        persist(deadline, bytes, |until| self.get(key, range.clone(), until)).await
    }
}

/// Asked now and then while a call waits; true ends the call.
pub type Watch = Box<dyn Fn() -> bool + Send + Sync>;

/// The store, and the runtime that its calls run on.
pub struct Waiting {
    storage: Arc<ObjectStorage>,
    runtime: Option<tokio::runtime::Runtime>,
    watch: Watch,
}

impl Waiting {
    /// Starts the runtime. `watch`: whether a call is to end early, as when the user pressed Ctrl-C.
    pub fn new(storage: Arc<ObjectStorage>, watch: Watch) -> std::io::Result<Self> {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder
            .thread_name("penstock-names") // looks host names up, and ends soon
            .thread_keep_alive(Duration::from_secs(1))
            .enable_all()
            .build()?;
        Ok(Self {
            storage,
            runtime: Some(runtime),
            watch,
        })
    }

    fn wait<T>(&self, work: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let runtime = self.runtime.as_ref();
        let runtime = runtime.expect("the runtime lives until it is dropped");
        runtime.block_on(async {
            let mut work = std::pin::pin!(work);
            loop {
                if let Ok(result) = tokio::time::timeout(LOOK, &mut work).await {
                    return result;
                }
                if (self.watch)() {
                    let text = format!("{}: the call was interrupted", self.storage.name);
                    return Err(StoreError::new(StoreErrorKind::Cancelled, text));
                }
            }
        })
    }

    /// The store.
    pub fn storage(&self) -> &Arc<ObjectStorage> {
        &self.storage
    }

    /// Bytes of `range`, or the whole object.
    pub fn get(
        &self,
        key: &str,
        range: Option<Range<u64>>,
        deadline: Instant,
    ) -> Result<Bytes, StoreError> {
        self.wait(self.storage.persistent_get(key, range, deadline))
    }

    /// Many at once, `in_flight` requests at a time; each its own result, in the order asked for.
    pub fn get_many(
        &self,
        wanted: Vec<Wanted>,
        in_flight: usize,
        deadline: Instant,
    ) -> Result<Vec<Result<Bytes, StoreError>>, StoreError> {
        let one = |(key, offset, length): Wanted| async move {
            let range = match length {
                None => None,
                Some(length) => {
                    let end = offset.checked_add(length);
                    Some(offset..end.ok_or_else(|| misuse("the range has no end"))?)
                }
            };
            self.storage.persistent_get(&key, range, deadline).await
        };
        let all = stream::iter(wanted).map(one).buffered(in_flight.max(1));
        self.wait(async { Ok(all.collect().await) })
    }

    /// Size and version of an object.
    pub fn stat(&self, key: &str, deadline: Instant) -> Result<Entry, StoreError> {
        self.wait(self.storage.persistent_stat(key, deadline))
    }

    /// See [`ObjectStorage::listing`].
    pub fn listing(
        &self,
        prefix: &str,
        sizes: bool,
        deadline: Instant,
    ) -> Result<Vec<Entry>, StoreError> {
        let list = |until| self.storage.listing(prefix, sizes, until);
        self.list(list, deadline)
    }

    fn list<T, W>(&self, list: impl Fn(Instant) -> W, deadline: Instant) -> Result<T, StoreError>
    where
        W: Future<Output = Result<T, StoreError>>,
    {
        if self.storage.folders.is_some() {
            // Each page of a web server is tried again by itself.
            return self.wait(list(deadline));
        }
        // However long the list is: pages come one after the other.
        self.wait(persist(deadline, 10_000_000_000, list))
    }

    /// See [`ObjectStorage::is_folder`].
    pub fn is_folder(&self, prefix: &str, deadline: Instant) -> Result<bool, StoreError> {
        self.wait(persist(deadline, 0, |until| {
            self.storage.is_folder(prefix, until)
        }))
    }

    /// See [`ObjectStorage::level`].
    pub fn level(&self, prefix: &str, deadline: Instant) -> Result<Level, StoreError> {
        let list = |until| self.storage.level(prefix, until);
        self.list(list, deadline)
    }

    /// Writes an object at once.
    pub fn put(&self, key: &str, bytes: Bytes, deadline: Instant) -> Result<(), StoreError> {
        let put = |until| self.storage.put(key, bytes.clone(), until);
        self.wait(persist(deadline, bytes.len() as u64, put))
    }

    /// See [`ObjectStorage::begin_upload`]. Not tried twice: an answer that was lost would leave an upload that nobody
    /// knows of.
    pub fn begin_upload(&self, key: &str, deadline: Instant) -> Result<String, StoreError> {
        self.wait(self.storage.begin_upload(key, deadline))
    }

    /// Writes parts, the first of them number `first`, some at a time; gives their ids.
    pub fn put_parts(
        &self,
        upload: Upload<'_>,
        first: usize,
        parts: Vec<Bytes>,
        deadline: Instant,
    ) -> Result<Vec<String>, StoreError> {
        let one = |(index, part): (usize, Bytes)| async move {
            let put = |until| {
                self.storage
                    .put_part(upload.key, upload.id, first + index, part.clone(), until)
            };
            persist(deadline, part.len() as u64, put).await
        };
        let parts = stream::iter(parts.into_iter().enumerate());
        self.wait(parts.map(one).buffered(PARTS_AT_ONCE).try_collect())
    }

    /// Ends an upload of `size` bytes: the object appears.
    pub fn end_upload(
        &self,
        upload: Upload<'_>,
        parts: &[String],
        size: u64,
        deadline: Instant,
    ) -> Result<(), StoreError> {
        let Upload { key, id } = upload;
        let end = |until| self.storage.end_upload(key, id, parts, until);
        let ended = self.wait(persist(deadline, size, end));
        match ended {
            // It had ended, and the answer was lost.
            Err(error) if error.kind == StoreErrorKind::Missing => {
                let there = self
                    .stat(key, deadline)
                    .is_ok_and(|entry| entry.size == size);
                there.then_some(()).ok_or(error)
            }
            ended => ended,
        }
    }

    /// Gives an upload up: its parts go away. One that is not there any more is no error.
    pub fn abort_upload(&self, upload: Upload<'_>, deadline: Instant) -> Result<(), StoreError> {
        let Upload { key, id } = upload;
        let aborted = self.wait(persist(deadline, 0, |until| {
            self.storage.abort_upload(key, id, until)
        }));
        aborted.or_else(|error| {
            (error.kind == StoreErrorKind::Missing)
                .then_some(())
                .ok_or(error)
        })
    }

    /// Removes an object that penstock itself has written. One that is not there is no error.
    pub fn delete(&self, key: &str, deadline: Instant) -> Result<(), StoreError> {
        let deleted = self.wait(persist(deadline, 0, |until| {
            self.storage.delete(key, until)
        }));
        deleted.or_else(|error| {
            (error.kind == StoreErrorKind::Missing)
                .then_some(())
                .ok_or(error)
        })
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Connections have nothing to finish.
            runtime.shutdown_background();
        }
    }
}

impl BlockingStore for Waiting {
    fn read_at(
        &self,
        object: Object<'_>,
        offset: u64,
        parts: &mut [&mut [u8]],
        deadline: Instant,
    ) -> Result<(), StoreError> {
        let want: usize = parts.iter().map(|part| part.len()).sum();
        let end = offset
            .checked_add(want as u64)
            .ok_or_else(|| misuse("the range has no end"))?;
        let bytes = self.get(object.key, Some(offset..end), deadline)?;
        let mut rest = &bytes[..];
        for part in parts {
            let (head, tail) = rest.split_at(part.len());
            part.copy_from_slice(head);
            rest = tail;
        }
        Ok(())
    }

    fn size(&self, object: Object<'_>, deadline: Instant) -> Result<u64, StoreError> {
        Ok(self.stat(object.key, deadline)?.size)
    }

    fn list(&self, prefix: &str, deadline: Instant) -> Result<Vec<Entry>, StoreError> {
        self.listing(prefix, true, deadline)
    }

    fn name(&self) -> String {
        self.storage.name.clone()
    }
}
