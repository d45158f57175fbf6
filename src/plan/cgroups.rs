//! Whether Slurm can use cgroups here, and what it does without.

use std::path::Path;

use crate::inventory::{CgroupVersion, Inventory, SlurmVersion, WSL_DEVICE};

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
pub(super) fn plan(inventory: &Inventory, node: &NodePlan, decisions: &mut Vec<Decision>) -> CgroupPlan {
    // Binding tasks to CPUs needs true CPU numbers, which only a whole machine has.
    let affinity = node.topology.is_some() && !inventory.cpu.binding_denied;
    let plan = match obstacle(inventory) {
        None => with_cgroups(inventory, affinity),
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
    let missing: Vec<&str> =
        NEEDED.into_iter().filter(|name| !cgroup.controllers.iter().any(|own| own == name)).collect();
    if !missing.is_empty() {
        return Some(format!("cgroup v2 is writable, but lacks {}", missing.join(", ")));
    }
    (!inventory.slurm.has_plugin("cgroup_v2")).then(|| "this Slurm has no plugin for cgroup v2".to_owned())
}

fn with_cgroups(inventory: &Inventory, affinity: bool) -> CgroupPlan {
    // There is no systemd in the container to ask for a scope.
    let mut lines = vec![("CgroupPlugin", "cgroup/v2"), ("IgnoreSystemd", "yes")];
    if !older_than(inventory, KNOWS_ENABLE_CONTROLLERS) {
        lines.push(("EnableControllers", "yes"));
    }
    lines.extend([("ConstrainCores", "yes"), ("ConstrainRAMSpace", "yes")]);
    let why = if share_a_device(inventory) {
        "the container may write its cgroup: a job is held to its CPUs and its memory; the GPUs share one device in WSL2, so it \
         sees its own through its environment"
    } else {
        lines.push(("ConstrainDevices", "yes"));
        "the container may write its cgroup: a job is held to its CPUs, its memory and its GPUs"
    };
    CgroupPlan {
        lines,
        proctrack: "proctrack/cgroup",
        task: if affinity { "task/cgroup,task/affinity" } else { "task/cgroup" },
        why: why.to_owned(),
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
