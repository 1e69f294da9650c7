//! Memory that batches are built in.
//!
//! A [`Slab`] is a memfd mapping: the same pages can be pinned for a GPU or mapped by another process without one
//! more copy. A [`Pool`] lends slabs; a [`Lease`] gives its slab back when it is dropped. The pool keeps returned
//! slabs for the next step, up to a cap in bytes.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Slabs are whole multiples of this many bytes, so that a slightly larger step can reuse one.
const GRANULE: usize = 64 * 1024;

/// Areas inside a slab start at multiples of this, a cache line.
pub const ALIGN: usize = 64;

/// Rounds `bytes` up to the next multiple of [`ALIGN`].
pub fn aligned(bytes: usize) -> usize {
    bytes.div_ceil(ALIGN) * ALIGN
}

/// One memfd mapping.
pub struct Slab {
    base: NonNull<u8>,
    len: usize,
    fd: OwnedFd,
    id: u64,
}

// SAFETY: the mapping belongs to the slab and is plain memory; who writes where is settled by the claim on a slot.
unsafe impl Send for Slab {}
// SAFETY: as above; shared access goes through `bytes` and `bytes_mut`, whose callers keep to disjoint areas.
unsafe impl Sync for Slab {}

impl Slab {
    fn new(len: usize) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let len = len.max(1).div_ceil(GRANULE) * GRANULE;
        // SAFETY: the name is a NUL-terminated literal.
        let fd = unsafe { libc::memfd_create(c"penstock-slab".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just created, owned by nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: `fd` is a memfd.
        if unsafe { libc::ftruncate(fd.as_raw_fd(), len as libc::off_t) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new shared mapping of `len` bytes of the file, placed by the kernel.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: advice on our own mapping; where the kernel does not offer huge pages here it says no, harmlessly.
        unsafe { libc::madvise(base, len, libc::MADV_HUGEPAGE) };
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            base,
            len,
            fd,
            id: NEXT.fetch_add(1, Ordering::Relaxed),
        })
    }

    /// Unique in this process.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: a slab has at least one granule.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// First byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// The memfd, to pass to another process.
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// `len` bytes from `offset` on, to write.
    ///
    /// # Safety
    /// Nobody else may read or write these bytes while the slice lives.
    #[allow(clippy::mut_from_ref)] // Slots are disjoint; the claim on a slot is the exclusive borrow.
    pub unsafe fn bytes_mut(&self, offset: usize, len: usize) -> &mut [u8] {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len));
        // SAFETY: inside the mapping (asserted), and exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(offset), len) }
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, which no lease refers to any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Lends slabs and keeps the returned ones.
pub struct Pool {
    idle: Mutex<Vec<Slab>>,
    idle_cap: AtomicUsize,
    mapped: Arc<AtomicUsize>,
}

impl Pool {
    /// A pool that keeps at most `idle_cap` bytes of slabs that nobody uses.
    pub fn new(idle_cap: usize) -> Arc<Self> {
        Arc::new(Self {
            idle: Mutex::new(Vec::new()),
            idle_cap: AtomicUsize::new(idle_cap),
            mapped: Arc::new(AtomicUsize::new(0)),
        })
    }

    /// Bytes of all slabs that exist, lent or idle.
    pub fn mapped(&self) -> usize {
        self.mapped.load(Ordering::Relaxed)
    }

    /// A slab of at least `len` bytes. Its content is whatever was there.
    pub fn lease(self: &Arc<Self>, len: usize) -> io::Result<Lease> {
        let reused = {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            let fits = |slab: &Slab| slab.len >= len && slab.len <= (2 * len).max(GRANULE);
            // The most recently returned one is the warmest.
            idle.iter().rposition(fits).map(|at| idle.swap_remove(at))
        };
        let slab = match reused {
            Some(slab) => slab,
            None => {
                let slab = Slab::new(len)?;
                self.mapped.fetch_add(slab.len, Ordering::Relaxed);
                slab
            }
        };
        Ok(Lease {
            slab: Some(slab),
            pool: Arc::clone(self),
        })
    }

    /// Lets go of every idle slab, and keeps none from now on.
    pub fn close(&self) {
        self.idle_cap.store(0, Ordering::Relaxed);
        let idle = std::mem::take(&mut *self.idle.lock().unwrap_or_else(PoisonError::into_inner));
        let bytes: usize = idle.iter().map(Slab::len).sum();
        self.mapped.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn give_back(&self, slab: Slab) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push(slab);
        let cap = self.idle_cap.load(Ordering::Relaxed);
        let mut bytes: usize = idle.iter().map(Slab::len).sum();
        // The oldest go first: they are of a size that is no longer asked for.
        while bytes > cap && !idle.is_empty() {
            let dropped = idle.remove(0);
            bytes -= dropped.len;
            self.mapped.fetch_sub(dropped.len, Ordering::Relaxed);
        }
    }
}

/// A slab in use. Dropping it gives the slab back.
pub struct Lease {
    slab: Option<Slab>,
    pool: Arc<Pool>,
}

impl std::ops::Deref for Lease {
    type Target = Slab;

    fn deref(&self) -> &Slab {
        self.slab
            .as_ref()
            .expect("a lease holds its slab until it is dropped")
    }
}

impl Lease {
    /// Another slab of the same pool.
    pub fn sibling(&self, len: usize) -> io::Result<Lease> {
        self.pool.lease(len)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(slab) = self.slab.take() {
            self.pool.give_back(slab);
        }
    }
}

/// Room for samples whose shape was not expected: leases taken as they are needed.
pub struct Overflow {
    pool: Arc<Pool>,
    first: usize,
    state: Mutex<OverflowState>,
}

#[derive(Default)]
struct OverflowState {
    leases: Vec<Arc<Lease>>,
    used: usize,
    bytes: usize,
}

/// The smallest lease that overflow takes.
const OVERFLOW_LEASE: usize = 4 << 20;

impl Overflow {
    /// None taken yet; the first lease will have at least `first` bytes.
    pub fn new(pool: Arc<Pool>, first: usize) -> Self {
        Self {
            pool,
            first,
            state: Mutex::default(),
        }
    }

    /// `len` bytes that belong to the caller: a lease and the offset in it.
    pub fn take(&self, len: usize) -> io::Result<(Arc<Lease>, usize)> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let need = aligned(len);
        let fits = state
            .leases
            .last()
            .is_some_and(|lease| lease.len() - state.used >= need);
        if !fits {
            let least = if state.leases.is_empty() {
                self.first.max(OVERFLOW_LEASE)
            } else {
                OVERFLOW_LEASE
            };
            let lease = self.pool.lease(need.max(least))?;
            state.bytes += lease.len();
            state.leases.push(Arc::new(lease));
            state.used = 0;
        }
        let offset = state.used;
        state.used += need;
        let lease = state.leases.last().expect("one was just made sure of");
        Ok((Arc::clone(lease), offset))
    }

    /// Bytes leased so far.
    pub fn bytes(&self) -> usize {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_returned_slab_is_lent_again() {
        let pool = Pool::new(1 << 30);
        let first = pool.lease(100_000).unwrap();
        let id = first.id();
        drop(first);
        assert_eq!(pool.lease(100_000).unwrap().id(), id);
        assert_eq!(pool.mapped(), 2 * GRANULE);
    }

    #[test]
    fn idle_slabs_stay_under_the_cap() {
        let pool = Pool::new(4 * GRANULE);
        let leases: Vec<_> = (0..10).map(|_| pool.lease(GRANULE).unwrap()).collect();
        assert_eq!(pool.mapped(), 10 * GRANULE);
        drop(leases);
        assert_eq!(pool.mapped(), 4 * GRANULE);
        pool.close();
        assert_eq!(pool.mapped(), 0);
    }

    #[test]
    fn overflow_gives_disjoint_areas() {
        let overflow = Overflow::new(Pool::new(1 << 30), 0);
        let mut seen = Vec::new();
        for len in [1, 64, 65, OVERFLOW_LEASE, 3 * OVERFLOW_LEASE, 10] {
            let (lease, offset) = overflow.take(len).unwrap();
            assert!(offset % ALIGN == 0 && offset + len <= lease.len());
            let start = lease.as_ptr() as usize + offset;
            assert!(seen
                .iter()
                .all(|&(s, e): &(usize, usize)| start >= e || start + len <= s));
            seen.push((start, start + len));
        }
    }
}
