use std::fs;

use super::*;
use crate::tests::tree as machine;

/// Adds CPU `cpu` with its core, package and L3 cache.
fn add_cpu(root: &Path, cpu: u32, core: &str, package: &str, l3: &str) {
    let directory = root.join(format!("sys/devices/system/cpu/cpu{cpu}"));
    fs::create_dir_all(directory.join("topology")).unwrap();
    fs::create_dir_all(directory.join("cache/index3")).unwrap();
    fs::write(directory.join("topology/thread_siblings_list"), format!("{core}\n")).unwrap();
    fs::write(directory.join("topology/core_siblings_list"), format!("{package}\n")).unwrap();
    fs::write(directory.join("cache/index3/shared_cpu_list"), format!("{l3}\n")).unwrap();
}

fn layout(cpu: &Cpu) -> Vec<Vec<String>> {
    cpu.sockets.iter().map(|cores| cores.iter().map(CpuSet::to_string).collect()).collect()
}

const V2_MOUNT: &str = "30 23 0:26 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw,nsdelegate\n";

#[test]
fn groups_threads_by_core_and_omits_offline_cpus() {
    let root = machine(&[("sys/devices/system/cpu/online", "0-6\n")]);
    for cpu in 0..8_u32 {
        let core = format!("{},{}", cpu % 4, cpu % 4 + 4);
        let package = ["0-1,4-5", "2-3,6-7"][usize::from(cpu % 4 > 1)];
        add_cpu(root.path(), cpu, &core, package, package);
    }
    let cpu = detect(root.path());
    assert_eq!(layout(&cpu), [["0,4", "1,5"], ["2,6", "3"]]);
    assert_eq!(cpu.allowed.to_string(), "0-6");
    assert_eq!(cpu.quota, None);
}

/// Some servers interleave CPU numbers across caches. hwloc orders cores by cache.
#[test]
fn orders_cores_by_cache_before_number() {
    let root = machine(&[("sys/devices/system/cpu/online", "0-3\n")]);
    for cpu in 0..4_u32 {
        add_cpu(root.path(), cpu, &cpu.to_string(), "0-3", ["0,2", "1,3"][usize::from(cpu % 2 == 1)]);
    }
    assert_eq!(layout(&detect(root.path())), [["0", "2", "1", "3"]]);
}

#[test]
fn orders_cores_by_numa_node_before_number() {
    let root = machine(&[
        ("sys/devices/system/cpu/online", "0-3\n"),
        ("sys/devices/system/node/node0/cpulist", "0,2\n"),
        ("sys/devices/system/node/node1/cpulist", "1,3\n"),
    ]);
    for cpu in 0..4 {
        add_cpu(root.path(), cpu, &cpu.to_string(), "0-3", "0-3");
    }
    assert_eq!(layout(&detect(root.path())), [["0", "2", "1", "3"]]);
}

/// slurmd 24.11.5 maps `0 8 2 10 1 9 3 11 4 12 6 14 5 13 7 15` on this machine (`slurmd -G -vvvvv` with HWLOC_FSROOT).
#[test]
fn numbers_cores_like_slurmd_with_nodes_caches_and_threads() {
    let root = machine(&[
        ("sys/devices/system/cpu/online", "0-15\n"),
        ("sys/devices/system/node/node0/cpulist", "0-3,8-11\n"),
        ("sys/devices/system/node/node1/cpulist", "4-7,12-15\n"),
    ]);
    for cpu in 0..16_u32 {
        let core = format!("{},{}", cpu % 8, cpu % 8 + 8);
        let l3 = match (cpu % 8, cpu % 2) {
            (0..4, 0) => "0,2,8,10",
            (0..4, _) => "1,3,9,11",
            (_, 0) => "4,6,12,14",
            (_, _) => "5,7,13,15",
        };
        add_cpu(root.path(), cpu, &core, "0-15", l3);
    }
    assert_eq!(layout(&detect(root.path())), [["0,8", "2,10", "1,9", "3,11", "4,12", "6,14", "5,13", "7,15"]]);
}

#[test]
fn omits_efficiency_cores_like_slurm() {
    let root = machine(&[
        ("sys/devices/system/cpu/online", "0-3\n"),
        ("sys/devices/cpu_core/cpus", "0-1\n"),
        ("sys/devices/cpu_atom/cpus", "2-3\n"),
    ]);
    for (cpu, core) in [(0, "0-1"), (1, "0-1"), (2, "2"), (3, "3")] {
        add_cpu(root.path(), cpu, core, "0-3", "0-3");
    }
    let cpu = detect(root.path());
    assert_eq!(layout(&cpu), [["0-1"]]);
    assert_eq!(cpu.allowed.to_string(), "0-1");
}

#[test]
fn incomplete_topology_yields_no_layout() {
    let root = machine(&[("sys/devices/system/cpu/online", "0-1\n")]);
    add_cpu(root.path(), 0, "0", "0-1", "0-1");
    assert_eq!(detect(root.path()).sockets, Vec::<Vec<CpuSet>>::new());
}

#[test]
fn intersects_affinity_with_cpuset_and_uses_tightest_quota() {
    let root = machine(&[
        ("sys/devices/system/cpu/online", "0-15\n"),
        ("proc/self/status", "Name:\tslurminit\nCpus_allowed_list:\t0-7\n"),
        ("proc/self/mountinfo", V2_MOUNT),
        ("proc/self/cgroup", "0::/system/job\n"),
        ("sys/fs/cgroup/cpuset.cpus.effective", "4-11\n"),
        ("sys/fs/cgroup/cpu.max", "300000 100000\n"),
        ("sys/fs/cgroup/system/cpu.max", "150000 100000\n"),
        ("sys/fs/cgroup/system/job/cpu.max", "max 100000\n"),
    ]);
    let cpu = detect(root.path());
    assert_eq!(cpu.allowed.to_string(), "4-7");
    assert_eq!(cpu.quota, Some(1.5));
}

/// Docker with cgroup v1 mounts the container's group itself, so the path from `/proc/self/cgroup` is not below the
/// mount.
#[test]
fn docker_with_cgroup_v1_reads_root_of_mounts() {
    let root = machine(&[
        ("sys/devices/system/cpu/online", "0-3\n"),
        (
            "proc/self/mountinfo",
            "36 31 0:33 /docker/4f2 /sys/fs/cgroup/cpu ro,nosuid - cgroup cgroup rw,cpu\n\
             37 31 0:34 /docker/4f2 /sys/fs/cgroup/cpuset ro,nosuid - cgroup cgroup rw,cpuset\n",
        ),
        ("proc/self/cgroup", "3:cpuset:/docker/4f2\n1:cpu:/docker/4f2\n"),
        ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n"),
        ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
        ("sys/fs/cgroup/cpuset/cpuset.effective_cpus", "1\n"),
        ("sys/fs/cgroup/cpuset/cpuset.cpus", "1-2\n"),
    ]);
    let cpu = detect(root.path());
    assert_eq!(cpu.allowed.to_string(), "1");
    assert_eq!(cpu.quota, Some(0.5));
}

#[test]
fn unlimited_or_invalid_quota_is_none() {
    for text in ["max 100000", "-1 100000", "", "100000", "100000 0", "0 100000", "nan 1"] {
        assert_eq!(parse_quota(text), None, "{text}");
    }
}

/// `sched_getaffinity` already applies the cpuset.
#[test]
fn allowed_cpus_match_sched_getaffinity() {
    let mask = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let want = (0..1024_u32).filter(|cpu| mask.is_set(*cpu as usize).unwrap()).collect::<CpuSet>();
    let cpu = detect(Path::new("/"));
    assert_eq!(cpu.allowed, want);
    assert!(!cpu.sockets.is_empty());
}

proptest::proptest! {
    #[test]
    fn arbitrary_input_does_not_panic(text in "(?s).{0,64}", numbers in "[0-9, \n-]{0,24}") {
        parse_quota(&text);
        parse_quota(&numbers);
        let root = machine(&[
            ("sys/devices/system/cpu/online", &numbers),
            ("sys/devices/system/cpu/cpu0/topology/thread_siblings_list", &numbers),
            ("sys/devices/system/cpu/cpu0/topology/core_siblings_list", &text),
            ("proc/self/status", &format!("Cpus_allowed_list:{text}")),
            ("proc/self/mountinfo", &text),
        ]);
        detect(root.path());
    }
}
