//! GPU reset and MIG mode changes from the host. The driver refuses them while another process has the GPU open.

use std::ffi::c_uint;
use std::mem::MaybeUninit;

use nvml_wrapper_sys::bindings::{self as sys, nvmlDevice_t, nvmlReturn_t as Code};

use crate::answer::{code, put};
use crate::device::{self, with_gpu};
use crate::fault::At;
use crate::machine::{Gpu, MigMode};
use crate::state::machine;
use crate::{opened, system};

/// Sets the MIG mode. A mode that cannot be activated stays pending, and the call succeeds: nvidia-smi then prints
/// "In use by another client" (nvml.h of R470 to R580, `nvmlDeviceSetMigMode`).
///
/// # Safety
/// `activation` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceSetMigMode(device: nvmlDevice_t, _mode: c_uint, activation: *mut Code) -> Code {
    with_gpu(device, At::MigMode, |_, gpu, answer| {
        if gpu.mig.mode() == MigMode::Unsupported {
            return Err(sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED);
        }
        // SAFETY: the caller upholds NVML's contract.
        unsafe { put(answer, activation, require_unused(gpu).err().unwrap_or(sys::nvmlReturn_enum_NVML_SUCCESS)) }
    })
}

/// Detaches a GPU from the driver, the first step of a reset.
///
/// # Safety
/// `pci_info` is null or may be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceRemoveGpu_v2(
    pci_info: *mut sys::nvmlPciInfo_t,
    _gpu: sys::nvmlDetachGpuState_t,
    _link: sys::nvmlPcieLinkState_t,
) -> Code {
    code(|| {
        let invalid = sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT;
        // SAFETY: null or readable: the caller upholds NVML's contract.
        let pci_info = unsafe { pci_info.as_ref() }.ok_or(invalid)?;
        let machine = machine()?;
        let has_address = |gpu: &&Gpu| gpu.pci() == Some((pci_info.domain, pci_info.bus, pci_info.device));
        require_unused(machine.gpus().iter().find(has_address).ok_or(invalid)?)
    })
}

fn require_unused(gpu: &Gpu) -> Result<(), Code> {
    match opened::is_in_use(&opened::file(gpu)) {
        true => Err(sys::nvmlReturn_enum_NVML_ERROR_IN_USE),
        false => Ok(()),
    }
}

/// The NVML codes (0 for success) of `nvidia-smi --gpu-reset` and `nvidia-smi -mig 1` on the host.
pub fn by_host(index: u32) -> (Code, Code) {
    let (mut handle, mut activation) = (std::ptr::null_mut(), 0);
    let mut pci_info = MaybeUninit::<sys::nvmlPciInfo_t>::zeroed();
    let started = system::nvmlInit_v2();
    // SAFETY: each pointer points to a local variable.
    unsafe {
        let found = device::nvmlDeviceGetHandleByIndex_v2(index, &raw mut handle);
        let placed = device::nvmlDeviceGetPciInfo_v3(handle, pci_info.as_mut_ptr());
        if let Some(failure) = [started, found, placed].into_iter().find(|code| *code != 0) {
            return (failure, failure);
        }
        let set = nvmlDeviceSetMigMode(handle, sys::NVML_DEVICE_MIG_ENABLE, &raw mut activation);
        (nvmlDeviceRemoveGpu_v2(pci_info.as_mut_ptr(), 0, 0), if set == 0 { activation } else { set })
    }
}
