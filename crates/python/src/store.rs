//! Stores, and stores written in Python.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use penstock_engine::store::local::LocalStore;
use penstock_engine::store::object::{ObjectStorage, Upload, Waiting, Wanted};
use penstock_engine::store::{self, BlockingStore, Entry, Object, StoreError, StoreErrorKind};
use pyo3::exceptions::{
    PyConnectionError, PyEOFError, PyFileNotFoundError, PyOSError, PyPermissionError,
    PyTimeoutError, PyTypeError,
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
        let waiting = Waiting::new(storage, Box::new(interrupted))
            .map(Arc::new)
            .map_err(|error| {
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

thread_local! {
    /// What ended a call of this thread early.
    static INTERRUPT: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Whether a signal handler has raised, as Ctrl-C does; only ever on the main thread.
fn interrupted() -> bool {
    let raised = Python::attach(|py| py.check_signals().err());
    let ends = raised.is_some();
    INTERRUPT.with_borrow_mut(|kept| *kept = raised);
    ends
}

fn until(timeout: f64) -> Instant {
    Instant::now() + Duration::from_secs_f64(timeout.clamp(0.0, 1e6))
}

pub fn to_python(error: StoreError) -> PyErr {
    if error.kind == StoreErrorKind::Cancelled {
        if let Some(raised) = INTERRUPT.take() {
            return raised;
        }
    }
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

impl Store {
    /// Runs a call that only object stores know.
    fn far<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Waiting) -> Result<T, StoreError> + Send,
    ) -> PyResult<T> {
        let Some(place) = &self.place else {
            return Err(PyTypeError::new_err("only an object store can do this"));
        };
        py.detach(|| call(&*place.open()?)).map_err(to_python)
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
        let deadline = until(timeout);
        if let Some(place) = &self.place {
            let bytes = py.detach(|| {
                let waiting = place.open()?;
                let range = match length {
                    None if offset == 0 => None,
                    None => Some(offset..waiting.stat(key, deadline)?.size.max(offset)),
                    Some(length) => Some(offset..offset.saturating_add(length)),
                };
                waiting.get(key, range, deadline)
            });
            return Ok(PyBytes::new(py, &bytes.map_err(to_python)?));
        }
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
        let deadline = until(timeout);
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

    /// `(key, size, version)` of all objects below `prefix`, sorted by key. Without `sizes`, a store to which they cost
    /// a request each leaves them out.
    #[pyo3(signature = (prefix="", timeout=600.0, sizes=true))]
    fn list(&self, py: Python<'_>, prefix: &str, timeout: f64, sizes: bool) -> PyResult<Vec<Row>> {
        let deadline = until(timeout);
        let entries = if let Some(place) = &self.place {
            py.detach(|| place.open()?.listing(prefix, sizes, deadline))
        } else {
            let store = self.blocking()?;
            py.detach(|| store.list(prefix, deadline))
        };
        Ok(entries.map_err(to_python)?.into_iter().map(row).collect())
    }

    /// What lies directly in the folder `prefix` of an object store: its objects, and the keys of its folders.
    #[pyo3(signature = (prefix="", timeout=600.0))]
    fn level(
        &self,
        py: Python<'_>,
        prefix: &str,
        timeout: f64,
    ) -> PyResult<(Vec<Row>, Vec<String>)> {
        let deadline = until(timeout);
        let level = self.far(py, |waiting| waiting.level(prefix, deadline))?;
        Ok((level.entries.into_iter().map(row).collect(), level.folders))
    }

    /// Whether anything lies in the folder `prefix` of an object store.
    #[pyo3(signature = (prefix="", timeout=60.0))]
    fn is_folder(&self, py: Python<'_>, prefix: &str, timeout: f64) -> PyResult<bool> {
        let deadline = until(timeout);
        self.far(py, |waiting| waiting.is_folder(prefix, deadline))
    }

    /// `(size, version)` of an object of an object store.
    #[pyo3(signature = (key, timeout=60.0))]
    fn stat(&self, py: Python<'_>, key: &str, timeout: f64) -> PyResult<(u64, String)> {
        let deadline = until(timeout);
        let entry = self.far(py, |waiting| waiting.stat(key, deadline))?;
        Ok((entry.size, entry.version))
    }

    /// Many reads of an object store at once, as `(key, offset, length or None)`: bytes, or the error of each.
    #[pyo3(signature = (wanted, in_flight=32, timeout=60.0))]
    fn read_many<'py>(
        &self,
        py: Python<'py>,
        wanted: Vec<Wanted>,
        in_flight: usize,
        timeout: f64,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let deadline = until(timeout);
        let results = self.far(py, |waiting| waiting.get_many(wanted, in_flight, deadline))?;
        let result = |result: Result<Bytes, StoreError>| match result {
            Ok(bytes) => PyBytes::new(py, &bytes).into_any(),
            Err(error) => to_python(error).into_value(py).into_bound(py).into_any(),
        };
        Ok(results.into_iter().map(result).collect())
    }

    /// Writes an object of an object store at once; it appears whole or not at all.
    #[pyo3(signature = (key, data, timeout=300.0))]
    fn put(&self, py: Python<'_>, key: &str, data: &[u8], timeout: f64) -> PyResult<()> {
        let (deadline, data) = (until(timeout), Bytes::copy_from_slice(data));
        self.far(py, |waiting| waiting.put(key, data, deadline))
    }

    /// Whether objects can be written in parts.
    #[getter]
    fn takes_parts(&self) -> bool {
        self.place.as_ref().is_some_and(|place| {
            place
                .open()
                .is_ok_and(|waiting| waiting.storage().takes_parts())
        })
    }

    /// Begins an object that is written in parts; gives the upload's id.
    #[pyo3(signature = (key, timeout=60.0))]
    fn begin_upload(&self, py: Python<'_>, key: &str, timeout: f64) -> PyResult<String> {
        let deadline = until(timeout);
        self.far(py, |waiting| waiting.begin_upload(key, deadline))
    }

    /// Writes `count` parts of `part_bytes` each, the last one perhaps shorter, from the file at `path`; the first of them
    /// is number `first`, counted from 0. Gives their ids.
    #[pyo3(signature = (key, upload, path, first, count, part_bytes, timeout=300.0))]
    #[allow(clippy::too_many_arguments)] // Which part of which file becomes which part of which upload.
    fn put_parts(
        &self,
        py: Python<'_>,
        key: &str,
        upload: &str,
        path: &str,
        first: usize,
        count: usize,
        part_bytes: usize,
        timeout: f64,
    ) -> PyResult<Vec<String>> {
        let deadline = until(timeout);
        self.far(py, |waiting| {
            let parts = file_parts(path, first, count, part_bytes)?;
            let upload = Upload { key, id: upload };
            waiting.put_parts(upload, first, parts, deadline)
        })
    }

    /// Ends an upload of `size` bytes: the object appears.
    #[pyo3(signature = (key, upload, parts, size, timeout=300.0))]
    fn end_upload(
        &self,
        py: Python<'_>,
        key: &str,
        upload: &str,
        parts: Vec<String>,
        size: u64,
        timeout: f64,
    ) -> PyResult<()> {
        let deadline = until(timeout);
        let upload = Upload { key, id: upload };
        self.far(py, |waiting| {
            waiting.end_upload(upload, &parts, size, deadline)
        })
    }

    /// Gives an upload up; its parts go away.
    #[pyo3(signature = (key, upload, timeout=60.0))]
    fn abort_upload(&self, py: Python<'_>, key: &str, upload: &str, timeout: f64) -> PyResult<()> {
        let deadline = until(timeout);
        let upload = Upload { key, id: upload };
        self.far(py, |waiting| waiting.abort_upload(upload, deadline))
    }

    /// Removes an object that penstock itself has written.
    #[pyo3(signature = (key, timeout=60.0))]
    fn delete(&self, py: Python<'_>, key: &str, timeout: f64) -> PyResult<()> {
        let deadline = until(timeout);
        self.far(py, |waiting| waiting.delete(key, deadline))
    }
}

/// Key, size and version of an object.
type Row = (String, u64, String);

fn row(entry: Entry) -> Row {
    (entry.key, entry.size, entry.version)
}

fn file_parts(
    path: &str,
    first: usize,
    count: usize,
    part_bytes: usize,
) -> Result<Vec<Bytes>, StoreError> {
    let broken = |error: std::io::Error| {
        StoreError::new(
            StoreErrorKind::Other,
            format!("{path} cannot be read: {error}"),
        )
    };
    let file = File::open(path).map_err(broken)?;
    let size = file.metadata().map_err(broken)?.len();
    let part = |number: usize| {
        let start = (number * part_bytes) as u64;
        let mut bytes = vec![0; size.saturating_sub(start).min(part_bytes as u64) as usize];
        file.read_exact_at(&mut bytes, start).map_err(broken)?;
        Ok(Bytes::from(bytes))
    };
    (first..first + count).map(part).collect()
}
