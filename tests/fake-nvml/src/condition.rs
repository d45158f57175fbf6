//! Condition of a GPU: memory, processes, clocks, PCI Express link.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{self as sys, nvmlDevice_t, nvmlReturn_t as Code};
use serde::Deserialize;

use crate::answer::put;
use crate::device::with_gpu;
use crate::fault::At;

/// `condition = { ... }` of a `[[gpu]]` table. The defaults describe a healthy idle GPU.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Condition {
    pub(crate) used_mib: u64,
    processes: Vec<Process>,
    slowdown: Vec<Slowdown>,
    temperature: u32,
    /// Current and maximum generation, current and maximum lanes.
    pcie: (u32, u32, u32, u32),
    compute_mode: ComputeMode,
    pub(crate) utilization: u32,
    ecc: bool,
    ecc_errors: u64,
    /// Draw and limit, in mW.
    power: (u32, u32),
    /// Clock of each type, in MHz.
    clock: u32,
    /// `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`; absent: not supported, as in old drivers.
    pub(crate) recovery_action: Option<u32>,
    /// Tensor core utilization in percent; absent: no GPM, as before Hopper.
    pub(crate) tensor: Option<f64>,
    /// Bytes sent and received over PCI Express; absent: not counted by the driver.
    pub(crate) pcie_bytes: Option<(u64, u64)>,
    /// MiB/s sent and received over PCI Express, as measured by GPM.
    pub(crate) pcie_mib: Option<(f64, f64)>,
    /// `NVML_GPU_FABRIC_STATE_...`; absent: not supported.
    pub(crate) fabric: Option<u8>,
    /// Multi-node NVLink domain: the value of each byte of the cluster UUID, and the clique ID; absent: none.
    pub(crate) fabric_cluster: Option<(u8, u32)>,
    /// Whether row remapping failed: no spare memory row is left.
    pub(crate) remap_failed: bool,
    /// Whether a row will be remapped at the next reset.
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

/// Reason for lowered clocks.
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

/// Energy in mJ of this power in mW.
fn energy(power: u32) -> c_ulonglong {
    let elapsed = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    c_ulonglong::from(power) * elapsed.as_millis() as c_ulonglong / 1000
}

/// Defines calls `fn(device, *mut T)` that return one value of one GPU.
macro_rules! condition_values {
    ($($(#[$doc:meta])* $name:ident, $at:ident, $type:ty, $condition:ident => $value:expr;)*) => {$(
        $(#[$doc])*
        /// # Safety
        /// `out` is null or may be written.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(device: nvmlDevice_t, out: *mut $type) -> Code {
            with_gpu(device, At::$at, |_, gpu, answer| {
                let $condition = &gpu.condition;
                // SAFETY: the caller upholds NVML's contract.
                unsafe { put(answer, out, $value) }
            })
        }
    )*};
}

condition_values! {
    /// Reasons for lowered clocks, as bits.
    nvmlDeviceGetCurrentClocksThrottleReasons, Clocks, c_ulonglong, condition => condition.slowdowns();
    /// The same bits, under the newer name of the call.
    nvmlDeviceGetCurrentClocksEventReasons, Clocks, c_ulonglong, condition => condition.slowdowns();
    /// Compute mode: whether several processes may use the GPU.
    nvmlDeviceGetComputeMode, Processes, sys::nvmlComputeMode_t, condition => condition.compute_mode();
    /// Utilization over the last sample period, in percent.
    nvmlDeviceGetUtilizationRates, Utilization, sys::nvmlUtilization_t, condition =>
        sys::nvmlUtilization_t { gpu: condition.utilization, memory: 0 };
    /// Power draw in mW.
    nvmlDeviceGetPowerUsage, Power, c_uint, condition => condition.power.0;
    /// Enforced limit in mW.
    nvmlDeviceGetEnforcedPowerLimit, Power, c_uint, condition => condition.power.1;
    /// Configured limit in mW.
    nvmlDeviceGetPowerManagementLimit, Power, c_uint, condition => condition.power.1;
    /// Default limit in mW.
    nvmlDeviceGetPowerManagementDefaultLimit, Power, c_uint, condition => condition.power.1;
    /// Energy in mJ: as if the GPU had drawn this power since 1970.
    nvmlDeviceGetTotalEnergyConsumption, Energy, c_ulonglong, condition => energy(condition.power.0);
    /// Performance state: always P0, the fastest.
    nvmlDeviceGetPerformanceState, Clocks, sys::nvmlPstates_t, _condition => sys::nvmlPStates_enum_NVML_PSTATE_0;
    /// Current PCI Express generation.
    nvmlDeviceGetCurrPcieLinkGeneration, Link, c_uint, condition => condition.pcie.0;
    /// Highest generation that GPU and machine support.
    nvmlDeviceGetMaxPcieLinkGeneration, Link, c_uint, condition => condition.pcie.1;
    /// Current lanes.
    nvmlDeviceGetCurrPcieLinkWidth, Link, c_uint, condition => condition.pcie.2;
    /// Maximum number of lanes that GPU and machine support.
    nvmlDeviceGetMaxPcieLinkWidth, Link, c_uint, condition => condition.pcie.3;
}

/// Defines calls `fn(device, which, *mut T)` that return one value of one GPU. `which` is ignored.
macro_rules! indexed_values {
    ($($(#[$doc:meta])* $name:ident, $at:ident, $which:ty, $condition:ident => $value:expr;)*) => {$(
        $(#[$doc])*
        /// # Safety
        /// `out` is null or may be written.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(device: nvmlDevice_t, _which: $which, out: *mut c_uint) -> Code {
            with_gpu(device, At::$at, |_, gpu, answer| {
                let $condition = &gpu.condition;
                // SAFETY: the caller upholds NVML's contract.
                unsafe { put(answer, out, $value) }
            })
        }
    )*};
}

indexed_values! {
    /// Current clock in MHz, for every clock type.
    nvmlDeviceGetClockInfo, Clocks, sys::nvmlClockType_t, condition => condition.clock;
    /// Maximum clock in MHz, for every clock type.
    nvmlDeviceGetMaxClockInfo, Clocks, sys::nvmlClockType_t, condition => condition.clock;
    /// Fan speed in percent: the fan is idle.
    nvmlDeviceGetFanSpeed_v2, Fan, c_uint, _condition => 0;
}

/// ECC mode, current and after the next reboot.
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
        // SAFETY: the caller upholds NVML's contract.
        unsafe { put(answer, now, is_on).and(put(answer, pending, is_on)) }
    })
}

/// Memory errors, for every error type and counter.
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
        // SAFETY: the caller upholds NVML's contract.
        unsafe { put(answer, out, gpu.condition.ecc_errors) }
    })
}

/// Temperature in degrees Celsius.
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
        // SAFETY: the caller upholds NVML's contract.
        unsafe { put(answer, out, gpu.condition.temperature) }
    })
}

/// Compute processes. `count` returns their number even if the buffer is too small.
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
        // SAFETY: not null, so readable: the caller upholds NVML's contract.
        let room = unsafe { count.read() } as usize;
        // SAFETY: not null, so writable by the same contract.
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
            // SAFETY: `index` is below `room`, and the caller upholds NVML's contract.
            unsafe { put(answer, out.add(index), info)? };
        }
        Ok(())
    })
}
