//! What was found at this start: GPUs, CPUs, memory, cgroup.
//!
//! PURE. The types are the JSON of `slurminit detect --json`; `detect` fills them and `plan` reads them.

mod access;
mod condition;
mod cpu_set;
mod pci_address;

pub use access::{Access, Obstacle};
pub use condition::{ComputeMode, Condition, Ecc, Pcie, Process, Slowdown};
pub use cpu_set::{CpuSet, ParseCpuSetError};
pub use pci_address::{ParsePciAddressError, PciAddress};

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// WSL2's device, the same for all GPUs.
pub const WSL_DEVICE: &str = "/dev/dxg";

/// Everything that one detection found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Inventory {
    /// The kernel's host name, which `SlurmctldHost` must be.
    pub hostname: String,
    /// Whose kernel runs here.
    #[serde(default)]
    pub platform: Platform,
    /// The processors that this container may use.
    pub cpu: Cpu,
    /// The memory that this container may use.
    pub memory: Memory,
    /// The cgroup hierarchy as the container sees it.
    pub cgroup: Cgroup,
    /// The Slurm that is installed beside us.
    pub slurm: SlurmInstall,
    /// Whether root may make PID and mount namespaces here, with a /proc of their own: Docker withholds CAP_SYS_ADMIN.
    #[serde(default)]
    pub makes_namespaces: bool,
    /// One entry for each driver that was looked for and left a trace.
    pub drivers: Vec<Driver>,
    /// Every GPU that a driver counts, in the driver's order, NVIDIA first; also those that cannot be opened.
    pub gpus: Vec<Gpu>,
    /// What the operator should know: lost precision, denied devices, a driver that hung.
    pub findings: Vec<Finding>,
}

impl Inventory {
    /// The GPUs that a job can be given.
    pub fn usable_gpus(&self) -> impl Iterator<Item = &Gpu> {
        self.gpus.iter().filter(|gpu| gpu.is_usable())
    }
}

/// Whose kernel runs here: it decides which GPUs can be in a container at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Platform {
    /// A Linux of its own.
    #[default]
    Linux,
    /// Windows' Linux: NVIDIA's GPUs only.
    Wsl2,
    /// Docker Desktop's virtual machine on macOS, and on Windows without WSL2: no GPU.
    DockerDesktop,
}

/// The maker of a GPU, and so the driver that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Vendor {
    /// NVIDIA: NVML and `/dev/nvidiaN`.
    Nvidia,
    /// AMD: KFD and `/dev/dri/renderDN`.
    Amd,
}

impl Vendor {
    /// The name in `GPU_TYPE`, in GRES types, in logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Nvidia => "nvidia",
            Self::Amd => "amd",
        }
    }
}

impl fmt::Display for Vendor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Where the facts about a vendor's GPUs came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The NVIDIA management library.
    Nvml,
    /// `/proc/driver/nvidia/gpus` and the device files: no links, no memory size, no compute capability.
    NvidiaProc,
    /// A Jetson's device file: no model, no memory size where the container hides the device tree.
    Nvgpu,
    /// The AMD kernel driver's topology in sysfs.
    Kfd,
}

/// A vendor's driver, as far as it answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Driver {
    /// Whose driver it is.
    pub vendor: Vendor,
    /// Which interface answered.
    pub source: Source,
    /// The driver's version, such as `535.154.05`.
    pub version: Option<String>,
    /// The highest CUDA version that the driver supports, such as `12.2`; NVIDIA only.
    pub cuda_version: Option<String>,
}

/// One GPU that a driver counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// Its maker.
    pub vendor: Vendor,
    /// Position in the driver's own order, counted for each vendor from 0.
    pub index: u32,
    /// N of `/dev/nvidiaN` or `/dev/dri/renderDN`; not always the index.
    pub minor: Option<u32>,
    /// The device file that GRES names.
    pub device_file: Option<PathBuf>,
    /// The driver's unique name, such as `GPU-1c1d...`.
    pub uuid: Option<String>,
    /// The driver's model name, unfiltered: `NVIDIA H200`. Hostile input until `plan` makes a GRES type of it.
    pub model: Option<String>,
    /// Where it sits on the PCI bus.
    pub pci_address: Option<PciAddress>,
    /// Memory in MiB: its own, or what it has of the machine's.
    pub memory_mib: Option<u64>,
    /// Whether that is memory of the machine, which its processors use as well.
    #[serde(default, skip_serializing_if = "is_false")]
    pub shares_memory: bool,
    /// The NUMA node that its memory is to the kernel, which counts it as the machine's; mostly it is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_node: Option<u32>,
    /// Whether it is the small GPU of a processor, which works in memory borrowed from the machine.
    #[serde(default, skip_serializing_if = "is_false")]
    pub integrated: bool,
    /// Compute capability (`9.0`) or AMD's ISA name (`gfx90a`).
    pub compute: Option<String>,
    /// The logical CPUs that are near to it; `None` where the machine does not say.
    pub cpus: Option<CpuSet>,
    /// The NUMA node that it hangs on; `None` where the machine says -1.
    pub numa_node: Option<u32>,
    /// Active NVLinks to each peer, by the peer's `index`. Empty where the driver reports none.
    pub links: BTreeMap<u32, u32>,
    /// Its MIG instances. `None` where MIG mode is off; in MIG mode a GPU has nothing to offer but these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<Vec<MigInstance>>,
    /// How it fares at this moment, where that was asked for and the driver tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<Condition>,
    /// Whether this container may open it.
    pub access: Access,
}

fn is_false(value: &bool) -> bool {
    !value
}

impl Gpu {
    /// Whether a job can be given the GPU, or an instance of it.
    pub fn is_usable(&self) -> bool {
        let of_instance = |instance: &MigInstance| instance.access == Access::Usable;
        self.access == Access::Usable && self.mig.as_ref().is_none_or(|mig| mig.iter().any(of_instance))
    }
}

/// A part of an NVIDIA GPU with memory and processors of its own (Multi-Instance GPU): one compute instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigInstance {
    /// Its size as NVIDIA names it: `1g.18gb`, `1c.3g.71gb`, `1g.18gb+me`.
    pub profile: Option<String>,
    /// The name by which CUDA finds it: `MIG-fa4e...`.
    pub uuid: Option<String>,
    /// The driver's number of its GPU instance.
    pub gpu_instance: Option<u32>,
    /// The driver's number of its compute instance, within the GPU instance.
    pub compute_instance: Option<u32>,
    /// Memory in MiB; compute instances of one GPU instance share it.
    pub memory_mib: Option<u64>,
    /// What a job must open: the GPU's own file and the two of `/dev/nvidia-caps`.
    pub device_files: Vec<PathBuf>,
    /// Whether this container may open all of them.
    pub access: Access,
}

/// The processors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    /// The logical CPUs that the container's cpuset allows.
    pub allowed: CpuSet,
    /// The cgroup's CPU time limit in whole CPUs (`--cpus 1.5` is 1.5); `None` is unlimited.
    pub quota: Option<f64>,
    /// The whole machine, sockets first, each a list of cores, each the logical CPUs of that core. Slurm's abstract
    /// core index is the position in this list, flattened. Empty where sysfs does not tell.
    pub sockets: Vec<Vec<CpuSet>>,
    /// Whether the kernel refuses to bind another user's process to CPUs: Docker withholds CAP_SYS_NICE.
    #[serde(default)]
    pub binding_denied: bool,
}

/// The memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// What the machine has, in MiB, without the memory of its GPUs.
    pub total_mib: u64,
    /// The memory of GPUs that the kernel counts as the machine's, in MiB.
    #[serde(default)]
    pub gpu_mib: u64,
    /// The container's own limit in MiB; `None` is unlimited.
    pub limit_mib: Option<u64>,
}

impl Memory {
    /// What the container can really use, in MiB.
    pub fn usable_mib(&self) -> u64 {
        self.limit_mib.map_or(self.total_mib, |limit| limit.min(self.total_mib))
    }
}

/// The cgroup hierarchy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cgroup {
    /// Which of the kernel's two interfaces is mounted.
    pub version: CgroupVersion,
    /// Whether this container may make groups in it.
    pub writable: bool,
    /// The controllers that can be used there.
    pub controllers: Vec<String>,
    /// v2: whether the machine's whole tree is mounted (`docker run --cgroupns host`), and not the container's part of it.
    #[serde(default)]
    pub whole_machine: bool,
    /// v2: whether processes are in it that this container's PID namespace does not show.
    #[serde(default)]
    pub foreign_processes: bool,
    /// v2: whether the kernel refuses to hold a group to devices, which takes a BPF program and the right to load it.
    #[serde(default)]
    pub device_rules_denied: bool,
}

/// Which cgroup interface is mounted at `/sys/fs/cgroup`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CgroupVersion {
    /// Nothing is mounted.
    #[default]
    None,
    /// One hierarchy for each controller (also the hybrid layout).
    V1,
    /// The unified hierarchy.
    V2,
}

/// The Slurm that is installed in this image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlurmInstall {
    /// Its version; `None` where neither the image's note nor `slurmd -V` tells.
    pub version: Option<SlurmVersion>,
    /// The plugins in its plugin directory that decide what we may write, such as `gpu_nvml` or `cgroup_v2`.
    pub plugins: Vec<String>,
}

impl SlurmInstall {
    /// Whether the plugin `name` (without `.so`) is installed.
    pub fn has_plugin(&self, name: &str) -> bool {
        self.plugins.iter().any(|plugin| plugin == name)
    }
}

/// A Slurm release, year and month: `24.11`. The patch level never changes a configuration file's meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SlurmVersion {
    /// Two-digit year.
    pub year: u16,
    /// Month.
    pub month: u16,
}

impl fmt::Display for SlurmVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}.{:02}", self.year, self.month)
    }
}

/// Something that the operator should know, always with a cause and a repair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What was seen.
    pub what: String,
    /// The likely cause.
    pub cause: String,
    /// What to type or change.
    pub repair: String,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Good to know.
    Info,
    /// The cluster runs, with less than was expected.
    Warning,
    /// Something that was asked for does not work.
    Error,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memory_limit_above_the_machine_is_no_limit() {
        let memory = Memory { total_mib: 1000, limit_mib: Some(8_796_093_022_207), ..Memory::default() };
        assert_eq!(memory.usable_mib(), 1000);
    }
}
