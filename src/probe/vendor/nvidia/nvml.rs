//! NVIDIA's management library, called through nvml-wrapper. Runs inside the sandbox.
//!
//! Implausible values are discarded. A failed call loses only its own value, unless its error means that the GPU or NVML as a whole is unusable.

mod answers;
mod fabric;
mod gpm;
mod library;
mod memory;
mod meters;
mod mig;
mod pcie;
mod raw_calls;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::mem::ManuallyDrop;
use std::path::Path;

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml, cuda_driver_version_major, cuda_driver_version_minor};
use serde::{Deserialize, Serialize};

pub(super) use answers::Answers;
pub(super) use answers::refused_access;
pub(super) use fabric::fabric_state;
pub(super) use library::load;
pub(super) use memory::memory;
pub(super) use meters::Meters;
pub(super) use pcie::number;

use super::places::BusOrder;
use super::proc;
use crate::{device, pci};
use faults::controller::LeftOutGpu;
use model::inventory::{Access, Condition, CpuSet, Driver, Gpu, Obstacle, PciAddress, Source, Vendor};

/// More GPUs than any machine has. A larger count is implausible.
const MAX_GPUS: u32 = 1024;
/// Room for 32,768 CPUs. NVML refuses a buffer that is too small for the machine.
const AFFINITY_WORDS: usize = 512;
/// The maximum of the kernel's CONFIG_NR_CPUS (x86-64).
const MAX_CPUS: u32 = 8192;
/// More links than any GPU has (18 on H100 and B200).
const MAX_LINKS: u32 = 64;
/// The maximum plausible memory of a GPU: 16 TiB.
const MAX_MEMORY_MIB: u64 = 16 << 20;
/// NVML's own limit in bytes (NVML_DEVICE_NAME_V2_BUFFER_SIZE, minus the NUL). A longer text was not terminated.
const MAX_TEXT_LENGTH: usize = 95;
/// Device minors have 20 bits.
pub(super) const MAX_MINOR: u32 = (1 << 20) - 1;

/// The driver and GPUs, as reported by NVML.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Detected {
    /// The driver and CUDA version.
    pub driver: Driver,
    /// The GPUs in NVML's order.
    pub gpus: Vec<Gpu>,
    /// The minors of the `/dev/nvidiaN` that can be opened but belong to no GPU that NVML lists; empty if NVML returned no handle for a GPU.
    pub unknown_to_nvml: Vec<u32>,
}

/// Why NVML failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[expect(missing_docs, reason = "the messages document the variants")]
pub enum NvmlFailure {
    #[error("library not found in this container ({0})")]
    LibraryMissing(String),
    #[error("cannot load the library ({0})")]
    LibraryBroken(String),
    #[error("version mismatch between library and kernel driver")]
    VersionMismatch,
    #[error("the kernel's NVIDIA driver is not loaded")]
    DriverNotLoaded,
    // In containers, the cause is nearly always that the device cgroup was rewritten.
    #[error("{call} failed with NVML's \"Unknown Error\"")]
    UnknownError { call: String },
    #[error("{call} was refused: {error}")]
    NoPermission { call: String, error: String },
    #[error("{call} failed: {error}")]
    Failed { call: String, error: String },
    #[error("implausible number of GPUs: {0}")]
    ImpossibleCount(u32),
}

impl NvmlFailure {
    fn new(call: &str, error: NvmlError) -> Self {
        let call = call.to_owned();
        match error {
            NvmlError::LibloadingError(error) => library::load_failure(error.to_string()),
            NvmlError::FailedToLoadSymbol(error) => Self::LibraryBroken(error),
            NvmlError::LibRmVersionMismatch => Self::VersionMismatch,
            NvmlError::DriverNotLoaded => Self::DriverNotLoaded,
            NvmlError::Unknown => Self::UnknownError { call },
            NvmlError::NoPermission | NvmlError::OperatingSystem => {
                Self::NoPermission { call, error: error.to_string() }
            }
            _ => Self::Failed { call, error: error.to_string() },
        }
    }
}

/// An answer of the process that queries NVML. The answers come in the order of these variants, but
/// [`Self::Failed`] takes the place of the first three.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Step {
    /// The number of GPUs that NVML reports.
    Counted(u32),
    /// The next GPU, without its links and MIG instances.
    Gpu(Box<Gpu>),
    /// All GPUs and the driver.
    Done(Box<Detected>),
    /// NVML failed.
    Failed(NvmlFailure),
    /// The condition of all GPUs, if it was requested.
    Conditions(Result<Vec<Condition>, NvmlFailure>),
}

/// Queries NVML for the driver, the GPUs, their links and MIG instances. `library` is the path of NVML's library; `None` means the default
/// library. `left_out` contains the excluded GPUs, of which at most the identity is queried.
pub(super) fn probe(
    root: &Path,
    library: Option<&Path>,
    left_out: &[LeftOutGpu],
    send: &mut dyn FnMut(&Step) -> io::Result<()>,
) -> io::Result<()> {
    // NVML is never shut down: that can block in the driver for a long time or forever, and this process is about to
    // exit anyway.
    let loaded = load(root, library).and_then(|nvml| {
        let nvml = ManuallyDrop::new(nvml);
        count(&nvml).map(|count| (nvml, count))
    });
    let (nvml, count) = match loaded {
        Ok(loaded) => loaded,
        Err(failure) => return send(&Step::Failed(failure)),
    };
    send(&Step::Counted(count))?;
    let bus_order = BusOrder::read(root, count);
    let (mut devices, mut gpus) = (Vec::new(), Vec::new());
    for index in 0..count {
        // A process that has the GPU open prevents the host from resetting it.
        let excluded = left_out.iter().find(|excluded| bus_order.is_at(index, &excluded.gpu));
        let device = excluded.is_none().then(|| nvml.device_by_index(index));
        let answers = Answers::default();
        let gpu = match (&device, excluded) {
            (Some(device), _) => gpu(root, index, device, &answers, left_out),
            (None, excluded) => excluded.map(|excluded| excluded_gpu(root, index, excluded)).unwrap_or_default(),
        };
        send(&Step::Gpu(Box::new(gpu.clone())))?;
        gpus.push(gpu);
        devices.push((device, answers));
    }
    let index_by_address = gpus.iter().filter_map(|gpu| Some((gpu.pci_address?, gpu.index))).collect();
    for (gpu, (device, answers)) in gpus.iter_mut().zip(&devices) {
        let Some(Ok(device)) = device else { continue };
        if gpu.access.obstacle() == Some(Obstacle::Faulty) {
            continue;
        }
        gpu.links = links(device, gpu.index, &index_by_address, answers);
        gpu.mig = mig::instances(root, gpu, device, answers);
        // Even if most calls succeed, one may report that the GPU is lost or needs a reset.
        if let Some(access) = answers.obstacle() {
            gpu.access = access;
        }
    }
    // If NVML counts a GPU but returns no handle for it, a device file without a listed GPU most likely belongs to that GPU.
    let all_known = devices.iter().all(|(device, _)| !matches!(device, Some(Err(_))));
    let unknown_to_nvml = if all_known { unknown_minors(root, &gpus) } else { Vec::new() };
    send(&Step::Done(Box::new(Detected { driver: driver(&nvml), gpus, unknown_to_nvml })))
}

/// An excluded GPU, which is not opened.
fn excluded_gpu(root: &Path, index: u32, excluded: &LeftOutGpu) -> Gpu {
    let mut gpu = Gpu {
        uuid: excluded.gpu.uuid.clone(),
        model: excluded.gpu.model.clone(),
        pci_address: excluded.gpu.pci_address,
        ..proc::unknown_gpu(index)
    };
    exclude(root, excluded, &mut gpu);
    gpu
}

/// The number of GPUs.
pub(super) fn count(nvml: &Nvml) -> Result<u32, NvmlFailure> {
    let count = nvml.device_count().map_err(|error| NvmlFailure::new("nvmlDeviceGetCount", error))?;
    if count > MAX_GPUS { Err(NvmlFailure::ImpossibleCount(count)) } else { Ok(count) }
}

fn driver(nvml: &Nvml) -> Driver {
    let cuda = nvml.sys_cuda_driver_version().ok().filter(|version| (1_000..1_000_000).contains(version));
    let dotted = |cuda| format!("{}.{}", cuda_driver_version_major(cuda), cuda_driver_version_minor(cuda));
    Driver {
        vendor: Vendor::Nvidia,
        source: Source::Nvml,
        version: nvml.sys_driver_version().ok().filter(|version| proc::is_version(version)),
        cuda_version: cuda.map(dotted),
    }
}

fn gpu(
    root: &Path,
    index: u32,
    device: &Result<Device<'_>, NvmlError>,
    answers: &Answers,
    left_out: &[LeftOutGpu],
) -> Gpu {
    let mut gpu = proc::unknown_gpu(index);
    match device {
        Ok(device) => {
            identify(device, answers, &mut gpu);
            match left_out.iter().find(|excluded| excluded.gpu.is_same_gpu(&(&gpu).into())) {
                Some(excluded) => exclude(root, excluded, &mut gpu),
                None => describe(root, device, answers, &mut gpu),
            }
        }
        Err(error) => gpu.access = refused_access(error),
    }
    gpu
}

fn identify(device: &Device<'_>, answers: &Answers, gpu: &mut Gpu) {
    gpu.uuid = answers.of(device.uuid()).and_then(identifier);
    gpu.model = answers.of(device.name()).and_then(|text| name(&text));
    gpu.pci_address = answers.of(device.pci_info()).and_then(|info| info.bus_id.parse().ok());
}

/// Marks an excluded GPU as unusable. At most the identity of such a GPU is queried.
fn exclude(root: &Path, excluded: &LeftOutGpu, gpu: &mut Gpu) {
    gpu.minor = excluded.gpu.file.as_ref().and_then(|file| file.strip_prefix("/dev/nvidia")?.parse().ok());
    gpu.minor = gpu.minor.or_else(|| proc::minor_of(root, gpu.pci_address?));
    gpu.device_file = excluded.gpu.file.as_ref().map(Into::into);
    gpu.access = Access::unusable(Obstacle::Faulty, excluded.reason.clone());
}

fn describe(root: &Path, device: &Device<'_>, answers: &Answers, gpu: &mut Gpu) {
    gpu.memory_mib = answers.of(memory(device)).map(|memory| memory.total >> 20).filter(plausible_memory);
    gpu.compute = answers
        .of(device.cuda_compute_capability())
        .filter(|capability| (1..100).contains(&capability.major) && (0..10).contains(&capability.minor))
        .map(|capability| format!("{}.{}", capability.major, capability.minor));
    let locality = gpu.pci_address.map(|address| pci::locality(root, address)).unwrap_or_default();
    gpu.cpus = answers.of(device.cpu_affinity(AFFINITY_WORDS)).and_then(|words| cpu_set(&words)).or(locality.cpus);
    // On Grace Hopper NVML returns the NUMA node of the GPU's own memory, which has no CPUs.
    let reported_node = answers.of(device.numa_node_id()).and_then(pci::numa_node);
    gpu.numa_node = locality.numa_node.or(reported_node);
    let memory_node = gpu.pci_address.and_then(|address| proc::memory_node(root, address));
    gpu.memory_node = pci::memory_node(root, [memory_node, reported_node, locality.numa_node]);
    let minor = answers.of(device.minor_number()).filter(|minor| *minor <= MAX_MINOR);
    gpu.minor = minor.or_else(|| proc::minor_of(root, gpu.pci_address?));
    (gpu.device_file, gpu.access) = proc::device_file(root, gpu.minor, device::access);
    gpu.nvlink_domain = fabric::nvlink_domain(device);
}

fn plausible_memory(mib: &u64) -> bool {
    (1..=MAX_MEMORY_MIB).contains(mib)
}

fn cpu_set(words: &[std::ffi::c_ulong]) -> Option<CpuSet> {
    let bits = std::ffi::c_ulong::BITS;
    let cpus: CpuSet = (0..)
        .zip(words)
        .flat_map(|(word, mask): (u32, _)| {
            (0..bits).filter(move |bit| mask >> bit & 1 == 1).map(move |bit| word * bits + bit)
        })
        .collect();
    (!cpus.is_empty() && cpus.iter().all(|cpu| cpu < MAX_CPUS)).then_some(cpus)
}

/// Counts the active links to every other GPU in `index_by_address`. Links to other devices, such as an NVSwitch, are not counted.
///
/// The wrapper always reports the remote device type as "unknown", so it is not queried.
fn links(
    device: &Device<'_>,
    own: u32,
    index_by_address: &BTreeMap<PciAddress, u32>,
    answers: &Answers,
) -> BTreeMap<u32, u32> {
    let mut peers = BTreeMap::new();
    for link in 0..MAX_LINKS {
        let link = device.link_wrapper_for(link);
        match link.is_active() {
            Ok(true) => {}
            Err(NvmlError::InvalidArg | NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)) => break,
            Ok(false) => continue,
            other @ Err(_) => {
                answers.of(other);
                continue;
            }
        }
        let far_end: Option<PciAddress> = answers.of(link.remote_pci_info()).and_then(|info| info.bus_id.parse().ok());
        let peer = far_end.and_then(|address| index_by_address.get(&address));
        if let Some(peer) = peer.filter(|peer| **peer != own) {
            *peers.entry(*peer).or_default() += 1;
        }
    }
    peers
}

fn unknown_minors(root: &Path, gpus: &[Gpu]) -> Vec<u32> {
    let known: BTreeSet<u32> = gpus.iter().filter_map(|gpu| gpu.minor).collect();
    let opens = |minor: &u32| proc::device_file(root, Some(*minor), device::access).1 == Access::Usable;
    proc::device_minors(root).into_iter().filter(|minor| !known.contains(minor)).filter(opens).collect()
}

/// The text if it is a plausible UUID: 1 to [`MAX_TEXT_LENGTH`] ASCII letters, digits and `-`.
pub(super) fn identifier(text: String) -> Option<String> {
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    (!text.is_empty() && text.len() <= MAX_TEXT_LENGTH && text.bytes().all(valid)).then_some(text)
}

/// A model name; `None` if it is empty or too long. Its contents are not validated and must not be trusted.
pub(super) fn name(text: &str) -> Option<String> {
    let text = text.trim();
    (!text.is_empty() && text.len() <= MAX_TEXT_LENGTH).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::inventory::Identity;

    #[test]
    fn parses_affinity_mask_and_rejects_invalid_one() {
        let mut words = vec![0; AFFINITY_WORDS];
        assert_eq!(cpu_set(&words), None);
        (words[0], words[1]) = (0b1011, 1);
        assert_eq!(cpu_set(&words).unwrap().to_string(), "0-1,3,64");
        assert_eq!(cpu_set(&vec![std::ffi::c_ulong::MAX; AFFINITY_WORDS]), None);
    }

    #[test]
    fn rejects_identifier_with_special_characters() {
        assert!(identifier("GPU-1c1d-90".to_owned()).is_some());
        for bad in ["", "a b", "a\n", "\u{1b}[2J", "ÿÿ"] {
            assert_eq!(identifier(bad.to_owned()), None, "{bad:?}");
        }
        assert_eq!(identifier("a".repeat(96)), None);
    }

    #[test]
    fn gpu_with_a_fault_is_known_from_the_report() {
        let root = crate::tests::tree(&[("proc/driver/nvidia/gpus/0000:17:00.0/information", "Device Minor: 3\n")]);
        let excluded = |file: Option<&str>| {
            let gpu = Identity {
                uuid: Some("GPU-1".to_owned()),
                model: Some("NVIDIA H200".to_owned()),
                pci_address: "0000:17:00.0".parse().ok(),
                file: file.map(str::to_owned),
                ..Identity::default()
            };
            excluded_gpu(root.path(), 5, &LeftOutGpu { gpu, reason: "lost".to_owned() })
        };
        let gpu = excluded(Some("/dev/nvidia7"));
        assert_eq!((gpu.index, gpu.minor, gpu.access.obstacle()), (5, Some(7), Some(Obstacle::Faulty)));
        assert_eq!((gpu.uuid.as_deref(), gpu.model.as_deref()), (Some("GPU-1"), Some("NVIDIA H200")));
        assert_eq!(gpu.device_file.as_deref(), Some(Path::new("/dev/nvidia7")));
        assert_eq!((gpu.pci_address, excluded(None).minor), ("0000:17:00.0".parse().ok(), Some(3)));
    }

    #[test]
    fn reports_only_devices_that_no_gpu_has() {
        let root = crate::tests::tree(&[("dev/nvidia0", "no device")]);
        for minor in [1, 2, 3] {
            std::os::unix::fs::symlink("/dev/null", root.path().join(format!("dev/nvidia{minor}"))).unwrap();
        }
        let gpus = [Gpu { minor: Some(2), ..Gpu::default() }, Gpu::default()];
        assert_eq!(unknown_minors(root.path(), &gpus), [1, 3]);
        assert_eq!(
            [0, 1, MAX_MEMORY_MIB, MAX_MEMORY_MIB + 1].map(|mib| plausible_memory(&mib)),
            [false, true, true, false]
        );
    }
}
