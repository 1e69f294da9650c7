//! Stores, and stores written in Python.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use penstock_engine::store::local::LocalStore;
use penstock_engine::store::object::{ObjectStorage, Waiting};
use penstock_engine::store::{self, BlockingStore, Entry, Object, StoreError, StoreErrorKind};
use pyo3::exceptions::{
    PyConnectionError, PyEOFError, PyFileNotFoundError, PyOSError, PyPermissionError,
    PyTimeoutError,
};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// A store of the engine.
#[pyclass(module = "penstock._native", frozen)]
pub struct Store {
    pub inner: store::Store,
    /// For an object store: how calls that wait reach it.
    place: Option<Place>,
}

/// An object store as calls that wait see it: with connections of its own, opened at the first call, and opened again in
/// a forked child, where the threads of the parent are not.
struct Place {
    uri: String,
    options: Vec<(String, String)>,
    opened: Mutex<Option<(u32, Arc<Waiting>)>>,
}

impl Place {
    fn open(&self) -> Result<Arc<Waiting>, StoreError> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let process = std::process::id();
        if let Some((_, waiting)) = opened.as_ref().filter(|(of, _)| *of == process) {
            return Ok(Arc::clone(waiting));
        }
        let storage = Arc::new(ObjectStorage::open(&self.uri, &self.options)?);
        let waiting = Waiting::new(storage).map(Arc::new).map_err(|error| {
            StoreError::new(
                StoreErrorKind::Other,
                format!("no thread could be started: {error}"),
            )
        })?;
        // What the parent opened is not this process's to end.
        std::mem::forget(opened.replace((process, Arc::clone(&waiting))));
        Ok(waiting)
    }
}

pub fn to_python(error: StoreError) -> PyErr {
    let message = error.message;
    match error.kind {
        StoreErrorKind::Missing => PyFileNotFoundError::new_err(message),
        StoreErrorKind::Truncated => PyEOFError::new_err(message),
        StoreErrorKind::Denied => PyPermissionError::new_err(message),
        StoreErrorKind::Unreachable | StoreErrorKind::Busy => PyConnectionError::new_err(message),
        StoreErrorKind::Deadline | StoreErrorKind::Cancelled => PyTimeoutError::new_err(message),
        StoreErrorKind::Other => PyOSError::new_err(message),
    }
}

fn from_python(py: Python<'_>, error: &PyErr) -> StoreError {
    let kind = if error.is_instance_of::<PyFileNotFoundError>(py) {
        StoreErrorKind::Missing
    } else if error.is_instance_of::<PyEOFError>(py) {
        StoreErrorKind::Truncated
    } else if error.is_instance_of::<PyPermissionError>(py) {
        StoreErrorKind::Denied
    } else if error.is_instance_of::<PyConnectionError>(py) {
        StoreErrorKind::Unreachable
    } else if error.is_instance_of::<PyTimeoutError>(py) {
        StoreErrorKind::Deadline
    } else {
        StoreErrorKind::Other
    };
    StoreError::new(kind, error.value(py).to_string())
}

/// A store written in Python: `read(key, offset, length, timeout) -> bytes`, `size(key, timeout) -> int`,
/// `list(prefix, timeout) -> iterable of (key, size, version)`. Called from the workers, one call a read.
struct PythonStore {
    object: Py<PyAny>,
    name: String,
}

fn seconds(deadline: Instant) -> f64 {
    deadline
        .saturating_duration_since(Instant::now())
        .as_secs_f64()
}

impl BlockingStore for PythonStore {
    fn read_at(
        &self,
        object: Object<'_>,
        offset: u64,
        parts: &mut [&mut [u8]],
        deadline: Instant,
    ) -> Result<(), StoreError> {
        let want: usize = parts.iter().map(|part| part.len()).sum();
        Python::attach(|py| {
            let result = self
                .object
                .call_method1(py, "read", (object.key, offset, want, seconds(deadline)))
                .map_err(|error| from_python(py, &error))?;
            let bytes = result.bind(py).cast::<PyBytes>().map_err(|_| {
                StoreError::new(
                    StoreErrorKind::Other,
                    format!("{}.read() gave something other than bytes", self.name),
                )
            })?;
            let mut rest = bytes.as_bytes();
            if rest.len() != want {
                let message = format!(
                    "{}: {} bytes came where {want} were asked for",
                    object.key,
                    rest.len()
                );
                return Err(StoreError::new(StoreErrorKind::Truncated, message));
            }
            for part in parts {
                let (head, tail) = rest.split_at(part.len());
                part.copy_from_slice(head);
                rest = tail;
            }
            Ok(())
        })
    }

    fn size(&self, object: Object<'_>, deadline: Instant) -> Result<u64, StoreError> {
        Python::attach(|py| {
            let size = self
                .object
                .call_method1(py, "size", (object.key, seconds(deadline)));
            size.and_then(|size| size.extract(py))
                .map_err(|error| from_python(py, &error))
        })
    }

    fn list(&self, prefix: &str, deadline: Instant) -> Result<Vec<Entry>, StoreError> {
        Python::attach(|py| {
            let listing = self
                .object
                .call_method1(py, "list", (prefix, seconds(deadline)));
            let entries = listing.and_then(|listing| {
                let items = listing.bind(py).try_iter()?;
                items
                    .map(|item| item?.extract::<(String, u64, String)>())
                    .collect::<PyResult<Vec<_>>>()
            });
            let entries = entries.map_err(|error| from_python(py, &error))?;
            Ok(entries
                .into_iter()
                .map(|(key, size, version)| Entry { key, size, version })
                .collect())
        })
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

impl Store {
    /// The store for a call that waits.
    fn blocking(&self) -> PyResult<Arc<dyn BlockingStore>> {
        match (&self.inner, &self.place) {
            (store::Store::Blocking(store), _) => Ok(Arc::clone(store)),
            (store::Store::Async(_), Some(place)) => Ok(place.open().map_err(to_python)?),
            (store::Store::Async(_), None) => {
                Err(PyOSError::new_err("this store is read by fetch threads"))
            }
        }
    }
}

#[pymethods]
impl Store {
    /// Files below `root`; `objects` is how many a catalog will name.
    #[staticmethod]
    #[pyo3(signature = (root, objects=0))]
    fn local(root: &str, objects: usize) -> Self {
        Self {
            inner: store::Store::Blocking(Arc::new(LocalStore::new(root, objects))),
            place: None,
        }
    }

    /// An object store: `s3://bucket/prefix`, `gs://…`, `az://…`, `http(s)://host/prefix`. Nothing is asked of it yet.
    #[staticmethod]
    #[pyo3(signature = (uri, options=HashMap::new()))]
    fn object(uri: String, options: HashMap<String, String>) -> PyResult<Self> {
        let options: Vec<(String, String)> = options.into_iter().collect();
        let storage = ObjectStorage::open(&uri, &options).map_err(to_python)?;
        Ok(Self {
            inner: store::Store::Async(Arc::new(storage)),
            place: Some(Place {
                uri,
                options,
                opened: Mutex::default(),
            }),
        })
    }

    /// A store written in Python.
    #[staticmethod]
    fn python(object: Py<PyAny>, name: String) -> Self {
        Self {
            inner: store::Store::Blocking(Arc::new(PythonStore { object, name })),
            place: None,
        }
    }

    /// The store's name in messages.
    #[getter]
    fn name(&self) -> String {
        self.inner.name()
    }

    /// `length` bytes of `key` from `offset` on; None reads to its end.
    #[pyo3(signature = (key, offset=0, length=None, timeout=60.0))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        key: &str,
        offset: u64,
        length: Option<u64>,
        timeout: f64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let deadline = Instant::now() + Duration::from_secs_f64(timeout.clamp(0.0, 1e6));
        let store = self.blocking()?;
        // An index outside any table: nothing is kept open for a single read.
        let object = Object {
            index: u32::MAX,
            key,
        };
        let bytes = py.detach(|| {
            let size = store.size(object, deadline)?;
            let length = length.unwrap_or_else(|| size.saturating_sub(offset));
            // Before any memory is taken for it.
            if offset.checked_add(length).is_none_or(|end| end > size) {
                let message =
                    format!("{key} has {size} bytes; {length} from {offset} on are wanted");
                return Err(StoreError::new(StoreErrorKind::Truncated, message));
            }
            let mut bytes = vec![0; length as usize];
            store.read_at(object, offset, &mut [&mut bytes], deadline)?;
            Ok(bytes)
        });
        Ok(PyBytes::new(py, &bytes.map_err(to_python)?))
    }

    /// Size of `key` in bytes.
    #[pyo3(signature = (key, timeout=60.0))]
    fn size(&self, py: Python<'_>, key: &str, timeout: f64) -> PyResult<u64> {
        let deadline = Instant::now() + Duration::from_secs_f64(timeout.clamp(0.0, 1e6));
        let store = self.blocking()?;
        py.detach(|| {
            store.size(
                Object {
                    index: u32::MAX,
                    key,
                },
                deadline,
            )
        })
        .map_err(to_python)
    }

    /// `(key, size, version)` of all objects below `prefix`, sorted by key.
    #[pyo3(signature = (prefix="", timeout=600.0))]
    fn list(
        &self,
        py: Python<'_>,
        prefix: &str,
        timeout: f64,
    ) -> PyResult<Vec<(String, u64, String)>> {
        let deadline = Instant::now() + Duration::from_secs_f64(timeout.clamp(0.0, 1e6));
        let store = self.blocking()?;
        let entries = py
            .detach(|| store.list(prefix, deadline))
            .map_err(to_python)?;
        Ok(entries
            .into_iter()
            .map(|e| (e.key, e.size, e.version))
            .collect())
    }
}
