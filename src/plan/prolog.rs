//! The script that Slurm runs on a node before a job's first process there.
//!
//! If needed, it gives the job's user access to the job's GPUs, lets the job resolve the names of its nodes (in a cluster of several
//! containers), updates the GPU-to-job map, and runs the operator's commands.

use std::path::PathBuf;

use config::{Config, JobHook};
use model::inventory::{DeviceFiles, Finding, Inventory, Kind};

use super::{CgroupPlan, FileName, Setting};

/// A script that prepares a node for a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prolog {
    /// The path of the installed prolog.
    pub path: PathBuf,
    /// Whether only the job's user gets access to the device files of the job's GPUs, until the Epilog.
    pub gives_gpus: bool,
    /// Whether the script makes the names of a job's nodes resolvable, because a job can have several nodes.
    pub names_nodes: bool,
    /// The directory of the GPU-to-job map for exporters on the host.
    pub job_map: Option<PathBuf>,
    /// The operator's commands.
    pub hooks: Vec<JobHook>,
}

impl Prolog {
    /// Plans the script; `None` if no action is needed.
    pub(super) fn plan(config: &Config, inventory: &Inventory, cgroup: &CgroupPlan) -> Option<Self> {
        let may_give = match inventory.device_files {
            // Several simulated nodes share the same device file.
            _ if config.simulated().is_some() => false,
            DeviceFiles::Hosts => false,
            DeviceFiles::Open => config.isolates_gpus(),
            // Without the script, only root and the owner can open closed files.
            DeviceFiles::Closed => true,
        };
        let gives_gpus = may_give && !cgroup.confines_devices() && config.gpu.sharing().is_none();
        let names_nodes = config.shares_a_cluster();
        let path = config.paths.slurm.join(FileName::Prolog.as_str());
        let hooks = config.hooks.pre_job.clone();
        let job_map = config.metrics.job_map.clone();
        let is_needed = gives_gpus || names_nodes || job_map.is_some() || !hooks.is_empty();
        is_needed.then_some(Self { path, gives_gpus, names_nodes, job_map, hooks })
    }

    /// The reason for the script. In a cluster of several containers it is the same on all nodes.
    pub(super) const fn why(&self) -> &'static str {
        if self.names_nodes {
            "prepares a node for a job: GPU device files, and node names (PyTorch's MASTER_ADDR)"
        } else if self.gives_gpus {
            "restricts a job's GPU device files to the job's user (no cgroup restricts jobs to their GPUs here)"
        } else if self.job_map.is_some() {
            "maps GPUs to jobs for exporters on the host (`[metrics] job_map`)"
        } else {
            "runs [[hooks.pre_job]]"
        }
    }

    /// Reports an operator's own Prolog that replaces slurminit's.
    pub(super) fn check(&self, settings: &[Setting]) -> Option<Finding> {
        let used = Setting::is_path(settings, "Prolog", &self.path);
        (!used).then(|| self.not_used())
    }

    fn not_used(&self) -> Finding {
        let path = self.path.display();
        let lost = [
            (self.gives_gpus, "GPU device files remain open to all users, or closed to jobs"),
            (self.names_nodes, "jobs may fail to resolve the names of their nodes"),
            (self.job_map.is_some(), "`[metrics] job_map` has no effect"),
            (!self.hooks.is_empty(), "[[hooks.pre_job]] has no effect"),
        ];
        let lost: Vec<&str> = lost.into_iter().filter_map(|(is_lost, what)| is_lost.then_some(what)).collect();
        let what = format!(
            "Slurm does not run {path} before a job; consequences, unless your Prolog runs it: {}",
            lost.join("; ")
        );
        // A start restricts the GPUs' device files only if Prolog is this script itself.
        let fix = match self.gives_gpus {
            true => "remove Prolog from [slurm.conf]".to_owned(),
            false => format!("remove Prolog from [slurm.conf], or call `{path}` first in your script"),
        };
        Finding::info(Kind::Settings, what, "[slurm.conf] of slurminit.toml sets Prolog", fix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::inventory::Gpu;

    fn gives_gpus(toml: &str, device_files: DeviceFiles, lines: Vec<(&'static str, &'static str)>) -> bool {
        let config = Config::parse(toml, std::path::Path::new("t")).unwrap();
        let inventory = Inventory { device_files, ..Inventory::default() };
        let cgroup = CgroupPlan { lines, proctrack: "proctrack/cgroup", task: "task/none", why: String::new() };
        Prolog::plan(&config, &inventory, &cgroup).is_some_and(|prolog| prolog.gives_gpus)
    }

    #[test]
    fn gives_gpus_to_job_users_if_files_are_container_owned() {
        let user = |uid: u32| format!("[[user]]\nname = \"u{uid}\"\nuid = {uid}\n");
        let two = format!("{}{}", user(1001), user(1002));
        assert!(gives_gpus(&two, DeviceFiles::Open, Vec::new()));
        assert!(gives_gpus("[gpu]\nisolate = true\n", DeviceFiles::Open, Vec::new()));
        // Other users cannot open the files.
        assert!(gives_gpus("", DeviceFiles::Closed, Vec::new()));
        assert!(!gives_gpus(&user(1001), DeviceFiles::Open, Vec::new()));
        assert!(!gives_gpus(&format!("[gpu]\nisolate = false\n{two}"), DeviceFiles::Open, Vec::new()));
        assert!(!gives_gpus(&format!("[gpu]\nshards = 2\n{two}"), DeviceFiles::Open, Vec::new()));
        assert!(!gives_gpus(&two, DeviceFiles::Hosts, Vec::new()));
        assert!(!gives_gpus(&two, DeviceFiles::Open, vec![("ConstrainDevices", "yes")]));
    }

    #[test]
    fn access_by_the_script_replaces_only_the_finding_that_gpus_are_not_restricted() {
        let config =
            Config::parse("[gpu]\nisolate = true\nexcept = ['GPU-of-another-machine']\n", std::path::Path::new("t"))
                .unwrap();
        let kinds = |device_files| {
            let gpus = vec![Gpu { device_file: Some("/dev/nvidia0".into()), ..Gpu::default() }];
            let inventory = Inventory { device_files, gpus, hostname: "box".to_owned(), ..Inventory::default() };
            let findings = crate::plan(&config, &inventory).unwrap().findings;
            findings.into_iter().map(|finding| finding.kind).collect::<Vec<_>>()
        };
        let (mut without_script, with_script) = (kinds(DeviceFiles::Hosts), kinds(DeviceFiles::Open));
        assert!(without_script.contains(&Kind::JobsNotHeld) && without_script.len() > 1, "{without_script:?}");
        without_script.retain(|kind| *kind != Kind::JobsNotHeld);
        assert_eq!(with_script, without_script);
    }

    #[test]
    fn own_prolog_of_the_operator_names_what_is_lost() {
        let what = |gives_gpus, names_nodes, value: &str| {
            let (path, job_map) = ("/etc/slurm/prolog".into(), Some("/map".into()));
            let prolog = Prolog { path, gives_gpus, names_nodes, job_map, hooks: Vec::new() };
            let setting = Setting { key: "Prolog".to_owned(), value: value.to_owned(), why: None };
            prolog.check(&[setting]).map(|finding| finding.what)
        };
        let all = what(true, true, "/own").unwrap();
        for lost in ["open to all users", "names of their nodes", "job_map"] {
            assert!(all.contains(lost), "{all}");
        }
        let only_map = what(false, false, "/own").unwrap();
        assert!(only_map.contains("job_map") && !only_map.contains("hooks.pre_job"), "{only_map}");
        assert_eq!(what(true, true, "/etc/slurm/prolog"), None);
    }
}
