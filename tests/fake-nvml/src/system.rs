//! The calls about the driver and the machine.

use std::ffi::{CStr, c_char, c_int, c_uint};

use nvml_wrapper_sys::bindings::{self as sys, nvmlReturn_t as Code};

use crate::answer::{code, put, put_text};
use crate::fault::At;
use crate::state::{init, machine, shutdown};

/// Reads the machine file.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> Code {
    code(init)
}

/// Ignores the flags (no GPUs, no attach).
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> Code {
    code(init)
}

/// Drops the machine.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> Code {
    code(shutdown)
}

/// The real library's texts for the most frequent codes.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(result: Code) -> *const c_char {
    let _ = machine().and_then(|machine| machine.meet(At::ErrorString, None));
    let text: &'static CStr = match result {
        sys::nvmlReturn_enum_NVML_SUCCESS => c"Success",
        sys::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED => c"Uninitialized",
        sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT => c"Invalid Argument",
        sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED => c"Not Supported",
        sys::nvmlReturn_enum_NVML_ERROR_NO_PERMISSION => c"Insufficient Permissions",
        sys::nvmlReturn_enum_NVML_ERROR_NOT_FOUND => c"Not Found",
        sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE => c"Insufficient Size",
        sys::nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED => c"Driver Not Loaded",
        sys::nvmlReturn_enum_NVML_ERROR_IN_USE => c"In use by another client",
        sys::nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST => c"GPU is lost",
        sys::nvmlReturn_enum_NVML_ERROR_LIB_RM_VERSION_MISMATCH => c"Driver/library version mismatch",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}

/// Defines calls `fn(*mut char, length)` that return one text about the whole machine.
macro_rules! machine_texts {
    ($($(#[$doc:meta])* $name:ident, $at:ident, $machine:ident => $text:expr;)*) => {$(
        $(#[$doc])*
        /// # Safety
        /// `buffer` is null or holds `length` bytes.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(buffer: *mut c_char, length: c_uint) -> Code {
            code(|| {
                let $machine = machine()?;
                let answer = $machine.meet(At::$at, None)?;
                // SAFETY: the caller upholds NVML's contract.
                unsafe { put_text(answer, buffer, length, $text.as_bytes()) }
            })
        }
    )*};
}

machine_texts! {
    /// The driver version.
    nvmlSystemGetDriverVersion, DriverVersion, machine => machine.driver();
    /// The library version: API version, dot, driver version.
    nvmlSystemGetNVMLVersion, NvmlVersion, machine => format!("13.{}", machine.driver());
}

/// Defines calls `fn(*mut T)` that return one number about the whole machine.
macro_rules! machine_values {
    ($($(#[$doc:meta])* $name:ident, $at:ident, $type:ty, $machine:ident => $value:expr;)*) => {$(
        $(#[$doc])*
        /// # Safety
        /// `out` is null or may be written.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(out: *mut $type) -> Code {
            code(|| {
                let $machine = machine()?;
                let answer = $machine.meet(At::$at, None)?;
                // SAFETY: the caller upholds NVML's contract.
                unsafe { put(answer, out, $value) }
            })
        }
    )*};
}

machine_values! {
    /// The highest CUDA version that the driver supports.
    nvmlSystemGetCudaDriverVersion, CudaVersion, c_int, machine => machine.cuda();
    /// The same value. The real library returns the version that the loaded driver supports.
    nvmlSystemGetCudaDriverVersion_v2, CudaVersion, c_int, machine => machine.cuda();
    /// The number of GPUs, including those without access permission.
    nvmlDeviceGetCount_v2, Count, c_uint, machine => machine.count();
}
