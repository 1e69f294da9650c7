//! PSI for Python: arrays in any layout to files and back, without the GIL.
//!
//! `penstock.psi` brings every array into four axes (slice, row, column, channel) with strides that are not negative;
//! here they become the codec's own words.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use penstock_psi::{
    self as psi, DecodeOptions, Error, Image, Info, Level, Region, SampleType, Scratch, Strides,
};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

pyo3::create_exception!(
    penstock._native,
    CodecFailure,
    PyException,
    "What is wrong with a file: (kind, text, number of the file)."
);

pub(crate) fn failure(error: Error, number: usize) -> PyErr {
    let kind = match error {
        Error::Truncated { .. } => "truncated",
        Error::Checksum(_) => "checksum",
        Error::Request(_) => "request",
        Error::Malformed(_) | Error::Unsupported(_) | Error::TooLarge(_) => "decode",
    };
    CodecFailure::new_err((kind, error.to_string(), number))
}

/// A file in the memory of a Python object.
pub(crate) struct File(PyUntypedBuffer);

impl File {
    pub(crate) fn get(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyUntypedBuffer::get(object)?;
        if !buffer.is_c_contiguous() {
            return Err(PyValueError::new_err(
                "the bytes of a PSI file must lie in one piece",
            ));
        }
        Ok(Self(buffer))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        let (start, length) = (self.0.buf_ptr().cast::<u8>(), self.0.len_bytes());
        if length == 0 {
            return &[];
        }
        // SAFETY: contiguous (checked) and alive while the buffer is held. That nobody writes to it meanwhile is the
        // caller's side of the buffer protocol.
        unsafe { std::slice::from_raw_parts(start, length) }
    }
}

/// Samples in the memory of a Python object: (slice, row, column, channel).
struct Samples {
    buffer: PyUntypedBuffer,
    shape: [usize; 4],
    strides: Strides,
    extent: usize,
}

impl Samples {
    fn get(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyUntypedBuffer::get(object)?;
        let (&[d, h, w, c], &[slice, row, column, channel]) = (buffer.shape(), buffer.strides())
        else {
            return Err(PyValueError::new_err(
                "samples have the axes (slice, row, column, channel)",
            ));
        };
        let shape = [d, h, w, c];
        let mut extent = buffer.item_size();
        for (length, stride) in shape.into_iter().zip([slice, row, column, channel]) {
            if length == 0 || stride < 0 {
                return Err(PyValueError::new_err(format!(
                    "samples of shape {shape:?} with a stride of {stride}"
                )));
            }
            extent += (length - 1) * stride as usize;
        }
        let strides = Strides {
            slice: slice as usize,
            row: row as usize,
            column: column as usize,
            channel: channel as usize,
        };
        Ok(Self {
            buffer,
            shape,
            strides,
            extent,
        })
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: from the first sample to the last, along strides that the exporter vouches for; alive while held.
        unsafe { std::slice::from_raw_parts(self.buffer.buf_ptr().cast::<u8>(), self.extent) }
    }

    /// # Safety
    /// Nobody else reads or writes between the first and the last sample meanwhile.
    #[allow(clippy::mut_from_ref)]
    unsafe fn bytes_mut(&self) -> &mut [u8] {
        // SAFETY: as above; the exporter says that it may be written (checked by the caller).
        unsafe { std::slice::from_raw_parts_mut(self.buffer.buf_ptr().cast::<u8>(), self.extent) }
    }
}

/// Encodes `samples` (slice, row, column, channel) of that NumPy type.
#[pyfunction]
#[pyo3(signature = (samples, sample_type, *, volume, level, threads, metadata, tile_height=0))]
#[allow(clippy::too_many_arguments)] // The keywords of one function.
fn psi_encode<'py>(
    py: Python<'py>,
    samples: &Bound<'py, PyAny>,
    sample_type: &str,
    volume: bool,
    level: &str,
    threads: usize,
    metadata: Vec<u8>,
    tile_height: u32,
) -> PyResult<Bound<'py, PyBytes>> {
    let samples = Samples::get(samples)?;
    let sample_type = SampleType::from_name(sample_type)
        .filter(|kind| kind.bytes() == samples.buffer.item_size())
        .ok_or_else(|| PyValueError::new_err(format!("{sample_type} is no type that PSI holds")))?;
    let level = match level {
        "fast" => Level::Fast,
        "dense" => Level::Dense,
        "max" => Level::Max,
        other => {
            return Err(PyValueError::new_err(format!(
                "there is no level {other:?}"
            )))
        }
    };
    let side = |length: usize| {
        u32::try_from(length).map_err(|_| PyValueError::new_err(format!("a side of {length}")))
    };
    let [depth, height, width, channels] = samples.shape;
    let image = Image {
        data: samples.bytes(),
        width: side(width)?,
        height: side(height)?,
        depth: side(depth)?,
        channels: u16::try_from(channels).map_err(|_| {
            PyValueError::new_err(format!("{channels} channels; PSI holds up to 65,535"))
        })?,
        volume,
        sample_type,
        strides: samples.strides,
    };
    let options = psi::Options {
        level,
        threads,
        metadata,
        tile_height,
    };
    let file = py
        .detach(|| psi::encode(&image, &options))
        .map_err(|error| failure(error, 0))?;
    Ok(PyBytes::new(py, &file))
}

/// One file, where its region starts, and where the samples go; their shape is the region's size.
struct Job {
    file: File,
    start: [u32; 3],
    out: Samples,
}

fn region(job: &Job, info: &Info, number: usize) -> PyResult<Region> {
    let [depth, height, width, channels] = job.out.shape;
    if channels != usize::from(info.channels)
        || job.out.buffer.item_size() != info.sample_type.bytes()
    {
        return Err(failure(
            Error::Request(format!(
                "{} channels of {}, and the buffer takes {channels} of {} bytes",
                info.channels,
                info.sample_type.name(),
                job.out.buffer.item_size()
            )),
            number,
        ));
    }
    let side = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
    let [z, y, x] = job.start;
    Ok(Region {
        x,
        y,
        z,
        width: side(width),
        height: side(height),
        depth: side(depth),
    })
}

/// Decodes regions of files: `jobs` has `(file, (z, y, x), out)`, and `out` is as large as the region. No two outputs
/// may overlap.
#[pyfunction]
fn psi_decode(
    py: Python<'_>,
    jobs: Vec<(Bound<'_, PyAny>, [u32; 3], Bound<'_, PyAny>)>,
    threads: usize,
    verify: bool,
) -> PyResult<()> {
    let mut work = Vec::with_capacity(jobs.len());
    for (number, (file, start, out)) in jobs.iter().enumerate() {
        let job = Job {
            file: File::get(file)?,
            start: *start,
            out: Samples::get(out)?,
        };
        if job.out.buffer.readonly() {
            return Err(PyValueError::new_err("the output cannot be written to"));
        }
        let info = psi::info(job.file.bytes()).map_err(|error| failure(error, number))?;
        let region = region(&job, &info, number)?;
        work.push((job, region));
    }
    py.detach(|| run(&work, threads.max(1), verify))
        .map_err(|(error, number)| failure(error, number))
}

fn run(work: &[(Job, Region)], threads: usize, verify: bool) -> Result<(), (Error, usize)> {
    let options = DecodeOptions {
        threads: (threads / work.len().max(1)).max(1),
        verify,
        max_bytes: u64::MAX, // the caller has allocated the output, so its size is the caller's choice
        ..DecodeOptions::default()
    };
    let one = |number: usize, scratch: &mut Scratch| {
        let (job, region) = &work[number];
        // SAFETY: outputs do not overlap (the caller's promise), and each job is run by one thread only.
        let out = unsafe { job.out.bytes_mut() };
        psi::decode_region(
            job.file.bytes(),
            *region,
            out,
            job.out.strides,
            scratch,
            &options,
        )
        .map_err(|error| (error, number))
    };
    let threads = threads.min(work.len());
    if threads <= 1 {
        let mut scratch = Scratch::default();
        return (0..work.len()).try_for_each(|number| one(number, &mut scratch));
    }
    let next = AtomicUsize::new(0);
    // The first of the files that fail, so that the same call says the same.
    let failed = Mutex::new(None::<(Error, usize)>);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut scratch = Scratch::default();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= work.len() {
                        break;
                    }
                    if let Err(error) = one(number, &mut scratch) {
                        let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                        if failed.as_ref().is_none_or(|(_, first)| number < *first) {
                            *failed = Some(error);
                        }
                        next.store(work.len(), Ordering::Relaxed);
                    }
                }
            });
        }
    });
    failed
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner)
        .map_or(Ok(()), Err)
}

fn describe<'py>(py: Python<'py>, info: &Info) -> PyResult<Bound<'py, PyDict>> {
    let row = PyDict::new(py);
    row.set_item("dtype", info.sample_type.name())?;
    row.set_item("width", info.width)?;
    row.set_item("height", info.height)?;
    row.set_item("depth", info.depth)?;
    row.set_item("channels", info.channels)?;
    row.set_item("volume", info.volume)?;
    row.set_item("significant_bits", info.significant_bits)?;
    row.set_item("level", info.level)?;
    row.set_item("palette", info.palette)?;
    row.set_item("tile_width", info.tile_width)?;
    row.set_item("tile_height", info.tile_height)?;
    row.set_item("tiles", info.tiles)?;
    Ok(row)
}

/// What the header says.
#[pyfunction]
fn psi_info<'py>(py: Python<'py>, file: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
    let file = File::get(file)?;
    describe(
        py,
        &psi::info(file.bytes()).map_err(|error| failure(error, 0))?,
    )
}

/// The metadata section.
#[pyfunction]
fn psi_metadata<'py>(py: Python<'py>, file: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let file = File::get(file)?;
    let metadata = psi::metadata(file.bytes()).map_err(|error| failure(error, 0))?;
    Ok(PyBytes::new(py, metadata))
}

pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("CodecFailure", module.py().get_type::<CodecFailure>())?;
    module.add_function(wrap_pyfunction!(psi_encode, module)?)?;
    module.add_function(wrap_pyfunction!(psi_decode, module)?)?;
    module.add_function(wrap_pyfunction!(psi_info, module)?)?;
    module.add_function(wrap_pyfunction!(psi_metadata, module)?)
}
