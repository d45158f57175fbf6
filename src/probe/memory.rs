//! The memory of the machine, and how much of it this container may use.

use std::collections::BTreeSet;
use std::path::Path;

use super::cgroup::Hierarchies;
use super::regular;
use model::inventory::{CgroupVersion, Gpu, Memory};

/// cgroup v1 has no value for "unlimited": it shows the highest multiple of the page size (4 or 64 KiB) below 2^63.
const V1_UNLIMITED: u64 = i64::MAX as u64 - 65_536;

/// `/proc/meminfo` describes the whole machine even in a container, so the limit comes from the cgroups.
pub fn detect(root: &Path) -> Memory {
    let meminfo = regular::text(&root.join("proc/meminfo")).unwrap_or_default();
    let limit = limit_bytes(root).map(|bytes| bytes / (1024 * 1024));
    Memory { total_mib: parse_total_kib(&meminfo).unwrap_or_default() / 1024, gpu_mib: 0, limit_mib: limit }
}

/// Subtracts GPU memory that appears as a NUMA node (POWER9 with V100, GH200, GB200). The kernel counts it as memory,
/// and a job that was granted it would fill the GPU.
pub fn leave_out_gpus(root: &Path, gpus: &[Gpu], memory: &mut Memory) {
    let nodes: BTreeSet<u32> = gpus.iter().filter_map(|gpu| gpu.memory_node).collect();
    let kib = |node: &u32| {
        let text = regular::text(&root.join(format!("sys/devices/system/node/node{node}/meminfo"))).ok()?;
        parse_total_kib(text.lines().find_map(|line| line.strip_prefix(&format!("Node {node} ")))?)
    };
    memory.gpu_mib = nodes.iter().filter_map(kib).fold(0, u64::saturating_add) / 1024;
    memory.total_mib = memory.total_mib.saturating_sub(memory.gpu_mib);
}

/// The tightest limit of this group and all visible ancestors.
fn limit_bytes(root: &Path) -> Option<u64> {
    let (version, groups) = Hierarchies::read(root).groups("memory")?;
    let limit = |group: &Path| {
        let text = |file: &str| regular::text(&group.join(file)).unwrap_or_default();
        match version {
            CgroupVersion::V2 => parse_limit(&text("memory.max")),
            // memory.stat includes limits of ancestors outside the mount.
            _ => [parse_limit(&text("memory.limit_in_bytes")), parse_hierarchical_limit(&text("memory.stat"))]
                .into_iter()
                .flatten()
                .min(),
        }
    };
    groups.iter().filter_map(|group| limit(group)).min()
}

/// `MemTotal:       32780488 kB`
fn parse_total_kib(meminfo: &str) -> Option<u64> {
    let value = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    value.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// In bytes; `max` (v2) and v1's huge number mean no limit.
fn parse_limit(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|bytes| *bytes < V1_UNLIMITED)
}

/// The line `hierarchical_memory_limit 536870912` of v1's `memory.stat`.
fn parse_hierarchical_limit(stat: &str) -> Option<u64> {
    parse_limit(stat.lines().find_map(|line| line.strip_prefix("hierarchical_memory_limit "))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvidia::proc::nameless_gpu;
    use crate::tests::tree;

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal:       32780488 kB\nMemFree:         1000 kB\n");
    const V1: (&str, &str) =
        ("proc/self/mountinfo", "36 31 0:33 /docker/4f2 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");

    fn memory(files: &[(&str, &str)]) -> Memory {
        detect(tree(files).path())
    }

    #[test]
    fn the_memory_of_gpus_that_are_numa_nodes_is_not_the_machines() {
        let root = tree(&[
            MEMINFO,
            ("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:       16390244 kB\nNode 0 MemFree: 1 kB\n"),
            ("sys/devices/system/node/node254/meminfo", "\nNode 254 MemTotal:       8388608 kB\n"),
            ("sys/devices/system/node/node255/meminfo", "Node 255 MemTotal:       0 kB\n"),
        ]);
        let gpu = |index, memory_node| Gpu { memory_node, ..nameless_gpu(index) };
        // Two partitions of one GPU share a node. The kernel counts the memory of unused GPUs too.
        let gpus = [gpu(0, Some(254)), gpu(1, Some(254)), gpu(2, Some(255)), gpu(3, None), gpu(4, Some(9))];
        let mut memory = detect(root.path());
        leave_out_gpus(root.path(), &gpus, &mut memory);
        assert_eq!(memory, Memory { total_mib: 32_012 - 8192, gpu_mib: 8192, limit_mib: None });
    }

    #[test]
    fn a_v1_limit_is_read_and_its_unlimited_is_none() {
        let limit = |text| memory(&[MEMINFO, V1, ("sys/fs/cgroup/memory/memory.limit_in_bytes", text)]);
        assert_eq!(limit("536870912\n"), Memory { total_mib: 32_012, gpu_mib: 0, limit_mib: Some(512) });
        assert_eq!(limit("9223372036854771712\n").limit_mib, None);
        assert_eq!(limit("9223372036854710272\n").limit_mib, None, "64 KiB pages");
    }

    #[test]
    fn a_v1_ancestor_outside_of_the_mount_counts() {
        let files = [
            MEMINFO,
            V1,
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/memory.stat", "cache 0\nhierarchical_memory_limit 1073741824\n"),
        ];
        assert_eq!(memory(&files).limit_mib, Some(1024));
    }

    #[test]
    fn the_tightest_v2_limit_counts() {
        let files = [
            MEMINFO,
            ("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n"),
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/memory.max", "2147483648\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
        ];
        assert_eq!(memory(&files).limit_mib, Some(2048));
    }

    #[test]
    fn without_files_nothing_is_known() {
        assert_eq!(memory(&[]), Memory::default());
    }

    proptest::proptest! {
        #[test]
        fn no_content_panics(text in "(?s).{0,64}") {
            parse_limit(&text);
            parse_hierarchical_limit(&format!("hierarchical_memory_limit {text}"));
            parse_total_kib(&format!("MemTotal:{text}"));
            parse_total_kib(&format!("MemTotal:{text}kB"));
        }
    }
}
