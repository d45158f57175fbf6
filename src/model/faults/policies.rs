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
    /// Policies for NVIDIA's XIDs, by number.
    #[serde(deserialize_with = "xids")]
    pub xid: BTreeMap<u32, Policy>,
    /// Policy for a recovery action that the driver requests.
    pub recovery_action: Policy,
    /// Policy for a GPU that fell off the bus.
    pub lost: Policy,
    /// Policy for a driver that does not respond.
    pub silent: Policy,
    /// Policy for a GPU that the container's device rules now deny.
    pub device_denied: Policy,
    /// Policy for a failed row remapping: no spare row of memory is left.
    pub row_remap_failed: Policy,
    /// Policy for uncorrectable memory errors.
    pub ecc_uncorrected: Policy,
    /// Policy for clocks throttled by temperature.
    pub heat: Policy,
    /// Policy for clocks throttled by the power supply.
    pub power_brake: Policy,
    /// Policy for NVLinks that went down.
    pub nvlink_down: Policy,
    /// Policy for GPU memory that is in use without a job.
    pub leftover: Policy,
    /// Policy for a reset by the driver.
    pub reset: Policy,
    /// Policy for a reset that did not end in time.
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
