//! Whether Slurm can use cgroups here, and what it does without.

use std::path::Path;

use crate::inventory::{CgroupVersion, Finding, Inventory, Severity, SlurmVersion, WSL_DEVICE};

use super::{Decision, NodePlan};

/// cgroup.conf, and the plugins of slurm.conf that depend on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupPlan {
    /// The lines of cgroup.conf.
    pub lines: Vec<(&'static str, &'static str)>,
    /// ProctrackType.
    pub proctrack: &'static str,
    /// TaskPlugin.
    pub task: &'static str,
    /// Why.
    pub why: String,
}

/// The first release that knows `CgroupPlugin=disabled` (Slurm's RELEASE_NOTES of 24.05).
const KNOWS_DISABLED: SlurmVersion = SlurmVersion { year: 24, month: 5 };
/// The first release that knows `EnableControllers` (cgroup.conf(5) of 23.02).
const KNOWS_ENABLE_CONTROLLERS: SlurmVersion = SlurmVersion { year: 23, month: 2 };

/// Decides.
pub(super) fn plan(
    inventory: &Inventory,
    node: &NodePlan,
    decisions: &mut Vec<Decision>,
    findings: &mut Vec<Finding>,
) -> CgroupPlan {
    // Binding tasks to CPUs needs true CPU numbers, which only a whole machine has.
    let whole = node.topology.is_some();
    let affinity = whole && !inventory.cpu.binding_denied;
    let obstacle = obstacle(inventory);
    let unheld = obstacle.clone().or_else(|| device_obstacle(inventory));
    findings.extend(unheld.filter(|_| inventory.usable_gpus().next().is_some()).map(not_held));
    let plan = match obstacle {
        None => with_cgroups(inventory, whole, affinity),
        Some(why) => without_cgroups(inventory, affinity, why),
    };
    decisions.push(Decision::new(format!("ProctrackType={}", plan.proctrack), plan.why.clone()));
    let why = match (affinity, plan.task) {
        (_, "task/none") if affinity => "this Slurm starts without cgroups only with task/none",
        (false, _) if inventory.cpu.binding_denied => {
            "tasks are not bound to CPUs: the container lacks CAP_SYS_NICE, and jobs of other users than root would fail"
        }
        (true, _) => "the container sees the whole machine, so tasks can be bound to CPUs",
        (false, _) => "tasks are not bound to CPUs: the container sees a part of the machine",
    };
    decisions.push(Decision::new(format!("TaskPlugin={}", plan.task), why));
    plan
}

/// Whether a release that is known to be older than `since` runs here. Unknown is taken for new.
fn older_than(inventory: &Inventory, since: SlurmVersion) -> bool {
    inventory.slurm.version.is_some_and(|version| version < since)
}

/// What Slurm needs of cgroup v2 to hold a job to its CPUs and memory; devices need no controller there.
const NEEDED: [&str; 2] = ["cpuset", "memory"];

/// Why cgroups cannot be used; `None` if they can.
fn obstacle(inventory: &Inventory) -> Option<String> {
    let cgroup = &inventory.cgroup;
    match cgroup.version {
        CgroupVersion::None => return Some("no cgroup file system is mounted".to_owned()),
        // Tried with 24.11.5 and the hierarchies mounted writable: the node becomes idle, then every job fails ("Slurmd
        // could not execve job") and drains it.
        CgroupVersion::V1 => return Some("with cgroup v1 Slurm cannot start jobs inside a container".to_owned()),
        CgroupVersion::V2 => {}
    }
    if !cgroup.writable {
        return Some("cgroup v2 is mounted read-only in this container".to_owned());
    }
    // Tried with 22.05.8: slurmd ends, because it makes no directory above its scope; nor does it enable controllers.
    if older_than(inventory, KNOWS_ENABLE_CONTROLLERS) {
        return Some("this Slurm is older than 23.02 and cannot make its groups in a container's cgroup v2".to_owned());
    }
    // Tried with 24.11.5: it puts the jobs beside the container's group, where the container's limits do not count.
    if cgroup.whole_machine {
        return Some(
            "the whole machine's cgroup v2 is mounted (--cgroupns host), and Slurm would put jobs outside of this container's limits"
                .to_owned(),
        );
    }
    // slurmd moves every process of its root into a group of its own, and ends at one that has no number here.
    if cgroup.foreign_processes {
        return Some("processes that this container cannot see are in its cgroup, and slurmd ends there".to_owned());
    }
    let missing: Vec<&str> =
        NEEDED.into_iter().filter(|name| !cgroup.controllers.iter().any(|own| own == name)).collect();
    if !missing.is_empty() {
        return Some(format!("cgroup v2 is writable, but lacks {}", missing.join(", ")));
    }
    (!inventory.slurm.has_plugin("cgroup_v2")).then(|| "this Slurm has no plugin for cgroup v2".to_owned())
}

/// Why the kernel cannot hold a job to its GPUs where Slurm uses cgroups; `None` if it can.
fn device_obstacle(inventory: &Inventory) -> Option<String> {
    // Slurm goes on without the rules, and counts the devices as if they held: each job would be told to use the first.
    let denied = inventory.cgroup.device_rules_denied.then(|| {
        "device rules of cgroup v2 take CAP_SYS_ADMIN, or CAP_BPF and CAP_NET_ADMIN, which this container lacks"
            .to_owned()
    });
    denied.or_else(|| share_a_device(inventory).then(|| "the GPUs share one device in WSL2".to_owned()))
}

/// What an operator should know who lets people in that do not trust each other.
fn not_held(cause: String) -> Finding {
    Finding {
        severity: Severity::Info,
        what: "a job is told which GPUs are its own, but the kernel does not keep it from the others".to_owned(),
        cause,
        repair: "none is needed among people who trust each other; what it takes: docs/security.md".to_owned(),
    }
}

fn with_cgroups(inventory: &Inventory, whole: bool, affinity: bool) -> CgroupPlan {
    // There is no systemd in the container to ask for a scope.
    let mut lines = vec![("CgroupPlugin", "cgroup/v2"), ("IgnoreSystemd", "yes"), ("EnableControllers", "yes")];
    // Slurm numbers the CPUs of a part from 0, and would hold the jobs of every such container to the machine's first ones.
    if whole {
        lines.push(("ConstrainCores", "yes"));
    }
    lines.push(("ConstrainRAMSpace", "yes"));
    let held = if whole { "its CPUs and its memory" } else { "its memory" };
    let why = match device_obstacle(inventory) {
        Some(obstacle) => format!(
            "the container may write its cgroup: a job is held to {held}; {obstacle}, so it sees its own through its environment"
        ),
        None => {
            lines.push(("ConstrainDevices", "yes"));
            format!("the container may write its cgroup: a job is held to {held}, and to its GPUs")
        }
    };
    CgroupPlan {
        lines,
        proctrack: "proctrack/cgroup",
        task: if affinity { "task/cgroup,task/affinity" } else { "task/cgroup" },
        why,
    }
}

/// To allow one and deny the other is impossible then.
fn share_a_device(inventory: &Inventory) -> bool {
    inventory.usable_gpus().filter(|gpu| gpu.device_file.as_deref() == Some(Path::new(WSL_DEVICE))).count() > 1
}

fn without_cgroups(inventory: &Inventory, affinity: bool, why: String) -> CgroupPlan {
    let why = format!("{why}; a job sees its own GPUs through its environment and is not held to them by the kernel");
    if older_than(inventory, KNOWS_DISABLED) {
        // Up to 23.11 `disabled` is unknown; cgroup/v1 with task/none starts even on a read-only or empty /sys/fs/cgroup.
        let lines = vec![("CgroupPlugin", "cgroup/v1")];
        return CgroupPlan { lines, proctrack: "proctrack/linuxproc", task: "task/none", why };
    }
    CgroupPlan {
        lines: vec![("CgroupPlugin", "disabled")],
        proctrack: "proctrack/linuxproc",
        task: if affinity { "task/affinity" } else { "task/none" },
        why,
    }
}
