//! Events: XIDs that are added to the file while a caller waits.

use std::ffi::{c_uint, c_ulonglong};
use std::ptr::without_provenance_mut;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings::{self as sys, nvmlDevice_t, nvmlEventSet_t, nvmlReturn_t as Code};

use crate::answer::{code, put};
use crate::device::with_gpu;
use crate::fault::{Answer, At};
use crate::state::machine;

/// Interval between reads of the file. The real driver blocks instead. A read takes only a small part of the CPU time of a sample.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Number of XIDs already reported. One event set per process is supported.
static REPORTED: Mutex<usize> = Mutex::new(0);

fn reported() -> std::sync::MutexGuard<'static, usize> {
    REPORTED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Creates an event set. XIDs that are already in the file are not reported.
///
/// # Safety
/// `set` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetCreate(set: *mut nvmlEventSet_t) -> Code {
    code(|| {
        let machine = machine()?;
        *reported() = machine.xid.len();
        // SAFETY: the caller upholds NVML's contract.
        unsafe { put(Answer::Honest, set, without_provenance_mut(1)) }
    })
}

/// An event set holds no resources.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlEventSetFree(_set: nvmlEventSet_t) -> Code {
    sys::nvmlReturn_enum_NVML_SUCCESS
}

/// Succeeds without effect: every GPU reports events.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceRegisterEvents(device: nvmlDevice_t, _types: c_ulonglong, _set: nvmlEventSet_t) -> Code {
    with_gpu(device, At::Events, |_, _, _| Ok(()))
}

/// Waits for the file's next XID.
///
/// # Safety
/// `data` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetWait_v2(
    _set: nvmlEventSet_t,
    data: *mut sys::nvmlEventData_t,
    milliseconds: c_uint,
) -> Code {
    code(|| {
        let deadline = Instant::now() + Duration::from_millis(milliseconds.into());
        loop {
            let machine = machine()?;
            machine.meet(At::Events, None)?;
            let next = *reported();
            if let Some(xid) = machine.xid.get(next) {
                *reported() = next + 1;
                let event = sys::nvmlEventData_t {
                    device: without_provenance_mut(xid.gpu as usize + 1),
                    eventType: sys::nvmlEventTypeXidCriticalError.into(),
                    eventData: xid.code,
                    gpuInstanceId: u32::MAX,
                    computeInstanceId: u32::MAX,
                };
                // SAFETY: the caller upholds NVML's contract.
                return unsafe { put(Answer::Honest, data, event) };
            }
            if Instant::now() >= deadline {
                return Err(sys::nvmlReturn_enum_NVML_ERROR_TIMEOUT);
            }
            #[expect(clippy::disallowed_methods, reason = "it simulates a driver that waits")]
            std::thread::sleep(POLL_INTERVAL.min(deadline.saturating_duration_since(Instant::now())));
        }
    })
}
