//! What goes into the engine and what comes out of it.

use std::sync::Arc;

use penstock_codec::{Format, TensorSpec};

use crate::slab::Lease;

/// The length that means "the whole object".
pub const WHOLE: u64 = u64::MAX;
/// The object index of a sample that does not have the field.
pub const NO_OBJECT: u32 = u32::MAX;
/// What is said of such a sample.
pub const LACKING: &str =
    "the sample does not have it; leave such samples out: data.where('FIELD is not null')";

/// Where one field of one sample lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// Row in the key table.
    pub object: u32,
    /// First byte.
    pub offset: u64,
    /// Bytes, or [`WHOLE`].
    pub length: u64,
    /// Checksum of those bytes, where the catalog knows it.
    pub crc32c: Option<u32>,
    /// What the bytes are.
    pub format: Format,
}

/// The addresses of one field, slot by slot: columns, as the catalog has them.
#[derive(Debug, Clone, Default)]
pub struct FieldRequests {
    /// Row in the key table.
    pub object: Vec<u32>,
    /// First byte.
    pub offset: Vec<u64>,
    /// Bytes, or [`WHOLE`].
    pub length: Vec<u64>,
    /// Checksums, or empty where the catalog has none.
    pub crc32c: Vec<u32>,
    /// Format codes.
    pub format: Vec<u8>,
}

impl FieldRequests {
    /// The address of slot `slot`, or what is wrong with it.
    pub fn address(&self, slot: usize) -> Result<Address, String> {
        let code = self.format[slot];
        let format = Format::from_code(code)
            .ok_or_else(|| format!("the catalog names format {code}, which does not exist"))?;
        Ok(Address {
            object: self.object[slot],
            offset: self.offset[slot],
            length: self.length[slot],
            crc32c: self.crc32c.get(slot).copied(),
            format,
        })
    }

    fn fits(&self, slots: usize) -> bool {
        let columns = [
            self.object.len(),
            self.offset.len(),
            self.length.len(),
            self.format.len(),
        ];
        columns.iter().all(|&len| len == slots)
            && (self.crc32c.is_empty() || self.crc32c.len() == slots)
    }
}

/// One step: which samples, and where their fields lie.
#[derive(Debug, Clone, Default)]
pub struct StepRequest {
    /// Epoch, for the random draws.
    pub epoch: u64,
    /// Step number in the epoch.
    pub step: u64,
    /// Stable ids, slot by slot.
    pub ids: Vec<u64>,
    /// The caller's own numbers for the samples (catalog rows); handed back with the batch.
    pub rows: Vec<u64>,
    /// Addresses, field by field.
    pub fields: Vec<FieldRequests>,
    /// Steps at which the samples were planned, slot by slot; empty where that is this one. For arrival order.
    pub planned: Vec<u64>,
    /// Whether the step keeps its samples, in their slots, in arrival order too.
    pub fenced: bool,
}

impl StepRequest {
    /// The step at which the sample of `slot` was planned.
    pub fn planned(&self, slot: usize) -> u64 {
        self.planned.get(slot).copied().unwrap_or(self.step)
    }

    /// Whether every column has one entry a slot and there are `fields` fields.
    pub fn is_consistent(&self, fields: usize) -> bool {
        let slots = self.ids.len();
        self.rows.len() == slots
            && (self.planned.is_empty() || self.planned.len() == slots)
            && self.fields.len() == fields
            && self.fields.iter().all(|f| f.fits(slots))
    }
}

/// Why one field of one sample could not be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// Its object is not in the store.
    Missing,
    /// Fewer bytes than promised.
    Truncated,
    /// Other bytes than those that were packed.
    Checksum,
    /// The bytes are not what the format says.
    Decode,
    /// The store as a whole fails.
    Store,
    /// The read took longer than it may.
    Deadline,
}

impl FailureKind {
    /// The name that the bindings map to an exception.
    pub fn name(self) -> &'static str {
        match self {
            FailureKind::Missing => "missing",
            FailureKind::Truncated => "truncated",
            FailureKind::Checksum => "checksum",
            FailureKind::Decode => "decode",
            FailureKind::Store => "store",
            FailureKind::Deadline => "deadline",
        }
    }
}

/// One field of one sample that could not be had.
#[derive(Debug, Clone)]
pub struct Failure {
    /// Stable id of the sample.
    pub id: u64,
    /// Its slot.
    pub slot: usize,
    /// Number of the field.
    pub field: usize,
    /// Key of its object.
    pub key: String,
    /// First byte of it.
    pub offset: u64,
    /// Why.
    pub kind: FailureKind,
    /// Why, in words.
    pub message: String,
}

/// Values in a slab.
#[derive(Clone)]
pub struct Placed {
    /// Their type and shape.
    pub spec: TensorSpec,
    /// The slab they are in.
    pub lease: Arc<Lease>,
    /// Their first byte in it.
    pub offset: usize,
}

/// One field of a finished step.
#[derive(Clone)]
pub enum Output {
    /// One array with the samples along its first axis.
    Stacked(Placed),
    /// One array a sample, since their shapes differ.
    Ragged(Vec<Placed>),
}

/// A step whose every slot is done or failed.
pub struct Finished {
    /// Epoch.
    pub epoch: u64,
    /// Step number in the epoch.
    pub step: u64,
    /// Ids of the samples that are in it, in order.
    pub ids: Vec<u64>,
    /// The caller's numbers for them.
    pub rows: Vec<u64>,
    /// Field by field. Empty where there are failures and they are not to be skipped.
    pub fields: Vec<Output>,
    /// What could not be had.
    pub failures: Vec<Failure>,
    /// How many reads were tried again.
    pub retries: u64,
}
