//! The script that Slurm runs on the node at a job's end.
//!
//! Where Slurm has a cgroup for each job, nothing can leave it. Without one, what a job leaves behind is found by
//! `slurminit epilog`.

use std::path::PathBuf;

use crate::config::Config;
use crate::inventory::{Finding, Severity};

use super::{CgroupPlan, FileName, Setting};

/// A script that ends what a job has left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Epilog {
    /// Where it is installed.
    pub path: PathBuf,
}

impl Epilog {
    /// Why it is there.
    pub(super) const WHY: &'static str =
        "ends what a job leaves behind, before its GPUs are given to another: no cgroup holds a job's processes here";

    /// `None` where a cgroup holds them.
    pub(super) fn plan(config: &Config, cgroup: &CgroupPlan) -> Option<Self> {
        (cgroup.proctrack != "proctrack/cgroup")
            .then(|| Self { path: config.paths.slurm.join(FileName::Epilog.as_str()) })
    }

    /// What an operator should know who has an Epilog of their own. It may well call ours.
    pub(super) fn check(&self, settings: &[Setting]) -> Option<Finding> {
        let own = settings.iter().find(|setting| setting.key.eq_ignore_ascii_case("Epilog"));
        let used = own.is_some_and(|setting| self.path.to_str() == Some(setting.value.as_str()));
        let path = self.path.display();
        (!used).then(|| Finding {
            severity: Severity::Info,
            what: format!("processes that leave their job by setsid live on after it, unless your Epilog runs {path}"),
            cause: "[slurm.conf] of slurminit.toml sets Epilog".to_owned(),
            repair: format!("let your script run `{path}` first"),
        })
    }
}
