//! The result of detection: GPUs, CPUs, memory, cgroups, Slurm and the container's limits.
//!
//! `slurminit detect --json` prints these types; `probe` fills them and `plan` reads them.

mod access;
mod condition;
mod cpu_set;
mod finding;
pub mod gres;
mod identity;
mod mig_minors;
mod observation;
mod pci_address;
mod readings;
pub mod slurm;
mod vendor;

pub use access::{Access, Obstacle};
pub use condition::{ComputeMode, Condition, Ecc, GpuProcess, Pcie, Slowdown};
pub use cpu_set::CpuSet;
pub use finding::{Finding, Kind, Severity};
pub use identity::{Identity, Key, file_kind};
pub use mig_minors::{MIG_MINORS, MigMinors};
pub use observation::{Observation, Observations, Verdict};
pub use pci_address::PciAddress;
pub use readings::{Clocks, InstanceReadings, PcieTraffic, Readings, RemappedRows};
pub use slurm::{Behavior, SlurmInstall, SlurmVersion};
pub use vendor::{Files, GpuType, Source, Traits, Vendor};

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// WSL2's device, which all GPUs share.
pub const WSL_DEVICE: &str = "/dev/dxg";

/// The result of one detection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Inventory {
    /// The kernel's host name, which `SlurmctldHost` must match.
    pub hostname: String,
    /// The container's name in the engine, if the host name is only its ID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_name: Option<String>,
    /// The platform that provides the kernel.
    #[serde(default)]
    pub platform: Platform,
    /// The machine's processors, and the container's limits on them.
    pub cpu: Cpu,
    /// The machine's memory, and the container's limit.
    pub memory: Memory,
    /// The size of the file system of /tmp in MiB; `None` if it is not fixed or cannot be read.
    #[serde(default)]
    pub scratch_mib: Option<u64>,
    /// The cgroup hierarchy as the container sees it.
    pub cgroup: Cgroup,
    /// The installed Slurm.
    pub slurm: SlurmInstall,
    /// Whether the container has a global IPv6 address, and no IPv4 address besides loopback.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ipv6_alone: bool,
    /// Whether root may create PID and mount namespaces with a separate /proc. Docker withholds CAP_SYS_ADMIN by default.
    #[serde(default)]
    pub makes_namespaces: bool,
    /// Whether a process is denied access to the memory of another process of the same user (process_vm_readv(2)).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub refuses_peer_memory: bool,
    /// One entry for each driver that detection found.
    pub drivers: Vec<Driver>,
    /// Whether the usable GPUs' device files can be closed to other users, and are.
    #[serde(default, skip_serializing_if = "DeviceFiles::is_hosts")]
    pub device_files: DeviceFiles,
    /// N of each `/dev/nvidia-caps-imex-channels/channelN` that the container can open. A channel gives access to GPU
    /// memory of other nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub imex_channels: Vec<u32>,
    /// Every GPU that a driver reports, in driver order, NVIDIA first; including GPUs that cannot be opened.
    pub gpus: Vec<Gpu>,
    /// Messages for the operator: missing details, denied devices, a driver that hung.
    pub findings: Vec<Finding>,
}

impl Inventory {
    /// The loopback address, used by a cluster in one container.
    pub fn loopback(&self) -> IpAddr {
        if self.ipv6_alone { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() }
    }

    /// The GPUs that jobs can use.
    pub fn usable_gpus(&self) -> impl Iterator<Item = &Gpu> {
        self.gpus.iter().filter(|gpu| gpu.is_usable())
    }

    /// The GPUs that programs use through CUDA, including GPUs that jobs cannot use.
    pub fn cuda_gpus(&self) -> impl Iterator<Item = &Gpu> {
        self.gpus.iter().filter(|gpu| gpu.vendor.traits().has_cuda)
    }

    /// The driver of the GPUs that programs use through CUDA.
    pub fn cuda_driver(&self) -> Option<&Driver> {
        self.drivers.iter().find(|driver| driver.vendor.traits().has_cuda)
    }
}

/// Whether this container can close the usable GPUs' device files to other users, and whether they are closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceFiles {
    /// No GPU is usable, or at least one file cannot be closed: it is the host's, its vendor's runtime does not skip closed files, or CAP_CHOWN is
    /// missing.
    #[default]
    Hosts,
    /// All files were created for this container, and other users can open at least one.
    Open,
    /// All files were created for this container, and none is open to other users.
    Closed,
}

impl DeviceFiles {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    fn is_hosts(&self) -> bool {
        *self == Self::Hosts
    }
}

/// The platform that provides the kernel. It limits which GPUs a container can use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Platform {
    /// Linux on a physical or virtual machine.
    #[default]
    Linux,
    /// Linux inside Windows: NVIDIA GPUs only.
    Wsl2,
    /// Docker Desktop's virtual machine on macOS, or on Windows without WSL2: no GPU.
    DockerDesktop,
}

/// A vendor's driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Driver {
    /// The vendor.
    pub vendor: Vendor,
    /// The interface that responded.
    pub source: Source,
    /// The driver's version, such as `535.154.05`.
    pub version: Option<String>,
    /// The highest CUDA version that the driver supports, such as `12.2`; NVIDIA only.
    pub cuda_version: Option<String>,
}

/// A GPU that a driver reports. A value is `None` if the driver does not report it, unless its comment states another meaning.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// The vendor.
    pub vendor: Vendor,
    /// The position in the driver's own order, per vendor, from 0.
    pub index: u32,
    /// N of `/dev/nvidiaN` or `/dev/dri/renderDN`; not always the index.
    pub minor: Option<u32>,
    /// The device file in gres.conf.
    pub device_file: Option<PathBuf>,
    /// The driver's unique name, such as `GPU-1c1d...`.
    pub uuid: Option<String>,
    /// The driver's model name, unfiltered: `NVIDIA H200`. Untrusted input until `plan` turns it into a GRES type.
    pub model: Option<String>,
    /// The PCI address.
    pub pci_address: Option<PciAddress>,
    /// Memory in MiB: the GPU's own, or its share of the machine's memory.
    pub memory_mib: Option<u64>,
    /// Whether the GPU uses the machine's memory, which the CPUs use as well.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shares_memory: bool,
    /// The NUMA node of the GPU's memory, if the kernel counts this memory as the machine's. Usually `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_node: Option<u32>,
    /// Whether the GPU is integrated into a processor and uses memory borrowed from the machine.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub integrated: bool,
    /// Compute capability (`9.0`) or AMD's name for the instruction set (`gfx90a`).
    pub compute: Option<String>,
    /// The logical CPUs near the GPU; `None` if unknown.
    pub cpus: Option<CpuSet>,
    /// The NUMA node near the GPU; `None` if the machine reports -1.
    pub numa_node: Option<u32>,
    /// Active NVLinks to each peer GPU, by the peer's `index`. Links to an NVSwitch are not counted.
    pub links: BTreeMap<u32, u32>,
    /// The MIG instances; `None` if MIG mode is off or unknown. In MIG mode jobs can use only the instances.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<Vec<MigInstance>>,
    /// The NVLink domain that the GPU shares with GPUs of other nodes: cluster UUID and clique (GB200). `None` if there is no domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvlink_domain: Option<String>,
    /// The current condition, if it was requested and the driver reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<Condition>,
    /// Whether the GPU is usable in this container.
    pub access: Access,
}

impl Gpu {
    /// Whether jobs can use the GPU or one of its instances.
    pub fn is_usable(&self) -> bool {
        let of_instance = |instance: &MigInstance| instance.access == Access::Usable;
        self.access == Access::Usable && self.mig.as_ref().is_none_or(|mig| mig.iter().any(of_instance))
    }
}

/// A compute instance of an NVIDIA GPU in MIG (Multi-Instance GPU) mode, with dedicated multiprocessors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigInstance {
    /// NVIDIA's name for the size of the instance: `1g.18gb`, `1c.3g.71gb`, `1g.18gb+me`.
    pub profile: Option<String>,
    /// The name that CUDA uses: `MIG-fa4e...`.
    pub uuid: Option<String>,
    /// The driver's ID of the GPU instance.
    pub gpu_instance: Option<u32>,
    /// The driver's ID of the compute instance, within the GPU instance.
    pub compute_instance: Option<u32>,
    /// Memory in MiB; compute instances of one GPU instance share it.
    pub memory_mib: Option<u64>,
    /// The files that a job must open: the GPU's own and two in `/dev/nvidia-caps`.
    pub device_files: Vec<PathBuf>,
    /// Whether this container may open all device files of the instance.
    pub access: Access,
}

/// The machine's processors, and the container's limits on them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    /// The logical CPUs that the container's cpuset allows.
    pub allowed: CpuSet,
    /// The cgroup's CPU quota in CPUs (`--cpus 1.5` is 1.5); `None` means unlimited.
    pub quota: Option<f64>,
    /// The whole machine: a list of sockets, each a list of cores, each the logical CPUs of that core. Slurm's abstract
    /// core index is the position in the flattened list. Empty if sysfs does not have the data.
    pub sockets: Vec<Vec<CpuSet>>,
    /// Whether the kernel refuses to bind another user's process to CPUs. Docker withholds CAP_SYS_NICE by default.
    #[serde(default)]
    pub binding_denied: bool,
}

impl Cpu {
    /// Whether the quota allows fewer CPUs than programs see.
    #[expect(clippy::cast_precision_loss, reason = "a machine has few CPUs")]
    pub fn has_hidden_quota(&self) -> bool {
        self.quota.is_some_and(|quota| quota < self.allowed.len() as f64)
    }
}

/// The machine's memory, and the container's limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// The machine's memory in MiB, without GPU memory.
    pub total_mib: u64,
    /// GPU memory that the kernel counts as the machine's, in MiB.
    #[serde(default)]
    pub gpu_mib: u64,
    /// The container's limit in MiB; `None` means unlimited.
    pub limit_mib: Option<u64>,
}

impl Memory {
    /// Whether the container's limit is below the machine's memory.
    pub fn is_limited(&self) -> bool {
        self.limit_mib.is_some_and(|limit| limit < self.total_mib)
    }

    /// The memory that the container can actually use, in MiB.
    pub fn usable_mib(&self) -> u64 {
        self.limit_mib.map_or(self.total_mib, |limit| limit.min(self.total_mib))
    }
}

/// The cgroup hierarchy, as the container sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cgroup {
    /// The cgroup version that is mounted.
    pub version: CgroupVersion,
    /// Whether this container may create cgroups in the hierarchy.
    pub writable: bool,
    /// The available controllers.
    pub controllers: Vec<String>,
    /// v2: whether the machine's whole tree is mounted (`docker run --cgroupns host`) instead of the container's part.
    #[serde(default)]
    pub whole_machine: bool,
    /// v2: whether the hierarchy contains processes that this container's PID namespace does not show.
    #[serde(default)]
    pub foreign_processes: bool,
    /// v2: whether the kernel refuses device rules, which need a BPF program and the capability to load it.
    #[serde(default)]
    pub device_rules_denied: bool,
}

/// The cgroup version mounted at `/sys/fs/cgroup`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CgroupVersion {
    /// Nothing is mounted.
    #[default]
    None,
    /// One hierarchy per controller (also the hybrid layout).
    V1,
    /// The unified hierarchy.
    V2,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignores_memory_limit_above_machine_total() {
        let memory = Memory { total_mib: 1000, limit_mib: Some(8_796_093_022_207), ..Memory::default() };
        assert_eq!(memory.usable_mib(), 1000);
    }

    #[test]
    fn quota_below_the_visible_cpus_is_hidden() {
        let is_hidden = |quota| Cpu { allowed: (0..4).collect(), quota, ..Cpu::default() }.has_hidden_quota();
        assert_eq!([None, Some(3.5), Some(4.0), Some(4.5)].map(is_hidden), [false, true, false, false]);
    }
}
