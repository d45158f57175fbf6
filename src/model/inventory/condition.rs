//! The current condition of a GPU, as reported by its driver.

use serde::{Deserialize, Serialize};

use super::Obstacle;

/// Values that change while a GPU works. A value is `None` if the driver does not report it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// The driver's index of the GPU.
    pub index: u32,
    /// Used and total memory in MiB.
    pub memory_mib: Option<(u64, u64)>,
    /// Free memory in MiB: neither in use nor reserved by the driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_free_mib: Option<u64>,
    /// The compute processes on the GPU, at most 64.
    pub processes: Option<Vec<GpuProcess>>,
    /// The reasons why the clocks are reduced.
    pub slowdowns: Option<Vec<Slowdown>>,
    /// The temperature in degrees Celsius.
    pub temperature: Option<u32>,
    /// The PCI Express link.
    pub pcie: Option<Pcie>,
    /// The memory's error correction.
    #[serde(default)]
    pub ecc: Option<Ecc>,
    /// How many processes may compute on the GPU.
    pub compute_mode: Option<ComputeMode>,
    /// Whether persistence mode is on, which keeps the driver loaded while the GPU is unused.
    pub is_persistent: Option<bool>,
    /// The recent utilization in percent.
    pub utilization: Option<u32>,
    /// Why values are missing: the GPU is lost, or the driver denies access or could not initialize the GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<Obstacle>,
}

/// A process on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuProcess {
    /// The PID in the PID namespace of the process that queries the driver.
    pub pid: u32,
    /// The GPU memory that the process uses, in MiB.
    pub memory_mib: Option<u64>,
}

/// What limits a GPU's clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Slowdown {
    /// The power limit.
    PowerCap,
    /// The temperature.
    Heat,
    /// The machine's power supply.
    PowerBrake,
    /// The hardware, because of temperature or power.
    Hardware,
}

/// A PCI Express link: current and maximum values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pcie {
    /// The current generation, which may be lower while the GPU is idle.
    pub generation: u32,
    /// The highest generation that GPU and machine support.
    pub highest_generation: u32,
    /// The current number of lanes.
    pub lanes: u32,
    /// The highest number of lanes that GPU and machine support.
    pub most_lanes: u32,
}

/// The error correction of a GPU's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ecc {
    /// Whether ECC is on.
    pub is_on: bool,
    /// The uncorrectable errors since the driver was loaded.
    pub uncorrected: Option<u64>,
}

/// How many processes may compute on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ComputeMode {
    /// Any number of processes.
    Shared,
    /// One process.
    Exclusive,
    /// No process.
    Prohibited,
}
