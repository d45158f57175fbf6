//! The memory of the machine, and how much of it this container may use.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::cgroup::Hierarchies;
use super::regular;
use model::inventory::{CgroupVersion, Gpu, Memory};

/// The state of the memory.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MemoryState {
    /// Free memory in MiB.
    pub free_mib: u64,
    /// The container's memory limit, or the machine's memory if there is no limit, in MiB.
    pub usable_mib: u64,
    /// The share of the last 10 s in which processes waited for memory (PSI), in percent; `None` if unsupported.
    pub pressure: Option<f64>,
}

impl MemoryState {
    /// Free memory in percent.
    pub fn free_percent(&self) -> u64 {
        self.free_mib.saturating_mul(100).checked_div(self.usable_mib).unwrap_or(100)
    }
}

/// Values from this one on mean no limit. cgroup v1 shows "unlimited" as the highest multiple of the page size (4 or 64 KiB) below 2^63.
const V1_UNLIMITED: u64 = i64::MAX as u64 - 65_536;

/// The machine's memory, and the container's limit. `/proc/meminfo` describes the whole machine even in a container, so the limit comes from
/// the cgroups.
pub fn detect(root: &Path) -> Memory {
    let meminfo = regular::text(&root.join("proc/meminfo")).unwrap_or_default();
    let limit = limit_bytes(root).map(|bytes| bytes / (1024 * 1024));
    Memory { total_mib: parse_total_kib(&meminfo).unwrap_or_default() / 1024, gpu_mib: 0, limit_mib: limit }
}

/// The free memory of the container if it has a limit, otherwise of the machine; `None` if it cannot be read. Page cache counts as free.
pub fn sample(root: &Path) -> Option<MemoryState> {
    let (version, groups) = Hierarchies::read(root).groups("memory").unwrap_or_default();
    let pressure = groups.first().and_then(|own| pressure(&regular::text(&own.join("memory.pressure")).ok()?));
    // A pod's container shares the pod's limit with the other containers of the pod.
    let limits = groups.iter().filter_map(|group| free_and_limit(version, group));
    if let Some((free, limit)) = limits.min() {
        return Some(MemoryState { free_mib: free >> 20, usable_mib: limit >> 20, pressure });
    }
    let meminfo = regular::text(&root.join("proc/meminfo")).ok()?;
    let available = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let free = available.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?;
    Some(MemoryState { free_mib: free >> 10, usable_mib: parse_total_kib(&meminfo)? >> 10, pressure })
}

/// The free memory of a group and its limit, in bytes; `None` if it has no limit or its use is unknown. A group's use includes that of its
/// descendants.
fn free_and_limit(version: CgroupVersion, group: &Path) -> Option<(u64, u64)> {
    let limit = group_limit(version, group)?;
    let number = |file: &str| regular::text(&group.join(file)).ok()?.trim().parse::<u64>().ok();
    let (used, cache) = match version {
        CgroupVersion::V2 => ("memory.current", ["inactive_file ", "active_file "]),
        _ => ("memory.usage_in_bytes", ["total_inactive_file ", "total_active_file "]),
    };
    // The kernel also reclaims the active page cache before it kills a process.
    let stat = regular::text(&group.join("memory.stat")).unwrap_or_default();
    let lines = stat.lines().filter_map(|line| cache.iter().find_map(|name| line.strip_prefix(name)));
    let cache: u64 = lines.filter_map(|value| value.trim().parse::<u64>().ok()).fold(0, u64::saturating_add);
    Some((limit.saturating_sub(number(used)?.saturating_sub(cache)), limit))
}

/// The `memory.oom.group` files (cgroup v2) of this group and its visible ancestors that contain 1: when memory runs out, the kernel then
/// kills all processes of the group. The kubelet sets this for containers since 1.28.
pub fn oom_groups(root: &Path) -> Vec<PathBuf> {
    let (_, groups) = Hierarchies::read(root).groups("memory").unwrap_or_default();
    let files = groups.into_iter().map(|group| group.join("memory.oom.group"));
    files.filter(|file| regular::text(file).is_ok_and(|text| text.trim() == "1")).collect()
}

/// The 10 s average in a line such as `some avg10=0.00 avg60=...`.
fn pressure(text: &str) -> Option<f64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split_whitespace().find_map(|word| word.strip_prefix("avg10="))?.parse().ok()
}

/// The memory of a NUMA node, in KiB.
pub(crate) fn node_kib(root: &Path, node: u32) -> Option<u64> {
    let text = regular::text(&root.join(format!("sys/devices/system/node/node{node}/meminfo"))).ok()?;
    parse_total_kib(text.lines().find_map(|line| line.strip_prefix(&format!("Node {node} ")))?)
}

/// Subtracts GPU memory that appears as a NUMA node (POWER9 with V100, GH200, GB200). The kernel counts it as memory of the
/// machine, and a job to which Slurm allocates it would fill the GPU.
pub fn subtract_gpu_memory(root: &Path, gpus: &[Gpu], memory: &mut Memory) {
    let nodes: BTreeSet<u32> = gpus.iter().filter_map(|gpu| gpu.memory_node).collect();
    memory.gpu_mib = nodes.iter().filter_map(|node| node_kib(root, *node)).fold(0, u64::saturating_add) / 1024;
    memory.total_mib = memory.total_mib.saturating_sub(memory.gpu_mib);
}

/// The tightest limit of this group and all visible ancestors, in bytes.
fn limit_bytes(root: &Path) -> Option<u64> {
    let (version, groups) = Hierarchies::read(root).groups("memory")?;
    groups.iter().filter_map(|group| group_limit(version, group)).min()
}

fn group_limit(version: CgroupVersion, group: &Path) -> Option<u64> {
    let text = |file: &str| regular::text(&group.join(file)).unwrap_or_default();
    match version {
        CgroupVersion::V2 => parse_limit(&text("memory.max")),
        // memory.stat includes limits of ancestors outside the mount.
        _ => [parse_limit(&text("memory.limit_in_bytes")), parse_hierarchical_limit(&text("memory.stat"))]
            .into_iter()
            .flatten()
            .min(),
    }
}

/// The number in the line `MemTotal: 32780488 kB`.
fn parse_total_kib(meminfo: &str) -> Option<u64> {
    let value = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    value.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// Parses a limit in bytes; `max` (v2) and v1's huge number mean no limit.
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
    use crate::tests::tree;
    use crate::vendor::nvidia::proc::unknown_gpu;

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal:       32780488 kB\nMemFree:         1000 kB\n");
    const V1: (&str, &str) =
        ("proc/self/mountinfo", "36 31 0:33 /docker/4f2 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");

    fn memory(files: &[(&str, &str)]) -> Memory {
        detect(tree(files).path())
    }

    #[test]
    fn free_memory_is_a_share_of_usable_memory() {
        let percent = |free_mib, usable_mib| MemoryState { free_mib, usable_mib, pressure: None }.free_percent();
        assert_eq!([percent(50, 200), percent(199, 200), percent(0, 200), percent(7, 0)], [25, 99, 0, 100]);
    }

    #[test]
    fn counts_reclaimable_cache_of_container_as_free() {
        let free = |files: &[(&str, &str)]| {
            sample(tree(files).path()).map(|found| (found.free_mib, found.usable_mib, found.pressure))
        };
        let v1 = |file: &'static str, text: &'static str| (file, text);
        assert_eq!(
            free(&[
                ("proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n"),
                V1,
                v1("sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n"),
                v1("sys/fs/cgroup/memory/memory.usage_in_bytes", "805306368\n"),
                v1(
                    "sys/fs/cgroup/memory/memory.stat",
                    "inactive_file 1\ntotal_inactive_file 134217728\ntotal_active_file 134217728\n"
                ),
            ]),
            Some((512, 1024, None))
        );
        assert_eq!(
            free(&[("proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n")]),
            Some((4096, 8192, None))
        );
        assert_eq!(free(&[]), None);
        assert_eq!(pressure("some avg10=1.25 avg60=0.00\nfull avg10=9.00\n"), Some(1.25));
    }

    /// The containers of a pod share its limit.
    #[test]
    fn free_memory_accounts_for_usage_of_whole_pod() {
        let file = |path: &'static str, text: &'static str| (path, text);
        let pod = tree(&[
            file("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n"),
            file("proc/self/cgroup", "0::/pod/own\n"),
            file("sys/fs/cgroup/pod/memory.max", "2147483648\n"),
            file("sys/fs/cgroup/pod/memory.current", "1610612736\n"),
            file("sys/fs/cgroup/pod/own/memory.max", "4294967296\n"),
            file("sys/fs/cgroup/pod/own/memory.current", "104857600\n"),
            file("sys/fs/cgroup/pod/own/memory.pressure", "some avg10=1.25 avg60=0.00\n"),
        ]);
        let sample = sample(pod.path()).unwrap();
        assert_eq!((sample.free_mib, sample.usable_mib, sample.pressure), (512, 2048, Some(1.25)));
    }

    #[test]
    fn excludes_gpu_numa_nodes_from_host_memory() {
        let root = tree(&[
            MEMINFO,
            ("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:       16390244 kB\nNode 0 MemFree: 1 kB\n"),
            ("sys/devices/system/node/node254/meminfo", "\nNode 254 MemTotal:       8388608 kB\n"),
            ("sys/devices/system/node/node255/meminfo", "Node 255 MemTotal:       0 kB\n"),
        ]);
        let gpu = |index, memory_node| Gpu { memory_node, ..unknown_gpu(index) };
        // Two partitions of one GPU share a node. The kernel counts the memory of unused GPUs too.
        let gpus = [gpu(0, Some(254)), gpu(1, Some(254)), gpu(2, Some(255)), gpu(3, None), gpu(4, Some(9))];
        let mut memory = detect(root.path());
        subtract_gpu_memory(root.path(), &gpus, &mut memory);
        assert_eq!(memory, Memory { total_mib: 32_012 - 8192, gpu_mib: 8192, limit_mib: None });
    }

    #[test]
    fn reads_v1_limit_and_treats_maximum_as_unlimited() {
        let limit = |text| memory(&[MEMINFO, V1, ("sys/fs/cgroup/memory/memory.limit_in_bytes", text)]);
        assert_eq!(limit("536870912\n"), Memory { total_mib: 32_012, gpu_mib: 0, limit_mib: Some(512) });
        assert_eq!(limit("1125899906842624\n").limit_mib, Some(1 << 30), "more memory than any machine has");
        assert_eq!(limit("9223372036854771712\n").limit_mib, None);
        assert_eq!(limit("9223372036854710272\n").limit_mib, None, "64 KiB pages");
    }

    #[test]
    fn applies_v1_limit_of_ancestor_outside_mount() {
        let files = [
            MEMINFO,
            V1,
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/memory.stat", "cache 0\nhierarchical_memory_limit 1073741824\n"),
        ];
        assert_eq!(memory(&files).limit_mib, Some(1024));
    }

    #[test]
    fn applies_tightest_v2_limit() {
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
    fn finds_oom_group_of_container_after_slurmd_moved_process() {
        let found = |value: &'static str| {
            let root = tree(&[
                ("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n"),
                ("proc/self/cgroup", "0::/system\n"),
                ("sys/fs/cgroup/memory.oom.group", value),
                ("sys/fs/cgroup/system/memory.oom.group", "0\n"),
            ]);
            oom_groups(root.path())
                .iter()
                .map(|file| file.strip_prefix(root.path()).unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(found("1\n"), [Path::new("sys/fs/cgroup/memory.oom.group")]);
        assert!(found("0\n").is_empty());
    }

    #[test]
    fn missing_files_yield_default() {
        assert_eq!(memory(&[]), Memory::default());
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_input_does_not_panic(text in "(?s).{0,64}") {
            parse_limit(&text);
            parse_hierarchical_limit(&format!("hierarchical_memory_limit {text}"));
            parse_total_kib(&format!("MemTotal:{text}"));
            parse_total_kib(&format!("MemTotal:{text}kB"));
        }
    }
}
