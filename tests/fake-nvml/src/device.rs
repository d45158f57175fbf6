//! NVML calls for one GPU.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulong};
use std::ptr::without_provenance_mut;

use nvml_wrapper_sys::bindings::{self as sys, nvmlDevice_t, nvmlReturn_t as Code};

use crate::answer::{code, put, put_text};
use crate::fault::{Answer, At};
use crate::machine::{Gpu, Instance, Machine};
use crate::state::machine;

/// Triggers any fault of this call, then runs `body` with the GPU of the handle. Rejects handles of MIG instances.
pub(crate) fn with_gpu(
    device: nvmlDevice_t,
    at: At,
    body: impl FnOnce(&Machine, &Gpu, Answer) -> Result<(), Code>,
) -> Code {
    with_device(device, at, |machine, gpu, instance, answer| match instance {
        None => body(machine, gpu, answer),
        Some(_) => Err(sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED),
    })
}

/// Like [`with_gpu`], for a call that also accepts MIG instances: `body` gets the GPU and the instance, if any.
pub(crate) fn with_device(
    device: nvmlDevice_t,
    at: At,
    body: impl FnOnce(&Machine, &Gpu, Option<&Instance>, Answer) -> Result<(), Code>,
) -> Code {
    code(|| {
        let machine = machine()?;
        // Handle: GPU index + 1 in the low 16 bits (null is invalid), instance slot + 1 above.
        let handle = device.addr();
        let lower = |bits: usize| u32::try_from(bits & 0xffff).ok().and_then(|bits| bits.checked_sub(1));
        let invalid = sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT;
        let gpu = lower(handle).and_then(|index| machine.gpu(index)).ok_or(invalid)?;
        let slot = lower(handle >> 16);
        let instance = slot.map(|slot| gpu.mig.instance(slot).ok_or(invalid)).transpose()?;
        let answer = machine.meet(at, Some(gpu.index))?;
        if gpu.unsupported.contains(&at) || gpu.unsupported.contains(&at.group()) {
            return Err(sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED);
        }
        body(&machine, gpu, instance, answer)
    })
}

/// Handle of the instance in a slot.
pub(crate) fn instance_handle(gpu: &Gpu, slot: u32) -> nvmlDevice_t {
    without_provenance_mut((gpu.index as usize + 1) | (slot as usize + 1) << 16)
}

/// Opens the first GPU that matches and writes its handle.
///
/// # Safety
/// `out` is null or may be written.
unsafe fn open_handle(out: *mut nvmlDevice_t, not_found: Code, matches: impl Fn(&Gpu) -> bool) -> Code {
    code(|| {
        let machine = machine()?;
        let gpu = machine.gpus().iter().find(|gpu| matches(gpu)).ok_or(not_found)?;
        let answer = machine.meet(At::Handle, Some(gpu.index))?;
        if gpu.denied {
            return Err(sys::nvmlReturn_enum_NVML_ERROR_NO_PERMISSION);
        }
        crate::opened::open(gpu);
        // SAFETY: the caller upholds this function's contract.
        unsafe { put(answer, out, without_provenance_mut(gpu.index as usize + 1)) }
    })
}

/// Handle of a GPU by index.
///
/// # Safety
/// `out` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, out: *mut nvmlDevice_t) -> Code {
    // SAFETY: the caller upholds NVML's contract.
    unsafe { open_handle(out, sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT, |gpu| gpu.index == index) }
}

/// Handle of a GPU by UUID.
///
/// # Safety
/// `uuid` ends with NUL; `out` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, out: *mut nvmlDevice_t) -> Code {
    // SAFETY: the caller upholds NVML's contract.
    let uuid = unsafe { CStr::from_ptr(uuid) };
    // SAFETY: the caller upholds NVML's contract.
    unsafe { open_handle(out, sys::nvmlReturn_enum_NVML_ERROR_NOT_FOUND, |gpu| gpu.uuid() == uuid.to_bytes()) }
}

/// Defines calls `fn(device, *mut T)` that return one value of one GPU.
macro_rules! gpu_values {
    ($($(#[$doc:meta])* $name:ident, $at:ident, $type:ty, $gpu:ident => $value:expr;)*) => {$(
        $(#[$doc])*
        /// # Safety
        /// `out` is null or may be written.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(device: nvmlDevice_t, out: *mut $type) -> Code {
            with_gpu(device, At::$at, |_, $gpu, answer| {
                let value: Result<$type, Code> = $value;
                // SAFETY: the caller upholds NVML's contract.
                unsafe { put(answer, out, value?) }
            })
        }
    )*};
}

gpu_values! {
    /// NVML's index of the GPU.
    nvmlDeviceGetIndex, Index, c_uint, gpu => Ok(gpu.index);
    /// Device minor: N of `/dev/nvidiaN`.
    nvmlDeviceGetMinorNumber, Minor, c_uint, gpu => Ok(gpu.minor());
    /// PCI address and IDs.
    nvmlDeviceGetPciInfo_v3, Pci, sys::nvmlPciInfo_t, gpu => pci_info(gpu);
    /// NUMA node of the GPU; NOT_SUPPORTED if the machine file sets none.
    nvmlDeviceGetNumaNodeId, Numa, c_uint, gpu => gpu.numa.ok_or(sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED);
    /// Whether persistence mode is enabled.
    nvmlDeviceGetPersistenceMode, Persistence, sys::nvmlEnableState_t, gpu => Ok(gpu.persistence.into());
}

/// Defines calls `fn(device, *mut T)` that return the memory of a GPU or an instance.
macro_rules! memory_values {
    ($($(#[$doc:meta])* $name:ident, $type:ty, $total:ident, $used:ident, $reserved:ident => $value:expr;)*) => {$(
        $(#[$doc])*
        /// # Safety
        /// `out` is null or may be written.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(device: nvmlDevice_t, out: *mut $type) -> Code {
            with_device(device, At::Memory, |_, gpu, instance, answer| {
                let $total = instance.map_or_else(|| gpu.memory_bytes(), |instance| instance.memory_mib() << 20);
                let $used = instance.map_or(gpu.condition.used_mib << 20, |instance| instance.used_mib << 20).min($total);
                let $reserved = if instance.is_some() { 0 } else { gpu.reserved_mib << 20 }.min($total - $used);
                // SAFETY: the caller upholds NVML's contract.
                unsafe { put(answer, out, $value) }
            })
        }
    )*};
}

memory_values! {
    /// Memory in bytes. Reserved memory counts as used.
    nvmlDeviceGetMemoryInfo, sys::nvmlMemory_t, total, used, reserved =>
        sys::nvmlMemory_t { total, free: total - used - reserved, used: used + reserved };
    /// Memory in bytes. Reserved memory is reported separately.
    nvmlDeviceGetMemoryInfo_v2, sys::nvmlMemory_v2_t, total, used, reserved => {
        let version = (size_of::<sys::nvmlMemory_v2_t>() | 2 << 24) as c_uint;
        sys::nvmlMemory_v2_t { version, total, reserved, free: total - used - reserved, used }
    };
}

/// Defines calls `fn(device, *mut char, length)` that return one text of one GPU or one instance.
macro_rules! gpu_texts {
    ($($(#[$doc:meta])* $name:ident, $at:ident, $gpu:ident, $instance:ident => $text:expr;)*) => {$(
        $(#[$doc])*
        /// # Safety
        /// `buffer` is null or holds `length` bytes.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(device: nvmlDevice_t, buffer: *mut c_char, length: c_uint) -> Code {
            with_device(device, At::$at, |_, $gpu, $instance, answer| {
                // SAFETY: the caller upholds NVML's contract.
                unsafe { put_text(answer, buffer, length, &$text) }
            })
        }
    )*};
}

gpu_texts! {
    /// Model name of the GPU; for an instance, also its profile.
    nvmlDeviceGetName, Name, gpu, instance => match instance {
        Some(instance) => [&gpu.name(), b" MIG ".as_slice(), instance.profile().as_bytes()].concat(),
        None => gpu.name(),
    };
    /// UUID of the GPU or the instance.
    nvmlDeviceGetUUID, Uuid, gpu, instance => instance.map_or_else(|| gpu.uuid(), Instance::uuid);
}

/// CUDA compute capability.
///
/// # Safety
/// Both pointers are null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCudaComputeCapability(
    device: nvmlDevice_t,
    major: *mut c_int,
    minor: *mut c_int,
) -> Code {
    with_gpu(device, At::Compute, |_, gpu, answer| {
        // SAFETY: the caller upholds NVML's contract.
        unsafe { put(answer, major, gpu.compute().0).and(put(answer, minor, gpu.compute().1)) }
    })
}

/// The GPU's local CPUs, as a bit mask of `words` words.
///
/// # Safety
/// `mask` is null or holds `words` words.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCpuAffinity(device: nvmlDevice_t, words: c_uint, mask: *mut c_ulong) -> Code {
    with_gpu(device, At::Affinity, |_, gpu, answer| {
        let cpus = gpu.cpus().unwrap_or_default();
        if mask.is_null() || words == 0 {
            return Err(sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT);
        }
        // Like the real library, truncates a mask that does not fit.
        for word in 0..words {
            let bits = cpus.iter().filter(|cpu| **cpu / c_ulong::BITS == word);
            let value = bits.fold(0, |value: c_ulong, cpu| value | 1 << (cpu % c_ulong::BITS));
            // SAFETY: `word` is below `words`, and the caller upholds NVML's contract.
            unsafe { put(answer, mask.add(word as usize), value)? }
        }
        Ok(())
    })
}

/// PCI address in NVML's format.
pub(crate) fn bus_id(gpu: &Gpu) -> String {
    let (domain, bus, device) = gpu.pci().unwrap_or_default();
    format!("{domain:08X}:{bus:02X}:{device:02X}.0")
}

fn pci_info(gpu: &Gpu) -> Result<sys::nvmlPciInfo_t, Code> {
    let (domain, bus, device) = gpu.pci().unwrap_or_default();
    Ok(sys::nvmlPciInfo_t {
        busIdLegacy: characters(&format!("{domain:04X}:{bus:02X}:{device:02X}.0")),
        domain,
        bus,
        device,
        pciDeviceId: 0x2335_10de,
        pciSubSystemId: 0,
        busId: characters(&bus_id(gpu)),
    })
}

/// A NUL-terminated C character array; longer text is truncated.
pub(crate) fn characters<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    for (to, from) in array.iter_mut().zip(text.bytes().take(N - 1)) {
        *to = from as c_char;
    }
    array
}
