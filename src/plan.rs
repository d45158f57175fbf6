//! Decides what Slurm is told, and why.
//!
//! PURE. [`plan`] turns the operator's wishes and the machine's facts into values that `render` only has to spell.
//! Every decision carries its reason: `render --explain`, the start's log and the files' comments print the same words.

mod cgroups;
mod change;
mod customized;
mod epilog;
mod gpus;
mod login;
mod mismatch;
mod names;
mod node;
mod settings;
mod task_prolog;

pub use cgroups::CgroupPlan;
pub use change::{Change, Text, change, line_of_key};
pub use customized::{Customized, FileName, Origin, UserFile, choose, gpu_files};
pub use epilog::Epilog;
pub use gpus::{AutoDetect, GresLine, GresPlan, select};
pub use mismatch::{Found, Mismatch};
pub use names::{DevicePath, GresType, HostName};
pub use node::{NodePlan, Topology};
pub use settings::{PartitionPlan, Setting};
pub use task_prolog::TaskProlog;

use crate::config::Config;
use crate::exit_code;
use crate::inventory::{Finding, Inventory, Severity};

/// What Slurm is told at this start.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The keys of slurm.conf that concern the whole cluster.
    pub settings: Vec<Setting>,
    /// The NodeName line.
    pub node: NodePlan,
    /// The PartitionName lines.
    pub partitions: Vec<PartitionPlan>,
    /// gres.conf.
    pub gres: GresPlan,
    /// What names a job's devices for CUDA, where Slurm's numbers do not.
    pub task_prolog: Option<TaskProlog>,
    /// What ends the processes that a job leaves behind, where no cgroup does.
    pub epilog: Option<Epilog>,
    /// cgroup.conf, and what in slurm.conf depends on it.
    pub cgroup: CgroupPlan,
    /// Everything that was decided, in the order of the files.
    pub decisions: Vec<Decision>,
    /// What the operator should know.
    pub findings: Vec<Finding>,
    /// One line for a person: `2 NVIDIA H200, 8 CPUs, 14374 MiB`.
    pub summary: String,
}

/// Something that was decided, and the reason.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Decision {
    /// What: `ProctrackType=proctrack/linuxproc`.
    pub what: String,
    /// Why.
    pub why: String,
}

impl Decision {
    pub(crate) fn new(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self { what: what.into(), why: why.into() }
    }
}

/// The cluster must not start like this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The container's exit code, one of [`exit_code`].
    pub exit_code: u8,
    /// What, why, and the repair.
    pub finding: Finding,
}

/// Decides what Slurm is told.
///
/// # Errors
/// A mismatch between the image and the GPUs where `on_mismatch = "fail"`, or a host name that Slurm cannot use.
pub fn plan(config: &Config, inventory: &Inventory) -> Result<Plan, Refusal> {
    let mut findings = Vec::new();
    let inventory = &gpus::select(config, inventory, &mut findings);
    if let Some(mismatch) = mismatch::judge(config, inventory)? {
        findings.push(mismatch.finding);
    }
    let host = HostName::try_from(inventory.hostname.clone()).map_err(no_host_name)?;

    let mut decisions = Vec::new();
    let node = node::plan(config, inventory, &mut decisions, &mut findings);
    let gres = gpus::plan(config, inventory, &node, &mut decisions, &mut findings);
    let node = node.with_gpus(config, inventory, &gres, &host, &mut decisions);
    let cgroup = cgroups::plan(inventory, &node, &mut decisions, &mut findings);
    let task_prolog = TaskProlog::plan(config, &gres, &cgroup);
    let epilog = Epilog::plan(config, &cgroup);
    let scripts = settings::Scripts { task_prolog: task_prolog.as_ref(), epilog: epilog.as_ref() };
    let settings = settings::plan(config, &host, &node, &cgroup, &scripts, inventory, &mut decisions);
    findings.extend(task_prolog.as_ref().and_then(|prolog| prolog.check(&settings)));
    findings.extend(login::check(&settings, inventory));
    findings.extend(epilog.as_ref().and_then(|epilog| epilog.check(&settings)));
    let partitions = settings::partitions(config, &mut decisions);
    let summary = summary(inventory, &node);
    Ok(Plan { settings, node, partitions, gres, task_prolog, epilog, cgroup, decisions, findings, summary })
}

fn no_host_name(fault: String) -> Refusal {
    let finding = Finding {
        severity: Severity::Error,
        what: fault,
        cause: "SlurmctldHost must be this container's host name".to_owned(),
        repair: "start the container with --hostname NAME (letters, digits and -)".to_owned(),
    };
    Refusal { exit_code: exit_code::CONFIG, finding }
}

/// `2 NVIDIA H200, 8 CPUs, 14374 MiB`.
fn summary(inventory: &Inventory, node: &NodePlan) -> String {
    let mut models: Vec<(String, usize)> = Vec::new();
    for name in inventory.usable_gpus().flat_map(gpus::display_names) {
        match models.iter_mut().find(|(known, _)| *known == name) {
            Some((_, count)) => *count += 1,
            None => models.push((name, 1)),
        }
    }
    let mut parts: Vec<String> = models.into_iter().map(|(name, count)| format!("{count} {name}")).collect();
    if parts.is_empty() {
        parts.push("no GPU".to_owned());
    }
    let plural = if node.cpus == 1 { "" } else { "s" };
    parts.push(format!("{} CPU{plural}", node.cpus));
    if let Some(memory) = node.memory_mib {
        parts.push(format!("{memory} MiB"));
    }
    parts.join(", ")
}
