//! A file in memory, for samples that lie in it as they will lie in the batch.
//!
//! A system call costs as much as copying several kilobytes, and on the way it copies slower than memory allows. So
//! what is in the page cache anyway is copied from there. What is not is read by system calls, which read ahead and
//! wait politely; no page of a map is touched that may have to come from the disk first.
//!
//! **Regions.** Residency is asked for by regions, after some reads of each: a region whose pages are all there is
//! brought into the process at once, at a small part of what a fault a page costs. When the system takes pages back,
//! the worker notices that it waited for the disk, and all regions start again.
//!
//! **Safety.** The file may change while it is read, as with any way of reading it. It may be cut short: see
//! [`guard`](super::guard). Bytes past a new end in the last page read as zeros without any signal, so that who
//! copied asks [`Map::is_whole`] afterwards.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::Arc;

use super::guard::{self, Watch};

/// Residency is known for this many bytes at once: a power of two.
const REGION: usize = 2 << 20;

/// A region is asked for its residency at its 4th read, its 8th, and so on up to the 128th; then at each 64th.
const FIRST_LOOK: u8 = 4;
const LAST_LOOK: u8 = 128;

/// The count of a region that is all in memory.
const HELD: u8 = u8::MAX;

/// One page in so many is asked for; readahead and large folios bring neighbours together.
const PROBE: usize = 128 << 10;

/// Linux 5.14: map the pages that are there, without a fault for each.
const MADV_POPULATE_READ: libc::c_int = 22;

/// A file that is mapped, and which of its regions are in memory.
pub struct Map {
    base: NonNull<u8>,
    len: usize,
    regions: Box<[AtomicU8]>,
    watch: Option<Watch>,
    file: Arc<File>,
}

// SAFETY: the mapping is read only, and belongs to the map.
unsafe impl Send for Map {}
// SAFETY: as above; what is shared and changes is atomic.
unsafe impl Sync for Map {}

impl Map {
    /// The file as it is now; None where it is empty or the system does not map it.
    pub(super) fn of(file: &Arc<File>) -> Option<Self> {
        let meta = file.metadata().ok().filter(|meta| meta.is_file())?;
        let len = usize::try_from(meta.len()).ok().filter(|&len| len > 0)?;
        // SAFETY: a new mapping of the file, placed by the kernel.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return None;
        }
        let mut map = Self {
            base: NonNull::new(base.cast())?,
            len,
            regions: (0..len.div_ceil(REGION))
                .map(|_| AtomicU8::new(0))
                .collect(),
            watch: None,
            file: Arc::clone(file),
        };
        map.watch = Some(guard::watch(map.base.as_ptr(), len)?);
        Some(map)
    }

    /// Whether these bytes are in memory and may be copied from there.
    #[inline]
    pub fn holds(&self, offset: u64, len: usize) -> bool {
        let Some(end) = usize::try_from(offset)
            .ok()
            .and_then(|offset| offset.checked_add(len))
            .filter(|&end| end <= self.len)
        else {
            return false;
        };
        let (first, last) = (offset as usize / REGION, end.saturating_sub(1) / REGION);
        // Each region is counted, also behind one that is not held.
        let held = |region: usize| {
            self.regions[region].load(Ordering::Relaxed) == HELD || self.look(region)
        };
        (first..=last).filter(|&region| !held(region)).count() == 0
    }

    /// Counts a read of a region, and looks now and then whether it is in memory.
    #[cold]
    fn look(&self, region: usize) -> bool {
        let count = &self.regions[region];
        let reads = count.load(Ordering::Relaxed).saturating_add(1);
        if reads == HELD {
            return true;
        }
        let due = reads >= FIRST_LOOK && reads.is_power_of_two();
        let next = if reads == LAST_LOOK {
            LAST_LOOK / 2
        } else {
            reads
        };
        if !due || self.watch.as_ref().is_none_or(Watch::is_lost) {
            count.store(next, Ordering::Relaxed);
            return false;
        }
        let start = region * REGION;
        let len = REGION.min(self.len - start);
        let held = self.is_resident(start, len) && self.populate(start, len);
        count.store(if held { HELD } else { next }, Ordering::Relaxed);
        held
    }

    fn is_resident(&self, start: usize, len: usize) -> bool {
        let mut byte = [0_u8; 1];
        for at in (start..start + len).step_by(PROBE) {
            let vector = libc::iovec {
                iov_base: byte.as_mut_ptr().cast(),
                iov_len: 1,
            };
            // SAFETY: one live byte to read into.
            let got = unsafe {
                libc::preadv2(
                    self.file.as_raw_fd(),
                    &vector,
                    1,
                    at as libc::off_t,
                    libc::RWF_NOWAIT,
                )
            };
            if got == 1 {
                continue;
            }
            let error = io::Error::last_os_error();
            // A file system that cannot say so by a read, such as one in memory, says it by its pages.
            return error.raw_os_error() == Some(libc::EOPNOTSUPP) && self.is_in_core(start, len);
        }
        true
    }

    fn is_in_core(&self, start: usize, len: usize) -> bool {
        let mut pages = vec![0_u8; len.div_ceil(4096)];
        // SAFETY: inside the mapping, at a page; `pages` has a byte for each of the smallest pages.
        let asked = unsafe {
            libc::mincore(
                self.base.as_ptr().add(start).cast(),
                len,
                pages.as_mut_ptr(),
            )
        };
        // SAFETY: no memory is touched.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(4096) as usize;
        asked == 0
            && pages[..len.div_ceil(page)]
                .iter()
                .all(|state| state & 1 == 1)
    }

    fn populate(&self, start: usize, len: usize) -> bool {
        // SAFETY: advice on our own mapping, at a page of it.
        let done = unsafe {
            libc::madvise(
                self.base.as_ptr().add(start).cast(),
                len,
                MADV_POPULATE_READ,
            )
        };
        // An older kernel knows no such advice: there each page comes at its first touch.
        done == 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL)
    }

    /// Fills `out` from `offset` on. Only what [`Map::holds`]; what was copied counts only if [`Map::is_whole`] after it.
    #[inline]
    pub fn copy(&self, offset: u64, out: &mut [u8]) {
        let offset = offset as usize;
        assert!(offset <= self.len && out.len() <= self.len - offset);
        // SAFETY: inside the mapping (asserted), which is not where slabs are.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.base.as_ptr().add(offset),
                out.as_mut_ptr(),
                out.len(),
            );
        }
    }

    /// Whether `bytes` stand at `offset`. As for [`Map::copy`].
    #[inline]
    pub fn has(&self, offset: u64, bytes: &[u8]) -> bool {
        let offset = offset as usize;
        assert!(offset <= self.len && bytes.len() <= self.len - offset);
        // SAFETY: inside the mapping (asserted); memory that another process writes reads as some bytes or others.
        let there =
            unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(offset), bytes.len()) };
        there == bytes
    }

    /// Tells the CPU that bytes from `offset` on will be copied soon.
    #[inline]
    pub fn expect(&self, offset: u64, len: usize) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
            const LINES: usize = 8;
            let offset = offset as usize;
            if offset <= self.len && len <= self.len - offset {
                for line in (0..len).step_by(64).take(LINES) {
                    // SAFETY: inside the mapping; a prefetch never faults.
                    unsafe {
                        _mm_prefetch::<_MM_HINT_T0>(self.base.as_ptr().add(offset + line).cast())
                    };
                }
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (offset, len);
    }

    /// Whether all that was copied before this call, up to `end`, was in the file then.
    pub fn is_whole(&self, end: u64) -> bool {
        let lost = self.watch.as_ref().is_none_or(Watch::is_lost);
        !lost && self.file.metadata().is_ok_and(|meta| meta.len() >= end)
    }

    /// The system took pages back: what is in memory must be found out again.
    pub fn forget(&self) {
        for region in &self.regions {
            region.store(0, Ordering::Relaxed);
        }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        self.watch = None;
        // SAFETY: the mapping made in `of`; nobody refers to it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Whether maps may be copied from now: a SIGBUS would be taken care of.
pub fn may_copy() -> bool {
    guard::is_on_duty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn mapped(bytes: &[u8]) -> (tempfile::TempDir, std::path::PathBuf, Map) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        File::create(&path).unwrap().write_all(bytes).unwrap();
        let map = Map::of(&Arc::new(File::open(&path).unwrap())).unwrap();
        (folder, path, map)
    }

    fn hold(map: &Map, offset: u64, len: usize) {
        assert!((0..200).any(|_| map.holds(offset, len)));
    }

    #[test]
    fn what_is_in_memory_is_held_after_some_reads_and_copied() {
        let bytes: Vec<u8> = (0..3 * REGION).map(|at| (at / 7) as u8).collect();
        let (_folder, _, map) = mapped(&bytes);
        assert!(!map.holds(5, 10));
        let (at, len) = (REGION - 100, 200);
        hold(&map, at as u64, len);
        let mut out = vec![0; len];
        map.copy(at as u64, &mut out);
        assert_eq!(out, bytes[at..at + len]);
        assert!(map.has(at as u64, &bytes[at..at + len]) && map.is_whole((at + len) as u64));
        assert!(!map.holds(bytes.len() as u64 - 1, 2) && !map.holds(u64::MAX, 2));
        map.forget();
        assert!(!map.holds(at as u64, len));
    }

    #[test]
    fn a_file_cut_short_is_noticed_and_ends_nothing() {
        let bytes = vec![7_u8; 2 * REGION];
        for kept in [0, 5_000, REGION as u64 + 1] {
            let (_folder, path, map) = mapped(&bytes);
            hold(&map, 0, bytes.len());
            assert!(may_copy());
            File::options()
                .write(true)
                .open(&path)
                .unwrap()
                .set_len(kept)
                .unwrap();
            let mut out = vec![0; bytes.len()];
            map.copy(0, &mut out);
            assert!(!map.is_whole(bytes.len() as u64));
            assert!(out[..kept as usize / 65536 * 65536]
                .iter()
                .all(|&byte| byte == 7));
        }
    }

    #[test]
    fn a_file_cut_inside_its_last_page_is_noticed_by_its_size() {
        let (_folder, path, map) = mapped(&[7; 1000]);
        hold(&map, 0, 1000);
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(999)
            .unwrap();
        assert!(map.is_whole(999) && !map.is_whole(1000));
    }
}
