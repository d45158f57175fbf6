//! The operator's policies for faults.

use std::collections::BTreeMap;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::fault::{FaultKind, Policy};
use super::policy;

/// `[faults]`: policies that override the defaults.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Faults {
    /// NVIDIA's XIDs by their number.
    #[serde(deserialize_with = "xids")]
    pub xid: BTreeMap<u32, Policy>,
    /// The driver's recovery action.
    pub recovery_action: Policy,
    /// Fallen off the bus.
    pub lost: Policy,
    /// No answer.
    pub silent: Policy,
    /// Device rules rewritten.
    pub device_denied: Policy,
    /// No spare row of memory.
    pub row_remap_failed: Policy,
    /// Uncorrectable errors of memory.
    pub ecc_uncorrected: Policy,
    /// Slow because of heat.
    pub heat: Policy,
    /// Slow because of the power supply.
    pub power_brake: Policy,
    /// NVLinks that went down.
    pub nvlink_down: Policy,
    /// In use without a job.
    pub leftover: Policy,
    /// Reset by the driver.
    pub reset: Policy,
    /// A reset that did not end.
    pub reset_unfinished: Policy,
}

/// Parses XIDs from TOML's text keys.
fn xids<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<u32, Policy>, D::Error> {
    let texts = BTreeMap::<String, Policy>::deserialize(from)?;
    let number = |(text, policy): (String, Policy)| match text.parse() {
        Ok(number) => Ok((number, policy)),
        Err(_) => Err(D::Error::custom(format!("{text:?} is not an XID number"))),
    };
    texts.into_iter().map(number).collect()
}

impl Faults {
    /// The policy of a fault.
    pub fn policy(&self, kind: FaultKind) -> Policy {
        match kind {
            FaultKind::Xid(number) => self.xid.get(&number).copied().unwrap_or_else(|| policy::default(kind)),
            FaultKind::RecoveryAction(_) => self.recovery_action,
            FaultKind::Lost => self.lost,
            FaultKind::Silent => self.silent,
            FaultKind::DeviceDenied => self.device_denied,
            FaultKind::RowRemapFailed => self.row_remap_failed,
            FaultKind::EccUncorrected => self.ecc_uncorrected,
            FaultKind::Heat => self.heat,
            FaultKind::PowerBrake => self.power_brake,
            FaultKind::NvlinkDown => self.nvlink_down,
            FaultKind::Leftover => self.leftover,
            FaultKind::Reset => self.reset,
            FaultKind::ResetUnfinished => self.reset_unfinished,
        }
    }
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            xid: BTreeMap::new(),
            recovery_action: policy::default(FaultKind::RecoveryAction(1)),
            lost: policy::default(FaultKind::Lost),
            silent: policy::default(FaultKind::Silent),
            device_denied: policy::default(FaultKind::DeviceDenied),
            row_remap_failed: policy::default(FaultKind::RowRemapFailed),
            ecc_uncorrected: policy::default(FaultKind::EccUncorrected),
            heat: policy::default(FaultKind::Heat),
            power_brake: policy::default(FaultKind::PowerBrake),
            nvlink_down: policy::default(FaultKind::NvlinkDown),
            leftover: policy::default(FaultKind::Leftover),
            reset: policy::default(FaultKind::Reset),
            reset_unfinished: policy::default(FaultKind::ResetUnfinished),
        }
    }
}
