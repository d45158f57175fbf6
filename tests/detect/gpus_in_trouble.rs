//! Lost GPUs, old drivers, slow initialization, duplicate UUIDs, GPU memory as NUMA nodes, and FIFOs in place of files.

use std::fs;

use fake_nvml::profile;
use model::inventory::{Access, Finding, Inventory, Obstacle, Source};

use super::{Machine, TIMEOUT, fake_nvml, succeeded};

/// Any single NVML call can report the loss while all others succeed.
#[test]
fn gpu_reported_lost_by_one_call_is_lost() {
    for at in
        ["handle", "uuid", "name", "pci", "memory", "compute", "affinity", "numa", "minor", "link-state", "mig-mode"]
    {
        for kind in ["gpu-is-lost", "reset-required"] {
            let toml =
                format!("[[gpu]]\nlinks = {{ '1' = 2 }}\n[[gpu]]\n[[fault]]\nat = '{at}'\ngpu = 0\nkind = '{kind}'");
            let inventory = Machine::new(Some(&toml)).with_devices(&[0, 1]).detect();
            assert_eq!(inventory.gpus[0].access.obstacle(), Some(Obstacle::Lost), "{at} {kind}");
            assert_eq!(inventory.gpus[1].access, Access::Usable, "{at} {kind}");
            let lost = |it: &&Finding| it.what.contains("nvidia GPU 0 (NVML reports") && it.fix.contains("grep -i xid");
            assert_eq!(inventory.findings.iter().filter(lost).count(), 1, "{at} {kind}: {:?}", inventory.findings);
        }
    }
}

/// The condition calls come last and can be the first to report the loss.
#[test]
fn gpu_reported_lost_by_condition_call_is_lost() {
    for at in ["processes", "clocks", "ecc", "persistence"] {
        let toml = format!("gpus = 2\n[[fault]]\nat = '{at}'\ngpu = 1\nkind = 'gpu-is-lost'");
        let machine = Machine::new(Some(&toml)).with_devices(&[0, 1]);
        let inventory = machine.detect();
        assert_eq!(inventory.gpus[1].access.obstacle(), Some(Obstacle::Lost), "{at}");
        // No `ok` line covers the lost GPU.
        let text = succeeded(machine.command().output().unwrap());
        let ok_lines = text.lines().filter(|line| line.starts_with("ok "));
        let covering: Vec<&str> = ok_lines.filter(|line| line.contains("GPU 1") || line.contains(" more)")).collect();
        assert!(covering.is_empty(), "{at}: {covering:?}");
    }
}

/// Drivers before 510 have only the first version of the call. The test uses a copy of the library in which the second version is renamed.
#[test]
fn old_driver_reports_memory() {
    let machine = Machine::new(Some("[[gpu]]\nmemory_mib = 16384\ncondition = { used_mib = 5 }\n")).with_devices(&[0]);
    let library = profile::without(fs::read(fake_nvml()).unwrap(), &["nvmlDeviceGetMemoryInfo_v2"]);
    fs::write(machine.path("libnvidia-ml.so.1"), library).unwrap();
    let mut command = machine.command();
    command.env("SLURMINIT_NVML_LIBRARY", machine.path("libnvidia-ml.so.1")).arg("--json");
    let inventory: Inventory = serde_json::from_str(&succeeded(command.output().unwrap())).unwrap();
    assert_eq!((inventory.drivers[0].source, inventory.gpus[0].memory_mib), (Source::Nvml, Some(16_384)));
    let condition = inventory.gpus[0].condition.as_ref().unwrap();
    assert_eq!(condition.memory_mib, Some((5, 16_384)));
}

/// Without persistence mode the driver initializes each GPU at its first use.
#[test]
fn waits_for_slow_initialization_while_gpus_respond() {
    let detect = |toml: &str| {
        let machine = Machine::new(Some(toml)).with_devices(&[0, 1, 2, 3]);
        let output = machine.command().args(["--json", "--timeout", "3"]).output().unwrap();
        let inventory: Inventory = serde_json::from_slice(&output.stdout).unwrap();
        (inventory, String::from_utf8(output.stderr).unwrap())
    };
    let slow = |init_ms: u32| format!("[[gpu]]\ninit_ms = {init_ms}\n");
    // Each GPU stays within the timeout; the total exceeds it.
    let (inventory, stderr) = detect(&slow(900).repeat(4));
    assert_eq!(inventory.usable_gpus().count(), 4, "{stderr}");
    assert!(stderr.contains("3 of 4 NVIDIA GPUs initialized; waiting for GPU 3"), "{stderr}");
    // GPU 2 exceeds the timeout; the GPUs that responded before are reported in full.
    let (inventory, stderr) = detect(&[slow(100), slow(100), slow(60_000), slow(100)].concat());
    let obstacles: Vec<_> = inventory.gpus.iter().map(|gpu| gpu.access.obstacle()).collect();
    assert_eq!(obstacles, [None, None, Some(Obstacle::Starting), Some(Obstacle::Starting)], "{stderr}");
    assert_eq!((inventory.gpus[1].memory_mib, inventory.drivers[0].source), (Some(143_771), Source::Nvml));
    assert!(stderr.contains("not waiting for GPU 2, GPU 3"), "{stderr}");
    assert!(inventory.findings.iter().any(|it| it.cause.contains("persistence mode")), "{:?}", inventory.findings);
}

#[test]
fn duplicate_uuid_belongs_to_one_gpu() {
    let inventory =
        Machine::new(Some("[[gpu]]\nuuid = 'GPU-1'\n[[gpu]]\nuuid = 'GPU-1'\n")).with_devices(&[0, 1]).detect();
    assert_eq!(inventory.gpus[1].access.obstacle(), Some(Obstacle::SharedName));
    assert!(inventory.findings[0].what.contains("GPU-1 is already the UUID of GPU 0"), "{:?}", inventory.findings);
}

/// The memory of a V100 in a POWER9, or of a GH200, is a NUMA node without CPUs. So is CXL memory, which belongs to no GPU.
#[test]
fn gpu_memory_is_excluded_from_machine_memory() {
    let tree = |machine: Machine| {
        machine
            .with_file("proc/meminfo", "MemTotal:       100663296 kB\n")
            .with_file("sys/devices/system/node/node0/cpulist", "0-3\n")
            .with_file("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:       67108864 kB\n")
            .with_file("sys/devices/system/node/node1/cpulist", "\n")
            .with_file("sys/devices/system/node/node1/meminfo", "Node 1 MemTotal:       16777216 kB\n")
            .with_file("sys/devices/system/node/node2/cpulist", "\n")
            .with_file("sys/devices/system/node/node2/meminfo", "Node 2 MemTotal:       16777216 kB\n")
    };
    let information = "proc/driver/nvidia/gpus/0000:10:00.0/information";
    let by_nvml = tree(Machine::new(Some("[[gpu]]\nnuma = 2\n")).with_devices(&[0]));
    let by_proc = tree(Machine::new(None).with_devices(&[0]))
        .with_file(information, "Device Minor: 0\n")
        .with_file("proc/driver/nvidia/gpus/0000:10:00.0/numa_status", "Node: \t\t 2\nStatus: \t online\n");
    let by_pci = tree(Machine::new(None).with_devices(&[0]))
        .with_file(information, "Device Minor: 0\n")
        .with_file("sys/bus/pci/devices/0000:10:00.0/numa_node", "2\n");
    for (machine, gpu_mib) in [(by_nvml, 16_384), (by_proc, 16_384), (by_pci, 16_384)] {
        let inventory = machine.detect();
        assert_eq!((inventory.memory.total_mib, inventory.memory.gpu_mib), (98_304 - gpu_mib, gpu_mib));
        assert_eq!(inventory.gpus[0].memory_node, Some(2));
    }
    let near = tree(Machine::new(Some("[[gpu]]\nnuma = 0\n")).with_devices(&[0])).detect();
    assert_eq!((near.memory.total_mib, near.gpus[0].memory_node), (98_304, None));
}

/// Code outside the sandbox must not block on a file: each may be a FIFO without a writer.
#[test]
fn pipe_in_place_of_file_does_not_block() {
    for file in [
        "proc/meminfo",
        "proc/self/mountinfo",
        "proc/self/cgroup",
        "proc/self/status",
        "proc/sys/kernel/osrelease",
        "usr/share/slurminit/slurm-version",
        "sys/class/drm/renderD128/device/vendor",
        "sys/bus/pci/devices/0000:17:00.0/vendor",
        "sys/devices/system/node/node0/cpulist",
        "sys/devices/system/node/node0/meminfo",
        "sys/devices/system/cpu/online",
        "sys/devices/system/cpu/cpu0/topology/core_cpus_list",
        "sys/fs/cgroup/cgroup.controllers",
        "sys/fs/cgroup/memory/memory.limit_in_bytes",
    ] {
        let machine = Machine::new(None).with_file("dev/dri/renderD128", "");
        let pipe = machine.path(file);
        fs::create_dir_all(pipe.parent().unwrap()).unwrap();
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        // A read in the sandbox has a deadline; one outside would block forever.
        assert_eq!(machine.detect_within(TIMEOUT).gpus, [], "{file}");
    }
}
