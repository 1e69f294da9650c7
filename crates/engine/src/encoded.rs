//! Fields that are decoded on a device: their files side by side in one slab, so that one copy takes them all there.

use std::io;
use std::sync::Arc;

use penstock_codec::{DType, FieldSpec, Kind, TensorSpec, RECORD};

use crate::slab::aligned;
use crate::step::{Placed, StepRequest, WHOLE};

/// The records and files of a field, in one piece of memory.
pub struct Piece {
    /// All bytes from the first record to the last file.
    pub bytes: Placed,
    /// Where each record starts in it, a multiple of [`crate::slab::ALIGN`]; its file starts [`RECORD`] bytes later.
    pub starts: Vec<u64>,
    /// Bytes of each file.
    pub lengths: Vec<u64>,
}

/// Bytes that the files of a step will need, as far as the catalog knows their lengths.
pub(crate) fn room(request: &StepRequest, fields: &[FieldSpec]) -> usize {
    let coded = fields
        .iter()
        .zip(&request.fields)
        .filter(|(field, _)| field.kind == Kind::Encoded);
    coded
        .flat_map(|(_, requests)| &requests.length)
        .filter(|&&length| length != WHOLE)
        .fold(0, |all: usize, &length| {
            all.saturating_add(aligned(RECORD.saturating_add(length as usize)))
        })
}

/// Brings the samples of such a field into one piece: without a copy where they lie in one slab, which they do where the
/// catalog knows their lengths. None where there is no sample.
///
/// # Errors
/// The system's, where there is no memory for the copy.
pub fn in_one_piece(members: &[Placed]) -> io::Result<Option<Piece>> {
    let Some(first) = members.first() else {
        return Ok(None);
    };
    let sizes: Vec<usize> = members
        .iter()
        .map(|member| member.spec.shape.iter().product())
        .collect();
    let lengths = sizes.iter().map(|&size| (size - RECORD) as u64).collect();
    if members
        .iter()
        .all(|member| Arc::ptr_eq(&member.lease, &first.lease))
    {
        let begin = members
            .iter()
            .map(|member| member.offset)
            .min()
            .unwrap_or(0);
        let ends = members
            .iter()
            .zip(&sizes)
            .map(|(member, size)| member.offset + size);
        let length = ends.max().unwrap_or(begin) - begin;
        return Ok(Some(Piece {
            bytes: Placed {
                spec: TensorSpec::new(DType::U8, [length]),
                lease: Arc::clone(&first.lease),
                offset: begin,
            },
            starts: members
                .iter()
                .map(|member| (member.offset - begin) as u64)
                .collect(),
            lengths,
        }));
    }
    let mut starts = Vec::with_capacity(members.len());
    let mut length = 0;
    for size in &sizes {
        starts.push(length as u64);
        length += aligned(*size);
    }
    let lease = Arc::new(first.lease.sibling(length)?);
    for ((member, &size), &start) in members.iter().zip(&sizes).zip(&starts) {
        // SAFETY: the step is finished, so nobody writes to the source; the target was just leased for this alone.
        let (from, to) = unsafe {
            (
                member.lease.bytes_mut(member.offset, size),
                lease.bytes_mut(start as usize, size),
            )
        };
        to.copy_from_slice(from);
    }
    Ok(Some(Piece {
        bytes: Placed {
            spec: TensorSpec::new(DType::U8, [length]),
            lease,
            offset: 0,
        },
        starts,
        lengths,
    }))
}
