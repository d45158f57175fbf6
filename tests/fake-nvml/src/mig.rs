//! The calls about MIG, clocks and processes: what Slurm's plugin links and a whole, idle GPU answers with "none".

use std::ffi::{c_uint, c_ulonglong, c_void};

use nvml_wrapper_sys::bindings::{self as sys, nvmlDevice_t, nvmlReturn_t as Code};

use crate::answer::put;
use crate::device::with_gpu;
use crate::fault::At;
use crate::machine::Mig;

/// Whether MIG is on, and whether it will be after the next reset.
///
/// # Safety
/// Both pointers are null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigMode(
    device: nvmlDevice_t,
    current: *mut c_uint,
    pending: *mut c_uint,
) -> Code {
    with_gpu(device, At::MigMode, |_, gpu, answer| {
        let mode = match gpu.mig {
            Mig::Unsupported => return Err(sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED),
            Mig::Disabled => sys::NVML_DEVICE_MIG_DISABLE,
            Mig::Enabled => sys::NVML_DEVICE_MIG_ENABLE,
        };
        // SAFETY: the caller's contract, which is NVML's.
        unsafe { put(answer, current, mode).and(put(answer, pending, mode)) }
    })
}

/// How many instances the model can be cut into.
///
/// # Safety
/// `out` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMaxMigDeviceCount(device: nvmlDevice_t, out: *mut c_uint) -> Code {
    with_gpu(device, At::MigDevice, |_, gpu, answer| {
        let count = if gpu.mig == Mig::Unsupported { 0 } else { 7 };
        // SAFETY: the caller's contract, which is NVML's.
        unsafe { put(answer, out, count) }
    })
}

/// `fn(device, ...)`: there is nothing of this kind, whatever the other arguments are.
macro_rules! nothing {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*), $at:ident, $code:ident;)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(device: nvmlDevice_t, $($argument: $type),*) -> Code {
            with_gpu(device, At::$at, |_, _, _| Err(sys::$code))
        }
    )*};
}

nothing! {
    /// No slot holds an instance.
    nvmlDeviceGetMigDeviceHandleByIndex(_index: c_uint, _out: *mut nvmlDevice_t), MigDevice, nvmlReturn_enum_NVML_ERROR_NOT_FOUND;
    /// A whole GPU is no instance.
    nvmlDeviceGetGpuInstanceId(_out: *mut c_uint), MigDevice, nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED;
    /// A whole GPU is no instance.
    nvmlDeviceGetComputeInstanceId(_out: *mut c_uint), MigDevice, nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED;
    /// A whole GPU is no instance.
    nvmlDeviceGetAttributes_v2(_out: *mut sys::nvmlDeviceAttributes_t), MigDevice, nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED;
    /// The clocks cannot be chosen.
    nvmlDeviceGetApplicationsClock(_kind: c_uint, _out: *mut c_uint), Clocks, nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED;
    /// The clocks cannot be chosen.
    nvmlDeviceSetApplicationsClocks(_memory: c_uint, _graphics: c_uint), Clocks, nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED;
    /// The clocks cannot be chosen.
    nvmlDeviceResetApplicationsClocks(), Clocks, nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED;
    /// The clocks cannot be chosen.
    nvmlDeviceGetSupportedMemoryClocks(_count: *mut c_uint, _out: *mut c_uint), Clocks, nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED;
    /// The clocks cannot be chosen.
    nvmlDeviceGetSupportedGraphicsClocks(_memory: c_uint, _count: *mut c_uint, _out: *mut c_uint), Clocks, nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED;
    /// Nothing was measured.
    nvmlDeviceGetProcessUtilization(_out: *mut c_void, _count: *mut c_uint, _since: c_ulonglong), Processes, nvmlReturn_enum_NVML_ERROR_NOT_FOUND;
}

/// `fn(device, *mut count, *mut process)`: nothing runs.
macro_rules! no_processes {
    ($($name:ident)*) => {$(
        /// No process uses the GPU.
        ///
        /// # Safety
        /// `count` is null or may be written.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(device: nvmlDevice_t, count: *mut c_uint, _out: *mut sys::nvmlProcessInfo_t) -> Code {
            with_gpu(device, At::Processes, |_, _, answer| {
                // SAFETY: the caller's contract, which is NVML's.
                unsafe { put(answer, count, 0) }
            })
        }
    )*};
}

no_processes! {
    nvmlDeviceGetComputeRunningProcesses_v3
    nvmlDeviceGetGraphicsRunningProcesses_v3
}
