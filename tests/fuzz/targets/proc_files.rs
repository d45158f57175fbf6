//! Files of the kernel and the NVIDIA module in /proc and /sys. NUL separates the texts.
#![no_main]

use std::sync::LazyLock;

use config::Config;
use libfuzzer_sys::fuzz_target;
use probe::vendor::nvidia::proc;
use probe::{cgroup, cpu, device, memory};
use slurminit_fuzz::Root;

const FILES: [&str; 13] = [
    "proc/driver/nvidia/gpus/0000:17:00.0/information",
    "proc/driver/nvidia/gpus/0000:65:00.0/information",
    "proc/driver/nvidia/version",
    "proc/driver/nvidia-caps/mig-minors",
    "proc/meminfo",
    "proc/self/status",
    "proc/self/cgroup",
    "proc/self/mountinfo",
    "sys/devices/system/cpu/online",
    "sys/devices/system/cpu/cpu0/topology/thread_siblings_list",
    "sys/devices/system/cpu/cpu0/topology/physical_package_id",
    "sys/fs/cgroup/cpu.max",
    "sys/fs/cgroup/memory.max",
];

/// Shared by all runs: creating directories takes most of the time.
static ROOT: LazyLock<Root> = LazyLock::new(|| {
    let root = Root::new();
    root.device("dev/nvidia0");
    root.device("dev/nvidia1");
    root
});

fuzz_target!(|bytes: &[u8]| {
    let root = &*ROOT;
    let texts = slurminit_fuzz::texts(bytes);
    for (number, file) in FILES.iter().enumerate() {
        match texts.get(number) {
            Some(text) => root.write(file, text),
            None => root.remove(file),
        }
    }
    let mut inventory = slurminit_fuzz::machine();
    inventory.gpus = proc::probe(root.path(), device::access).gpus;
    inventory.memory = memory::detect(root.path());
    inventory.cpu = cpu::detect(root.path());
    inventory.cgroup = cgroup::detect(root.path());
    let _ = slurminit_fuzz::plan_and_check(&Config::default(), &inventory);
});
