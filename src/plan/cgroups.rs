//! Whether Slurm can use cgroups here, and the alternative.

use std::path::Path;

use config::Config;
use model::inventory::{CgroupVersion, Finding, Inventory, Kind, WSL_DEVICE};

use super::{NodePlan, Reasons};

/// cgroup.conf, and the plugins of slurm.conf that depend on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupPlan {
    /// The lines of cgroup.conf.
    pub lines: Vec<(&'static str, &'static str)>,
    /// The value of ProctrackType in slurm.conf.
    pub proctrack: &'static str,
    /// The value of TaskPlugin in slurm.conf.
    pub task: &'static str,
    /// The reason for the lines and for ProctrackType.
    pub why: String,
}

impl CgroupPlan {
    /// Whether Slurm creates a cgroup for each job.
    pub fn is_used(&self) -> bool {
        self.proctrack == "proctrack/cgroup"
    }

    /// Whether a job's cgroup denies access to the GPUs of other jobs.
    pub fn confines_devices(&self) -> bool {
        self.lines.contains(&("ConstrainDevices", "yes"))
    }

    /// Whether both plans set the same plugins in slurm.conf.
    pub(super) fn has_plugins_of(&self, other: &Self) -> bool {
        (self.proctrack, self.task) == (other.proctrack, other.task)
    }
}

/// Plans the cgroups of a node from the inventory of its own container, or from the inventory that is common to the cluster.
pub(super) fn plan(config: &Config, inventory: &Inventory, node: &NodePlan, reasons: &mut Reasons) -> CgroupPlan {
    // Binding tasks needs real CPU numbers, which are known only if the container has the whole machine.
    let whole = node.topology.is_some();
    let affinity = whole && !inventory.cpu.binding_denied;
    let obstacle = obstacle(inventory).map(|obstacle| obstacle.why);
    let unconfined = obstacle.clone().or_else(|| device_obstacle(inventory));
    reasons.findings.extend(unconfined.filter(|_| inventory.usable_gpus().next().is_some()).map(not_confined));
    let plan = match obstacle {
        None => with_cgroups(config, inventory, whole, affinity),
        Some(why) => without_cgroups(affinity, why),
    };
    reasons.decide(format!("ProctrackType={}", plan.proctrack), plan.why.clone());
    let why = match (affinity, plan.task) {
        (false, _) if inventory.cpu.binding_denied => {
            "tasks are not bound to CPUs: without CAP_SYS_NICE, jobs of users other than root would fail"
        }
        (true, _) => "the container has the whole machine, so tasks can be bound to CPUs",
        (false, _) => "tasks are not bound to CPUs: the node's line does not describe the whole machine",
    };
    reasons.decide(format!("TaskPlugin={}", plan.task), why);
    plan
}

/// The controllers that Slurm needs to confine a job to its CPUs and memory. Devices need no controller in cgroup v2.
const NEEDED: [&str; 2] = ["cpuset", "memory"];

/// Why Slurm cannot use cgroups here.
pub(super) struct Obstacle {
    /// The reason.
    pub(super) why: String,
    /// Whether slurmd exits if cgroups are configured anyway.
    pub(super) ends_slurmd: bool,
}

/// Why cgroups cannot be used; `None` if they can.
pub(super) fn obstacle(inventory: &Inventory) -> Option<Obstacle> {
    let cgroup = &inventory.cgroup;
    let fatal = |why: &str| Some(Obstacle { why: why.to_owned(), ends_slurmd: true });
    match cgroup.version {
        CgroupVersion::None => return fatal("no cgroup file system is mounted"),
        // Tried with 24.11.5: without write access slurmd exits. With writable hierarchies the node becomes idle, but
        // then every job fails ("Slurmd could not execve job") and drains it.
        CgroupVersion::V1 => {
            let why = "with cgroup v1 Slurm cannot start jobs inside a container".to_owned();
            return Some(Obstacle { why, ends_slurmd: !cgroup.writable });
        }
        CgroupVersion::V2 => {}
    }
    if !cgroup.writable {
        return fatal("cgroup v2 is not writable in this container");
    }
    // Tried with 24.11.5: slurmd creates the jobs' cgroups outside of the container's, so the container's limits do not apply to jobs.
    if cgroup.whole_machine {
        let why = "the host's cgroup v2 is mounted (--cgroupns host); jobs would be outside of the container's limits"
            .to_owned();
        return Some(Obstacle { why, ends_slurmd: false });
    }
    // slurmd moves every process of the root cgroup into its own cgroup, and exits if one of them has no PID in this container.
    if cgroup.foreign_processes {
        return fatal("the container's cgroup contains processes of another PID namespace, which makes slurmd exit");
    }
    let missing: Vec<&str> =
        NEEDED.into_iter().filter(|name| !cgroup.controllers.iter().any(|own| own == name)).collect();
    if !missing.is_empty() {
        let why = format!("cgroup v2 is writable, but these controllers are missing: {}", missing.join(", "));
        return Some(Obstacle { why, ends_slurmd: false });
    }
    (!inventory.slurm.has_plugin("cgroup_v2"))
        .then(|| Obstacle { why: "this Slurm has no plugin for cgroup v2".to_owned(), ends_slurmd: false })
}

/// Why cgroups cannot restrict a job to its GPUs, even if Slurm uses cgroups; `None` if they can.
fn device_obstacle(inventory: &Inventory) -> Option<String> {
    // Slurm continues without the rules but numbers devices as if they were in force: each job would use the
    // first GPU.
    let denied = inventory
        .cgroup
        .device_rules_denied
        .then(|| "device rules of cgroup v2 require CAP_SYS_ADMIN, or CAP_BPF and CAP_NET_ADMIN, in the host's user namespace".to_owned());
    denied.or_else(|| share_a_device(inventory).then(|| "the GPUs share one device in WSL2".to_owned()))
}

/// A finding for operators whose users do not trust each other.
fn not_confined(cause: String) -> Finding {
    Finding::info(
        Kind::JobsNotHeld,
        "jobs see only their own GPUs by default, but the kernel does not block access to the others",
        cause,
        "no action if the users trust each other; otherwise see docs/security.md",
    )
}

/// Whether `[slurm.conf]` sets `OverMemoryKill`. Together with `ConstrainRAMSpace`, it makes slurmd exit (24.11, `slurmd.c`).
fn has_over_memory_kill(config: &Config) -> bool {
    let params = config.slurm.conf.get("JobAcctGatherParams");
    params.is_some_and(|params| params.as_str().to_ascii_lowercase().contains("overmemorykill"))
}

fn with_cgroups(config: &Config, inventory: &Inventory, whole: bool, affinity: bool) -> CgroupPlan {
    // There is no systemd in the container that could create a scope.
    let mut lines = vec![("CgroupPlugin", "cgroup/v2"), ("IgnoreSystemd", "yes"), ("EnableControllers", "yes")];
    // Slurm numbers a subset of CPUs from 0. It would confine the jobs of every such container to the machine's first
    // CPUs.
    if whole {
        lines.push(("ConstrainCores", "yes"));
    }
    let counts_memory = has_over_memory_kill(config);
    if !counts_memory {
        lines.push(("ConstrainRAMSpace", "yes"));
    }
    let limits = match (whole, counts_memory) {
        (true, false) => "their CPUs and memory",
        (true, true) => "their CPUs (memory: OverMemoryKill of [slurm.conf])",
        (false, false) => "their memory",
        (false, true) => "their cgroups (memory: OverMemoryKill of [slurm.conf])",
    };
    let why = match device_obstacle(inventory) {
        Some(obstacle) => format!(
            "writable cgroup: jobs are restricted to {limits}; {obstacle}, so cgroups do not block access to other jobs' GPUs"
        ),
        None => {
            lines.push(("ConstrainDevices", "yes"));
            format!("writable cgroup: jobs are restricted to {limits}, and to their GPUs")
        }
    };
    CgroupPlan {
        lines,
        proctrack: "proctrack/cgroup",
        task: if affinity { "task/cgroup,task/affinity" } else { "task/cgroup" },
        why,
    }
}

/// Whether several GPUs share a device file, so that they cannot be allowed and denied separately.
fn share_a_device(inventory: &Inventory) -> bool {
    inventory.usable_gpus().filter(|gpu| gpu.device_file.as_deref() == Some(Path::new(WSL_DEVICE))).count() > 1
}

fn without_cgroups(affinity: bool, why: String) -> CgroupPlan {
    let why = format!("{why}; a job's environment selects its GPUs, and no cgroup blocks access to the others");
    CgroupPlan {
        lines: vec![("CgroupPlugin", "disabled")],
        proctrack: "proctrack/linuxproc",
        task: if affinity { "task/affinity" } else { "task/none" },
        why,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slurmd_survives_only_some_obstacles() {
        let ends_slurmd = |change: fn(&mut Inventory)| {
            let mut inventory = Inventory::default();
            let cgroup = &mut inventory.cgroup;
            (cgroup.version, cgroup.writable) = (CgroupVersion::V2, true);
            cgroup.controllers = NEEDED.map(str::to_owned).to_vec();
            inventory.slurm.plugins = vec!["cgroup_v2".to_owned()];
            change(&mut inventory);
            obstacle(&inventory).map(|obstacle| obstacle.ends_slurmd)
        };
        assert_eq!(ends_slurmd(|_| {}), None);
        assert_eq!(ends_slurmd(|inventory| inventory.cgroup.version = CgroupVersion::None), Some(true));
        assert_eq!(ends_slurmd(|inventory| inventory.cgroup.version = CgroupVersion::V1), Some(false));
        assert_eq!(ends_slurmd(|inventory| inventory.cgroup.writable = false), Some(true));
        assert_eq!(ends_slurmd(|inventory| inventory.cgroup.whole_machine = true), Some(false));
        assert_eq!(ends_slurmd(|inventory| inventory.cgroup.foreign_processes = true), Some(true));
        assert_eq!(ends_slurmd(|inventory| drop(inventory.cgroup.controllers.pop())), Some(false));
        assert_eq!(ends_slurmd(|inventory| inventory.slurm.plugins.clear()), Some(false));
        let read_only_v1 = |inventory: &mut Inventory| {
            (inventory.cgroup.version, inventory.cgroup.writable) = (CgroupVersion::V1, false);
        };
        assert_eq!(ends_slurmd(read_only_v1), Some(true));
    }

    #[test]
    fn gpus_are_restricted_unless_they_share_a_device() {
        let gpu = |file: &str| model::inventory::Gpu { device_file: Some(file.into()), ..Default::default() };
        let is_restricted = |gpus: &[model::inventory::Gpu], device_rules_denied| {
            let mut inventory = Inventory { gpus: gpus.to_vec(), ..Inventory::default() };
            inventory.cgroup.device_rules_denied = device_rules_denied;
            device_obstacle(&inventory).is_none()
        };
        let own = [gpu("/dev/nvidia0"), gpu("/dev/nvidia1")];
        assert!(is_restricted(&own, false) && !is_restricted(&own, true));
        assert!(is_restricted(&[gpu(WSL_DEVICE)], false) && !is_restricted(&[gpu(WSL_DEVICE), gpu(WSL_DEVICE)], false));
    }
}
