//! Devices of this machine.

use pyo3::prelude::*;

/// A device that models can run on.
#[pyclass(module = "orate", frozen, get_all)]
pub struct Device {
    /// What `Engine(device=…)` takes, such as "cuda:0".
    id: String,
    /// Name that its maker gave it.
    name: String,
    /// Bytes of memory, where known.
    memory: Option<u64>,
    /// Bytes of free memory, where known.
    free_memory: Option<u64>,
    /// Driver and its version.
    driver: String,
}

#[pymethods]
impl Device {
    fn __repr__(&self) -> String {
        format!("<orate.Device {}: {}>", self.id, self.name)
    }
}

/// Lists the devices of this machine, the CPU first.
///
/// >>> import orate
/// >>> orate.devices()[0].id
/// 'cpu'
#[pyfunction]
pub fn devices(py: Python<'_>) -> Vec<Device> {
    let found = py.detach(orate::devices).found;
    let device = |info: orate::DeviceInfo| Device {
        id: info.id(),
        name: info.name,
        memory: info.memory,
        free_memory: info.free_memory,
        driver: info.driver,
    };
    found.into_iter().map(device).collect()
}
