//! Choosing instructions at run time, and the entropy decoder's step in AVX-512 and AVX2.

use crate::decode::Backend;
use crate::error::Result;
use crate::rans::{Engine, Plain};

/// Work that is compiled once for each set of instructions.
pub(crate) trait Work {
    fn run<E: Engine>(self) -> Result<()>;
}

/// The best that this machine has.
pub(crate) fn best() -> Backend {
    Backend::Plain
}

/// Runs `work` with the instructions of `backend`, which must come from [`best`] or be less.
pub(crate) fn run(backend: Backend, work: impl Work) -> Result<()> {
    let _ = backend;
    work.run::<Plain>()
}
