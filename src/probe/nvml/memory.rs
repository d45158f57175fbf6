//! The memory of a GPU or MIG instance.

use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};

/// Total and used memory in bytes. Drivers before 510 support only the first version of the call, which the wrapper
/// lacks.
pub(crate) fn memory(device: &Device<'_>) -> Result<(u64, u64), NvmlError> {
    match device.memory_info() {
        Ok(info) => Ok((info.total, info.used)),
        Err(_) => first_version(device),
    }
}

#[expect(unsafe_code, reason = "the wrapper has only the raw symbol of it")]
fn first_version(device: &Device<'_>) -> Result<(u64, u64), NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetMemoryInfo.as_ref())?;
    // SAFETY: the type, which the wrapper does not name, is NVML's nvmlMemory_t: three integers, for which zero is
    // valid.
    let mut info = unsafe { std::mem::zeroed() };
    // SAFETY: the symbol is NVML's own with the type of its header, the handle is used while its library is
    // initialised, and the out-parameter is live for the call.
    unsafe { nvml_try(call(device.handle(), &raw mut info))? };
    Ok((info.total, info.used))
}
