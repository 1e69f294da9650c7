//! Vector code, chosen at run time; each function equals its plain counterpart for any input.
//!
//! The only module with `unsafe`. Every function checks the lengths it relies on and takes the plain path
//! where they do not suffice; a [`Level`] is proof that the machine has what its code needs.

use crate::idct::{self, Group, Quantiser};
use crate::planes::Span;
use crate::rows;
use crate::sequential::{Fault, Plan, State};

#[cfg(target_arch = "x86_64")]
mod avx2;

/// What the machine can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Level(Kind);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    #[cfg(target_arch = "x86_64")]
    Avx2,
}

impl Level {
    pub const PLAIN: Self = Self(Kind::Plain);

    /// All that this machine has.
    #[cfg(test)]
    pub fn all() -> Vec<Self> {
        vec![Self::PLAIN, Self::best()]
    }

    /// The best that this machine has.
    pub fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt")
        {
            return Self(Kind::Avx2);
        }
        Self::PLAIN
    }
}

/// Copies bytes up to the first 0xFF or the end of `from`, whichever is first; says how many. May write beyond
/// them, within `to`.
pub(crate) fn copy_until_ff(level: Level, from: &[u8], to: &mut [u8]) -> usize {
    let length = match level.0 {
        Kind::Plain => crate::bits::find_ff(from),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level says that AVX2 is there.
        Kind::Avx2 => unsafe { avx2::find_ff(from) },
    };
    to[..length].copy_from_slice(&from[..length]);
    length
}

/// See [`idct::inverse`].
#[inline(always)]
pub(crate) fn inverse(
    level: Level,
    group: &Group,
    quantiser: &Quantiser,
    out: &mut [u8],
    stride: usize,
) {
    match level.0 {
        Kind::Plain => idct::inverse(group, quantiser, out, stride),
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 => {
            assert!(out.len() >= 7 * stride + idct::GROUP_WIDTH);
            // SAFETY: the level says that AVX2 is there, and `out` holds eight rows of a group.
            unsafe { avx2::inverse(group, quantiser, out.as_mut_ptr(), stride) }
        }
    }
}

/// See [`rows::widen`]: `count` samples of `row`, the first of which is its second, to twice as many.
pub(crate) fn widen(level: Level, row: &[u8], count: usize, out: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    {
        let whole = count.next_multiple_of(16);
        if level.0 == Kind::Avx2 && row.len() >= whole + 2 && out.len() >= 2 * whole {
            // SAFETY: the level says that AVX2 is there; the lengths have just been checked.
            return unsafe { avx2::widen(row.as_ptr(), whole, out.as_mut_ptr()) };
        }
    }
    let _ = level;
    rows::widen(&row[..count + 2], out);
}

/// See [`rows::widen_between`].
pub(crate) fn widen_between(level: Level, near: &[u8], far: &[u8], count: usize, out: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    {
        let whole = count.next_multiple_of(16);
        let enough = near.len() >= whole + 2 && far.len() >= whole + 2 && out.len() >= 2 * whole;
        if level.0 == Kind::Avx2 && enough {
            // SAFETY: the level says that AVX2 is there; the lengths have just been checked.
            return unsafe {
                avx2::widen_between(near.as_ptr(), far.as_ptr(), whole, out.as_mut_ptr())
            };
        }
    }
    let _ = level;
    rows::widen_between(&near[..count + 2], &far[..count + 2], out);
}

/// See [`rows::ycc_to_rgb`]; the pixels are as many as `out` holds.
pub(crate) fn ycc_to_rgb(level: Level, y: &[u8], cb: &[u8], cr: &[u8], out: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    {
        let count = out.len() / 3;
        let whole = count.next_multiple_of(32);
        let enough = y.len() >= whole && cb.len() >= whole && cr.len() >= whole;
        if level.0 == Kind::Avx2 && enough {
            // SAFETY: the level says that AVX2 is there; the lengths have just been checked.
            return unsafe {
                avx2::ycc_to_rgb(
                    y.as_ptr(),
                    cb.as_ptr(),
                    cr.as_ptr(),
                    count,
                    out.as_mut_ptr(),
                )
            };
        }
    }
    let _ = level;
    rows::ycc_to_rgb(y, cb, cr, out);
}

/// See [`crate::sequential::decode_run`]: plain code, compiled for the machine's bit instructions.
pub(crate) fn decode_run(
    plan: &Plan,
    state: &mut State,
    row: usize,
    run: Span,
) -> Result<(), Fault> {
    match plan.level().0 {
        Kind::Plain => crate::sequential::decode_run(plan, state, row, run),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level says that BMI and AVX2 are there.
        Kind::Avx2 => unsafe { avx2::decode_run(plan, state, row, run) },
    }
}
