//! Values in native memory, seen from Python through the buffer protocol.

use std::ffi::{c_int, c_void, CStr};
use std::sync::Arc;

use penstock_codec::{DType, TensorSpec};
use penstock_engine::slab::Lease;
use penstock_engine::step::Placed;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

enum Memory {
    Slab { lease: Arc<Lease>, offset: usize },
    Own(Vec<u8>),
}

/// An n-dimensional array. `numpy.asarray(array)` is a view; the memory lives as long as any view of it.
#[pyclass(module = "penstock._native", frozen)]
pub struct Array {
    memory: Memory,
    dtype: DType,
    shape: Vec<ffi::Py_ssize_t>,
    strides: Vec<ffi::Py_ssize_t>,
    bytes: usize,
}

impl Array {
    fn new(memory: Memory, spec: &TensorSpec) -> Self {
        let size = spec.dtype.size();
        let shape: Vec<_> = spec.shape.iter().map(|&n| n as ffi::Py_ssize_t).collect();
        let mut strides = vec![size as ffi::Py_ssize_t; shape.len()];
        for axis in (0..shape.len().saturating_sub(1)).rev() {
            strides[axis] = strides[axis + 1] * shape[axis + 1];
        }
        Self {
            memory,
            dtype: spec.dtype,
            bytes: size * spec.shape.iter().product::<usize>(),
            shape,
            strides,
        }
    }

    /// An array over a part of a slab.
    pub fn placed(placed: Placed) -> Self {
        let memory = Memory::Slab {
            lease: placed.lease,
            offset: placed.offset,
        };
        Self::new(memory, &placed.spec)
    }

    /// An array over bytes of its own; `bytes` is as long as `spec` says.
    pub fn own(bytes: Vec<u8>, spec: &TensorSpec) -> Self {
        Self::new(Memory::Own(bytes), spec)
    }

    fn as_ptr(&self) -> *mut c_void {
        match &self.memory {
            Memory::Slab { lease, offset } => lease.as_ptr().wrapping_add(*offset).cast(),
            Memory::Own(bytes) => bytes.as_ptr().cast_mut().cast(),
        }
    }

    fn format(&self) -> &'static CStr {
        match self.dtype {
            DType::Bool => c"?",
            DType::U8 => c"B",
            DType::I8 => c"b",
            DType::U16 | DType::BF16 => c"H",
            DType::I16 => c"h",
            DType::U32 => c"I",
            DType::I32 => c"i",
            DType::U64 => c"Q",
            DType::I64 => c"q",
            DType::F16 => c"e",
            DType::F32 => c"f",
            DType::F64 => c"d",
        }
    }
}

#[pymethods]
impl Array {
    /// Name of the element type. "bfloat16" shows as uint16 through the buffer protocol, which has no such type.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.dtype.name()
    }

    /// Number of the slab that it lies in, or None.
    #[getter]
    fn slab(&self) -> Option<(u64, usize, usize)> {
        match &self.memory {
            Memory::Slab { lease, .. } => Some((lease.id(), lease.as_ptr() as usize, lease.len())),
            Memory::Own(_) => None,
        }
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no view was given"));
        }
        let this = slf.get();
        let with = |flag: c_int| flags & flag == flag;
        // SAFETY: `view` is ours to fill (buffer protocol). The shape, strides and memory belong to the frozen object
        // that `obj` keeps alive until the view is released. Writers through views are the user's own affair, as
        // with any NumPy array.
        unsafe {
            (*view).buf = this.as_ptr();
            (*view).len = this.bytes as ffi::Py_ssize_t;
            (*view).readonly = 0;
            (*view).itemsize = this.dtype.size() as ffi::Py_ssize_t;
            (*view).format = if with(ffi::PyBUF_FORMAT) {
                this.format().as_ptr().cast_mut()
            } else {
                std::ptr::null_mut()
            };
            (*view).ndim = this.shape.len() as c_int;
            (*view).shape = if with(ffi::PyBUF_ND) {
                this.shape.as_ptr().cast_mut()
            } else {
                std::ptr::null_mut()
            };
            (*view).strides = if with(ffi::PyBUF_STRIDES) {
                this.strides.as_ptr().cast_mut()
            } else {
                std::ptr::null_mut()
            };
            (*view).suboffsets = std::ptr::null_mut();
            (*view).internal = std::ptr::null_mut();
            (*view).obj = slf.into_ptr();
        }
        Ok(())
    }
}
