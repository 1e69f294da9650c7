//! The raw store: so many reads in flight and nothing else. No window, no pace, no retries.
//!
//! The clock starts when every place has had its first answer, so that making connections is not counted, and what is
//! still under way when the time is over is not counted either.
//!
//! This is what everything above is held against: a loader that is slower than its store loses the rest itself.
//! **Who waits for whom:** the caller waits for reads until its time is over, and then for those in flight, until the
//! deadline of each. Memory: the reads in flight.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::keys::Keys;
use crate::store::{AsyncStore, BlockingStore, Object, Store, StoreError, StoreErrorKind};

/// One read to make.
#[derive(Debug, Clone, Copy)]
pub struct ProbeRead {
    /// Row of the key table.
    pub object: u32,
    /// First byte.
    pub offset: u64,
    /// Bytes; None reads the whole object.
    pub length: Option<u64>,
}

/// What the store gave.
#[derive(Debug, Default)]
pub struct Probed {
    /// The time in which the reads below ended.
    pub took: Duration,
    /// Bytes that came.
    pub bytes: u64,
    /// How long each read took that came.
    pub latencies: Vec<Duration>,
    /// Reads that failed.
    pub failed: usize,
    /// What the first of them said.
    pub error: Option<StoreError>,
}

impl Probed {
    fn enter(&mut self, latency: Duration, result: Result<u64, StoreError>) {
        match result {
            Ok(bytes) => {
                self.bytes += bytes;
                self.latencies.push(latency);
            }
            Err(error) => {
                self.failed += 1;
                self.error.get_or_insert(error);
            }
        }
    }
}

/// Keeps `in_flight` of `reads` under way for `time`, beginning again when they are over. Every read ends within
/// `patience`.
pub fn probe(
    store: &Store,
    keys: &dyn Keys,
    reads: &[ProbeRead],
    in_flight: usize,
    time: Duration,
    patience: Duration,
) -> std::io::Result<Probed> {
    let in_flight = in_flight.max(1);
    if reads.is_empty() {
        return Ok(Probed::default());
    }
    match store {
        Store::Async(store) => {
            let store = store.private().unwrap_or_else(|| store.clone());
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            Ok(runtime.block_on(flights(&*store, keys, reads, in_flight, time, patience)))
        }
        Store::Blocking(store) => Ok(threads(&**store, keys, reads, in_flight, time, patience)),
    }
}

fn key(keys: &dyn Keys, object: u32) -> Result<&str, StoreError> {
    keys.get(object).ok_or_else(|| {
        StoreError::new(
            StoreErrorKind::Missing,
            format!("the catalog has no object {object}"),
        )
    })
}

async fn flights(
    store: &dyn AsyncStore,
    keys: &dyn Keys,
    reads: &[ProbeRead],
    in_flight: usize,
    time: Duration,
    patience: Duration,
) -> Probed {
    let one = |read: ProbeRead| async move {
        let start = Instant::now();
        let range = read
            .length
            .map(|length| read.offset..read.offset.saturating_add(length));
        let result = match key(keys, read.object) {
            Ok(key) => get(store, key, range, start + patience).await,
            Err(error) => Err(error),
        };
        (start.elapsed(), result)
    };
    let mut probed = Probed::default();
    let mut under_way: FuturesUnordered<_> = reads
        .iter()
        .cycle()
        .take(in_flight)
        .map(|&read| one(read))
        .collect();
    let (mut next, mut answered) = (in_flight, 0);
    let mut started: Option<Instant> = None;
    while let Some((latency, result)) = under_way.next().await {
        answered += 1;
        if result.is_err() || started.is_some() {
            probed.enter(latency, result);
        }
        if answered == in_flight {
            started = Some(Instant::now());
        }
        probed.took = started.map_or(Duration::ZERO, |from| from.elapsed());
        // Answers may come in waves, a wave being all that are in flight: one is no measure of a rate.
        let waves = probed.latencies.len() >= 2 * in_flight || probed.took >= 3 * time;
        // A store that refuses everything is not asked again and again.
        if probed.took >= time && waves || probed.failed >= in_flight.max(3) {
            break;
        }
        under_way.push(one(reads[next % reads.len()]));
        next += 1;
    }
    probed
}

async fn get(
    store: &dyn AsyncStore,
    key: &str,
    range: Option<Range<u64>>,
    deadline: Instant,
) -> Result<u64, StoreError> {
    match tokio::time::timeout_at(deadline.into(), store.get(key, range, deadline)).await {
        Ok(result) => result.map(|bytes| bytes.len() as u64),
        Err(_) => Err(StoreError::new(
            StoreErrorKind::Deadline,
            format!("{} did not give {key} in time", store.name()),
        )),
    }
}

fn threads(
    store: &dyn BlockingStore,
    keys: &dyn Keys,
    reads: &[ProbeRead],
    in_flight: usize,
    time: Duration,
    patience: Duration,
) -> Probed {
    let (probed, next) = (Mutex::new(Probed::default()), AtomicUsize::new(0));
    let (ready, began) = (Barrier::new(in_flight), OnceLock::new());
    std::thread::scope(|scope| {
        for _ in 0..in_flight {
            scope.spawn(|| {
                let mut memory = Vec::new();
                let mut mine = Probed::default();
                let mut read = || {
                    let read = reads[next.fetch_add(1, Ordering::Relaxed) % reads.len()];
                    let start = Instant::now();
                    let result = read_one(store, keys, read, &mut memory, start + patience);
                    (start.elapsed(), result)
                };
                let (latency, result) = read();
                let mut failed = result.is_err();
                if failed {
                    mine.enter(latency, result);
                }
                ready.wait();
                // One beginning for all: more threads than cores take turns, and one that comes late has no time of its own.
                let start = *began.get_or_init(Instant::now);
                while !failed && start.elapsed() < time {
                    let (latency, result) = read();
                    failed = result.is_err();
                    mine.enter(latency, result);
                }
                let took = start.elapsed();
                let mut all = probed.lock().unwrap_or_else(PoisonError::into_inner);
                all.took = all.took.max(took);
                all.bytes += mine.bytes;
                all.latencies.append(&mut mine.latencies);
                all.failed += mine.failed;
                all.error = all.error.take().or(mine.error);
            });
        }
    });
    probed.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn read_one(
    store: &dyn BlockingStore,
    keys: &dyn Keys,
    read: ProbeRead,
    memory: &mut Vec<u8>,
    deadline: Instant,
) -> Result<u64, StoreError> {
    let object = Object {
        index: read.object,
        key: key(keys, read.object)?,
    };
    let length = match read.length {
        Some(length) => length,
        None => store.size(object, deadline)?.saturating_sub(read.offset),
    };
    memory.resize(length as usize, 0);
    store.read_at(object, read.offset, &mut [memory], deadline)?;
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::local::LocalStore;
    use std::sync::Arc;

    #[test]
    fn reads_go_on_until_the_time_is_over_and_failures_are_told() {
        let folder = std::env::temp_dir().join(format!("penstock-probe-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("a"), [7u8; 1000]).unwrap();
        let store = Store::Blocking(Arc::new(LocalStore::new(&folder, 2)));
        let keys = vec!["a".to_owned(), "none".to_owned()];
        let reads = [
            ProbeRead {
                object: 0,
                offset: 10,
                length: Some(90),
            },
            ProbeRead {
                object: 0,
                offset: 0,
                length: None,
            },
        ];
        let (time, patience) = (Duration::from_millis(50), Duration::from_secs(10));
        let probed = probe(&store, &keys, &reads, 2, time, patience).unwrap();
        assert_eq!(probed.failed, 0);
        assert!(probed.took >= time && probed.latencies.len() >= 4);
        assert!(probed.bytes >= 2 * 1090);

        let gone = [ProbeRead {
            object: 1,
            offset: 0,
            length: Some(1),
        }];
        let probed = probe(&store, &keys, &gone, 3, time, patience).unwrap();
        assert_eq!((probed.failed, probed.bytes), (3, 0));
        assert_eq!(probed.error.unwrap().kind, StoreErrorKind::Missing);
        assert!(
            probed.took < patience,
            "a store that refuses is not asked again and again"
        );
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// Keeps a core busy for 20 µs a read.
    struct Busy;

    impl BlockingStore for Busy {
        fn read_at(
            &self,
            _: Object<'_>,
            _: u64,
            _: &mut [&mut [u8]],
            _: Instant,
        ) -> Result<(), StoreError> {
            let start = Instant::now();
            while start.elapsed() < Duration::from_micros(20) {
                std::hint::spin_loop();
            }
            Ok(())
        }

        fn size(&self, _: Object<'_>, _: Instant) -> Result<u64, StoreError> {
            Ok(1)
        }

        fn name(&self) -> String {
            "busy".to_owned()
        }

        fn list(&self, _: &str, _: Instant) -> Result<Vec<crate::store::Entry>, StoreError> {
            Ok(Vec::new())
        }
    }

    #[test]
    fn more_threads_than_cores_do_not_add_up_their_turns() {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let store = Store::Blocking(Arc::new(Busy));
        let read = ProbeRead {
            object: 0,
            offset: 0,
            length: Some(1),
        };
        let (time, patience) = (Duration::from_millis(40), Duration::from_secs(10));
        let probed = probe(
            &store,
            &vec!["a".to_owned()],
            &[read],
            cores * 32,
            time,
            patience,
        )
        .unwrap();
        let most = probed.took.as_secs_f64() / 20e-6 * cores as f64;
        let reads = probed.latencies.len() as f64;
        assert!(reads <= 1.5 * most, "{reads} reads where {most} can be");
    }
}
