//! The machine's sockets and cores, in Slurm's numbering.
//!
//! Slurm's abstract core index is the core's position in hwloc's tree (`xcpuinfo_hwloc_topo_get`, Slurm 24.11). hwloc 2
//! sorts the children of every object by their lowest CPU. Between a package and its cores it has dies, L3 caches and
//! groups for NUMA nodes; Slurm drops the other caches before it loads the tree.

use std::fs;
use std::path::Path;

use super::{intersection, read_set};
use model::inventory::CpuSet;

/// The CPUs of a core and of each object that contains it, largest first.
struct Core {
    package: CpuSet,
    /// The CPUs of the core's die, L3 cache and NUMA node within this package; the whole package for an unknown one.
    intermediate: Vec<CpuSet>,
    threads: CpuSet,
}

impl Core {
    /// Sort key for hwloc's depth-first order: the lowest CPU at each level.
    fn order(&self) -> Vec<Option<u32>> {
        let levels = [&self.package].into_iter().chain(&self.intermediate).chain([&self.threads]);
        levels.map(|set| set.iter().next()).collect()
    }
}

/// The sockets of the `counted` CPUs, each a list of cores; empty if sysfs does not contain the data.
pub(super) fn read(root: &Path, counted: &CpuSet) -> Vec<Vec<CpuSet>> {
    let nodes = numa_nodes(root);
    let mut cores: Vec<Core> = Vec::new();
    for cpu in counted.iter() {
        if cores.iter().any(|core| core.threads.contains(cpu)) {
            continue;
        }
        // A missing core would shift all later indices, so an incomplete layout is not returned.
        let Some(core) = read_core(root, cpu, counted, &nodes) else { return Vec::new() };
        cores.push(core);
    }
    cores.sort_by_key(Core::order);
    let mut sockets: Vec<(CpuSet, Vec<CpuSet>)> = Vec::new();
    for core in cores {
        match sockets.last_mut().filter(|(package, _)| *package == core.package) {
            Some((_, cores)) => cores.push(core.threads),
            None => sockets.push((core.package, vec![core.threads])),
        }
    }
    sockets.into_iter().map(|(_, cores)| cores).collect()
}

/// Reads the core of `cpu`. The newer name of each file comes first (kernel 5.3, admin-guide/cputopology).
fn read_core(root: &Path, cpu: u32, counted: &CpuSet, nodes: &[CpuSet]) -> Option<Core> {
    let directory = root.join(format!("sys/devices/system/cpu/cpu{cpu}"));
    let set = |names: &[&str]| {
        let found = names.iter().find_map(|name| read_set(&directory.join(name)))?;
        Some(intersection(&found, counted)).filter(|set| set.contains(cpu))
    };
    let threads = set(&["topology/core_cpus_list", "topology/thread_siblings_list"])?;
    let package = set(&["topology/package_cpus_list", "topology/core_siblings_list"])?;
    let node = nodes.iter().find(|node| node.contains(cpu)).map(|node| intersection(node, counted));
    let mut intermediate: Vec<CpuSet> =
        [set(&["topology/die_cpus_list"]), set(&["cache/index3/shared_cpu_list"]), node]
            .into_iter()
            .map(|set| set.map_or_else(|| package.clone(), |set| intersection(&set, &package)))
            .collect();
    intermediate.sort_by_key(|set| std::cmp::Reverse(set.len()));
    Some(Core { package, intermediate, threads })
}

/// The CPUs of each NUMA node.
fn numa_nodes(root: &Path) -> Vec<CpuSet> {
    let entries = fs::read_dir(root.join("sys/devices/system/node")).into_iter().flatten().flatten();
    entries.filter_map(|entry| read_set(&entry.path().join("cpulist"))).filter(|set| !set.is_empty()).collect()
}
