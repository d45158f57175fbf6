//! Detects what this container can really use: GPUs, CPUs, memory, cgroup, Slurm.
//!
//! All files are read below a root directory. Each vendor's probe runs in its own child process with a deadline,
//! so a driver that hangs, crashes or lies ends in why it gave no answer ([`sandbox`]).

pub mod amd_kfd;
pub mod capabilities;
pub mod cgroup;
pub mod condition;
pub mod cpu;
pub mod device;
pub mod device_files;
pub mod foreign;
mod groups;
pub mod intel;
pub mod job_map;
mod left_out;
pub mod live;
pub mod memory;
mod namespaces;
mod network;
pub mod nvidia;
pub mod nvidia_proc;
pub mod nvidia_request;
mod nvidia_trouble;
pub mod nvml;
pub mod own_name;
pub mod pci;
mod readings;
mod regular;
pub mod sandbox;
pub mod scratch;
pub mod slurm;
mod tegra;
pub mod tmpfs;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use faults::ward::Out;
use model::inventory::{Driver, Finding, Gpu, Inventory, Kind, Obstacle, Platform, Vendor};
use nvidia_request::Request;
use sandbox::{NoAnswer, Sandbox};

/// The parameters of a detection.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory that contains `/proc`, `/sys`, `/dev` and `/usr`.
    pub root: PathBuf,
    /// How long the whole detection may take.
    pub deadline: Duration,
    /// The path of NVIDIA's management library; `None` searches the usual places.
    pub nvml_library: Option<PathBuf>,
    /// What the container requested from NVIDIA's runtime.
    pub request: nvidia_request::Request,
    /// Whether to read the condition of NVIDIA's GPUs. There is no time for that at a start.
    pub conditions: bool,
    /// GPUs that are left out because of their faults: a driver that hangs at one is not asked for it.
    pub left_out: Vec<Out>,
    /// Whether to ask the engine what it calls this container, if its host name is only an id.
    pub asks_name: bool,
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
            asks_name: false,
        }
    }
}

impl Options {
    /// What the environment says: NVIDIA's library, and what the container requested.
    pub fn from_environment(root: PathBuf, deadline: Duration) -> Self {
        let nvml_library =
            std::env::var_os("SLURMINIT_NVML_LIBRARY").filter(|path| !path.is_empty()).map(PathBuf::from);
        Self { root, deadline, nvml_library, request: Request::from_environment(), ..Self::default() }
    }
}

/// Detects everything within the deadline. It forks, so the process must be single-threaded.
///
/// The probes run while the host's files are read. NVML gets six tenths of the time, every other probe seven; reasons
/// and the kernel's files need the rest.
pub fn detect(options: &Options) -> Inventory {
    let Options { root, deadline, nvml_library, request, conditions, left_out, asks_name } = options;
    let started = Instant::now();
    let tenths = |tenths: u32| started + *deadline / 10 * tenths;
    let nvidia = nvidia::Detection::start(root, nvml_library.as_deref(), request, *conditions, left_out);
    // Most machines lack most vendors' GPUs, and a look at a path is cheaper than a process.
    let here = PROBES.into_iter().filter(|probe| root.join(probe.trace).exists());
    let others: Vec<_> = here.map(|probe| (probe, Sandbox::start(|| (probe.run)(root)))).collect();
    let mut inventory = Inventory {
        hostname: hostname(),
        platform: platform(root),
        cpu: cpu::detect(root),
        memory: memory::detect(root),
        scratch_mib: scratch::detect(root),
        cgroup: cgroup::detect(root),
        slurm: slurm::detect(root, *deadline / 5),
        ipv6_alone: network::has_ipv6_alone(root),
        makes_namespaces: namespaces::detect(root, *deadline / 5),
        ..Inventory::default()
    };
    match asks_name.then(|| own_name::ask(root, &inventory.hostname)).flatten() {
        Some(Ok(name)) => inventory.container_name = Some(name),
        Some(Err(finding)) => inventory.findings.push(finding),
        None => {}
    }
    let nvidia = nvidia.finish(tenths(6), tenths(7));
    let others = others
        .into_iter()
        .map(|(probe, sandbox)| sandbox.finish(tenths(7)).unwrap_or_else(|why| no_answer(&probe, &why)));
    for found in std::iter::once(nvidia).chain(others) {
        inventory.drivers.extend(found.driver);
        inventory.gpus.extend(found.gpus);
        inventory.findings.extend(found.findings);
    }
    inventory.device_files = device_files::detect(root, &inventory);
    memory::leave_out_gpus(root, &inventory.gpus, &mut inventory.memory);
    inventory.findings.extend(foreign::findings(root, &inventory.gpus));
    inventory.findings.extend(capabilities::detect(root));
    inventory.findings.extend(tmpfs::detect(root, &inventory.memory));
    inventory
}

/// The result of a vendor's probe.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// The driver; `None` where it is not loaded.
    pub driver: Option<Driver>,
    /// The GPUs that this container sees, in the driver's order.
    pub gpus: Vec<Gpu>,
    /// Messages for the operator.
    pub findings: Vec<Finding>,
}

/// The probe of one vendor. NVIDIA is handled separately, with a library and the kernel's files as a fallback.
#[derive(Clone, Copy)]
struct Probe {
    vendor: Vendor,
    /// The name of the driver or interface.
    driver: &'static str,
    /// Without this path there is nothing to probe.
    trace: &'static str,
    run: fn(&Path) -> Found,
}

const PROBES: [Probe; 2] = [
    Probe { vendor: Vendor::Amd, driver: "the AMD kernel driver (KFD)", trace: "sys/class/kfd", run: amd_kfd::probe },
    Probe { vendor: Vendor::Intel, driver: "Intel's kernel driver (xe or i915)", trace: "dev/dri", run: intel::probe },
];

fn no_answer(probe: &Probe, why: &NoAnswer) -> Found {
    let (cause, repair) = match why {
        NoAnswer::NotStarted(_) => NoAnswer::NO_PROCESS,
        _ => Obstacle::Hang.words(probe.vendor),
    };
    let what = format!("{} {why}; no {} GPU is used", probe.driver, probe.vendor.traits().maker);
    Found { findings: vec![Finding::warning(Kind::DriverFails, what, cause, repair)], ..Found::default() }
}

/// Derived from the kernel's release string, which vendors of virtual machines mark.
fn platform(root: &Path) -> Platform {
    let release = regular::text(&root.join("proc/sys/kernel/osrelease")).unwrap_or_default().to_lowercase();
    match release {
        release if release.contains("microsoft") => Platform::Wsl2,
        release if release.contains("linuxkit") => Platform::DockerDesktop,
        _ => Platform::Linux,
    }
}

/// The kernel's name of this host, as `gethostname` gives it to Slurm.
fn hostname() -> String {
    nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
