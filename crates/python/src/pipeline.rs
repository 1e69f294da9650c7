//! The pipeline.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_codec::{DType, FieldSpec, Format, Kind, Limits, Program, TensorSpec};
use penstock_engine::cache::Cache;
use penstock_engine::encoded;
use penstock_engine::fetch::FetchOptions;
use penstock_engine::pipeline::{self, Options, PipelineError};
use penstock_engine::step::{self, Output, StepRequest};
use penstock_engine::trace::Stage;
use penstock_engine::window::Order;
use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::{PyMemoryError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use crate::addresses::Addresses;
use crate::array::Array;
use crate::keys;
use crate::store::Store;

/// A wait is cut into slices of this length, between which Ctrl-C is looked for.
const SLICE: Duration = Duration::from_millis(50);

fn to_python(error: PipelineError) -> PyErr {
    match error {
        PipelineError::Closed | PipelineError::Forked => PyRuntimeError::new_err(error.to_string()),
        PipelineError::Misuse(text) => PyValueError::new_err(text),
        PipelineError::System(_) => PyMemoryError::new_err(error.to_string()),
    }
}

pub fn column<T: Element>(py: Python<'_>, object: &Bound<'_, PyAny>) -> PyResult<Vec<T>> {
    PyBuffer::<T>::get(object)?.to_vec(py)
}

/// `(name, kind, raw)` where raw is `(dtype, shape)` or None.
pub fn field_spec(field: (String, String, Option<(String, Vec<usize>)>)) -> PyResult<FieldSpec> {
    let (name, kind, raw) = field;
    let kind = Kind::from_name(&kind)
        .ok_or_else(|| PyValueError::new_err(format!("{kind:?} is no kind of field")))?;
    let raw = raw.map(|(dtype, shape)| match DType::from_name(&dtype) {
        Some(dtype) => Ok(TensorSpec { dtype, shape }),
        None => Err(PyValueError::new_err(format!(
            "{dtype:?} is no type that a field can have"
        ))),
    });
    Ok(FieldSpec {
        name,
        kind,
        raw: raw.transpose()?,
    })
}

/// Compiles a transform program.
pub fn program(json: &str) -> PyResult<Program> {
    Program::from_json(json).map_err(|error| PyValueError::new_err(error.message))
}

/// Name and kind; type and shape of a row where the field is raw.
type StoredField = (String, String, Option<(String, Vec<usize>)>);

/// Steps in, finished steps out.
#[pyclass(module = "penstock._native", frozen)]
pub struct Pipeline {
    inner: pipeline::Pipeline,
    /// Which fields go on as files, to be decoded on a device.
    encoded: Vec<bool>,
}

#[pymethods]
impl Pipeline {
    #[new]
    #[pyo3(signature = (store, keys, fields, program, *, seed, threads, window_bytes, attempts, read_timeout,
                        max_pixels, max_bytes, trace_capacity, keep_slabs, displacement=None, cache=None))]
    #[allow(clippy::too_many_arguments)] // The keywords of one constructor.
    fn new(
        store: &Store,
        keys: &Bound<'_, PyAny>,
        fields: Vec<StoredField>,
        program: &str,
        seed: u64,
        threads: Option<usize>,
        window_bytes: usize,
        attempts: u32,
        read_timeout: f64,
        max_pixels: u64,
        max_bytes: u64,
        trace_capacity: usize,
        keep_slabs: bool,
        displacement: Option<u64>,
        cache: Option<(std::path::PathBuf, String, u64)>,
    ) -> PyResult<Self> {
        let cache = cache.map(|(root, space, cap)| Cache::open(&root, &space, cap).map(Arc::new));
        let options = Options {
            fields: fields
                .into_iter()
                .map(field_spec)
                .collect::<PyResult<_>>()?,
            program: self::program(program)?,
            seed,
            threads,
            window_bytes,
            attempts,
            read_timeout: Duration::from_secs_f64(read_timeout.clamp(0.0, 1e6)),
            limits: Limits {
                max_pixels,
                max_bytes,
            },
            trace_capacity,
            order: displacement.map_or(Order::Strict, |displacement| Order::Arrival {
                displacement,
            }),
            fetch: FetchOptions::default(),
            cache: cache.transpose()?,
            keep_slabs,
        };
        let encoded = options
            .fields
            .iter()
            .map(|field| field.kind == Kind::Encoded)
            .collect();
        let keys = keys::from_python(keys)?;
        let inner =
            pipeline::Pipeline::new(store.inner.clone(), keys, options).map_err(to_python)?;
        Ok(Self { inner, encoded })
    }

    /// Starts work on a step: on `rows` of the catalog that has these addresses.
    /// `planned`: the steps at which the samples were planned, where that is not this one; `fenced`: the step keeps its
    /// samples in arrival order too.
    #[pyo3(signature = (addresses, epoch, step, rows, planned=None, fenced=false))]
    #[allow(clippy::too_many_arguments)] // A step, and where its samples lie.
    fn submit(
        &self,
        py: Python<'_>,
        addresses: &Addresses,
        epoch: u64,
        step: u64,
        rows: &Bound<'_, PyAny>,
        planned: Option<Bound<'_, PyAny>>,
        fenced: bool,
    ) -> PyResult<()> {
        let rows: Vec<u64> = column(py, rows)?;
        let (ids, fields) = addresses.take(&rows)?;
        let request = StepRequest {
            epoch,
            step,
            ids,
            rows,
            fields,
            planned: planned.map_or(Ok(Vec::new()), |planned| column(py, &planned))?,
            fenced,
        };
        py.detach(|| self.inner.submit(request)).map_err(to_python)
    }

    /// Whether the window has room for one more step.
    fn has_room(&self) -> bool {
        self.inner.has_room()
    }

    /// Steps submitted and not yet handed out.
    #[getter]
    fn open_steps(&self) -> usize {
        self.inner.open_steps()
    }

    /// Bytes of all slabs.
    #[getter]
    fn mapped_bytes(&self) -> usize {
        self.inner.mapped_bytes()
    }

    /// Worker threads now.
    #[getter]
    fn threads(&self) -> usize {
        self.inner.threads()
    }

    /// The oldest step when it is finished; None after `timeout` seconds, and with `more` as soon as the window has room
    /// for another step. Ctrl-C ends the wait.
    #[pyo3(signature = (timeout, skip, more=false))]
    fn next(
        &self,
        py: Python<'_>,
        timeout: f64,
        skip: bool,
        more: bool,
    ) -> PyResult<Option<Finished>> {
        let deadline = Instant::now() + Duration::from_secs_f64(timeout.clamp(0.0, 1e6));
        loop {
            let slice = deadline
                .saturating_duration_since(Instant::now())
                .min(SLICE);
            if let Some(inner) = py
                .detach(|| self.inner.next(slice, skip, more))
                .map_err(to_python)?
            {
                return Ok(Some(Finished {
                    inner,
                    encoded: self.encoded.clone(),
                }));
            }
            py.check_signals()?;
            if Instant::now() >= deadline || more && self.inner.has_room() {
                return Ok(None);
            }
        }
    }

    /// Forgets every step that was not handed out.
    fn discard(&self) -> PyResult<()> {
        self.inner.discard().map_err(to_python)
    }

    /// What the oldest step still waits for, in words.
    fn describe_wait(&self) -> String {
        self.inner.describe_wait()
    }

    /// Spans in the ring: `(stage, thread, epoch, step, samples, bytes, start_ns, end_ns)`; thread −1 is the caller,
    /// −2 the requests to a far store.
    fn spans<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let spans = py.detach(|| self.inner.trace().spans());
        let rows = spans.into_iter().map(|s| {
            let thread = i32::from(s.thread as i16);
            (
                s.stage.name(),
                thread,
                s.epoch,
                s.step,
                s.samples,
                s.bytes,
                s.start,
                s.end,
            )
        });
        PyList::new(py, rows.collect::<Vec<_>>())
    }

    /// Nanoseconds since the trace began: the clock of the spans.
    fn now(&self) -> u64 {
        self.inner.trace().now()
    }

    /// Sums over the run: stage → `(seconds over all threads, samples, bytes)`.
    fn totals<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let totals = PyDict::new(py);
        for stage in Stage::ALL {
            let total = self.inner.trace().total(stage);
            totals.set_item(
                stage.name(),
                (total.nanos as f64 / 1e9, total.samples, total.bytes),
            )?;
        }
        Ok(totals)
    }

    /// Counters of the requests to a far store, by name; empty where the store is near.
    fn fetched<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = PyDict::new(py);
        for (name, count) in self
            .inner
            .fetched()
            .map_or(Vec::new(), |counts| counts.named())
        {
            counts.set_item(name, count)?;
        }
        Ok(counts)
    }

    /// Counters of the cache, by name; empty where there is none.
    fn cached<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        if let Some(cache) = self.inner.cache() {
            let counts = &cache.counts;
            dict.set_item("hits", counts.hits.load(Relaxed))?;
            dict.set_item("hit_bytes", counts.hit_bytes.load(Relaxed))?;
            dict.set_item("stored", counts.stored.load(Relaxed))?;
            dict.set_item("stored_bytes", counts.stored_bytes.load(Relaxed))?;
            dict.set_item("damaged", counts.damaged.load(Relaxed))?;
            dict.set_item("failed", counts.failed.load(Relaxed))?;
            dict.set_item("samples", cache.len())?;
        }
        Ok(dict)
    }

    /// Requests in flight to a far store and how many may be; None where the store is near.
    fn in_flight(&self) -> Option<(usize, usize)> {
        self.inner.in_flight()
    }

    /// How the number of requests in flight came to be, oldest first:
    /// `(seconds, reason, limit, bytes_per_second, latency, unloaded)`.
    fn decisions<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let decisions = py.detach(|| self.inner.decisions());
        let rows = decisions.into_iter().map(|d| {
            (
                d.at.as_secs_f64(),
                d.reason.name(),
                d.limit,
                d.rate,
                d.latency.as_secs_f64(),
                d.unloaded.as_secs_f64(),
            )
        });
        PyList::new(py, rows.collect::<Vec<_>>())
    }

    /// Ends all work; returns how many workers a read still holds.
    fn close(&self, py: Python<'_>) -> usize {
        py.detach(|| self.inner.close())
    }
}

/// A finished step.
#[pyclass(module = "penstock._native", frozen)]
pub struct Finished {
    inner: step::Finished,
    encoded: Vec<bool>,
}

fn as_bytes<'py>(py: Python<'py>, values: &[u64]) -> Bound<'py, PyBytes> {
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|value| value.to_ne_bytes())
        .collect();
    PyBytes::new(py, &bytes)
}

#[pymethods]
impl Finished {
    #[getter]
    fn epoch(&self) -> u64 {
        self.inner.epoch
    }

    #[getter]
    fn step(&self) -> u64 {
        self.inner.step
    }

    /// Reads that were tried again.
    #[getter]
    fn retries(&self) -> u64 {
        self.inner.retries
    }

    /// Ids of the samples, as the bytes of a uint64 array.
    #[getter]
    fn ids<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        as_bytes(py, &self.inner.ids)
    }

    /// Rows of the samples, as the bytes of a uint64 array.
    #[getter]
    fn rows<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        as_bytes(py, &self.inner.rows)
    }

    /// Field by field: an Array with the samples along its first axis, or a list of one Array a sample. Of a field that is
    /// decoded on a device: `(Array of bytes, starts, lengths)`, the latter as the bytes of uint64 arrays.
    fn arrays<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let fields = self
            .inner
            .fields
            .iter()
            .zip(&self.encoded)
            .map(|(output, &encoded)| match output {
                Output::Ragged(members) if encoded => {
                    let Some(piece) = encoded::in_one_piece(members)? else {
                        return Ok(PyList::empty(py).into_any());
                    };
                    let parts = (
                        Array::placed(piece.bytes),
                        as_bytes(py, &piece.starts),
                        as_bytes(py, &piece.lengths),
                    );
                    Ok(parts.into_pyobject(py)?.into_any())
                }
                Output::Stacked(placed) => {
                    Ok(Bound::new(py, Array::placed(placed.clone()))?.into_any())
                }
                Output::Ragged(members) => {
                    let arrays = members
                        .iter()
                        .map(|placed| Bound::new(py, Array::placed(placed.clone())));
                    Ok(PyList::new(py, arrays.collect::<PyResult<Vec<_>>>()?)?.into_any())
                }
            });
        fields.collect()
    }

    /// Failures: `(id, slot, field, key, offset, kind, message)`.
    #[getter]
    fn failures<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let rows = self.inner.failures.iter().map(|f| {
            (
                f.id,
                f.slot,
                f.field,
                f.key.as_str(),
                f.offset,
                f.kind.name(),
                f.message.as_str(),
            )
        });
        PyList::new(py, rows.collect::<Vec<_>>())
    }

    fn __len__(&self) -> usize {
        self.encoded.len()
    }
}

/// The format of a code.
pub fn format(code: u8) -> PyResult<Format> {
    Format::from_code(code)
        .ok_or_else(|| PyValueError::new_err(format!("there is no format {code}")))
}
