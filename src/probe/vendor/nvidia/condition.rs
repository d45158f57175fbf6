//! The current condition of NVIDIA's GPUs, read through NVML inside the sandbox.

use std::mem::ManuallyDrop;
use std::path::Path;
use std::time::Instant;

use nvml_wrapper::Device;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{ComputeMode as NvmlComputeMode, EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;

use super::NvmlProbeError;
use super::nvml::{self, Answers, NvmlFailure};
use model::inventory::{ComputeMode, Condition, Ecc, GpuProcess, Pcie, Slowdown};
use sys::sandbox::Sandbox;

/// The maximum number of listed processes of one GPU.
const MAX_PROCESSES: usize = 64;
/// The maximum plausible temperature of a chip. Higher readings are discarded.
const MAX_CELSIUS: u32 = 150;

/// Reads the condition of every GPU that NVML counts. Forks, so the process must be single-threaded.
///
/// # Errors
/// NVML fails, or the child process that queries it cannot be started, ends early, or does not answer by the deadline.
pub fn conditions(root: &Path, library: Option<&Path>, deadline: Instant) -> Result<Vec<Condition>, String> {
    let probe = Sandbox::start(|| probe(root, library));
    let answer = probe.finish(deadline).map_err(NvmlProbeError::from);
    answer.and_then(|answer| answer.map_err(NvmlProbeError::from)).map_err(|why| why.to_string())
}

/// Like [`conditions`], but in this process.
pub(super) fn probe(root: &Path, library: Option<&Path>) -> Result<Vec<Condition>, NvmlFailure> {
    // Never shut down: see `nvml::probe`.
    let nvml = ManuallyDrop::new(nvml::load(root, library)?);
    let count = nvml::count(&nvml)?;
    let of_gpu = |index| match nvml.device_by_index(index) {
        Ok(device) => condition(index, &device),
        Err(error) => Condition { index, obstacle: nvml::refused_access(&error).obstacle(), ..Condition::default() },
    };
    Ok((0..count).map(of_gpu).collect())
}

/// The condition of one GPU.
pub(super) fn condition(index: u32, device: &Device<'_>) -> Condition {
    let answers = Answers::default();
    let memory = answers.of(nvml::memory(device)).filter(|memory| memory.used.max(memory.free) <= memory.total);
    let processes = answers.of(device.running_compute_processes());
    let utilization = answers.of(device.utilization_rates()).map(|rates| rates.gpu);
    Condition {
        index,
        memory_mib: memory.map(|memory| (memory.used >> 20, memory.total >> 20)),
        memory_free_mib: memory.map(|memory| memory.free >> 20),
        processes: processes.map(|all| all.iter().take(MAX_PROCESSES).map(process).collect()),
        slowdowns: answers.of(device.current_throttle_reasons()).and_then(slowdowns),
        temperature: answers.of(device.temperature(TemperatureSensor::Gpu)).filter(|degrees| *degrees <= MAX_CELSIUS),
        pcie: pcie(device, &answers),
        ecc: answers.of(device.is_ecc_enabled()).map(|ecc| ecc_state(ecc.currently_enabled, device, &answers)),
        compute_mode: answers.of(device.compute_mode()).and_then(compute_mode),
        is_persistent: answers.of(device.is_in_persistent_mode()),
        utilization: utilization.filter(|percent| *percent <= 100),
        obstacle: answers.obstacle().and_then(|access| access.obstacle()),
    }
}

fn process(info: &nvml_wrapper::struct_wrappers::device::ProcessInfo) -> GpuProcess {
    let memory_mib = match info.used_gpu_memory {
        UsedGpuMemory::Used(bytes) => Some(bytes >> 20),
        UsedGpuMemory::Unavailable => None,
    };
    GpuProcess { pid: info.pid, memory_mib }
}

fn slowdowns(reasons: ThrottleReasons) -> Option<Vec<Slowdown>> {
    let heat = ThrottleReasons::SW_THERMAL_SLOWDOWN | ThrottleReasons::HW_THERMAL_SLOWDOWN;
    let known = [
        (heat, Slowdown::Heat),
        (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, Slowdown::PowerBrake),
        (ThrottleReasons::HW_SLOWDOWN, Slowdown::Hardware),
        (ThrottleReasons::SW_POWER_CAP, Slowdown::PowerCap),
    ];
    // All bits set means unknown.
    if reasons.is_all() {
        return None;
    }
    Some(known.into_iter().filter(|(bits, _)| reasons.intersects(*bits)).map(|(_, slowdown)| slowdown).collect())
}

fn ecc_state(is_on: bool, device: &Device<'_>, answers: &Answers) -> Ecc {
    let uncorrected = answers.of(device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile));
    // All bits set means that there is no counter.
    Ecc { is_on, uncorrected: uncorrected.filter(|count| is_on && *count != u64::MAX) }
}

fn pcie(device: &Device<'_>, answers: &Answers) -> Option<Pcie> {
    let link = Pcie {
        generation: answers.of(device.current_pcie_link_gen())?,
        highest_generation: answers.of(device.max_pcie_link_gen())?,
        lanes: answers.of(device.current_pcie_link_width())?,
        most_lanes: answers.of(device.max_pcie_link_width())?,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slowdowns_are_in_order_of_severity() {
        let reasons = ThrottleReasons::from_bits_truncate;
        let of = |bits: ThrottleReasons| slowdowns(bits).map(|all| format!("{all:?}"));
        assert_eq!(of(ThrottleReasons::empty()).as_deref(), Some("[]"));
        assert_eq!(of(ThrottleReasons::GPU_IDLE).as_deref(), Some("[]"));
        for heat in [ThrottleReasons::SW_THERMAL_SLOWDOWN, ThrottleReasons::HW_THERMAL_SLOWDOWN] {
            assert_eq!(of(heat | ThrottleReasons::SW_POWER_CAP).as_deref(), Some("[Heat, PowerCap]"));
        }
        let hardware = ThrottleReasons::HW_SLOWDOWN | ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN;
        assert_eq!(of(hardware).as_deref(), Some("[PowerBrake, Hardware]"));
        assert_eq!(of(reasons(u64::MAX)), None);
    }

    #[test]
    fn thread_mode_of_old_drivers_is_exclusive() {
        let modes = [
            NvmlComputeMode::Default,
            NvmlComputeMode::ExclusiveThread,
            NvmlComputeMode::ExclusiveProcess,
            NvmlComputeMode::Prohibited,
        ];
        let expected =
            [ComputeMode::Shared, ComputeMode::Exclusive, ComputeMode::Exclusive, ComputeMode::Prohibited].map(Some);
        assert_eq!(modes.map(compute_mode), expected);
    }
}
