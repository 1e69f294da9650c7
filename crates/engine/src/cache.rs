//! Bytes of far samples on a local disk, as they came: compressed and checksummed.
//!
//! A cache is a folder with a cap in bytes. Below it each data set has a folder of its own (`space`), with **segments**:
//! files of a fixed size in which records lie one after the other. A segment belongs to the process that holds its lock
//! and is written by it alone; everybody reads all segments. A kernel lets go of the lock when a process dies, however
//! that comes, and the next process goes on where the last whole record ends.
//!
//! **Nothing is evicted that may be used again.** Every epoch reads each sample once, so a cache that fills to its cap and
//! then stays as it is saves as many reads an epoch as any cache of that size can; one that evicts the least recently used
//! saves fewer. What belongs to other data sets has no known use: its segments go, the oldest first, when there is no room
//! and no living process holds them.
//!
//! A record is believed only when its checksum fits, at each read. What is damaged is forgotten and fetched anew. A disk
//! that is full or fails ends the writing, and nothing else. The cap counts whole segments, so it is never passed, also not
//! by several processes: room is taken under a lock of the folder.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

use crate::checksum::crc32c;

/// First bytes of a record.
const MAGIC: u32 = 0x5053_4331;
/// Magic, checksum of the rest of the head, object, offset, length asked for, bytes, their checksum.
const HEAD: usize = 4 + 4 + 4 + 8 + 8 + 8 + 4;
/// A segment is this part of the cap …
const SEGMENTS: u64 = 32;
/// … within these bounds.
const SEGMENT_LEAST: u64 = 1 << 20;
const SEGMENT_MOST: u64 = 256 << 20;
/// How often the segments of other processes are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// Which bytes: object, first byte, length as the catalog has it.
pub type Which = (u32, u64, u64);

/// Where a record's bytes lie.
#[derive(Clone)]
pub struct Place {
    file: Arc<File>,
    at: u64,
    length: u64,
    crc: u32,
}

struct Head {
    which: Which,
    length: u64,
    crc: u32,
}

impl Head {
    fn write(&self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        let (object, offset, asked) = self.which;
        bytes[8..12].copy_from_slice(&object.to_le_bytes());
        bytes[12..20].copy_from_slice(&offset.to_le_bytes());
        bytes[20..28].copy_from_slice(&asked.to_le_bytes());
        bytes[28..36].copy_from_slice(&self.length.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.crc.to_le_bytes());
        let own = crc32c(&bytes[8..]);
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&own.to_le_bytes());
        bytes
    }

    fn read(bytes: &[u8; HEAD]) -> Option<Self> {
        let word =
            |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let long =
            |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let whole = word(0) == MAGIC && word(4) == crc32c(&bytes[8..]);
        whole.then(|| Self {
            which: (word(8), long(12), long(20)),
            length: long(28),
            crc: word(36),
        })
    }
}

/// A segment that is read: how far it is known.
struct Known {
    file: Arc<File>,
    size: u64,
    end: u64,
}

/// The segment that this process writes.
struct Own {
    file: Arc<File>,
    size: u64,
    end: u64,
}

#[derive(Default)]
struct Writer {
    own: Option<Own>,
    /// There is no room for another segment.
    full: bool,
}

/// What a cache has done.
#[derive(Debug, Default)]
pub struct CacheCounts {
    /// Reads that were answered.
    pub hits: AtomicU64,
    /// Their bytes.
    pub hit_bytes: AtomicU64,
    /// Records written.
    pub stored: AtomicU64,
    /// Their bytes.
    pub stored_bytes: AtomicU64,
    /// Records that were damaged.
    pub damaged: AtomicU64,
    /// Writes that failed.
    pub failed: AtomicU64,
}

/// One data set's part of a cache. See the module's text.
pub struct Cache {
    root: PathBuf,
    space: PathBuf,
    cap: u64,
    segment: u64,
    index: RwLock<HashMap<Which, Place>>,
    known: Mutex<HashMap<PathBuf, Known>>,
    looked: Mutex<Instant>,
    writer: Mutex<Writer>,
    broken: AtomicBool,
    /// What was done.
    pub counts: CacheCounts,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the lock of `file` for as long as it is open; false where another process has it.
fn take(file: &File, wait: bool) -> bool {
    let mode = libc::LOCK_EX | if wait { 0 } else { libc::LOCK_NB };
    // SAFETY: the descriptor is open as long as `file` lives.
    unsafe { libc::flock(file.as_raw_fd(), mode) == 0 }
}

fn segments(folder: &Path) -> io::Result<Vec<(PathBuf, fs::Metadata)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry
            .path()
            .extension()
            .is_some_and(|extension| extension == "segment")
        {
            // It may be gone again.
            if let Ok(meta) = entry.metadata() {
                found.push((entry.path(), meta));
            }
        }
    }
    Ok(found)
}

impl Cache {
    /// The part `space` of the cache at `root`, of at most `cap` bytes in all.
    pub fn open(root: &Path, space: &str, cap: u64) -> io::Result<Self> {
        let folder = root.join(space);
        fs::create_dir_all(&folder)?;
        let cache = Self {
            root: root.to_owned(),
            space: folder,
            cap,
            segment: (cap / SEGMENTS).clamp(SEGMENT_LEAST, SEGMENT_MOST),
            index: RwLock::default(),
            known: Mutex::default(),
            looked: Mutex::new(Instant::now()),
            writer: Mutex::default(),
            broken: AtomicBool::new(false),
            counts: CacheCounts::default(),
        };
        cache.look()?;
        Ok(cache)
    }

    /// Samples that are there.
    pub fn len(&self) -> usize {
        self.index
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .len()
    }

    /// Whether nothing is there.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Looks at what other processes have written, if that was some time ago.
    pub fn refresh(&self) {
        {
            let mut looked = lock(&self.looked);
            if looked.elapsed() < LOOK {
                return;
            }
            *looked = Instant::now();
        }
        // What cannot be looked at is not there.
        let _ = self.look();
    }

    fn look(&self) -> io::Result<()> {
        let mut known = lock(&self.known);
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        for (path, meta) in segments(&self.space)? {
            if !known.contains_key(&path) {
                let Ok(file) = File::open(&path) else {
                    continue;
                };
                known.insert(
                    path.clone(),
                    Known {
                        file: Arc::new(file),
                        size: meta.len(),
                        end: 0,
                    },
                );
            }
            let segment = known.get_mut(&path).expect("it is there or was just added");
            let file = Arc::clone(&segment.file);
            segment.end = scan(&segment.file, segment.end, segment.size, |head, at| {
                let place = Place {
                    file: Arc::clone(&file),
                    at,
                    length: head.length,
                    crc: head.crc,
                };
                index.insert(head.which, place);
            });
        }
        Ok(())
    }

    /// Where the bytes lie, if they are there.
    pub fn find(&self, which: Which) -> Option<Place> {
        self.index
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&which)
            .cloned()
    }

    /// The bytes, if they are what was stored. Else they are forgotten.
    pub fn read(&self, which: Which, place: &Place) -> Option<Vec<u8>> {
        let mut bytes = vec![0; place.length as usize];
        let came = place.file.read_exact_at(&mut bytes, place.at);
        if came.is_ok() && crc32c(&bytes) == place.crc {
            self.counts.hits.fetch_add(1, Relaxed);
            self.counts.hit_bytes.fetch_add(place.length, Relaxed);
            return Some(bytes);
        }
        self.counts.damaged.fetch_add(1, Relaxed);
        self.index
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&which);
        None
    }

    /// Stores the bytes, if there is room. What fails is counted, and ends the writing.
    pub fn put(&self, which: Which, bytes: &[u8]) {
        if self.broken.load(Relaxed) || self.find(which).is_some() {
            return;
        }
        match self.write(which, bytes) {
            Ok(true) => {
                self.counts.stored.fetch_add(1, Relaxed);
                self.counts
                    .stored_bytes
                    .fetch_add(bytes.len() as u64, Relaxed);
            }
            Ok(false) => {}
            Err(_) => {
                self.counts.failed.fetch_add(1, Relaxed);
                self.broken.store(true, Relaxed);
            }
        }
    }

    fn write(&self, which: Which, bytes: &[u8]) -> io::Result<bool> {
        let need = (HEAD + bytes.len()) as u64;
        if need > self.segment {
            return Ok(false);
        }
        let (file, at) = {
            let mut writer = lock(&self.writer);
            if writer
                .own
                .as_ref()
                .is_none_or(|own| own.end + need > own.size)
            {
                if writer.full {
                    return Ok(false);
                }
                writer.own = self.segment(need)?;
                writer.full = writer.own.is_none();
            }
            let Some(own) = &mut writer.own else {
                return Ok(false);
            };
            let at = own.end;
            own.end += need;
            (Arc::clone(&own.file), at)
        };
        let head = Head {
            which,
            length: bytes.len() as u64,
            crc: crc32c(bytes),
        };
        // The bytes first, so that a head that is there has its bytes behind it.
        file.write_all_at(bytes, at + HEAD as u64)?;
        file.write_all_at(&head.write(), at)?;
        let place = Place {
            file,
            at: at + HEAD as u64,
            length: head.length,
            crc: head.crc,
        };
        self.index
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(which, place);
        Ok(true)
    }

    /// A segment to write with room for `need` bytes: one that a process that ended has left, or a new one.
    fn segment(&self, need: u64) -> io::Result<Option<Own>> {
        let gate = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(self.root.join("lock"))?;
        // Held for as long as it takes to look through the folders.
        if !take(&gate, true) {
            return Err(io::Error::last_os_error());
        }
        for (path, meta) in segments(&self.space)? {
            let file = OpenOptions::new().read(true).write(true).open(&path)?;
            if !take(&file, false) {
                continue;
            }
            let end = scan(&file, 0, meta.len(), |_, _| {});
            if end + need <= meta.len() {
                return Ok(Some(Own {
                    file: Arc::new(file),
                    size: meta.len(),
                    end,
                }));
            }
        }
        let mut used = 0;
        let mut others = Vec::new();
        for space in fs::read_dir(&self.root)? {
            let space = space?.path();
            if !space.is_dir() {
                continue;
            }
            for (path, meta) in segments(&space)? {
                used += meta.len();
                if space != self.space {
                    others.push((
                        meta.modified().unwrap_or(SystemTime::UNIX_EPOCH),
                        path,
                        meta.len(),
                    ));
                }
            }
        }
        others.sort();
        let mut others = others.into_iter();
        while used + self.segment > self.cap {
            let Some((_, path, size)) = others.next() else {
                return Ok(None);
            };
            let idle = File::open(&path).is_ok_and(|file| take(&file, false));
            if idle && fs::remove_file(&path).is_ok() {
                used -= size;
            }
        }
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let name = format!("{:x}-{:x}.segment", now.as_nanos(), std::process::id());
        let path = self.space.join(name);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)?;
        if !take(&file, false) {
            return Ok(None);
        }
        file.set_len(self.segment)?;
        Ok(Some(Own {
            file: Arc::new(file),
            size: self.segment,
            end: 0,
        }))
    }
}

/// Reads the heads from `from` on. Returns where the first record that is not whole begins.
fn scan(file: &File, from: u64, size: u64, mut found: impl FnMut(Head, u64)) -> u64 {
    let mut at = from;
    let mut bytes = [0; HEAD];
    while at + HEAD as u64 <= size && file.read_exact_at(&mut bytes, at).is_ok() {
        let Some(head) = Head::read(&bytes) else {
            break;
        };
        let start = at + HEAD as u64;
        let Some(end) = start.checked_add(head.length).filter(|end| *end <= size) else {
            break;
        };
        found(head, start);
        at = end;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(number: u64) -> Vec<u8> {
        (0..100_000u64)
            .map(|byte| (byte * 31 + number * 7) as u8)
            .collect()
    }

    fn get(cache: &Cache, which: Which) -> Option<Vec<u8>> {
        cache
            .find(which)
            .and_then(|place| cache.read(which, &place))
    }

    fn on_disk(root: &Path) -> u64 {
        let spaces = fs::read_dir(root)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let all = spaces
            .filter(|path| path.is_dir())
            .flat_map(|space| segments(&space).unwrap());
        all.map(|(_, meta)| meta.len()).sum()
    }

    #[test]
    fn what_is_put_is_found_again_by_this_and_by_the_next_process() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path(), "a", 32 << 20).unwrap();
        let other = Cache::open(folder.path(), "a", 32 << 20).unwrap();
        for number in 0..50 {
            cache.put((number, 0, 100_000), &sample(u64::from(number)));
        }
        for cache in [cache, Cache::open(folder.path(), "a", 32 << 20).unwrap()] {
            assert_eq!(cache.len(), 50);
            assert!((0..50).all(|n| get(&cache, (n, 0, 100_000)) == Some(sample(u64::from(n)))));
            assert_eq!(get(&cache, (1, 1, 100_000)), None);
        }
        // Another one that was there before sees it when it looks.
        assert!(other.is_empty());
        other.look().unwrap();
        assert_eq!(other.len(), 50);
    }

    #[test]
    fn the_cap_holds_for_several_writers_and_nothing_of_theirs_is_evicted() {
        let folder = tempfile::tempdir().unwrap();
        let cap = 8 << 20;
        let caches: Vec<Cache> = (0..3)
            .map(|_| Cache::open(folder.path(), "a", cap).unwrap())
            .collect();
        for number in 0..300u32 {
            caches[number as usize % 3].put((number, 0, 100_000), &sample(u64::from(number)));
        }
        assert!(
            on_disk(folder.path()) <= cap,
            "{} of {cap}",
            on_disk(folder.path())
        );
        let all = Cache::open(folder.path(), "a", cap).unwrap();
        assert!(all.len() > 60, "{} of about 80", all.len());
        assert!((0..20).all(|number| get(&all, (number, 0, 100_000)).is_some()));
    }

    #[test]
    fn other_data_sets_make_room_unless_they_are_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let cap = 4 << 20;
        let old = Cache::open(folder.path(), "old", cap).unwrap();
        (0..60).for_each(|number| old.put((number, 0, 100_000), &sample(1)));
        let new = Cache::open(folder.path(), "new", cap).unwrap();
        new.put((0, 0, 100_000), &sample(2));
        assert_eq!((new.len(), old.len()), (0, 40));
        drop((old, new));
        let new = Cache::open(folder.path(), "new", cap).unwrap();
        (0..60).for_each(|number| new.put((number, 0, 100_000), &sample(2)));
        assert!(on_disk(folder.path()) <= cap);
        assert!(Cache::open(folder.path(), "old", cap).unwrap().is_empty());
    }

    #[test]
    fn damage_is_a_miss_and_a_torn_end_is_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path(), "a", 32 << 20).unwrap();
        (0..3).for_each(|number| cache.put((number, 0, 100_000), &sample(u64::from(number))));
        drop(cache);
        let (path, _) = segments(&folder.path().join("a")).unwrap().remove(0);
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        let size = (HEAD + 100_000) as u64;
        // A byte of the second one, and half a record behind the third.
        file.write_all_at(&[0xff], size + HEAD as u64 + 5).unwrap();
        let head = Head {
            which: (9, 0, 100_000),
            length: 100_000,
            crc: 5,
        };
        file.write_all_at(&head.write()[..HEAD - 3], 3 * size)
            .unwrap();
        drop(file);
        let cache = Cache::open(folder.path(), "a", 32 << 20).unwrap();
        assert_eq!(get(&cache, (0, 0, 100_000)), Some(sample(0)));
        assert_eq!(get(&cache, (1, 0, 100_000)), None);
        assert_eq!(cache.counts.damaged.load(Relaxed), 1);
        assert_eq!(get(&cache, (9, 0, 100_000)), None);
        cache.put((1, 0, 100_000), &sample(1));
        cache.put((9, 0, 100_000), &sample(9));
        drop(cache);
        let cache = Cache::open(folder.path(), "a", 32 << 20).unwrap();
        assert!([0, 1, 2, 9]
            .iter()
            .all(|&n| get(&cache, (n, 0, 100_000)) == Some(sample(u64::from(n)))));
        assert_eq!(
            segments(&folder.path().join("a")).unwrap().len(),
            1,
            "it went on in the same segment"
        );
    }

    #[test]
    fn what_is_larger_than_a_segment_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path(), "a", 2 << 20).unwrap();
        cache.put((0, 0, 3 << 20), &vec![1; 3 << 20]);
        assert!(cache.is_empty());
        assert_eq!(cache.counts.failed.load(Relaxed), 0);
    }
}
