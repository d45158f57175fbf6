//! Events: the XIDs that the file gains while somebody waits.

use std::ffi::{c_uint, c_ulonglong};
use std::ptr::without_provenance_mut;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings::{self as sys, nvmlDevice_t, nvmlEventSet_t, nvmlReturn_t as Code};

use crate::answer::{code, put};
use crate::device::with_gpu;
use crate::fault::{Answer, At};
use crate::state::machine;

/// How often the file is looked at.
const LOOK: Duration = Duration::from_millis(10);

/// How many of the file's XIDs have been told. There is one set for a process: more nobody needs.
static TOLD: Mutex<usize> = Mutex::new(0);

fn told() -> std::sync::MutexGuard<'static, usize> {
    TOLD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A set, for which all that the file has is past.
///
/// # Safety
/// `set` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetCreate(set: *mut nvmlEventSet_t) -> Code {
    code(|| {
        let machine = machine()?;
        *told() = machine.xid.len();
        // SAFETY: the caller's contract, which is NVML's.
        unsafe { put(Answer::Honest, set, without_provenance_mut(1)) }
    })
}

/// Nothing is held.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlEventSetFree(_set: nvmlEventSet_t) -> Code {
    sys::nvmlReturn_enum_NVML_SUCCESS
}

/// All GPUs report.
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
        let until = Instant::now() + Duration::from_millis(milliseconds.into());
        loop {
            let machine = machine()?;
            machine.meet(At::Events, None)?;
            let next = *told();
            if let Some(xid) = machine.xid.get(next) {
                *told() = next + 1;
                let event = sys::nvmlEventData_t {
                    device: without_provenance_mut(xid.gpu as usize + 1),
                    eventType: sys::nvmlEventTypeXidCriticalError.into(),
                    eventData: xid.code,
                    gpuInstanceId: u32::MAX,
                    computeInstanceId: u32::MAX,
                };
                // SAFETY: the caller's contract, which is NVML's.
                return unsafe { put(Answer::Honest, data, event) };
            }
            if Instant::now() >= until {
                return Err(sys::nvmlReturn_enum_NVML_ERROR_TIMEOUT);
            }
            #[expect(clippy::disallowed_methods, reason = "it stands in for a driver that waits")]
            std::thread::sleep(LOOK.min(until.saturating_duration_since(Instant::now())));
        }
    })
}
