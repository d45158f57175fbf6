//! Converts Rust results to C return codes and out-parameters. All writes through the caller's pointers are here.

use std::ffi::{c_char, c_uint};

use nvml_wrapper_sys::bindings::{self as sys, nvmlReturn_t as Code};

use crate::fault::Answer;

/// Runs the body of an exported function and returns its NVML code.
pub(crate) fn code(body: impl FnOnce() -> Result<(), Code>) -> Code {
    body().err().unwrap_or(sys::nvmlReturn_enum_NVML_SUCCESS)
}

/// Writes one value.
///
/// # Safety
/// `out` is null or valid for a write of `T`, and every bit pattern of `T` is allowed (true for all NVML types).
pub(crate) unsafe fn put<T>(answer: Answer, out: *mut T, value: T) -> Result<(), Code> {
    if out.is_null() {
        return Err(sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT);
    }
    // SAFETY: not null, so valid by this function's contract.
    unsafe {
        match answer {
            Answer::Honest => out.write(value),
            Answer::Nonsense | Answer::Unterminated => out.cast::<u8>().write_bytes(0xff, size_of::<T>()),
            Answer::Untouched => {}
        }
    }
    Ok(())
}

/// Writes a text into a buffer of `length` bytes.
///
/// # Safety
/// `buffer` is null or valid for writes of `length` bytes.
pub(crate) unsafe fn put_text(answer: Answer, buffer: *mut c_char, length: c_uint, text: &[u8]) -> Result<(), Code> {
    if buffer.is_null() {
        return Err(sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT);
    }
    // SAFETY: not null, so valid for `length` bytes by this function's contract; bytes have no alignment.
    let buffer = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<std::mem::MaybeUninit<u8>>(), length as usize) };
    let text = match answer {
        Answer::Honest if text.len() >= buffer.len() => {
            return Err(sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE);
        }
        Answer::Honest => [text, b"\0"].concat(),
        Answer::Nonsense => {
            let mut bytes = vec![0xff; buffer.len()];
            bytes.last_mut().into_iter().for_each(|last| *last = 0);
            bytes
        }
        Answer::Unterminated => vec![b'A'; buffer.len()],
        Answer::Untouched => Vec::new(),
    };
    for (to, from) in buffer.iter_mut().zip(text) {
        to.write(from);
    }
    Ok(())
}
