//! Functions of the module.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use penstock_codec::{CodecError, CodecErrorKind, Draw, Limits, Scratch};
use penstock_engine::probe::{self, ProbeRead};
use penstock_engine::slab::Pool;
use penstock_engine::step::WHOLE;
use penstock_engine::{checksum, order};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyEOFError, PyMemoryError, PyValueError};
use pyo3::prelude::*;

use crate::array::Array;
use crate::keys;
use crate::pipeline::{field_spec, format, program};
use crate::store::Store;

/// The rows `0..n` in the order of (seed, epoch), as a uint64 array.
#[pyfunction]
fn permutation(py: Python<'_>, seed: u64, epoch: u64, n: u64) -> Array {
    let rows = py.detach(|| order::permutation(seed, epoch, n));
    let bytes = rows.iter().flat_map(|row| row.to_ne_bytes()).collect();
    let spec = penstock_codec::TensorSpec {
        dtype: penstock_codec::DType::U64,
        shape: vec![rows.len()],
    };
    Array::own(bytes, &spec)
}

fn with_bytes<T: Send>(
    py: Python<'_>,
    data: &PyBuffer<u8>,
    work: impl FnOnce(&[u8]) -> T + Send,
) -> PyResult<T> {
    if !data.is_c_contiguous() {
        return Err(PyValueError::new_err("the bytes must lie in one piece"));
    }
    // SAFETY: contiguous (just checked) and alive while the PyBuffer is. That nobody writes to it meanwhile is the
    // caller's side of the buffer protocol.
    let bytes =
        unsafe { std::slice::from_raw_parts(data.buf_ptr().cast::<u8>(), data.len_bytes()) };
    Ok(py.detach(|| work(bytes)))
}

/// CRC-32C of `data`, going on from nothing.
#[pyfunction]
fn crc32c(py: Python<'_>, data: PyBuffer<u8>) -> PyResult<u32> {
    with_bytes(py, &data, checksum::crc32c)
}

/// Decodes one sample: `field` is `(name, kind, raw)`, `program` the compiled transform as JSON.
#[pyfunction]
#[pyo3(signature = (data, format_code, field, program_json, *, seed=0, epoch=0, id=0,
                    max_pixels=178_956_970, max_bytes=4_294_967_296))]
#[allow(clippy::too_many_arguments)] // The keywords of one function.
fn decode(
    py: Python<'_>,
    data: PyBuffer<u8>,
    format_code: u8,
    field: (String, String, Option<(String, Vec<usize>)>),
    program_json: &str,
    seed: u64,
    epoch: u64,
    id: u64,
    max_pixels: u64,
    max_bytes: u64,
) -> PyResult<Array> {
    let field = field_spec(field)?;
    let format = format(format_code)?;
    let program = program(program_json)?;
    let limits = Limits {
        max_pixels,
        max_bytes,
    };
    let decoded = with_bytes(py, &data, |bytes| {
        let draw = Draw::new(seed, epoch, id);
        let spec = match program.fixed_output(&field) {
            Some(spec) => spec,
            None => program.output(&field, format, bytes, &draw, &limits)?,
        };
        let size = spec.bytes()?;
        if size as u64 > limits.max_bytes {
            return Err(CodecError {
                kind: CodecErrorKind::TooLarge,
                message: format!(
                    "it would decode to {size} bytes; at most {max_bytes} are allowed"
                ),
            });
        }
        let mut out = vec![0; size];
        program.run(
            &field,
            format,
            bytes,
            &draw,
            &mut out,
            &mut Scratch::default(),
            &limits,
        )?;
        Ok((out, spec))
    })?;
    decoded
        .map(|(out, spec)| Array::own(out, &spec))
        .map_err(|error: CodecError| match error.kind {
            CodecErrorKind::Truncated => PyEOFError::new_err(error.message),
            _ => PyValueError::new_err(error.message),
        })
}

/// Bytes a second that `threads` threads copy from memory into slabs, in pieces of `chunk` bytes, `total` in all:
/// the ceiling for a loader that copies each sample once.
#[pyfunction]
fn copy_bandwidth(py: Python<'_>, threads: usize, chunk: usize, total: usize) -> PyResult<f64> {
    if threads == 0 || chunk == 0 || total < chunk || total > 1 << 36 {
        return Err(PyValueError::new_err(
            "threads and chunk must be positive, and total between chunk and 64 GiB",
        ));
    }
    py.detach(|| {
        let pieces = total / chunk;
        let source = vec![1_u8; pieces * chunk];
        let pool = Pool::new(0);
        let slab_pieces = (16_usize << 20).div_ceil(chunk);
        let slabs = (0..threads)
            .map(|_| pool.lease(slab_pieces * chunk))
            .collect::<std::io::Result<Vec<_>>>()?;
        for slab in &slabs {
            // SAFETY: nobody else has this slab yet. Touches every page before the clock starts.
            unsafe { slab.bytes_mut(0, slab.len()) }.fill(0);
        }
        let next = AtomicUsize::new(0);
        let started = Instant::now();
        std::thread::scope(|scope| {
            for slab in &slabs {
                let (next, source) = (&next, &source);
                scope.spawn(move || loop {
                    let piece = next.fetch_add(1, Ordering::Relaxed);
                    if piece >= pieces {
                        break;
                    }
                    // SAFETY: each thread has a slab of its own.
                    let target = unsafe { slab.bytes_mut((piece % slab_pieces) * chunk, chunk) };
                    target.copy_from_slice(&source[piece * chunk..(piece + 1) * chunk]);
                });
            }
        });
        Ok((pieces * chunk) as f64 / started.elapsed().as_secs_f64())
    })
    .map_err(|error: std::io::Error| PyMemoryError::new_err(error.to_string()))
}

/// What keeps a device from doing what a compiled transform does to pictures; None where nothing does.
#[pyfunction]
fn psi_obstacle(program_json: &str) -> PyResult<Option<&'static str>> {
    Ok(program(program_json)?.device_obstacle())
}

/// Seconds, bytes, latencies in seconds, failed reads, what the first of them said.
type Answer = (f64, u64, Vec<f64>, usize, Option<String>);

/// The raw store with so many reads in flight, for `seconds`. `reads`: `(object, offset, length)`; a length of 2⁶⁴ − 1 is the whole object.
#[pyfunction(name = "probe")]
#[pyo3(signature = (store, keys, reads, in_flight, seconds, timeout=60.0))]
fn probe_store(
    py: Python<'_>,
    store: &Store,
    keys: &Bound<'_, PyAny>,
    reads: Vec<(u32, u64, u64)>,
    in_flight: usize,
    seconds: f64,
    timeout: f64,
) -> PyResult<Answer> {
    let keys = keys::from_python(keys)?;
    let reads: Vec<ProbeRead> = reads
        .into_iter()
        .map(|(object, offset, length)| ProbeRead {
            object,
            offset,
            length: (length != WHOLE).then_some(length),
        })
        .collect();
    let time = |seconds: f64| Duration::from_secs_f64(seconds.clamp(0.0, 3_600.0));
    let probed = py.detach(|| {
        probe::probe(
            &store.inner,
            &*keys,
            &reads,
            in_flight.min(4_096),
            time(seconds),
            time(timeout),
        )
    })?;
    Ok((
        probed.took.as_secs_f64(),
        probed.bytes,
        probed.latencies.iter().map(Duration::as_secs_f64).collect(),
        probed.failed,
        probed.error.map(|error| error.message),
    ))
}

pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(permutation, module)?)?;
    module.add_function(wrap_pyfunction!(crc32c, module)?)?;
    module.add_function(wrap_pyfunction!(decode, module)?)?;
    module.add_function(wrap_pyfunction!(copy_bandwidth, module)?)?;
    module.add_function(wrap_pyfunction!(psi_obstacle, module)?)?;
    module.add_function(wrap_pyfunction!(probe_store, module)?)
}
