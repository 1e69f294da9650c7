//! Files below a folder: read by system calls, and copied from the page cache what is in it.

mod guard;
pub mod map;

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Instant, UNIX_EPOCH};

use map::Map;

use super::{BlockingStore, Entry, Object, StoreError, StoreErrorKind};

/// Up to this many objects are kept open (a handle each); a catalog of more objects, one file a sample, opens and
/// closes each as it is read.
const KEPT_OPEN: usize = 512;

/// Files below `root`. Keys are paths relative to it, or absolute paths.
pub struct LocalStore {
    root: PathBuf,
    open: Box<[OnceLock<Opened>]>,
}

/// A file that is kept open.
struct Opened {
    file: Arc<File>,
    map: OnceLock<Option<Map>>,
}

impl LocalStore {
    /// A store of the files below `root`, of which a catalog will name `objects`.
    pub fn new(root: impl Into<PathBuf>, objects: usize) -> Self {
        let kept = if objects <= KEPT_OPEN { objects } else { 0 };
        Self {
            root: root.into(),
            open: (0..kept).map(|_| OnceLock::new()).collect(),
        }
    }

    fn path(&self, key: &str) -> PathBuf {
        self.root.join(key)
    }

    fn open_file(&self, key: &str) -> Result<File, StoreError> {
        let path = self.path(key);
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| {
            StoreError::new(StoreErrorKind::Missing, format!("{key:?} is no file name"))
        })?;
        // O_NONBLOCK: opening a named pipe without a writer must not wait for one.
        // SAFETY: `name` is a NUL-terminated string that lives through the call.
        let fd = unsafe {
            libc::open(
                name.as_ptr(),
                libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK,
            )
        };
        if fd < 0 {
            return Err(io_error(&io::Error::last_os_error(), &path));
        }
        // SAFETY: `fd` was just opened and belongs to nobody else.
        Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    fn with_file<T>(
        &self,
        object: Object<'_>,
        read: impl FnOnce(&File) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        match self.open.get(object.index as usize) {
            Some(cell) => {
                if let Some(opened) = cell.get() {
                    return read(&opened.file);
                }
                let file = Arc::new(self.open_file(object.key)?);
                let map = OnceLock::new();
                read(&cell.get_or_init(|| Opened { file, map }).file)
            }
            None => read(&self.open_file(object.key)?),
        }
    }
}

fn io_error(error: &io::Error, path: &Path) -> StoreError {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => StoreErrorKind::Missing,
        io::ErrorKind::PermissionDenied => StoreErrorKind::Denied,
        io::ErrorKind::UnexpectedEof => StoreErrorKind::Truncated,
        _ => StoreErrorKind::Other,
    };
    let shown = path.display();
    match kind {
        StoreErrorKind::Missing => StoreError::new(kind, format!("there is no file {shown}")),
        _ => StoreError::new(kind, format!("{shown}: {error}")),
    }
}

/// Reads until `parts` are full. One system call in the usual case.
fn read_parts(file: &File, offset: u64, parts: &mut [&mut [u8]]) -> io::Result<()> {
    const PARTS: usize = 4;
    let want: usize = parts.iter().map(|part| part.len()).sum();
    // No file reaches so far; the system would call the offset negative.
    if offset.saturating_add(want as u64) > i64::MAX as u64 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut done = 0_usize;
    while done < want {
        let mut vectors: [libc::iovec; PARTS] = [libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        }; PARTS];
        let mut used = 0;
        let mut skip = done;
        for part in parts.iter_mut() {
            if skip >= part.len() {
                skip -= part.len();
                continue;
            }
            if used == PARTS {
                break;
            }
            let rest = &mut part[skip..];
            skip = 0;
            vectors[used] = libc::iovec {
                iov_base: rest.as_mut_ptr().cast(),
                iov_len: rest.len(),
            };
            used += 1;
        }
        // SAFETY: each vector points into a live, exclusively borrowed part and is as long as what is left of it.
        let got = unsafe {
            libc::preadv(
                file.as_raw_fd(),
                vectors.as_ptr(),
                used as libc::c_int,
                (offset + done as u64) as libc::off_t,
            )
        };
        match got {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n if n > 0 => done += n as usize,
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

impl BlockingStore for LocalStore {
    fn read_at(
        &self,
        object: Object<'_>,
        offset: u64,
        parts: &mut [&mut [u8]],
        _deadline: Instant,
    ) -> Result<(), StoreError> {
        self.with_file(object, |file| {
            read_parts(file, offset, parts).map_err(|error| {
                let path = self.path(object.key);
                if error.kind() != io::ErrorKind::UnexpectedEof {
                    return io_error(&error, &path);
                }
                let length = parts.iter().map(|part| part.len() as u64).sum::<u64>();
                let end = offset.saturating_add(length);
                let size = file.metadata().map_or(0, |meta| meta.len());
                StoreError::new(
                    StoreErrorKind::Truncated,
                    format!(
                        "{} has {size} bytes, but bytes {offset} to {end} are wanted: it was cut short or replaced",
                        path.display()
                    ),
                )
            })
        })
    }

    fn size(&self, object: Object<'_>, _deadline: Instant) -> Result<u64, StoreError> {
        self.with_file(object, |file| {
            let meta = file
                .metadata()
                .map_err(|error| io_error(&error, &self.path(object.key)))?;
            if meta.is_file() {
                Ok(meta.len())
            } else {
                let shown = self.path(object.key).display().to_string();
                Err(StoreError::new(
                    StoreErrorKind::Other,
                    format!("{shown} is not a file"),
                ))
            }
        })
    }

    fn map(&self, object: Object<'_>) -> Option<&Map> {
        let opened = self.open.get(object.index as usize)?.get()?;
        opened.map.get_or_init(|| Map::of(&opened.file)).as_ref()
    }

    fn list(&self, prefix: &str, deadline: Instant) -> Result<Vec<Entry>, StoreError> {
        let mut entries = Vec::new();
        let mut folders = vec![self.path(prefix)];
        while let Some(folder) = folders.pop() {
            if Instant::now() >= deadline {
                return Err(StoreError::new(
                    StoreErrorKind::Deadline,
                    format!("listing {} took longer than it may", self.root.display()),
                ));
            }
            let listing = std::fs::read_dir(&folder).map_err(|error| io_error(&error, &folder))?;
            for item in listing {
                let item = item.map_err(|error| io_error(&error, &folder))?;
                let path = item.path();
                // Follows links, as the reads will.
                let Ok(meta) = std::fs::metadata(&path) else {
                    continue;
                };
                if meta.is_dir() {
                    let is_link = item.file_type().is_ok_and(|kind| kind.is_symlink());
                    if !is_link {
                        folders.push(path);
                    }
                } else if meta.is_file() {
                    let relative = path.strip_prefix(&self.root).unwrap_or(&path);
                    let Some(key) = relative.to_str() else {
                        continue;
                    };
                    let modified = meta
                        .modified()
                        .ok()
                        .and_then(|at| at.duration_since(UNIX_EPOCH).ok());
                    entries.push(Entry {
                        key: key.to_owned(),
                        size: meta.len(),
                        version: modified.map_or_else(String::new, |at| at.as_nanos().to_string()),
                    });
                }
            }
        }
        entries.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(entries)
    }

    fn name(&self) -> String {
        self.root.display().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    fn store_of(files: &[(&str, &[u8])], objects: usize) -> (tempfile::TempDir, LocalStore) {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            std::fs::write(folder.path().join(name), bytes).unwrap();
        }
        let store = LocalStore::new(folder.path(), objects);
        (folder, store)
    }

    #[test]
    fn a_range_fills_its_parts_in_turn() {
        for objects in [1, KEPT_OPEN + 1] {
            let (_folder, store) = store_of(&[("a", b"0123456789")], objects);
            let (mut head, mut tail) = ([0; 2], [0; 4]);
            store
                .read_at(
                    Object { index: 0, key: "a" },
                    3,
                    &mut [&mut head, &mut [], &mut tail],
                    soon(),
                )
                .unwrap();
            assert_eq!((&head, &tail), (b"34", b"5678"));
        }
    }

    #[test]
    fn a_missing_file_is_missing_and_a_short_one_says_its_size() {
        let (_folder, store) = store_of(&[("a", b"0123")], 2);
        let mut out = [0; 4];
        let error = store
            .read_at(Object { index: 1, key: "b" }, 0, &mut [&mut out], soon())
            .unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Missing);
        let error = store
            .read_at(Object { index: 0, key: "a" }, 2, &mut [&mut out], soon())
            .unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Truncated);
        assert!(error.message.contains("has 4 bytes"), "{error}");
    }

    #[test]
    fn a_folder_is_no_object() {
        let (folder, store) = store_of(&[], 1);
        std::fs::create_dir(folder.path().join("d")).unwrap();
        assert!(store.size(Object { index: 0, key: "d" }, soon()).is_err());
    }

    #[test]
    fn listing_is_sorted_and_recursive() {
        let (folder, store) = store_of(&[("b", b"1"), ("a", b"22")], 0);
        std::fs::create_dir(folder.path().join("c")).unwrap();
        std::fs::write(folder.path().join("c/d"), b"333").unwrap();
        let listed: Vec<_> = store
            .list("", soon())
            .unwrap()
            .into_iter()
            .map(|e| (e.key, e.size))
            .collect();
        assert_eq!(
            listed,
            [("a".into(), 2), ("b".into(), 1), ("c/d".into(), 3)]
        );
    }
}
