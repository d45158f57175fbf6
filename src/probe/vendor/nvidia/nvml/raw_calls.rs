//! The NVML calls for which nvml-wrapper has only the raw symbol.
//!
//! Every unsafe call into NVML is in this file. Each function that makes one takes a [`Device`], which keeps its library loaded and initialised.

#![expect(unsafe_code, reason = "nvml-wrapper has only the raw symbols of these calls")]

use std::ffi::c_uint;

use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};

use super::fabric::Fabric;
use super::memory::DeviceMemory;

/// The `version` of an `nvmlGpuFabricInfoV_t` of version 2: the size of that version in nvml.h, and the number 2 in the bits from 24 up. Later
/// versions only add fields at the end.
const FABRIC_INFO_V2: c_uint = 36 | 2 << 24;

/// `nvmlDeviceGetMemoryInfo`: the memory of a device, for older drivers.
pub(super) fn memory_info_v1(device: &Device<'_>) -> Result<DeviceMemory, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetMemoryInfo.as_ref())?;
    // SAFETY: nvmlMemory_t has integers only.
    let mut info = unsafe { zeroed_for(*call) };
    // SAFETY: the symbol has the type of NVML's header, and the out-parameter is live for the call.
    unsafe { nvml_try(call(device.handle(), &raw mut info))? };
    Ok(DeviceMemory { total: info.total, used: info.used, free: info.free })
}

/// The IDs of a MIG device's GPU instance and, within that, of its compute instance, as used in `mig-minors`.
pub(super) fn instance_ids(mig_device: &Device<'_>) -> Result<(u32, u32), NvmlError> {
    let library = mig_device.nvml().lib();
    let gpu_instance = nvml_sym(library.nvmlDeviceGetGpuInstanceId.as_ref())?;
    let compute_instance = nvml_sym(library.nvmlDeviceGetComputeInstanceId.as_ref())?;
    let (mut gpu, mut compute): (c_uint, c_uint) = (0, 0);
    // SAFETY: the symbols have the types of NVML's header, and both out-parameters are live for the calls.
    unsafe {
        nvml_try(gpu_instance(mig_device.handle(), &raw mut gpu))?;
        nvml_try(compute_instance(mig_device.handle(), &raw mut compute))?;
    }
    Ok((gpu, compute))
}

/// `nvmlDeviceGetGpuFabricInfoV`: the registration with the NVLink fabric. Supported by driver 545 and newer.
pub(super) fn fabric_v2(device: &Device<'_>) -> Result<Fabric, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetGpuFabricInfoV.as_ref())?;
    // SAFETY: nvmlGpuFabricInfoV_t has integers only.
    let mut info = unsafe { zeroed_for(*call) };
    info.version = FABRIC_INFO_V2;
    // SAFETY: the symbol has the type of NVML's header, and the out-parameter, at least as large as its version
    // requires, is live for the call.
    unsafe { nvml_try(call(device.handle(), &raw mut info))? };
    Ok(Fabric { state: info.state.into(), cluster: info.clusterUuid, clique: info.cliqueId })
}

/// `nvmlDeviceGetGpuFabricInfo`: like [`fabric_v2`], for older drivers.
pub(super) fn fabric_v1(device: &Device<'_>) -> Result<Fabric, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetGpuFabricInfo.as_ref())?;
    // SAFETY: nvmlGpuFabricInfo_t has integers only.
    let mut info = unsafe { zeroed_for(*call) };
    // SAFETY: the symbol has the type of NVML's header, and the out-parameter is live for the call.
    unsafe { nvml_try(call(device.handle(), &raw mut info))? };
    Ok(Fabric { state: info.state.into(), cluster: info.clusterUuid, clique: info.cliqueId })
}

/// A zeroed out-parameter for `_call`. The type is inferred, because nvml-wrapper does not export it.
///
/// # Safety
/// All-zero bytes must be a valid `Out`.
unsafe fn zeroed_for<Handle, Out, Code>(_call: unsafe extern "C" fn(Handle, *mut Out) -> Code) -> Out {
    // SAFETY: this function's contract.
    unsafe { std::mem::zeroed() }
}
