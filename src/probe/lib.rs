//! Detects the usable resources of this container: GPUs, CPUs, memory, cgroup, Slurm.
//!
//! All files are read below a root directory. Each vendor's probe runs in its own child process with a deadline,
//! so a driver that hangs, crashes or sends invalid data causes only an error ([`sys::sandbox`]).

pub mod capabilities;
pub mod cgroup;
pub mod cpu;
pub mod device;
pub mod device_files;
pub mod foreign;
mod groups;
mod imex;
pub mod job_map;
mod left_out;
pub mod live;
pub mod memory;
pub mod name_service;
mod namespaces;
pub mod network;
pub mod own_name;
pub mod pci;
mod peer_memory;
mod regular;
pub mod scratch;
pub mod slurm;
pub mod tmpfs;
pub mod vendor;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use faults::controller::LeftOutGpu;
use model::inventory::{Driver, Finding, Gpu, Inventory, Platform, Vendor};
use vendor::Deadlines;
use vendor::nvidia::request::Request;

/// The parameters of a detection.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory in place of `/`: it contains `/proc`, `/sys`, `/dev`, `/etc`, `/tmp`, `/usr` and `/var`.
    pub root: PathBuf,
    /// The time limit from which [`detect`] derives the deadlines of its parts.
    pub deadline: Duration,
    /// The path of NVIDIA's management library; `None`: the usual paths are searched.
    pub nvml_library: Option<PathBuf>,
    /// The container's request to NVIDIA's runtime.
    pub request: Request,
    /// Whether to read the condition of NVIDIA's GPUs, which is too slow for a start.
    pub conditions: bool,
    /// The excluded GPUs, each with the reason. NVIDIA's driver is queried at most for their identity.
    pub left_out: Vec<LeftOutGpu>,
    /// Whether to query the engine for the container's name, if the host name is only an ID.
    pub queries_container_name: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            root: "/".into(),
            deadline: Duration::from_secs(10),
            nvml_library: None,
            request: Request::default(),
            conditions: false,
            left_out: Vec::new(),
            queries_container_name: false,
        }
    }
}

impl Options {
    /// The settings from the environment: NVIDIA's library, and the container's request.
    pub fn from_environment(root: PathBuf, deadline: Duration) -> Self {
        let nvml_library =
            std::env::var_os("SLURMINIT_NVML_LIBRARY").filter(|path| !path.is_empty()).map(PathBuf::from);
        Self { root, deadline, nvml_library, request: Request::from_environment(), ..Self::default() }
    }
}

/// Detects the resources. Forks, so the process must be single-threaded.
///
/// The probes run while this process reads the kernel's files. NVML may take six tenths of the deadline, and every other probe seven
/// tenths; the remaining time is for reading the kernel's files and for finding the causes of failures. Once NVML has counted its GPUs,
/// each GPU may take six tenths, and all GPUs together two and a half times the deadline.
pub fn detect(options: &Options) -> Inventory {
    let Options { root, deadline, queries_container_name, .. } = options;
    let began = Instant::now();
    let tenths = |tenths: u32| began + *deadline / 10 * tenths;
    let started: Vec<_> =
        Vendor::ALL.into_iter().filter_map(|vendor| vendor::probe_of(vendor).start(vendor, options)).collect();
    let peer_memory = peer_memory::Detection::start(root);
    let mut inventory = Inventory {
        hostname: hostname(),
        platform: platform(root),
        cpu: cpu::detect(root),
        memory: memory::detect(root),
        scratch_mib: scratch::detect(root),
        cgroup: cgroup::detect(root),
        slurm: slurm::detect(root, *deadline / 5),
        ipv6_alone: network::has_only_ipv6(root),
        makes_namespaces: namespaces::detect(root, *deadline / 5),
        ..Inventory::default()
    };
    match queries_container_name.then(|| own_name::query_container_name(root, &inventory.hostname)).flatten() {
        Some(Ok(name)) => inventory.container_name = Some(name),
        Some(Err(finding)) => inventory.findings.push(finding),
        None => {}
    }
    let deadlines =
        Deadlines { library: tenths(6), files: tenths(7), each_gpu: *deadline / 10 * 6, all_gpus: tenths(25) };
    for found in started.into_iter().map(|finish| finish(deadlines)) {
        inventory.drivers.extend(found.driver);
        inventory.gpus.extend(found.gpus);
        inventory.findings.extend(found.findings);
    }
    inventory.refuses_peer_memory = peer_memory.finish(deadlines.files);
    inventory.device_files = device_files::detect(root, &inventory);
    inventory.imex_channels = imex::channels(root);
    memory::subtract_gpu_memory(root, &inventory.gpus, &mut inventory.memory);
    inventory.findings.extend(foreign::findings(root, &inventory.gpus));
    inventory.findings.extend(capabilities::detect(root));
    inventory.findings.extend(tmpfs::detect(root, &inventory.memory));
    inventory.findings.extend(inventory.slurm.security_finding());
    inventory
}

/// The result of a vendor's probe.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeResult {
    /// The driver; `None` if none was detected.
    pub driver: Option<Driver>,
    /// The GPUs visible to this container, in the driver's order.
    pub gpus: Vec<Gpu>,
    /// Messages for the operator.
    pub findings: Vec<Finding>,
}

/// Derives the platform from the kernel's release string, to which vendors of virtual machines add a mark.
fn platform(root: &Path) -> Platform {
    let release = regular::text(&root.join("proc/sys/kernel/osrelease")).unwrap_or_default().to_lowercase();
    match release {
        release if release.contains("microsoft") => Platform::Wsl2,
        release if release.contains("linuxkit") => Platform::DockerDesktop,
        _ => Platform::Linux,
    }
}

/// This host's name, as returned by `gethostname`, which Slurm also uses.
pub fn hostname() -> String {
    nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
