//! How a GPU fares: its memory, its processes, its clocks, its link to the machine.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{self as sys, nvmlDevice_t, nvmlReturn_t as Code};
use serde::Deserialize;

use crate::answer::put;
use crate::device::with_gpu;
use crate::fault::At;

/// `condition = { ... }` of a `[[gpu]]` table; a healthy idle GPU where nothing is said.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Condition {
    pub(crate) used_mib: u64,
    processes: Vec<Process>,
    slowdown: Vec<Slowdown>,
    temperature: u32,
    /// Generation, the highest one, lanes, the most lanes.
    pcie: (u32, u32, u32, u32),
    compute_mode: ComputeMode,
    pub(crate) utilization: u32,
    ecc: bool,
    ecc_errors: u64,
    /// In mW: now, and the limit.
    power: (u32, u32),
    /// In MHz.
    clock: u32,
    /// `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`; absent: the driver is too old for it.
    pub(crate) recovery_action: Option<u32>,
    /// How busy the tensor cores are, in percent; absent: older than Hopper, so without GPM.
    pub(crate) tensor: Option<f64>,
    /// Bytes that it sent and received over PCI Express; absent: the driver does not count them.
    pub(crate) pcie_bytes: Option<(u64, u64)>,
    /// MiB in a second that GPM measures of the same.
    pub(crate) pcie_mib: Option<(f64, f64)>,
    /// `NVML_GPU_FABRIC_STATE_...`; absent: the call is not supported.
    pub(crate) fabric: Option<u8>,
    /// The NVLink domain with other machines: each byte of the cluster's UUID, and the clique; absent: none.
    pub(crate) fabric_cluster: Option<(u8, u32)>,
    /// Whether no spare memory row left (row remapping failed).
    pub(crate) remap_failed: bool,
    /// Whether a row is to be remapped at the next reset.
    pub(crate) remap_pending: bool,
}

impl Default for Condition {
    fn default() -> Self {
        Self {
            used_mib: 0,
            processes: Vec::new(),
            slowdown: Vec::new(),
            temperature: 35,
            pcie: (5, 5, 16, 16),
            compute_mode: ComputeMode::Default,
            utilization: 0,
            ecc: true,
            ecc_errors: 0,
            power: (70_000, 700_000),
            clock: 1_980,
            recovery_action: Some(0),
            tensor: None,
            pcie_bytes: None,
            pcie_mib: None,
            fabric: None,
            fabric_cluster: None,
            remap_failed: false,
            remap_pending: false,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Process {
    pid: u32,
    memory_mib: u64,
}

/// Why the clocks are lower than they could be.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Slowdown {
    Idle,
    PowerCap,
    Hardware,
    Thermal,
    HardwareThermal,
    PowerBrake,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ComputeMode {
    Default,
    Exclusive,
    Prohibited,
}

impl Condition {
    fn slowdowns(&self) -> c_ulonglong {
        let bit = |slowdown: &Slowdown| match slowdown {
            Slowdown::Idle => sys::nvmlClocksThrottleReasonGpuIdle,
            Slowdown::PowerCap => sys::nvmlClocksThrottleReasonSwPowerCap,
            Slowdown::Hardware => sys::nvmlClocksThrottleReasonHwSlowdown,
            Slowdown::Thermal => sys::nvmlClocksThrottleReasonSwThermalSlowdown,
            Slowdown::HardwareThermal => sys::nvmlClocksThrottleReasonHwThermalSlowdown,
            Slowdown::PowerBrake => sys::nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
        };
        self.slowdown.iter().map(bit).fold(0, |bits, bit| bits | c_ulonglong::from(bit))
    }

    fn compute_mode(&self) -> sys::nvmlComputeMode_t {
        match self.compute_mode {
            ComputeMode::Default => sys::nvmlComputeMode_enum_NVML_COMPUTEMODE_DEFAULT,
            ComputeMode::Exclusive => sys::nvmlComputeMode_enum_NVML_COMPUTEMODE_EXCLUSIVE_PROCESS,
            ComputeMode::Prohibited => sys::nvmlComputeMode_enum_NVML_COMPUTEMODE_PROHIBITED,
        }
    }
}

/// `fn(device, *mut T)`: one value of one GPU.
macro_rules! condition_values {
    ($($(#[$doc:meta])* $name:ident, $at:ident, $type:ty, $condition:ident => $value:expr;)*) => {$(
        $(#[$doc])*
        /// # Safety
        /// `out` is null or may be written.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(device: nvmlDevice_t, out: *mut $type) -> Code {
            with_gpu(device, At::$at, |_, gpu, answer| {
                let $condition = &gpu.condition;
                // SAFETY: the caller's contract, which is NVML's.
                unsafe { put(answer, out, $value) }
            })
        }
    )*};
}

condition_values! {
    /// Why its clocks are low, as bits.
    nvmlDeviceGetCurrentClocksThrottleReasons, Clocks, c_ulonglong, condition => condition.slowdowns();
    /// The same bits under their newer name.
    nvmlDeviceGetCurrentClocksEventReasons, Clocks, c_ulonglong, condition => condition.slowdowns();
    /// How many processes may compute on it.
    nvmlDeviceGetComputeMode, Processes, sys::nvmlComputeMode_t, condition => condition.compute_mode();
    /// In percent of the last moment.
    nvmlDeviceGetUtilizationRates, Utilization, sys::nvmlUtilization_t, condition =>
        sys::nvmlUtilization_t { gpu: condition.utilization, memory: 0 };
    /// In mW.
    nvmlDeviceGetPowerUsage, Power, c_uint, condition => condition.power.0;
    /// In mW.
    nvmlDeviceGetEnforcedPowerLimit, Power, c_uint, condition => condition.power.1;
    /// In mW.
    nvmlDeviceGetPowerManagementLimit, Power, c_uint, condition => condition.power.1;
    /// In mW.
    nvmlDeviceGetPowerManagementDefaultLimit, Power, c_uint, condition => condition.power.1;
    /// In mJ.
    nvmlDeviceGetTotalEnergyConsumption, Energy, c_ulonglong, condition => c_ulonglong::from(condition.power.0) * 60;
    /// The fastest one.
    nvmlDeviceGetPerformanceState, Clocks, sys::nvmlPstates_t, _condition => sys::nvmlPStates_enum_NVML_PSTATE_0;
    /// PCI Express generation now.
    nvmlDeviceGetCurrPcieLinkGeneration, Link, c_uint, condition => condition.pcie.0;
    /// The highest that GPU and machine can do.
    nvmlDeviceGetMaxPcieLinkGeneration, Link, c_uint, condition => condition.pcie.1;
    /// Lanes now.
    nvmlDeviceGetCurrPcieLinkWidth, Link, c_uint, condition => condition.pcie.2;
    /// The most that GPU and machine can do.
    nvmlDeviceGetMaxPcieLinkWidth, Link, c_uint, condition => condition.pcie.3;
}

/// `fn(device, which, *mut T)`: one of several values of one GPU.
macro_rules! chosen_values {
    ($($(#[$doc:meta])* $name:ident, $at:ident, $which:ty, $condition:ident => $value:expr;)*) => {$(
        $(#[$doc])*
        /// # Safety
        /// `out` is null or may be written.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(device: nvmlDevice_t, _which: $which, out: *mut c_uint) -> Code {
            with_gpu(device, At::$at, |_, gpu, answer| {
                let $condition = &gpu.condition;
                // SAFETY: the caller's contract, which is NVML's.
                unsafe { put(answer, out, $value) }
            })
        }
    )*};
}

chosen_values! {
    /// In MHz, of each kind of clock.
    nvmlDeviceGetClockInfo, Clocks, sys::nvmlClockType_t, condition => condition.clock;
    /// In MHz, of each kind of clock.
    nvmlDeviceGetMaxClockInfo, Clocks, sys::nvmlClockType_t, condition => condition.clock;
    /// In percent: it has a fan that stands still.
    nvmlDeviceGetFanSpeed_v2, Fan, c_uint, _condition => 0;
}

/// Whether errors of its memory are corrected: now, and from the next boot on.
///
/// # Safety
/// Both pointers are null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetEccMode(
    device: nvmlDevice_t,
    now: *mut sys::nvmlEnableState_t,
    pending: *mut sys::nvmlEnableState_t,
) -> Code {
    with_gpu(device, At::Ecc, |_, gpu, answer| {
        let is_on = gpu.condition.ecc.into();
        // SAFETY: the caller's contract, which is NVML's.
        unsafe { put(answer, now, is_on).and(put(answer, pending, is_on)) }
    })
}

/// Errors of its memory, of whatever kind and time.
///
/// # Safety
/// `out` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTotalEccErrors(
    device: nvmlDevice_t,
    _kind: sys::nvmlMemoryErrorType_t,
    _counter: sys::nvmlEccCounterType_t,
    out: *mut c_ulonglong,
) -> Code {
    with_gpu(device, At::Ecc, |_, gpu, answer| {
        // SAFETY: the caller's contract, which is NVML's.
        unsafe { put(answer, out, gpu.condition.ecc_errors) }
    })
}

/// In degrees Celsius.
///
/// # Safety
/// `out` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTemperature(
    device: nvmlDevice_t,
    _sensor: sys::nvmlTemperatureSensors_t,
    out: *mut c_uint,
) -> Code {
    with_gpu(device, At::Temperature, |_, gpu, answer| {
        // SAFETY: the caller's contract, which is NVML's.
        unsafe { put(answer, out, gpu.condition.temperature) }
    })
}

/// The processes that compute on it. A buffer that is too small is told how many there are.
///
/// # Safety
/// `count` is null or may be read and written; `out` holds `count` processes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: nvmlDevice_t,
    count: *mut c_uint,
    out: *mut sys::nvmlProcessInfo_t,
) -> Code {
    with_gpu(device, At::Processes, |_, gpu, answer| {
        let processes = &gpu.condition.processes;
        if count.is_null() {
            return Err(sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT);
        }
        // SAFETY: not null, so readable by the caller's contract, which is NVML's.
        let room = unsafe { count.read() } as usize;
        // SAFETY: the same for a write.
        unsafe { put(answer, count, processes.len() as c_uint)? };
        if room < processes.len() {
            return Err(sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE);
        }
        for (index, process) in processes.iter().enumerate() {
            let info = sys::nvmlProcessInfo_t {
                pid: process.pid,
                usedGpuMemory: process.memory_mib << 20,
                gpuInstanceId: u32::MAX,
                computeInstanceId: u32::MAX,
            };
            // SAFETY: `index` is below `room`, and the caller's contract.
            unsafe { put(answer, out.add(index), info)? };
        }
        Ok(())
    })
}
