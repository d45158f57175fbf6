//! The calls about NVLink lanes.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{self as sys, nvmlDevice_t, nvmlReturn_t as Code};

use crate::answer::put;
use crate::device::{bus_id, characters, with_gpu};
use crate::fault::At;
use crate::machine::{Gpu, LinkEnd, Machine};

/// The remote end of a lane, or the NVML error code.
fn lane_end(gpu: &Gpu, lane: c_uint) -> Result<LinkEnd, Code> {
    match lane {
        _ if !gpu.has_nvlink() => Err(sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED),
        lane if lane >= sys::NVML_NVLINK_MAX_LINKS => Err(sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT),
        lane => Ok(gpu.link_end(lane)),
    }
}

/// Whether a lane is active.
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
        let up = lane_end(gpu, lane)? != LinkEnd::Down;
        // SAFETY: the caller upholds NVML's contract.
        unsafe { put(answer, out, up.into()) }
    })
}

/// The PCI address of the remote end of a lane.
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
        let remote =
            remote_bus_id(machine, lane_end(gpu, lane)?).ok_or(sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED)?;
        let number = |from: usize, to: usize| remote.get(from..to).and_then(|hex| u32::from_str_radix(hex, 16).ok());
        let info = sys::nvmlPciInfo_t {
            // The real call leaves these two empty as well.
            busIdLegacy: characters(""),
            pciSubSystemId: 0,
            domain: number(0, 8).unwrap_or_default(),
            bus: number(9, 11).unwrap_or_default(),
            device: number(12, 14).unwrap_or_default(),
            pciDeviceId: 0x2335_10de,
            busId: characters(&remote),
        };
        // SAFETY: the caller upholds NVML's contract.
        unsafe { put(answer, out, info) }
    })
}

/// The device type of the remote end of a lane.
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
        let kind = match lane_end(gpu, lane)? {
            LinkEnd::Gpu(_) => sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU,
            LinkEnd::Switch => sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH,
            LinkEnd::Down => return Err(sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED),
        };
        // SAFETY: the caller upholds NVML's contract.
        unsafe { put(answer, out, kind) }
    })
}

/// The PCI address of a remote end. A peer that is missing from the machine file has an address, too: it is hidden from the container.
fn remote_bus_id(machine: &Machine, end: LinkEnd) -> Option<String> {
    match end {
        LinkEnd::Gpu(peer) => {
            Some(machine.gpu(peer).map_or_else(|| format!("000000FF:{:02X}:00.0", peer & 0xff), bus_id))
        }
        LinkEnd::Switch => Some("00000000:E0:00.0".to_owned()),
        LinkEnd::Down => None,
    }
}

/// The GPU's registration state in the NVSwitch fabric. Supports version 2 of the struct.
///
/// # Safety
/// `out` is null, or its version field is set and it has the size of that version.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuFabricInfoV(
    device: nvmlDevice_t,
    out: *mut sys::nvmlGpuFabricInfoV_t,
) -> Code {
    with_gpu(device, At::Fabric, |_, gpu, answer| {
        let v2_out = out.cast::<sys::nvmlGpuFabricInfo_v2_t>();
        // SAFETY: readable if not null, by the caller's contract; each version of the struct begins with the version.
        let version = unsafe { v2_out.as_ref() }.ok_or(sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT)?.version;
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
        // SAFETY: writable by the caller's contract.
        unsafe { put(answer, v2_out, info) }
    })
}

/// Version 1 of the fabric information, for old drivers.
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
        // SAFETY: the caller upholds NVML's contract.
        unsafe { put(answer, out, info) }
    })
}
