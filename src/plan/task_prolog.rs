//! Translates Slurm's device numbers into the names that the vendors' runtimes use.
//!
//! With explicit gres.conf lines, Slurm sets `CUDA_VISIBLE_DEVICES` to the position of a device in its list (24.11;
//! only its nvml plugin knows UUIDs, and only those of MIG instances), and on a machine with both vendors also
//! `ROCR_VISIBLE_DEVICES`. Where the position is not the runtime's number, a TaskProlog sets the right value. Slurm
//! runs it before every task of `srun` and `sbatch`, and applies the variables that it prints.
//!
//! Where a job's user can open only the GPUs of their own jobs, CUDA's numbers change whenever another job of that user
//! begins or ends. UUIDs do not.

use std::path::PathBuf;

use config::Config;
use model::inventory::{Finding, Kind, Vendor};

use super::{AutoDetect, CgroupPlan, FileName, GresLine, GresPlan, Setting};

/// A script that replaces positions by names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskProlog {
    /// The path of the installed task prolog.
    pub path: PathBuf,
    /// The device at each position of Slurm's list: its vendor, and its name in the vendor's runtime.
    pub names: Vec<(Vendor, String)>,
    /// Whether cgroups confine jobs to their devices: Slurm then counts the devices from 0 in each step.
    pub counts_from_zero: bool,
}

impl TaskProlog {
    /// The reason for the script.
    pub(super) const WHY: &'static str = "translates Slurm's device numbers to those of the vendor's runtime";

    /// Returns `None` if the position of each GPU in gres.conf is its number in the vendor's runtime, or if Slurm detects the GPUs.
    /// `gives_gpus`: users can open only the GPUs of their own jobs.
    pub(super) fn plan(config: &Config, gres: &GresPlan, cgroup: &CgroupPlan, gives_gpus: bool) -> Option<Self> {
        let has_settings = |line: &GresLine| {
            let runtime = &line.vendor.traits().runtime;
            !runtime.settings.is_empty() && !runtime.equal_models_in_bus_order
        };
        let uuid = |line: &GresLine| line.uuid.clone().filter(|_| gives_gpus);
        let is_slurms = gres.auto_detect != AutoDetect::Off && !gres.lines.iter().any(has_settings);
        let is_right = (is_slurms || gres.counts_as_runtimes) && !gres.lines.iter().any(|line| uuid(line).is_some());
        if !config.shares_a_cluster() && is_right {
            return None;
        }
        let name = |line: &GresLine| (line.vendor, uuid(line).unwrap_or_else(|| line.runtime_name.clone()));
        Some(Self {
            path: config.paths.slurm.join(FileName::TaskProlog.as_str()),
            names: gres.lines.iter().map(name).collect(),
            counts_from_zero: cgroup.lines.contains(&("ConstrainDevices", "yes")),
        })
    }

    /// Warns if the operator has a TaskProlog of their own.
    pub(super) fn check(&self, settings: &[Setting]) -> Option<Finding> {
        let own = settings.iter().find(|setting| setting.key.eq_ignore_ascii_case("TaskProlog"));
        let used = own.is_some_and(|setting| self.path.to_str() == Some(setting.value.as_str()));
        (!used).then(|| self.not_used("[slurm.conf] of slurminit.toml sets TaskProlog"))
    }

    pub(super) fn not_used(&self, cause: &str) -> Finding {
        let path = self.path.display();
        Finding::warning(
            Kind::JobDevices,
            format!("jobs get device numbers that do not match CUDA or ROCr: Slurm does not run {path}"),
            cause,
            format!(
                "set TaskProlog={path}, or call it at the end of your script; list the types in Gres= in the order of gres.conf"
            ),
        )
    }
}
