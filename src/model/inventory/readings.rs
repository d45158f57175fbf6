//! Measurements by a GPU's driver, in addition to the GPU's [`Condition`](super::Condition).

use serde::{Deserialize, Serialize};

/// Measurements of one GPU. `None` if the driver does not report a value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Readings {
    /// The share of time in which the GPU's memory was accessed, in percent.
    pub memory_utilization: Option<u32>,
    /// The power draw, in mW.
    pub power_mw: Option<u64>,
    /// The effective power limit, in mW.
    pub power_limit_mw: Option<u64>,
    /// The configured power limit, in mW.
    pub set_power_limit_mw: Option<u64>,
    /// The default power limit, in mW.
    pub default_power_limit_mw: Option<u64>,
    /// Energy consumed since the driver was loaded, in mJ.
    pub energy_mj: Option<u64>,
    /// The speed of the first fan, in percent of its maximum.
    pub fan_percent: Option<u32>,
    /// NVIDIA's performance state, 0 (fastest) to 15.
    pub pstate: Option<u32>,
    /// The current clocks, in MHz.
    pub clocks: Clocks,
    /// The maximum clocks, in MHz.
    pub highest_clocks: Clocks,
    /// NVML's bits for the causes of reduced clocks (`nvmlClocksEventReason...`).
    pub clock_event_reasons: Option<u64>,
    /// Memory errors that were corrected, over the GPU's lifetime.
    pub ecc_corrected: Option<u64>,
    /// Memory errors that were not corrected, over the GPU's lifetime.
    pub ecc_uncorrected: Option<u64>,
    /// Broken rows of the GPU's memory that spare rows replace.
    pub remapped_rows: Option<RemappedRows>,
    /// The driver's recovery action for the GPU (`NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`); 0 means none.
    pub recovery_action: Option<u32>,
    /// The number of NVLinks that are down.
    pub nvlinks_down: Option<u32>,
    /// The state of the GPU's registration with its NVLink fabric: 1 not started, 2 in progress, 3 completed. `None` if the GPU is in no fabric.
    pub fabric_state: Option<u32>,
    /// The share of time in which the tensor cores were busy since the previous sample, in parts per million.
    pub tensor_ppm: Option<u32>,
    /// The PCI Express throughput since the previous sample.
    pub pcie_traffic: PcieTraffic,
    /// The MIG instances, in the driver's order.
    pub instances: Vec<InstanceReadings>,
    /// AMD: the sum of the uncorrectable errors of all blocks of the chip (`ras/*_err_count`).
    pub ras_uncorrected: Option<u64>,
}

/// Clocks in MHz.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the names are self-explanatory")]
pub struct Clocks {
    pub graphics: Option<u32>,
    pub sm: Option<u32>,
    pub memory: Option<u32>,
    pub video: Option<u32>,
}

/// PCI Express throughput in bytes per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PcieTraffic {
    /// Sent by the GPU.
    pub sent: Option<u64>,
    /// Received by the GPU.
    pub received: Option<u64>,
}

/// Measurements of a MIG instance. All compute instances of a GPU instance report the values of the GPU instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct InstanceReadings {
    /// The driver's unique name: `MIG-1c1d...`.
    pub uuid: Option<String>,
    /// The number of the GPU instance.
    pub gpu_instance: u32,
    /// The number of the compute instance within the GPU instance.
    pub compute_instance: u32,
    /// The profile: `1g.18gb`.
    pub profile: Option<String>,
    /// Memory in use, in bytes.
    pub memory_used: Option<u64>,
    /// Free memory, in bytes.
    pub memory_free: Option<u64>,
    /// The share of time in which the multiprocessors were busy since the previous sample, in parts per million.
    pub sm_ppm: Option<u32>,
    /// The share of time in which the tensor cores were busy since the previous sample, in parts per million.
    pub tensor_ppm: Option<u32>,
}

/// Rows of a GPU's memory that spare rows replace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemappedRows {
    /// Rows that were replaced after correctable errors.
    pub correctable: u32,
    /// Rows that were replaced after uncorrectable errors.
    pub uncorrectable: u32,
    /// Whether more rows will be remapped at the next reset.
    pub is_pending: bool,
    /// Whether remapping failed because no spare row was left; the card must be replaced.
    pub has_failed: bool,
}
