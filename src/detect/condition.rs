//! How NVIDIA's GPUs fare at this moment, asked through NVML inside the sandbox.

use std::mem::ManuallyDrop;
use std::path::Path;
use std::time::Instant;

use nvml_wrapper::Device;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{ComputeMode as NvmlComputeMode, EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;

use super::nvidia::NoNvml;
use super::nvml::{self, NvmlTrouble};
use super::sandbox::Sandbox;
use crate::inventory::{ComputeMode, Condition, Ecc, Pcie, Process, Slowdown};

/// More processes than that say no more about one GPU.
const MOST_PROCESSES: usize = 64;
/// Hotter than any chip works; a higher number is nonsense.
const HOTTEST: u32 = 150;

/// Asks for every GPU that the driver hands out. Call it in a process with one thread: it forks.
///
/// # Errors
/// Why there is no answer, in words.
pub fn conditions(root: &Path, library: Option<&Path>, deadline: Instant) -> Result<Vec<Condition>, String> {
    let probe = Sandbox::start(|| probe(root, library));
    let answer = probe.finish(deadline).map_err(NoNvml::from).and_then(|answer| answer.map_err(NoNvml::from));
    answer.map_err(|why| why.to_string())
}

/// The same without a process of its own.
pub(super) fn probe(root: &Path, library: Option<&Path>) -> Result<Vec<Condition>, NvmlTrouble> {
    // Never shut down: see `nvml::probe`.
    let nvml = ManuallyDrop::new(nvml::load(root, library)?);
    let count = nvml::count(&nvml)?;
    let of_gpu = |index| nvml.device_by_index(index).ok().map(|device| condition(index, &device));
    Ok((0..count).filter_map(of_gpu).collect())
}

fn condition(index: u32, device: &Device<'_>) -> Condition {
    let memory = device.memory_info().ok();
    let processes = device.running_compute_processes().ok();
    Condition {
        index,
        memory_mib: memory.filter(|it| it.used <= it.total).map(|it| (it.used >> 20, it.total >> 20)),
        processes: processes.map(|all| all.iter().take(MOST_PROCESSES).map(process).collect()),
        slowdowns: device.current_throttle_reasons().ok().and_then(slowdowns),
        temperature: device.temperature(TemperatureSensor::Gpu).ok().filter(|degrees| *degrees <= HOTTEST),
        pcie: pcie(device),
        ecc: device.is_ecc_enabled().ok().map(|ecc| ecc_state(ecc.currently_enabled, device)),
        compute_mode: device.compute_mode().ok().and_then(compute_mode),
        is_persistent: device.is_in_persistent_mode().ok(),
        utilization: device.utilization_rates().ok().map(|rates| rates.gpu).filter(|percent| *percent <= 100),
    }
}

fn process(info: &nvml_wrapper::struct_wrappers::device::ProcessInfo) -> Process {
    let memory_mib = match info.used_gpu_memory {
        UsedGpuMemory::Used(bytes) => Some(bytes >> 20),
        UsedGpuMemory::Unavailable => None,
    };
    Process { pid: info.pid, memory_mib }
}

fn slowdowns(reasons: ThrottleReasons) -> Option<Vec<Slowdown>> {
    let heat = ThrottleReasons::SW_THERMAL_SLOWDOWN | ThrottleReasons::HW_THERMAL_SLOWDOWN;
    let known = [
        (heat, Slowdown::Heat),
        (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, Slowdown::PowerBrake),
        (ThrottleReasons::HW_SLOWDOWN, Slowdown::Hardware),
        (ThrottleReasons::SW_POWER_CAP, Slowdown::PowerCap),
    ];
    // A driver that sets every bit says nothing.
    if reasons.is_all() {
        return None;
    }
    Some(known.into_iter().filter(|(bits, _)| reasons.intersects(*bits)).map(|(_, slowdown)| slowdown).collect())
}

fn ecc_state(is_on: bool, device: &Device<'_>) -> Ecc {
    let uncorrected = device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile);
    // A counter of all ones is none.
    Ecc { is_on, uncorrected: uncorrected.ok().filter(|count| is_on && *count != u64::MAX) }
}

fn pcie(device: &Device<'_>) -> Option<Pcie> {
    let link = Pcie {
        generation: device.current_pcie_link_gen().ok()?,
        highest_generation: device.max_pcie_link_gen().ok()?,
        lanes: device.current_pcie_link_width().ok()?,
        most_lanes: device.max_pcie_link_width().ok()?,
    };
    let is_plausible = (1..=16).contains(&link.highest_generation) && (1..=32).contains(&link.most_lanes);
    (is_plausible && link.generation > 0 && link.lanes > 0).then_some(link)
}

fn compute_mode(mode: NvmlComputeMode) -> Option<ComputeMode> {
    match mode {
        NvmlComputeMode::Default => Some(ComputeMode::Shared),
        NvmlComputeMode::ExclusiveProcess | NvmlComputeMode::ExclusiveThread => Some(ComputeMode::Exclusive),
        NvmlComputeMode::Prohibited => Some(ComputeMode::Prohibited),
    }
}
