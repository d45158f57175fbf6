//! Finds out what this container can really use: GPUs, CPUs, memory, cgroup, Slurm.
//!
//! EDGE. Everything is read through a root directory. Each vendor's probe runs in a child of its own with a deadline, so
//! a driver that hangs, crashes or lies ends in a verdict ([`sandbox`]).

pub mod amd_kfd;
pub mod capabilities;
pub mod cgroup;
pub mod condition;
pub mod cpu;
pub mod device;
pub mod foreign;
mod left_out;
pub mod memory;
mod namespaces;
pub mod nvidia;
pub mod nvidia_proc;
pub mod nvidia_request;
mod nvidia_trouble;
pub mod nvml;
pub mod pci;
mod regular;
pub mod sandbox;
pub mod slurm;
mod tegra;
pub mod tmpfs;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::inventory::{Finding, Inventory, Platform, Severity};
use nvidia_request::Request;
use sandbox::{Sandbox, Verdict};

/// What detection is given.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where `/proc`, `/sys`, `/dev`, `/usr` are looked for.
    pub root: PathBuf,
    /// How long everything together may take.
    pub deadline: Duration,
    /// The NVIDIA management library; `None` looks in the usual places.
    pub nvml_library: Option<PathBuf>,
    /// What the container asked NVIDIA's runtime for.
    pub request: nvidia_request::Request,
    /// Whether to ask how NVIDIA's GPUs fare. A start has no time for that.
    pub conditions: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            root: "/".into(),
            deadline: Duration::from_secs(10),
            nvml_library: None,
            request: Request::default(),
            conditions: false,
        }
    }
}

/// Finds out everything, within the deadline. Call it in a process with one thread: it forks.
///
/// The probes run while the host's files are read. NVML has six tenths of the time and every probe seven: a verdict and
/// the kernel's files need the rest.
pub fn detect(options: &Options) -> Inventory {
    let Options { root, deadline, nvml_library, request, conditions } = options;
    let started = Instant::now();
    let tenths = |tenths: u32| started + *deadline / 10 * tenths;
    let nvidia = nvidia::Detection::start(root, nvml_library.as_deref(), request, *conditions);
    // Most machines have no AMD GPU, and a look is cheaper than a process.
    let amd = root.join("sys/class/kfd").exists().then(|| Sandbox::start(|| amd_kfd::probe(root)));
    let mut inventory = Inventory {
        hostname: hostname(),
        platform: platform(root),
        cpu: cpu::detect(root),
        memory: memory::detect(root),
        cgroup: cgroup::detect(root),
        slurm: slurm::detect(root, *deadline / 5),
        makes_namespaces: namespaces::detect(root, *deadline / 5),
        ..Inventory::default()
    };
    let nvidia = nvidia.finish(tenths(6), tenths(7));
    let amd = match amd.map(|probe| probe.finish(tenths(7))) {
        None => amd_kfd::Probe::default(),
        Some(Ok(probe)) => probe,
        Some(Err(verdict)) => amd_kfd::Probe { findings: vec![no_amd(&verdict)], ..amd_kfd::Probe::default() },
    };
    inventory.drivers = nvidia.driver.into_iter().chain(amd.driver).collect();
    inventory.gpus = [nvidia.gpus, amd.gpus].concat();
    memory::leave_out_gpus(root, &inventory.gpus, &mut inventory.memory);
    inventory.findings = [nvidia.findings, amd.findings, foreign::findings(root, &inventory.gpus)].concat();
    inventory.findings.extend(capabilities::detect(root));
    inventory.findings.extend(tmpfs::findings(root, &inventory.memory));
    inventory
}

fn no_amd(verdict: &Verdict) -> Finding {
    let (cause, repair) = match verdict {
        Verdict::NotStarted(_) => Verdict::NO_PROCESS,
        _ => (
            "the driver hangs: a GPU failed or is being reset",
            "look for amdgpu messages on the host (dmesg | grep -i amdgpu); reboot the host",
        ),
    };
    Finding {
        severity: Severity::Warning,
        what: format!("the AMD kernel driver (KFD) {verdict}; no AMD GPU is used"),
        cause: cause.to_owned(),
        repair: repair.to_owned(),
    }
}

/// By the name of the kernel, which those who build one for their own virtual machine put into it.
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
