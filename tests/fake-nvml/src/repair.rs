//! What a host does to a GPU, which the driver refuses while another process has the GPU open.

use std::ffi::c_uint;
use std::mem::MaybeUninit;

use nvml_wrapper_sys::bindings::{self as sys, nvmlDevice_t, nvmlReturn_t as Code};

use crate::answer::{code, put};
use crate::device::{self, with_gpu};
use crate::fault::At;
use crate::machine::{Gpu, MigMode};
use crate::state::machine;
use crate::{opened, system};

/// Sets the MIG mode. A mode that cannot be activated stays pending, and the call succeeds: nvidia-smi then prints "In use by another
/// client" (nvml.h of R470 to R580, `nvmlDeviceSetMigMode`).
///
/// # Safety
/// `activation` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceSetMigMode(device: nvmlDevice_t, _mode: c_uint, activation: *mut Code) -> Code {
    with_gpu(device, At::MigMode, |_, gpu, answer| {
        if gpu.mig.mode() == MigMode::Unsupported {
            return Err(sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED);
        }
        // SAFETY: the caller's contract, which is NVML's.
        unsafe { put(answer, activation, availability(gpu).err().unwrap_or(sys::nvmlReturn_enum_NVML_SUCCESS)) }
    })
}

/// Detaches a GPU from the driver, as a reset does first.
///
/// # Safety
/// `place` is null or may be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceRemoveGpu_v2(
    place: *mut sys::nvmlPciInfo_t,
    _gpu: sys::nvmlDetachGpuState_t,
    _link: sys::nvmlPcieLinkState_t,
) -> Code {
    code(|| {
        let invalid = sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT;
        // SAFETY: null or readable by the caller's contract, which is NVML's.
        let place = unsafe { place.as_ref() }.ok_or(invalid)?;
        let machine = machine()?;
        let is_there = |gpu: &&Gpu| gpu.pci() == Some((place.domain, place.bus, place.device));
        availability(machine.gpus().iter().find(is_there).ok_or(invalid)?)
    })
}

fn availability(gpu: &Gpu) -> Result<(), Code> {
    match opened::is_in_use(&opened::file(gpu)) {
        true => Err(sys::nvmlReturn_enum_NVML_ERROR_IN_USE),
        false => Ok(()),
    }
}

/// What the host's `nvidia-smi --gpu-reset` and `nvidia-smi -mig 1` return for a GPU: 0, or NVML's code.
pub fn by_host(index: u32) -> (Code, Code) {
    let (mut handle, mut activation) = (std::ptr::null_mut(), 0);
    let mut place = MaybeUninit::<sys::nvmlPciInfo_t>::zeroed();
    let started = system::nvmlInit_v2();
    // SAFETY: each pointer is of a variable of this function.
    unsafe {
        let found = device::nvmlDeviceGetHandleByIndex_v2(index, &raw mut handle);
        let placed = device::nvmlDeviceGetPciInfo_v3(handle, place.as_mut_ptr());
        if let Some(failure) = [started, found, placed].into_iter().find(|code| *code != 0) {
            return (failure, failure);
        }
        let set = nvmlDeviceSetMigMode(handle, sys::NVML_DEVICE_MIG_ENABLE, &raw mut activation);
        (nvmlDeviceRemoveGpu_v2(place.as_mut_ptr(), 0, 0), if set == 0 { activation } else { set })
    }
}
