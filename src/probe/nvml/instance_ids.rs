//! The two calls about a MIG instance that nvml-wrapper lacks.

use std::ffi::c_uint;

use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};

/// The IDs of its GPU instance and, within that, of its compute instance, as used in `mig-minors`.
#[expect(unsafe_code, reason = "the wrapper has only the raw symbols of these two")]
pub(super) fn instance_ids(instance: &Device<'_>) -> Result<(u32, u32), NvmlError> {
    let library = instance.nvml().lib();
    let gpu_instance = nvml_sym(library.nvmlDeviceGetGpuInstanceId.as_ref())?;
    let compute_instance = nvml_sym(library.nvmlDeviceGetComputeInstanceId.as_ref())?;
    let (mut gpu, mut compute): (c_uint, c_uint) = (0, 0);
    // SAFETY: the symbols are NVML's own with the types of its header, the handle is used while its library is
    // initialised, and both out-parameters are live for the call.
    unsafe {
        nvml_try(gpu_instance(instance.handle(), &raw mut gpu))?;
        nvml_try(compute_instance(instance.handle(), &raw mut compute))?;
    }
    Ok((gpu, compute))
}
