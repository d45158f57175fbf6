//! The script that Slurm runs on each node of a job when the job ends.
//!
//! If Slurm creates a cgroup for each job, no process can leave it. Otherwise `slurminit epilog` finds the processes that a job leaves
//! behind. The script is always installed, because slurmctld starts the next job sooner if an Epilog has run. Without the script, an array
//! of 100 short jobs takes six times as long.

use std::path::PathBuf;

use config::{Config, JobHook};
use model::inventory::{Finding, Kind};

use super::{CgroupPlan, FileName, Setting};

/// A script that runs when a job ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Epilog {
    /// The path of the installed script.
    pub path: PathBuf,
    /// Whether the script is needed to kill leftover processes, because jobs have no cgroup.
    pub ends_leftovers: bool,
    /// Whether the script closes the device files of the job's GPUs, which the Prolog opened for the job's user.
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
            "kills leftover processes of a job before its resources are reallocated (jobs have no cgroup here)"
        } else if self.takes_gpus {
            "revokes a user's access to the GPUs of a job that has ended"
        } else if self.job_map.is_some() {
            "maps GPUs to jobs for exporters on the host (`[metrics] job_map`)"
        } else if !self.hooks.is_empty() {
            "runs [[hooks.post_job]]"
        } else {
            "slurmctld starts the next job sooner if an Epilog has run"
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

    /// Reports an operator's own Epilog that replaces slurminit's, if slurminit's is needed.
    pub(super) fn check(&self, settings: &[Setting]) -> Option<Finding> {
        let used = Setting::is_path(settings, "Epilog", &self.path);
        let path = self.path.display();
        let lost = [
            (self.ends_leftovers, "processes that call setsid survive their job"),
            (self.job_map.is_some(), "`[metrics] job_map` has no effect"),
            (!self.hooks.is_empty(), "[[hooks.post_job]] has no effect"),
        ];
        let lost: Vec<&str> = lost.into_iter().filter_map(|(is_lost, what)| is_lost.then_some(what)).collect();
        // A start restricts the GPUs' device files only if Epilog is this script itself.
        let gpus = self.takes_gpus.then(|| "users can open GPUs that are not allocated to their jobs".to_owned());
        let lost = (!lost.is_empty()).then(|| format!("unless your Epilog runs it, {}", lost.join("; ")));
        let lost: Vec<String> = gpus.into_iter().chain(lost).collect();
        let what = format!("Slurm does not run {path} after a job; consequences: {}", lost.join("; "));
        let fix = match self.takes_gpus {
            true => "remove Epilog from [slurm.conf]".to_owned(),
            false => format!("remove Epilog from [slurm.conf], or call `{path}` first in your script"),
        };
        let cause = "[slurm.conf] of slurminit.toml sets Epilog";
        (!used && !lost.is_empty()).then(|| Finding::info(Kind::Settings, what, cause, fix))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_epilog_of_the_operator_names_what_is_lost() {
        let what = |ends_leftovers, job_map: Option<&str>| {
            let path = "/etc/slurm/epilog".into();
            let job_map = job_map.map(PathBuf::from);
            let epilog = Epilog { path, ends_leftovers, takes_gpus: false, job_map, hooks: Vec::new() };
            let setting = Setting { key: "Epilog".to_owned(), value: "/own".to_owned(), why: None };
            epilog.check(&[setting]).map(|finding| finding.what)
        };
        assert_eq!(what(false, None), None);
        let only_map = what(false, Some("/map")).unwrap();
        assert!(only_map.contains("job_map") && !only_map.contains("post_job") && !only_map.contains("setsid"));
        let both = what(true, Some("/map")).unwrap();
        assert!(both.contains("job_map") && both.contains("setsid"), "{both}");
    }
}
