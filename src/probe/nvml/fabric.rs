//! The NVLink fabric that a GPU joins, where GPUs reach each other through switches.

use std::ffi::c_uint;

use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};

/// `NVML_GPU_FABRIC_STATE_COMPLETED`.
const COMPLETED: u32 = 3;

/// The second version of the call's type: its size, as in nvml.h, which later versions only extend, and the version.
const VERSION: c_uint = 36 | 2 << 24;

/// 1: not started, 2: in progress, 3: completed; `None` for a GPU that joins none.
pub(crate) fn fabric_state(device: &Device<'_>) -> Option<u32> {
    let state = newer(device).or_else(|_| first_version(device)).ok()?;
    (1..=COMPLETED).contains(&state).then_some(state)
}

#[expect(unsafe_code, reason = "the wrapper has only the raw symbol of it")]
fn newer(device: &Device<'_>) -> Result<u32, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetGpuFabricInfoV.as_ref())?;
    // SAFETY: NVML's nvmlGpuFabricInfoV_t has integers only.
    let mut info = unsafe { zeroed_for(*call) };
    info.version = VERSION;
    // SAFETY: the symbol is NVML's own with the type of its header, the handle is used while its library is initialised, and the
    // out-parameter, no smaller than its version says, is live for the call.
    unsafe { nvml_try(call(device.handle(), &raw mut info))? };
    Ok(info.state.into())
}

/// Drivers before 545 have only this one.
#[expect(unsafe_code, reason = "the wrapper has only the raw symbol of it")]
fn first_version(device: &Device<'_>) -> Result<u32, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetGpuFabricInfo.as_ref())?;
    // SAFETY: NVML's nvmlGpuFabricInfo_t has integers only.
    let mut info = unsafe { zeroed_for(*call) };
    // SAFETY: as above.
    unsafe { nvml_try(call(device.handle(), &raw mut info))? };
    Ok(info.state.into())
}

/// The type of a call's out-parameter, which the wrapper does not name.
///
/// # Safety
/// Zero is valid for it.
#[expect(unsafe_code, reason = "the out-parameters are C's")]
unsafe fn zeroed_for<Handle, Out, Code>(_call: unsafe extern "C" fn(Handle, *mut Out) -> Code) -> Out {
    // SAFETY: this function's contract.
    unsafe { std::mem::zeroed() }
}
