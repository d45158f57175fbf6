//! The kinds of faults that a GPU can have.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// An error that NVIDIA's driver reported, with its number.
    Xid(u32),
    /// The driver requests a reset of the GPU or a reboot of the host; the number is the driver's recovery action.
    RecoveryAction(u32),
    /// The GPU fell off the bus, or the driver no longer lists it.
    Lost,
    /// The driver timed out.
    Silent,
    /// The container's device rules were rewritten: no new process can open the GPU ("Unknown Error").
    DeviceDenied,
    /// Row remapping failed: no spare row of memory is left.
    RowRemapFailed,
    /// Uncorrectable memory errors.
    EccUncorrected,
    /// Clocks throttled by temperature.
    Heat,
    /// Clocks throttled by the power supply.
    PowerBrake,
    /// NVLinks went down.
    NvlinkDown,
    /// GPU memory is in use without a job.
    Leftover,
    /// The driver is resetting the GPU.
    Reset,
    /// A reset started but did not end in time.
    ResetUnfinished,
}

/// The name in the configuration, in logs and in metrics: `xid-79`, `lost`.
impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Xid(number) => write!(f, "xid-{number}"),
            Self::RecoveryAction(_) => f.write_str("recovery-action"),
            Self::Lost => f.write_str("lost"),
            Self::Silent => f.write_str("silent"),
            Self::DeviceDenied => f.write_str("device-denied"),
            Self::RowRemapFailed => f.write_str("row-remap-failed"),
            Self::EccUncorrected => f.write_str("ecc-uncorrected"),
            Self::Heat => f.write_str("heat"),
            Self::PowerBrake => f.write_str("power-brake"),
            Self::NvlinkDown => f.write_str("nvlink-down"),
            Self::Leftover => f.write_str("leftover"),
            Self::Reset => f.write_str("reset"),
            Self::ResetUnfinished => f.write_str("reset-unfinished"),
        }
    }
}

/// The policy for a fault: its consequence for the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// Nothing.
    Ignore,
    /// The fault is counted in the metrics.
    Count,
    /// The fault is also logged.
    Warn,
    /// The GPU is also excluded from jobs.
    Drain,
}
