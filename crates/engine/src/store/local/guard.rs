//! What happens when a mapped file is cut short under the hands of who copies from it.
//!
//! The kernel then sends SIGBUS, which ends a process that has nothing to say to it. A map is therefore *watched*: the
//! handler puts pages of zeros where the file was, marks the map as lost, and the copy goes on. Whoever copied looks
//! at the mark afterwards, throws away what it has, and reads the file by a system call, which says what is wrong.
//! A SIGBUS anywhere else goes to whoever handled it before.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::OnceLock;

/// Maps that can be watched at once in a process; files beyond them are read by system calls.
const SLOTS: usize = 4096;

struct Slot {
    taken: AtomicBool,
    base: AtomicUsize,
    /// 0 while nothing is watched here.
    len: AtomicUsize,
    lost: AtomicBool,
}

static WATCHED: [Slot; SLOTS] = [const {
    Slot {
        taken: AtomicBool::new(false),
        base: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        lost: AtomicBool::new(false),
    }
}; SLOTS];

/// Slots that were ever taken: the handler looks no further.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Who handled SIGBUS before; None where the handler could not be set.
static BEFORE: OnceLock<Option<libc::sigaction>> = OnceLock::new();

/// A watched range of addresses.
pub(super) struct Watch(&'static Slot);

/// Watches a mapping until the watch is dropped, which comes before the unmapping. None where that is not possible.
pub(super) fn watch(base: *const u8, len: usize) -> Option<Watch> {
    BEFORE.get_or_init(set_handler).as_ref()?;
    let number = WATCHED
        .iter()
        .position(|slot| !slot.taken.swap(true, Ordering::AcqRel))?;
    USED.fetch_max(number + 1, Ordering::AcqRel);
    let slot = &WATCHED[number];
    slot.lost.store(false, Ordering::Release);
    slot.base.store(base as usize, Ordering::Release);
    slot.len.store(len, Ordering::Release);
    Some(Watch(slot))
}

impl Watch {
    /// Whether some of it was no longer there when it was read.
    pub fn is_lost(&self) -> bool {
        self.0.lost.load(Ordering::Acquire)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.len.store(0, Ordering::Release);
        self.0.taken.store(false, Ordering::Release);
    }
}

/// Whether a SIGBUS would come here now. Another handler that was set since may not know of maps.
pub(super) fn is_on_duty() -> bool {
    BEFORE.get_or_init(set_handler).is_some()
        && current().is_some_and(|action| action.sa_sigaction == handler())
}

fn handler() -> usize {
    on_bus_error as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) as usize
}

fn current() -> Option<libc::sigaction> {
    let mut action = MaybeUninit::uninit();
    // SAFETY: asks only; the call fills `action` where it gives 0.
    unsafe {
        (libc::sigaction(libc::SIGBUS, std::ptr::null(), action.as_mut_ptr()) == 0)
            .then(|| action.assume_init())
    }
}

fn set_handler() -> Option<libc::sigaction> {
    let before = current()?;
    // SAFETY: all zeros is a valid `sigaction` with an empty mask.
    let mut ours: libc::sigaction = unsafe { std::mem::zeroed() };
    ours.sa_sigaction = handler();
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: the handler keeps to what a signal handler may do, and hands on what is not its own.
    let set = unsafe { libc::sigaction(libc::SIGBUS, &ours, null_mut()) } == 0;
    set.then_some(before)
}

extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives a valid `info`; for a fault it holds the address.
    let (code, at) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    if code == libc::BUS_ADRERR && absorb(at) {
        return;
    }
    let before = BEFORE.get().copied().flatten();
    match before.map_or(libc::SIG_DFL, |action| action.sa_sigaction) {
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: both are allowed in a handler. The signal is held back until this returns, and then ends the
            // process as it would have done without us.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                libc::raise(signal);
            }
        }
        other => {
            let flags = before.map_or(0, |action| action.sa_flags);
            // SAFETY: it was the handler of this signal, of the kind that its flags say.
            unsafe {
                if flags & libc::SA_SIGINFO != 0 {
                    let other: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                        std::mem::transmute(other);
                    other(signal, info, context);
                } else {
                    let other: extern "C" fn(c_int) = std::mem::transmute(other);
                    other(signal);
                }
            }
        }
    }
}

/// Puts zeros at `at` and all that follows in its map, if it is watched.
fn absorb(at: usize) -> bool {
    for slot in &WATCHED[..USED.load(Ordering::Acquire)] {
        let len = slot.len.load(Ordering::Acquire);
        let base = slot.base.load(Ordering::Acquire);
        if len == 0 || at < base || at - base >= len {
            continue;
        }
        // First the mark: from now on nobody trusts what is read here.
        slot.lost.store(true, Ordering::SeqCst);
        let page = base + (at - base) / PAGE * PAGE;
        // SAFETY: replaces pages of a mapping that belongs to the watch, which lives as long as anyone reads there;
        // mmap is a bare system call, and errno is put back.
        unsafe {
            let errno = libc::__errno_location();
            let kept = *errno;
            let zeros = libc::mmap(
                page as *mut c_void,
                base + len - page,
                libc::PROT_READ,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
                -1,
                0,
            );
            *errno = kept;
            return zeros != libc::MAP_FAILED;
        }
    }
    false
}

/// The largest page of the systems that this runs on: a map begins at a multiple of it or this rounds down to its
/// base, so that the address given to the kernel is always at a page.
const PAGE: usize = 64 << 10;
