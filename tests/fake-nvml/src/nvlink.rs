//! The calls about NVLink lanes.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{self as sys, nvmlDevice_t, nvmlReturn_t as Code};

use crate::answer::put;
use crate::device::{bus_id, characters, with_gpu};
use crate::fault::At;
use crate::machine::{Gpu, LinkEnd, Machine};

/// The end of a lane, or why there is none.
fn end_of(gpu: &Gpu, lane: c_uint) -> Result<LinkEnd, Code> {
    match lane {
        _ if !gpu.has_nvlink() => Err(sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED),
        lane if lane >= sys::NVML_NVLINK_MAX_LINKS => Err(sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT),
        lane => Ok(gpu.link_end(lane)),
    }
}

/// Whether a lane carries anything.
///
/// # Safety
/// `out` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetNvLinkState(
    device: nvmlDevice_t,
    lane: c_uint,
    out: *mut sys::nvmlEnableState_t,
) -> Code {
    with_gpu(device, At::LinkState, |_, gpu, answer| {
        let up = end_of(gpu, lane)? != LinkEnd::Down;
        // SAFETY: the caller's contract, which is NVML's.
        unsafe { put(answer, out, up.into()) }
    })
}

/// Where the far end of a lane sits on the bus.
///
/// # Safety
/// `out` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetNvLinkRemotePciInfo_v2(
    device: nvmlDevice_t,
    lane: c_uint,
    out: *mut sys::nvmlPciInfo_t,
) -> Code {
    with_gpu(device, At::LinkRemote, |machine, gpu, answer| {
        let far = far_bus_id(machine, end_of(gpu, lane)?).ok_or(sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED)?;
        let number = |from: usize, to: usize| far.get(from..to).and_then(|hex| u32::from_str_radix(hex, 16).ok());
        let info = sys::nvmlPciInfo_t {
            // The real call leaves these two empty as well.
            busIdLegacy: characters(""),
            pciSubSystemId: 0,
            domain: number(0, 8).unwrap_or_default(),
            bus: number(9, 11).unwrap_or_default(),
            device: number(12, 14).unwrap_or_default(),
            pciDeviceId: 0x2335_10de,
            busId: characters(&far),
        };
        // SAFETY: the caller's contract, which is NVML's.
        unsafe { put(answer, out, info) }
    })
}

/// What the far end of a lane is.
///
/// # Safety
/// `out` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetNvLinkRemoteDeviceType(
    device: nvmlDevice_t,
    lane: c_uint,
    out: *mut sys::nvmlIntNvLinkDeviceType_t,
) -> Code {
    with_gpu(device, At::LinkRemote, |_, gpu, answer| {
        let kind = match end_of(gpu, lane)? {
            LinkEnd::Gpu(_) => sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU,
            LinkEnd::Switch => sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH,
            LinkEnd::Down => return Err(sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED),
        };
        // SAFETY: the caller's contract, which is NVML's.
        unsafe { put(answer, out, kind) }
    })
}

/// A peer that the machine file does not list is on the bus all the same: masked from this container.
fn far_bus_id(machine: &Machine, end: LinkEnd) -> Option<String> {
    match end {
        LinkEnd::Gpu(peer) => {
            Some(machine.gpu(peer).map_or_else(|| format!("000000FF:{:02X}:00.0", peer & 0xff), bus_id))
        }
        LinkEnd::Switch => Some("00000000:E0:00.0".to_owned()),
        LinkEnd::Down => None,
    }
}

/// Whether the GPU has joined the fabric of its switches, in the versions of the answer that there are.
///
/// # Safety
/// `out` is null, or has its version and is as large as that says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuFabricInfoV(
    device: nvmlDevice_t,
    out: *mut sys::nvmlGpuFabricInfoV_t,
) -> Code {
    with_gpu(device, At::Fabric, |_, gpu, answer| {
        let second = out.cast::<sys::nvmlGpuFabricInfo_v2_t>();
        // SAFETY: readable if not null, by the caller's contract, and each version begins with these.
        let version = unsafe { second.as_ref() }.ok_or(sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT)?.version;
        if version != (size_of::<sys::nvmlGpuFabricInfo_v2_t>() | 2 << 24) as c_uint {
            return Err(sys::nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
        }
        let info = sys::nvmlGpuFabricInfo_v2_t {
            version,
            clusterUuid: [gpu.condition.fabric_cluster.map_or(0, |cluster| cluster.0); 16],
            status: sys::nvmlReturn_enum_NVML_SUCCESS,
            cliqueId: gpu.condition.fabric_cluster.map_or(0, |cluster| cluster.1),
            state: gpu.condition.fabric.ok_or(sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED)?,
            healthMask: 0,
        };
        // SAFETY: the same for a write.
        unsafe { put(answer, second, info) }
    })
}

/// The same in the first version, which old drivers have.
///
/// # Safety
/// `out` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuFabricInfo(device: nvmlDevice_t, out: *mut sys::nvmlGpuFabricInfo_t) -> Code {
    with_gpu(device, At::Fabric, |_, gpu, answer| {
        let info = sys::nvmlGpuFabricInfo_t {
            clusterUuid: [gpu.condition.fabric_cluster.map_or(0, |cluster| cluster.0); 16],
            status: sys::nvmlReturn_enum_NVML_SUCCESS,
            cliqueId: gpu.condition.fabric_cluster.map_or(0, |cluster| cluster.1),
            state: gpu.condition.fabric.ok_or(sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED)?,
        };
        // SAFETY: the caller's contract, which is NVML's.
        unsafe { put(answer, out, info) }
    })
}
