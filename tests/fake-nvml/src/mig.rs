//! The calls about MIG instances, and the calls about clocks and processes, which return no data.

use std::ffi::{c_uint, c_ulonglong, c_void};

use nvml_wrapper_sys::bindings::{self as sys, nvmlDevice_t, nvmlReturn_t as Code};

use crate::answer::put;
use crate::device::{instance_handle, with_device, with_gpu};
use crate::fault::At;
use crate::machine::{Instance, MigMode};

/// The current MIG mode, and the mode after the next reset.
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
        let mode = match gpu.mig.mode() {
            MigMode::Unsupported => return Err(sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED),
            MigMode::Disabled => sys::NVML_DEVICE_MIG_DISABLE,
            MigMode::Enabled => sys::NVML_DEVICE_MIG_ENABLE,
        };
        // SAFETY: the caller upholds NVML's contract.
        unsafe { put(answer, current, mode).and(put(answer, pending, mode)) }
    })
}

/// The maximum number of MIG instances of the model.
///
/// # Safety
/// `out` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMaxMigDeviceCount(device: nvmlDevice_t, out: *mut c_uint) -> Code {
    with_gpu(device, At::MigDevice, |_, gpu, answer| {
        let count = if gpu.mig.mode() == MigMode::Unsupported { 0 } else { 7 };
        // SAFETY: the caller upholds NVML's contract.
        unsafe { put(answer, out, count) }
    })
}

/// The instance in a slot. An empty slot may precede an occupied one.
///
/// # Safety
/// `out` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
    device: nvmlDevice_t,
    slot: c_uint,
    out: *mut nvmlDevice_t,
) -> Code {
    with_gpu(device, At::MigDevice, |_, gpu, answer| {
        gpu.mig.instance(slot).ok_or(sys::nvmlReturn_enum_NVML_ERROR_NOT_FOUND)?;
        // SAFETY: the caller upholds NVML's contract.
        unsafe { put(answer, out, instance_handle(gpu, slot)) }
    })
}

/// Defines calls `fn(device, *mut T)` that return one value of one instance, and NOT_SUPPORTED for a whole GPU.
macro_rules! instance_values {
    ($($(#[$doc:meta])* $name:ident, $type:ty, $instance:ident => $value:expr;)*) => {$(
        $(#[$doc])*
        /// # Safety
        /// `out` is null or may be written.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(device: nvmlDevice_t, out: *mut $type) -> Code {
            with_device(device, At::MigInstance, |_, _, instance, answer| {
                let $instance = instance.ok_or(sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED)?;
                // SAFETY: the caller upholds NVML's contract.
                unsafe { put(answer, out, $value) }
            })
        }
    )*};
}

instance_values! {
    /// The GPU instance ID.
    nvmlDeviceGetGpuInstanceId, c_uint, instance => instance.gi;
    /// The compute instance ID within the GPU instance.
    nvmlDeviceGetComputeInstanceId, c_uint, instance => instance.ci;
    /// The instance's share of the GPU.
    nvmlDeviceGetAttributes_v2, sys::nvmlDeviceAttributes_t, instance => attributes(instance);
}

fn attributes(instance: &Instance) -> sys::nvmlDeviceAttributes_t {
    let (compute, gpu) = instance.slices();
    sys::nvmlDeviceAttributes_t {
        multiprocessorCount: 16 * compute,
        sharedCopyEngineCount: gpu,
        sharedDecoderCount: gpu,
        sharedEncoderCount: 0,
        sharedJpegCount: gpu,
        sharedOfaCount: 0,
        gpuInstanceSliceCount: gpu,
        computeInstanceSliceCount: compute,
        memorySizeMB: instance.memory_mib(),
    }
}

/// Defines calls `fn(device, ...)` that return a fixed error code, whatever the other arguments are.
macro_rules! constant_errors {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*), $at:ident, $code:ident;)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(device: nvmlDevice_t, $($argument: $type),*) -> Code {
            with_gpu(device, At::$at, |_, _, _| Err(sys::$code))
        }
    )*};
}

constant_errors! {
    /// Clock settings are not supported.
    nvmlDeviceGetApplicationsClock(_kind: c_uint, _out: *mut c_uint), Clocks, nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED;
    /// Clock settings are not supported.
    nvmlDeviceSetApplicationsClocks(_memory: c_uint, _graphics: c_uint), Clocks, nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED;
    /// Clock settings are not supported.
    nvmlDeviceResetApplicationsClocks(), Clocks, nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED;
    /// Clock settings are not supported.
    nvmlDeviceGetSupportedMemoryClocks(_count: *mut c_uint, _out: *mut c_uint), Clocks, nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED;
    /// Clock settings are not supported.
    nvmlDeviceGetSupportedGraphicsClocks(_memory: c_uint, _count: *mut c_uint, _out: *mut c_uint), Clocks, nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED;
    /// There are no samples.
    nvmlDeviceGetProcessUtilization(_out: *mut c_void, _count: *mut c_uint, _since: c_ulonglong), Processes, nvmlReturn_enum_NVML_ERROR_NOT_FOUND;
}

/// No graphics process uses the GPU.
///
/// # Safety
/// `count` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGraphicsRunningProcesses_v3(
    device: nvmlDevice_t,
    count: *mut c_uint,
    _out: *mut sys::nvmlProcessInfo_t,
) -> Code {
    with_gpu(device, At::Processes, |_, _, answer| {
        // SAFETY: the caller upholds NVML's contract.
        unsafe { put(answer, count, 0) }
    })
}
