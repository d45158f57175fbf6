//! The script that Slurm runs on the node when a job ends.
//!
//! If Slurm creates a cgroup for each job, no process can leave it. Otherwise `slurminit epilog` finds the processes that a job leaves
//! behind. The script is always installed, because its end makes slurmctld start the next job sooner. Without the script, an array of
//! 100 short jobs takes six times as long.

use std::path::PathBuf;

use config::{Config, JobHook};
use model::inventory::{Finding, Kind};

use super::{CgroupPlan, FileName, Setting};

/// A script that runs when a job ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Epilog {
    /// The path of the installed script.
    pub path: PathBuf,
    /// Whether the script kills leftover processes.
    pub ends_leftovers: bool,
    /// Whether the script revokes the user's access to the GPUs' device files.
    pub takes_gpus: bool,
    /// The directory of the GPU-to-job map for exporters on the host.
    pub job_map: Option<PathBuf>,
    /// The operator's commands.
    pub hooks: Vec<JobHook>,
}

impl Epilog {
    /// The reason for the script.
    pub(super) fn why(&self) -> &'static str {
        if self.ends_leftovers {
            "kills leftover processes of a job before its GPUs are reallocated (jobs have no cgroup here)"
        } else if self.takes_gpus {
            "revokes a user's access to the GPUs of a job that has ended"
        } else if self.job_map.is_some() {
            "maps GPUs to jobs for exporters on the host (`[metrics] job_map`)"
        } else if !self.hooks.is_empty() {
            "runs [[hooks.post_job]]"
        } else {
            "its end makes slurmctld start the next job sooner"
        }
    }

    pub(super) fn plan(config: &Config, cgroup: &CgroupPlan, takes_gpus: bool) -> Self {
        Self {
            path: config.paths.slurm.join(FileName::Epilog.as_str()),
            ends_leftovers: !cgroup.is_used(),
            takes_gpus,
            job_map: config.metrics.job_map.clone(),
            hooks: config.hooks.post_job.clone(),
        }
    }

    /// Warns if the operator's own Epilog replaces slurminit's.
    pub(super) fn check(&self, settings: &[Setting]) -> Option<Finding> {
        let used = Setting::is_path(settings, "Epilog", &self.path);
        let path = self.path.display();
        let is_needed = self.takes_gpus || self.job_map.is_some() || !self.hooks.is_empty();
        let what = if self.ends_leftovers {
            format!("processes that call setsid survive their job, unless your Epilog runs {path}")
        } else if is_needed {
            format!(
                "[[hooks.post_job]], `[metrics] job_map` and `[gpu] isolate` have no effect, unless your Epilog runs {path}"
            )
        } else {
            return None;
        };
        let (cause, fix) =
            ("[slurm.conf] of slurminit.toml sets Epilog", format!("call `{path}` first in your script"));
        (!used).then(|| Finding::info(Kind::Settings, what, cause, fix))
    }
}
