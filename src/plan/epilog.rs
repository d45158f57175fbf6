//! The script that Slurm runs on the node when a job ends.
//!
//! Where Slurm has a cgroup for each job, no process can leave it. Otherwise `slurminit epilog` finds the processes
//! that a job leaves behind.

use std::path::PathBuf;

use config::{Config, JobHook};
use model::inventory::{Finding, Kind};

use super::{CgroupPlan, FileName, Setting};

/// A script that kills leftover processes of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Epilog {
    /// Where it is installed.
    pub path: PathBuf,
    /// Whether it kills leftover processes.
    pub ends_leftovers: bool,
    /// The directory of the GPU-to-job map for exporters on the host.
    pub job_map: Option<PathBuf>,
    /// The operator's commands.
    pub hooks: Vec<JobHook>,
}

impl Epilog {
    /// The reason for the script.
    pub(super) const fn why(&self) -> &'static str {
        if self.ends_leftovers {
            "kills leftover processes of a job before its GPUs are reallocated (jobs have no cgroup here)"
        } else if self.job_map.is_some() {
            "maps GPUs to jobs for exporters on the host (`[metrics] job_map`)"
        } else {
            "runs [[hooks.post_job]]"
        }
    }

    /// `None` if cgroups contain a job's processes, and there is nothing else to run.
    pub(super) fn plan(config: &Config, cgroup: &CgroupPlan) -> Option<Self> {
        let (ends_leftovers, hooks) = (!cgroup.is_used(), config.hooks.post_job.clone());
        let path = config.paths.slurm.join(FileName::Epilog.as_str());
        let job_map = config.metrics.job_map.clone();
        let is_needed = ends_leftovers || job_map.is_some() || !hooks.is_empty();
        is_needed.then_some(Self { path, ends_leftovers, job_map, hooks })
    }

    /// Warns if the operator's own Epilog replaces slurminit's.
    pub(super) fn check(&self, settings: &[Setting]) -> Option<Finding> {
        let own = settings.iter().find(|setting| setting.key.eq_ignore_ascii_case("Epilog"));
        let used = own.is_some_and(|setting| self.path.to_str() == Some(setting.value.as_str()));
        let path = self.path.display();
        let what = match self.ends_leftovers {
            true => {
                format!("processes that call setsid survive their job, unless your Epilog runs {path}")
            }
            false => {
                format!("[[hooks.post_job]] and `[metrics] job_map` have no effect, unless your Epilog runs {path}")
            }
        };
        let (cause, repair) =
            ("[slurm.conf] of slurminit.toml sets Epilog", format!("call `{path}` first in your script"));
        (!used).then(|| Finding::info(Kind::Settings, what, cause, repair))
    }
}
