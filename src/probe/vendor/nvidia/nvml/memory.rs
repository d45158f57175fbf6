//! The memory of a GPU or MIG instance.

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

use super::raw_calls::memory_info_v1;

/// Total and used memory in bytes. Drivers before 510 support only the first version of the call.
pub(crate) fn memory(device: &Device<'_>) -> Result<(u64, u64), NvmlError> {
    match device.memory_info() {
        Ok(info) => Ok((info.total, info.used)),
        Err(_) => memory_info_v1(device),
    }
}
