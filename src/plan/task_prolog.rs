//! The names by which CUDA and ROCr find what Slurm only counts.
//!
//! With lines of our own Slurm puts a device's position in its list into `CUDA_VISIBLE_DEVICES` (24.11; only its nvml
//! plugin knows UUIDs, and only of MIG instances), and on a machine with both vendors into `ROCR_VISIBLE_DEVICES` as well.
//! Where that is not the runtime's own number, a script says what is: Slurm runs TaskProlog before every task, in `srun` and
//! `sbatch` alike, and takes from it what a variable is to be.

use std::path::PathBuf;

use crate::config::Config;
use crate::inventory::{Finding, Severity, Vendor};

use super::{AutoDetect, CgroupPlan, FileName, GresPlan, Setting};

/// A script that puts names in the place of positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskProlog {
    /// Where it is installed.
    pub path: PathBuf,
    /// What is at each position of Slurm's list: whose it is, and the name that the vendor's runtime knows it by.
    pub names: Vec<(Vendor, String)>,
    /// Whether jobs are held to their devices by a cgroup: Slurm then counts them from 0 in each step.
    pub counts_from_zero: bool,
}

impl TaskProlog {
    /// Why it is there.
    pub(super) const WHY: &'static str = "names a job's devices as CUDA and ROCr do: their numbers in Slurm are others";

    /// `None` where the positions are the runtimes' numbers already, or where Slurm's own detection decides.
    pub(super) fn plan(config: &Config, gres: &GresPlan, cgroup: &CgroupPlan) -> Option<Self> {
        if gres.auto_detect != AutoDetect::Off || gres.counts_as_runtimes {
            return None;
        }
        Some(Self {
            path: config.paths.slurm.join(FileName::TaskProlog.as_str()),
            names: gres.lines.iter().map(|line| (line.vendor, line.runtime_name.clone())).collect(),
            counts_from_zero: cgroup.lines.contains(&("ConstrainDevices", "yes")),
        })
    }

    /// What goes wrong if the operator has a TaskProlog of their own.
    pub(super) fn check(&self, settings: &[Setting]) -> Option<Finding> {
        let own = settings.iter().find(|setting| setting.key.eq_ignore_ascii_case("TaskProlog"));
        let used = own.is_some_and(|setting| self.path.to_str() == Some(setting.value.as_str()));
        (!used).then(|| self.not_used("[slurm.conf] of slurminit.toml sets TaskProlog"))
    }

    pub(super) fn not_used(&self, cause: &str) -> Finding {
        let path = self.path.display();
        Finding {
            severity: Severity::Warning,
            what: format!("jobs get device numbers that are not those of CUDA or ROCr: {path} is not run"),
            cause: cause.to_owned(),
            repair: format!(
                "set TaskProlog={path}, or let your own script end with it; Gres= must list the types in the order of gres.conf"
            ),
        }
    }
}
