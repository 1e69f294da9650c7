//! Reads of an object store in a known order, fetched ahead.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use penstock_engine::fetch::FetchOptions;
use penstock_engine::keys::Keys;
use penstock_engine::store;
use penstock_engine::stream::{self, Next, StreamRead};
use pyo3::exceptions::{PyOSError, PyStopIteration, PyTimeoutError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::keys;
use crate::pipeline::column;
use crate::store::{to_python, Store};

/// The length that means the whole object.
const WHOLE: u64 = u64::MAX;
/// A wait is cut into slices of this length, between which Ctrl-C is looked for.
const SLICE: Duration = Duration::from_millis(50);

/// See `penstock_engine::stream`.
#[pyclass(module = "penstock._native", frozen)]
pub struct Stream {
    inner: Mutex<stream::Stream>,
}

#[pymethods]
impl Stream {
    #[new]
    #[pyo3(signature = (store, keys, window_bytes=64 << 20, read_timeout=60.0))]
    fn new(
        store: &Store,
        keys: &Bound<'_, PyAny>,
        window_bytes: u64,
        read_timeout: f64,
    ) -> PyResult<Self> {
        let store::Store::Async(store) = &store.inner else {
            return Err(PyTypeError::new_err("only an object store is read ahead"));
        };
        let options = FetchOptions {
            threads: 1,
            timeout: Duration::from_secs_f64(read_timeout.clamp(0.0, 1e6)),
            ..FetchOptions::default()
        };
        let keys: Arc<dyn Keys> = keys::from_python(keys)?;
        let inner = stream::Stream::new(store, keys, window_bytes, options)
            .map_err(|error| PyOSError::new_err(error.to_string()))?;
        Ok(Self {
            inner: Mutex::new(inner),
        })
    }

    /// Says what will be read after all that was said before: arrays of object, offset, length and expected bytes.
    fn submit(
        &self,
        py: Python<'_>,
        objects: &Bound<'_, PyAny>,
        offsets: &Bound<'_, PyAny>,
        lengths: &Bound<'_, PyAny>,
        weights: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let objects: Vec<u32> = column(py, objects)?;
        let offsets: Vec<u64> = column(py, offsets)?;
        let lengths: Vec<u64> = column(py, lengths)?;
        let weights: Vec<u64> = column(py, weights)?;
        if [offsets.len(), lengths.len(), weights.len()] != [objects.len(); 3] {
            return Err(PyValueError::new_err("the arrays are not of one length"));
        }
        let reads = (0..objects.len()).map(|at| StreamRead {
            object: objects[at],
            offset: offsets[at],
            length: Some(lengths[at]).filter(|length| *length != WHOLE),
            weight: weights[at],
        });
        self.lock().submit(reads);
        Ok(())
    }

    /// Reads said and not yet taken.
    #[getter]
    fn left(&self) -> usize {
        self.lock().left()
    }

    /// Forgets all that was said.
    fn clear(&self) {
        self.lock().clear();
    }

    /// The next read's bytes; StopIteration when all have been taken.
    fn next<'py>(&self, py: Python<'py>, timeout: f64) -> PyResult<Bound<'py, PyBytes>> {
        let deadline = Instant::now() + Duration::from_secs_f64(timeout.clamp(0.0, 1e6));
        loop {
            let slice = deadline.min(Instant::now() + SLICE);
            match py.detach(|| self.lock().next(slice)) {
                Next::Done => return Err(PyStopIteration::new_err(())),
                Next::Read(Ok(bytes)) => return Ok(PyBytes::new(py, &bytes)),
                Next::Read(Err(error)) => return Err(to_python(error)),
                Next::NotYet if slice < deadline => py.check_signals()?,
                Next::NotYet => {
                    return Err(PyTimeoutError::new_err(
                        "the next read did not come in time",
                    ))
                }
            }
        }
    }
}

impl Stream {
    fn lock(&self) -> std::sync::MutexGuard<'_, stream::Stream> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
