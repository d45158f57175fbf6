//! How a GPU fares at this moment, as its driver tells.

use serde::{Deserialize, Serialize};

use super::Obstacle;

/// What changes while a GPU works. What the driver does not tell is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// The driver's number of the GPU.
    pub index: u32,
    /// Used and whole memory in MiB.
    pub memory_mib: Option<(u64, u64)>,
    /// The processes that compute on it.
    pub processes: Option<Vec<Process>>,
    /// What holds its clocks down.
    pub slowdowns: Option<Vec<Slowdown>>,
    /// In degrees Celsius.
    pub temperature: Option<u32>,
    /// Its link to the machine.
    pub pcie: Option<Pcie>,
    /// The error correction of its memory.
    #[serde(default)]
    pub ecc: Option<Ecc>,
    /// How many processes may compute on it.
    pub compute_mode: Option<ComputeMode>,
    /// Whether the driver keeps it awake while nobody uses it.
    pub is_persistent: Option<bool>,
    /// How much of the last moment it computed, in percent.
    pub utilization: Option<u32>,
    /// Why the driver does not tell all of this: the GPU is lost, or not handed out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<Obstacle>,
}

/// A process on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number, which is the host's.
    pub pid: u32,
    /// The GPU memory that it holds, in MiB.
    pub memory_mib: Option<u64>,
}

/// What holds a GPU's clocks down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Slowdown {
    /// The power that it may draw.
    PowerCap,
    /// Heat.
    Heat,
    /// The machine's power supply.
    PowerBrake,
    /// The hardware, for heat or power.
    Hardware,
}

/// A PCI Express link, now and at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pcie {
    /// Its generation now; low while the GPU sleeps.
    pub generation: u32,
    /// The highest that GPU and machine can do.
    pub highest_generation: u32,
    /// Its lanes now.
    pub lanes: u32,
    /// The most that GPU and machine can do.
    pub most_lanes: u32,
}

/// The error correction of a GPU's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ecc {
    /// Whether it is on.
    pub is_on: bool,
    /// The errors since the driver was loaded that it could not correct.
    pub uncorrected: Option<u64>,
}

/// How many processes may compute on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ComputeMode {
    /// Any number.
    Shared,
    /// One.
    Exclusive,
    /// None.
    Prohibited,
}
