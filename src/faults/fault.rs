//! The kinds of faults that a GPU can have, and the policy for each.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use super::sample::Identity;
use super::xid::{self, LINK, REBOOT};

/// Declares [`FaultKind`] and [`Faults`] from a table. A row contains the kind, its field in [`Faults`], its name in logs and metrics, its default
/// policy, its description and its fix.
macro_rules! fault_kinds {
    ($($(#[$doc:meta])* $kind:ident, $key:ident, $name:literal, $policy:ident, $what:literal, $fix:expr;)*) => {
        /// A kind of fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum FaultKind {
            /// An error that NVIDIA's driver reported, with its number.
            Xid(u32),
            /// The driver requests a recovery action, such as a reset of the GPU; the number identifies the action.
            RecoveryAction(u32),
            $($(#[$doc])* $kind,)*
        }

        impl fmt::Display for FaultKind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    Self::Xid(number) => write!(f, "xid-{number}"),
                    Self::RecoveryAction(_) => f.write_str("recovery-action"),
                    $(Self::$kind => f.write_str($name),)*
                }
            }
        }

        impl FaultKind {
            /// The description of the fault, and its fix.
            pub fn describe(self) -> (String, Fix) {
                match self {
                    Self::Xid(number) => {
                        let (_, what, fix) = xid::row(number);
                        let separator = if what.is_empty() { "" } else { ", " };
                        (format!("XID {number}{separator}{what}"), fix)
                    }
                    Self::RecoveryAction(action) => recovery(action),
                    $(Self::$kind => ($what.to_owned(), $fix),)*
                }
            }
        }

        /// `[faults]`: policies that override the defaults.
        #[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
        #[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
        pub struct Faults {
            /// Policies for NVIDIA's XIDs, by number.
            #[serde(deserialize_with = "xids")]
            xid: BTreeMap<u32, Policy>,
            recovery_action: Policy,
            $($key: Policy,)*
        }

        impl Default for Faults {
            fn default() -> Self {
                Self { xid: BTreeMap::new(), recovery_action: Policy::Drain, $($key: Policy::$policy,)* }
            }
        }

        impl Faults {
            /// The policy of a fault.
            pub fn policy(&self, kind: FaultKind) -> Policy {
                match kind {
                    FaultKind::Xid(number) => self.xid.get(&number).copied().unwrap_or(xid::row(number).0),
                    FaultKind::RecoveryAction(_) => self.recovery_action,
                    $(FaultKind::$kind => self.$key,)*
                }
            }
        }
    };
}

fault_kinds! {
    /// The GPU fell off the bus, needs a reset or is no longer listed by the driver, or NVML failed.
    Lost, lost, "lost", Drain, "the GPU is lost: it probably fell off the bus, or needs a reset", REBOOT;
    /// The driver timed out, or the process that queries it failed.
    Silent, silent, "silent", Drain, "the driver does not respond for this GPU, which probably hangs or is being reset", Fix::Reset;
    /// The container's device rules were rewritten: no new process can open the GPU ("Unknown Error").
    DeviceDenied, device_denied, "device-denied", Drain,
        "the container can no longer open the device file: the host rewrote the container's device rules (NVML: \"Unknown Error\")",
        Fix::Text("re-create the container (docker compose up -d --force-recreate); a restart is not enough");
    /// Row remapping failed: no spare row of memory is left.
    RowRemapFailed, row_remap_failed, "row-remap-failed", Drain,
        "no spare memory row left (row remapping failed)", Fix::Text("replace the card");
    /// Uncorrectable memory errors.
    EccUncorrected, ecc_uncorrected, "ecc-uncorrected", Warn, "uncorrectable ECC errors", Fix::Diagnostics;
    /// Clocks throttled by temperature.
    Heat, heat, "heat", Warn, "clocks throttled by temperature", Fix::Text("check fans, air flow and dust");
    /// Clocks throttled by the power supply.
    PowerBrake, power_brake, "power-brake", Warn,
        "clocks throttled by the power supply (power brake)", Fix::Text("check the power supply and its cables");
    /// NVLinks went down.
    NvlinkDown, nvlink_down, "nvlink-down", Warn, "NVLinks went down", LINK;
    /// GPU memory is in use without a job.
    Leftover, leftover, "leftover", Warn, "GPU memory in use without a job", Fix::EndProcess;
    /// The driver is resetting the GPU.
    Reset, reset, "reset", Warn, "the driver is resetting the GPU; its processes are lost",
        Fix::Text("nothing to do on the node: check the job's output, and the host's amdgpu messages (dmesg | grep -i amdgpu)");
    /// A reset started but did not end in time.
    ResetUnfinished, reset_unfinished, "reset-unfinished", Drain, "the driver started a reset that did not finish",
        Fix::Text("see the amdgpu messages on the host (dmesg | grep -i amdgpu); reset the GPU on the host (amd-smi reset -G -g GPU); if that fails, reboot the host");
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

/// The fix for a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fix {
    /// This text, for every GPU.
    Text(&'static str),
    /// A reset of the GPU.
    Reset,
    /// Diagnostics of the hardware; if a test fails, replacement of the card.
    Diagnostics,
    /// Ending the process that uses the GPU without a job.
    EndProcess,
}

impl Fix {
    /// The fix for this GPU as text, with the tools of the GPU's vendor.
    pub fn text(self, gpu: &Identity) -> String {
        let (index, tools) = (gpu.index, &gpu.vendor.traits().fix);
        match self {
            Self::Text(text) => text.to_owned(),
            Self::Reset => format!(
                "run `slurminit gpu release {index}`, {} on the host, then `slurminit gpu return {index}`; or reboot the host",
                gpu.reset_command()
            ),
            Self::Diagnostics => format!("run {}; if a test fails, replace the card", tools.diagnostics),
            Self::EndProcess => format!(
                "end the process (`slurminit doctor` or {} on the host shows it), or run it as a Slurm job",
                tools.processes
            ),
        }
    }
}

/// The description and fix for a value of `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`.
fn recovery(action: u32) -> (String, Fix) {
    let (what, fix) = match action {
        1 => ("must be reset", Fix::Reset),
        2 => ("needs a reboot of the host", REBOOT),
        3 => ("must be drained of peer-to-peer traffic", LINK),
        4 => ("must be drained and reset", Fix::Reset),
        5 => (
            "needs its IMEX domain restored",
            Fix::Text("restore the IMEX domain (nvidia-imex-ctl on the host), or reboot the host"),
        ),
        6 => ("needs a bus reset", REBOOT),
        7 => ("needs a reboot of the system", REBOOT),
        _ => ("requires an action that slurminit does not recognize", Fix::Reset),
    };
    (format!("the driver reports that the GPU {what} (recovery action {action})"), fix)
}

/// The policy for a fault: its consequence for the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// No action; only the counts in the metrics include the fault.
    Ignore,
    /// The fault is counted in the metrics, and the report shows it while it lasts.
    Count,
    /// The fault is also logged.
    Warn,
    /// The GPU is also excluded from jobs.
    Drain,
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::inventory::Vendor;

    #[test]
    fn fix_fits_recovery_action() {
        let fix = |action| FaultKind::RecoveryAction(action).describe().1.text(&Identity::default());
        assert!(fix(1).contains("gpu-reset") && !fix(2).contains("gpu-reset") && fix(7).contains("reboot"));
        assert!(FaultKind::RecoveryAction(2).describe().0.contains("reboot"));
        for (action, expected) in [
            (1, "must be reset"),
            (3, "peer-to-peer"),
            (4, "drained and reset"),
            (5, "IMEX"),
            (6, "bus reset"),
            (8, "not recognize"),
        ] {
            assert!(FaultKind::RecoveryAction(action).describe().0.contains(expected), "{action}");
        }
    }

    /// A tool of another vendor does not exist on the host.
    #[test]
    fn fix_names_tools_of_the_gpus_vendor() {
        let commands = [
            (Vendor::Nvidia, "nvidia-smi --gpu-reset -i 0000:13:00.0"),
            (Vendor::Amd, "amd-smi reset --gpureset --gpu 0000:13:00.0"),
            (Vendor::Intel, "xpu-smi config --device 0000:13:00.0 --reset"),
        ];
        for (vendor, reset) in commands {
            let gpu = Identity { vendor, index: 3, pci_address: "0000:13:00.0".parse().ok(), ..Identity::default() };
            let fix = |kind: FaultKind| kind.describe().1.text(&gpu);
            assert!(fix(FaultKind::Silent).contains(&format!("gpu release 3`, {reset} on the host")), "{vendor}");
            for kind in [FaultKind::Silent, FaultKind::EccUncorrected, FaultKind::Leftover, FaultKind::Lost] {
                let names_nvidia = fix(kind).to_lowercase().contains("nvidia");
                assert!(!names_nvidia || vendor == Vendor::Nvidia, "{vendor}: {}", fix(kind));
            }
        }
    }
}
