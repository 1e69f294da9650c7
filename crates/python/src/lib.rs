//! The Python bindings of penstock: thin, no logic.

mod addresses;
mod array;
mod functions;
mod keys;
mod pipeline;
mod psi;
mod psi_device;
mod store;
mod stream;

use pyo3::prelude::*;

/// `penstock._native`
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<addresses::Addresses>()?;
    module.add_class::<array::Array>()?;
    module.add_class::<pipeline::Pipeline>()?;
    module.add_class::<pipeline::Finished>()?;
    module.add_class::<store::Store>()?;
    psi::add_to(module)?;
    module.add_function(wrap_pyfunction!(psi_device::psi_manifest, module)?)?;
    module.add_class::<stream::Stream>()?;
    functions::add_to(module)
}
