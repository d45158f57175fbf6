//! The memory of a GPU or an instance, by the call that the driver knows.

use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};

/// The whole memory and what of it is in use, in bytes. Drivers before 510 know only the call's first version, which the
/// wrapper does not have.
pub(in crate::detect) fn memory(device: &Device<'_>) -> Result<(u64, u64), NvmlError> {
    match device.memory_info() {
        Ok(info) => Ok((info.total, info.used)),
        Err(_) => first_version(device),
    }
}

#[expect(unsafe_code, reason = "the wrapper has only the raw symbol of it")]
fn first_version(device: &Device<'_>) -> Result<(u64, u64), NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetMemoryInfo.as_ref())?;
    // SAFETY: the type, which the wrapper does not name, is NVML's nvmlMemory_t: three numbers, which may be zero.
    let mut info = unsafe { std::mem::zeroed() };
    // SAFETY: the symbol is NVML's own with the header's type, the handle is used while the library that gave it is
    // initialised, and the out-parameter is live for the call.
    unsafe { nvml_try(call(device.handle(), &raw mut info))? };
    Ok((info.total, info.used))
}
