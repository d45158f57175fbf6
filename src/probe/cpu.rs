//! The processors: which of them this container may use, how much CPU time it has, and their topology.

mod topology;

use std::path::Path;

use nix::sched::sched_getaffinity;
use nix::unistd::Pid;

use super::capabilities;
use super::cgroup::Hierarchies;
use super::regular;
use model::inventory::{CgroupVersion, Cpu, CpuSet};
use sys::proc::parse::field;

/// The CPUs that the container may use, and the topology of the whole machine.
pub fn detect(root: &Path) -> Cpu {
    let hierarchies = Hierarchies::read(root);
    let counted = counted_by_slurm(root);
    // The kernel enforces the affinity, so it comes first. A limit without a CPU in common with those before it is ignored.
    let limits = [affinity(root), cpuset(&hierarchies), counted.clone()].into_iter().flatten();
    let narrower = |one: CpuSet, other: CpuSet| {
        let both = intersection(&one, &other);
        if both.is_empty() { one } else { both }
    };
    let allowed = limits.filter(|set| !set.is_empty()).reduce(narrower);
    Cpu {
        allowed: allowed.unwrap_or_default(),
        quota: quota(&hierarchies),
        sockets: topology::read(root, &counted.unwrap_or_default()),
        binding_denied: binding_denied(root),
    }
}

/// The online CPUs, without the efficiency cores of Intel's hybrid processors. Slurm 24.11 does not count those, and
/// invalidates a node that claims them. An older Slurm could use more CPUs than this reports.
fn counted_by_slurm(root: &Path) -> Option<CpuSet> {
    let online = read_set(&root.join("sys/devices/system/cpu/online"))?;
    match read_set(&root.join("sys/devices/cpu_core/cpus")).filter(|cpus| !cpus.is_empty()) {
        Some(performance) => Some(intersection(&performance, &online)),
        None => Some(online),
    }
}

/// The CPUs in both sets.
fn intersection(one: &CpuSet, other: &CpuSet) -> CpuSet {
    one.iter().filter(|cpu| other.contains(*cpu)).collect()
}

/// Whether Slurm cannot bind tasks to CPUs. slurmstepd binds a task after it has switched to the task's user. Without CAP_SYS_NICE, the
/// binding fails, and so does the job.
fn binding_denied(root: &Path) -> bool {
    capabilities::has(root, capabilities::SYS_NICE) == Some(false)
}

/// The CPUs in a file in the kernel's list format; `None` if the file is missing or malformed.
fn read_set(path: &Path) -> Option<CpuSet> {
    regular::text(path).ok()?.parse().ok()
}

/// This process's CPU affinity. `/proc/self/status` respects `root` and has no limit of 1024 CPUs, unlike nix's `sched_getaffinity`.
/// gVisor's `/proc/self/status` does not contain `Cpus_allowed_list`.
fn affinity(root: &Path) -> Option<CpuSet> {
    let status = regular::text(&root.join("proc/self/status")).unwrap_or_default();
    let listed = field(&status, "Cpus_allowed_list").and_then(|list| list.parse().ok());
    listed.or_else(|| {
        let mask = (root == Path::new("/")).then(|| sched_getaffinity(Pid::from_raw(0)).ok()).flatten()?;
        let in_mask = |cpu: &usize| mask.is_set(*cpu).unwrap_or_default();
        (0..nix::sched::CpuSet::count()).filter(in_mask).map(|cpu| u32::try_from(cpu).ok()).collect()
    })
}

/// The cpuset of this control group, or of the nearest ancestor that has one: in v2 the file exists only if the
/// controller is enabled, and in v1 the set can be empty.
fn cpuset(hierarchies: &Hierarchies) -> Option<CpuSet> {
    let (version, groups) = hierarchies.groups("cpuset")?;
    let files: &[&str] = match version {
        CgroupVersion::V2 => &["cpuset.cpus.effective"],
        _ => &["cpuset.effective_cpus", "cpuset.cpus"],
    };
    let paths = groups.iter().flat_map(|group| files.iter().map(move |file| group.join(file)));
    paths.filter_map(|path| read_set(&path)).find(|set| !set.is_empty())
}

/// The tightest CPU quota of this group and all visible ancestors, in CPUs.
fn quota(hierarchies: &Hierarchies) -> Option<f64> {
    let (version, groups) = hierarchies.groups("cpu")?;
    let limit = |group: &Path| {
        let text = |file: &str| regular::text(&group.join(file)).unwrap_or_default();
        match version {
            CgroupVersion::V2 => parse_quota(&text("cpu.max")),
            _ => parse_quota(&format!("{} {}", text("cpu.cfs_quota_us"), text("cpu.cfs_period_us"))),
        }
    };
    groups.iter().filter_map(|group| limit(group)).min_by(f64::total_cmp)
}

/// `QUOTA PERIOD` in microseconds; `max` (v2) and -1 (v1) mean no limit.
fn parse_quota(text: &str) -> Option<f64> {
    let mut fields = text.split_whitespace().map(|field| field.parse::<u32>().ok().filter(|value| *value > 0));
    let (quota, period) = (fields.next()??, fields.next()??);
    Some(f64::from(quota) / f64::from(period))
}

#[cfg(test)]
mod tests;
