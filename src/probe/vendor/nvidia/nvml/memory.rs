//! The memory of a GPU or MIG instance.

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

use super::raw_calls::memory_info_v1;

/// The memory of a device, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceMemory {
    pub(crate) total: u64,
    pub(crate) used: u64,
    /// Excludes the memory that the driver reserves.
    pub(crate) free: u64,
}

/// The memory of a device. Drivers before 510 support only the first version of the call, which counts the driver's own memory as used.
pub(crate) fn memory(device: &Device<'_>) -> Result<DeviceMemory, NvmlError> {
    match device.memory_info() {
        Ok(info) => Ok(DeviceMemory { total: info.total, used: info.used, free: info.free }),
        Err(_) => memory_info_v1(device),
    }
}
