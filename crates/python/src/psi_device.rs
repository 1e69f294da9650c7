//! What the GPU's kernels are told of a batch of PSI files.

use penstock_psi::device::{manifest, Request};
use penstock_psi::Region;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::psi::{failure, File};

/// Columns of a request: position and length in the blob, position on the device, x, y, z, width, height, depth
/// (width 0: all of it), flip, first element of the output, distances between slices, rows, columns, channels.
const COLUMNS: usize = 15;

/// (bits, channels, tables, plain, first block, blocks) of one launch.
type Launch = (u32, u32, bool, bool, u32, u32);

/// The manifest of a batch, where its blocks start, and its launches. `requests` is an int64 array, a row a file.
#[pyfunction]
pub fn psi_manifest<'py>(
    py: Python<'py>,
    blob: &Bound<'py, PyAny>,
    requests: PyBuffer<i64>,
    warps: u32,
    max_bytes: u64,
) -> PyResult<(Bound<'py, PyBytes>, usize, Vec<Launch>)> {
    let blob = File::get(blob)?;
    let rows = requests.to_vec(py)?;
    if rows.len() % COLUMNS != 0
        || rows
            .iter()
            .enumerate()
            .any(|(at, &v)| v < 0 && at % COLUMNS < 11)
    {
        return Err(PyValueError::new_err(format!(
            "requests have {COLUMNS} columns, all but the distances not negative"
        )));
    }
    let bytes = blob.bytes();
    let mut files = Vec::with_capacity(rows.len() / COLUMNS);
    let mut wanted = Vec::with_capacity(files.capacity());
    for row in rows.chunks_exact(COLUMNS) {
        let (start, length) = (row[0] as usize, row[1] as usize);
        let file = start
            .checked_add(length)
            .and_then(|end| bytes.get(start..end))
            .ok_or_else(|| PyValueError::new_err("a file lies outside of the blob"))?;
        files.push(file);
        let side = |column: usize| {
            u32::try_from(row[column])
                .map_err(|_| PyValueError::new_err("a region is larger than any picture"))
        };
        let region = match row[6] {
            0 => None,
            _ => Some(Region {
                x: side(3)?,
                y: side(4)?,
                z: side(5)?,
                width: side(6)?,
                height: side(7)?,
                depth: side(8)?,
            }),
        };
        wanted.push(Request {
            position: row[2] as u64,
            region,
            flip: row[9] != 0,
            out: row[10] as u64,
            strides: [row[11], row[12], row[13], row[14]],
        });
    }
    let made = py
        .detach(|| manifest(&files, &wanted, warps, max_bytes))
        .map_err(|(number, error)| failure(error, number))?;
    let launches = made
        .launches
        .iter()
        .map(|l| {
            (
                l.bits,
                l.channels,
                l.tables,
                l.plain,
                l.first_block,
                l.blocks,
            )
        })
        .collect();
    Ok((PyBytes::new(py, &made.bytes), made.blocks_at, launches))
}
