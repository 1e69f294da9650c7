//! Formats and transforms: a sample's bytes become pixels or values in a slot. No I/O, no Python.
//!
//! A [`Program`] is compiled once from JSON and then run per sample by any number of threads, each with a
//! [`Scratch`] of its own. What a run writes depends only on the bytes, the field, the program and the
//! [`Draw`], so that a sample is the same whichever thread, rank or epoch order it comes through.
//!
//! ```text
//! bytes ── header ── plan ── decode the region ── stages (resample, pad, colour) ── store ── slot
//!            │         └ draws of the geometry, from (seed, epoch, id)                └ flip, normalise, layout
//!            └ shape and type, checked against the limits before anything is allocated
//! ```

#![warn(missing_docs)]

mod draw;
mod dtype;
mod error;
mod field;
mod format;
mod formats;
mod image;
mod program;
mod scratch;

pub use draw::{Draw, Stream};
pub use dtype::{DType, TensorSpec};
pub use error::{CodecError, CodecErrorKind};
pub use field::{FieldSpec, Kind};
pub use format::Format;
pub use program::{Payload, Program, RECORD};
pub use scratch::{Limits, Scratch};
