//! The kinds of faults that a GPU can have.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// An error that NVIDIA's driver reported, with its number.
    Xid(u32),
    /// The driver says that the GPU is to be reset or its host rebooted; the number is the driver's.
    RecoveryAction(u32),
    /// The GPU fell off the bus, or the driver no longer has it.
    Lost,
    /// The driver did not answer in time.
    Silent,
    /// The container's device rules were rewritten: no new process can open the GPU ("Unknown Error").
    DeviceDenied,
    /// No spare row of memory was left.
    RowRemapFailed,
    /// Memory errors that could not be corrected.
    EccUncorrected,
    /// The clocks are low because of heat.
    Heat,
    /// The clocks are low because of the machine's power supply.
    PowerBrake,
    /// NVLinks are down that were up.
    NvlinkDown,
    /// No job has it, and its memory is in use.
    Leftover,
    /// The driver resets it.
    Reset,
    /// A reset began, and did not end in time.
    ResetUnfinished,
}

/// `xid-79`, `lost`: the word in the configuration, in logs and in metrics.
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

/// What a fault means for the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// Nothing.
    Ignore,
    /// It is counted in the metrics.
    Count,
    /// It is also told in the log.
    Warn,
    /// Jobs also no longer get the GPU.
    Drain,
}
