//! NVIDIA GPUs, from NVML or, if NVML fails, from the kernel's files; and the findings about them.

mod answers;
pub mod condition;
mod job_map;
pub mod nvml;
mod places;
pub mod proc;
mod readings;
pub mod request;
mod tegra;
mod trouble;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::live::{self, SendLine};
use crate::vendor::{Deadlines, Finish, VendorProbe};
use crate::{Options, ProbeResult, device, left_out};
use model::inventory::{Access, Condition, Driver, Finding, Gpu, Kind, Obstacle, Source, Vendor, WSL_DEVICE};
use nvml::{NvmlFailure, Step};
use request::Request;
use sys::sandbox::{Sandbox, SandboxError};

/// NVIDIA's GPUs, through NVML or, if NVML fails, the kernel's files.
#[derive(Debug)]
pub struct Nvidia;

impl VendorProbe for Nvidia {
    fn has_traces(&self, root: &Path) -> bool {
        has_traces(root) || root.join(WSL_DEVICE.trim_start_matches('/')).exists()
    }

    fn probe(&self, root: &Path) -> ProbeResult {
        let proc::Detected { driver, gpus } = proc::probe(root, device::access);
        ProbeResult { driver, gpus, findings: Vec::new() }
    }

    fn list(&self, root: &Path) -> Vec<Gpu> {
        proc::probe(root, device::access_without_open).gpus
    }

    fn map_entry(&self, root: &Path, device: &str) -> Option<(String, crate::job_map::Format)> {
        job_map::name(root, device).map(|name| (name, crate::job_map::Format::Lines))
    }

    /// Always starts a detection, even without traces of a GPU: missing GPUs that were requested are reported.
    fn start(&'static self, _: Vendor, options: &Options) -> Option<Finish> {
        let Options { root, request, nvml_library, conditions, left_out, .. } = options.clone();
        let library = nvml_library.as_deref();
        let nvml = Sandbox::start_stream(|send| {
            nvml::probe(&root, library, &left_out, send)?;
            if conditions { send(&Step::Conditions(condition::probe(&root, library))) } else { Ok(()) }
        });
        let detection = Detection { root, is_library_configured: library.is_some(), request, conditions, nvml };
        Some(Box::new(move |deadlines| detection.finish(deadlines)))
    }

    fn watch(&self, options: &live::Options, send: SendLine<'_>) -> io::Result<()> {
        match &options.only {
            Some(gpu) => watch::check(options, gpu, send),
            None => watch::watch(options, send),
        }
    }
}

/// Why NVML failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NvmlProbeError {
    #[error(transparent)]
    Nvml(#[from] NvmlFailure),
    #[error("the query {0}")]
    Sandbox(#[from] SandboxError),
}

/// A detection in progress.
struct Detection {
    root: PathBuf,
    /// Whether the operator configured the library's path. If so, a missing library is reported.
    is_library_configured: bool,
    request: Request,
    /// Whether the child also reads the condition of the GPUs.
    conditions: bool,
    nvml: Sandbox<Step>,
}

impl Detection {
    /// Returns the GPUs from NVML or, if NVML fails, from the kernel's files. On a Jetson, returns the integrated GPU unless NVML reports a usable
    /// GPU and its memory size.
    fn finish(mut self, deadlines: Deadlines) -> ProbeResult {
        let mut found = match answers::wait(&self.root, &mut self.nvml, deadlines) {
            Ok(mut probe) => {
                if self.conditions {
                    let until = deadlines.library.max(Instant::now() + deadlines.each_gpu / 2);
                    attach_conditions(&mut probe.gpus, answers::conditions(&mut self.nvml, until).unwrap_or_default());
                }
                from_nvml(probe)
            }
            Err(why) => {
                let is_absent = matches!(why, NvmlProbeError::Nvml(NvmlFailure::LibraryMissing(_)));
                let has_gpus = || has_traces(&self.root) || tegra::is_jetson(&self.root);
                if is_absent && !self.is_library_configured && !has_gpus() {
                    let findings = self.request.finding(&[]).into_iter().collect();
                    return ProbeResult { findings, ..ProbeResult::default() };
                }
                from_kernel(&self.root, &why, &self.request, deadlines.for_files())
            }
        };
        // On a Jetson, NVML and /dev/nvidia0 describe the display, if they exist at all.
        if tegra::is_jetson(&self.root)
            && !found.gpus.iter().any(|gpu| gpu.access == Access::Usable && gpu.memory_mib.is_some())
        {
            found = from_tegra(&self.root, deadlines.for_files()).unwrap_or(found);
        }
        reject_duplicates(&mut found.gpus);
        found.findings.extend(found.gpus.iter().filter_map(mig_finding));
        found.findings.extend(left_out::findings(&found.gpus));
        found.findings.extend(no_device_files(&found.gpus));
        found.findings.extend(self.request.finding(&found.gpus));
        found
    }
}

/// Adds the condition of each GPU. The conditions are queried last: if the driver crashes meanwhile, the list of GPUs
/// has already been received.
fn attach_conditions(gpus: &mut [Gpu], conditions: Vec<Condition>) {
    for condition in conditions {
        let Some(gpu) = gpus.iter_mut().find(|gpu| gpu.index == condition.index) else { continue };
        if condition.obstacle == Some(Obstacle::Lost) && gpu.access == Access::Usable {
            gpu.access = Access::unusable(Obstacle::Lost, "NVML reports it as lost or in need of a reset");
        }
        gpu.condition = Some(condition);
    }
}

/// Cheap signs of an NVIDIA GPU: each check takes a microsecond.
fn has_traces(root: &Path) -> bool {
    root.join("proc/driver/nvidia").exists() || !proc::device_minors(root).is_empty()
}

fn from_nvml(probe: nvml::Detected) -> ProbeResult {
    let unknown = probe.unknown_to_nvml.iter().map(|minor| {
        Finding::warning(
            Kind::GpuLost,
            format!("/dev/nvidia{minor} can be opened, but NVML lists no such GPU; not used"),
            "the GPU fell off the bus, the driver excludes it, or the file is not a real device",
            "check Xid messages of the GPU on the host (dmesg | grep -i xid), or do not pass the file",
        )
    });
    let findings = unknown.collect();
    ProbeResult { driver: Some(probe.driver), gpus: probe.gpus, findings }
}

/// Warns if a GPU in MIG mode cannot be given to jobs, or only in part.
fn mig_finding(gpu: &Gpu) -> Option<Finding> {
    let index = gpu.index;
    let instances = gpu.mig.as_ref().filter(|_| gpu.access == Access::Usable)?;
    if instances.is_empty() {
        let id = gpu.pci_address.map_or_else(|| index.to_string(), |address| address.to_string());
        return Some(Finding::warning(
            Kind::Mig,
            format!("NVIDIA GPU {index} is in MIG mode without an instance; no job can use it"),
            "in MIG mode only instances can be used, and none was created or passed to this container",
            format!(
                "on the host: `nvidia-smi mig -i {id} -cgi PROFILE -C`, or `nvidia-smi -i {id} -mig 0`; then restart the container; if instances \
                 exist, re-create the container with NVIDIA_VISIBLE_DEVICES=all"
            ),
        ));
    }
    let mut reasons = Vec::new();
    let mut fixes = BTreeSet::new();
    for instance in instances {
        if let Access::Unusable { reason, obstacle } = &instance.access {
            reasons.push(reason.clone());
            fixes.insert(match obstacle {
                Obstacle::NotGiven | Obstacle::UnknownFile => PASS_INSTANCES,
                _ => obstacle.cause_and_fix(Vendor::Nvidia).1,
            });
        }
    }
    (!reasons.is_empty()).then(|| {
        Finding::warning(
            Kind::Mig,
            format!("{} of {} MIG instances of NVIDIA GPU {index} cannot be used", reasons.len(), instances.len()),
            reasons.join("; "),
            fixes.into_iter().collect::<Vec<_>>().join("; "),
        )
    })
}

const PASS_INSTANCES: &str = "to use them, create the container with NVIDIA_VISIBLE_DEVICES=all, or their UUIDs, and NVIDIA_DRIVER_CAPABILITIES=compute,utility";

/// The one GPU of a Jetson.
fn from_tegra(root: &Path, deadline: Instant) -> Option<ProbeResult> {
    let gpu = Sandbox::start(|| tegra::probe(root)).finish(deadline).ok()??;
    let driver = Driver { vendor: Vendor::Nvidia, source: Source::Nvgpu, version: None, cuda_version: None };
    Some(ProbeResult { driver: Some(driver), gpus: vec![gpu], ..ProbeResult::default() })
}

fn from_kernel(root: &Path, why: &NvmlProbeError, request: &Request, deadline: Instant) -> ProbeResult {
    let (mut found, is_stuck) = match Sandbox::start(|| Nvidia.probe(root)).finish(deadline) {
        Ok(found) => (found, false),
        // This probe failed, too. Only the names of the device files are known.
        Err(why) => (ProbeResult { gpus: gpus_not_opened(root, &why), ..ProbeResult::default() }, true),
    };
    found.findings.push(trouble::finding(why, request, found.gpus.len(), is_stuck));
    found
}

fn gpus_not_opened(root: &Path, why: &SandboxError) -> Vec<Gpu> {
    let gpu = |(index, minor): (u32, u32)| Gpu {
        minor: Some(minor),
        device_file: Some(format!("/dev/nvidia{minor}").into()),
        access: Access::unusable(Obstacle::Hang, format!("access unknown: the check of the device files {why}")),
        ..proc::unknown_gpu(index)
    };
    (0..).zip(proc::device_minors(root)).map(gpu).collect()
}

/// Rejects GPUs that share a device file or UUID with an earlier GPU, and MIG instances that share a UUID with an earlier one. slurmd exits if
/// two gres.conf lines name the same file, and CUDA would give two jobs the same device. On WSL2 all GPUs share one device file.
fn reject_duplicates(gpus: &mut [Gpu]) {
    let (mut files, mut names) = (BTreeMap::new(), BTreeMap::new());
    for gpu in gpus.iter_mut().filter(|gpu| gpu.access == Access::Usable) {
        let index = gpu.index;
        let file = gpu.device_file.as_ref().filter(|file| file.as_path() != Path::new(WSL_DEVICE));
        if let Some(first) = file.and_then(|file| first_owner(&mut files, file, index)) {
            let reason = format!("{} already belongs to GPU {first}", shown(gpu.device_file.as_deref()));
            gpu.access = Access::unusable(Obstacle::SharedFile, reason);
        } else if let Some(first) = gpu.uuid.as_ref().and_then(|uuid| first_owner(&mut names, uuid, index)) {
            let reason = format!("{} is already the UUID of GPU {first}", gpu.uuid.as_deref().unwrap_or_default());
            gpu.access = Access::unusable(Obstacle::SharedName, reason);
        }
    }
    let mut uuids = BTreeSet::new();
    let instances = gpus.iter_mut().flat_map(|gpu| gpu.mig.iter_mut().flatten());
    for instance in instances.filter(|instance| instance.access == Access::Usable) {
        let Some(uuid) = &instance.uuid else { continue };
        if !uuids.insert(uuid.clone()) {
            let reason = format!("{uuid} is already the UUID of another instance");
            instance.access = Access::unusable(Obstacle::SharedName, reason);
        }
    }
}

/// The GPU that already owns `key`; otherwise `index` owns it from now on.
fn first_owner<T: Clone + Ord>(owners: &mut BTreeMap<T, u32>, key: &T, index: u32) -> Option<u32> {
    let first = *owners.entry(key.clone()).or_insert(index);
    (first != index).then_some(first)
}

fn shown(file: Option<&Path>) -> String {
    file.map(|file| file.display().to_string()).unwrap_or_default()
}

/// A finding if the driver reports GPUs, but the container has access to none.
fn no_device_files(gpus: &[Gpu]) -> Option<Finding> {
    let is_given = |gpu: &Gpu| gpu.access.obstacle() != Some(Obstacle::NotGiven);
    (!gpus.is_empty() && !gpus.iter().any(is_given)).then(|| {
        Finding::error(
            Kind::GpuNotGiven,
            format!("this container has access to none of the GPUs that the NVIDIA driver lists ({})", gpus.len()),
            "the container was started without GPUs",
            "start the container with GPUs: docker run --gpus all, or docker compose with GPU_COMPOSE_FILE=docker/compose.nvidia.yaml",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::inventory::MigInstance;

    #[test]
    fn second_gpu_with_same_device_file_is_unusable() {
        let gpu = |index, file: &str| Gpu { device_file: Some(file.into()), ..proc::unknown_gpu(index) };
        let mut gpus = [gpu(0, "/dev/nvidia0"), gpu(1, "/dev/nvidia0"), gpu(2, "/dev/dxg"), gpu(3, "/dev/dxg")];
        reject_duplicates(&mut gpus);
        assert_eq!(gpus.clone().map(|gpu| gpu.access == Access::Usable), [true, false, true, true]);
        assert!(matches!(&gpus[1].access, Access::Unusable { reason, .. } if reason.contains("GPU 0")));
    }

    #[test]
    fn second_gpu_with_same_uuid_is_unusable() {
        let gpu = |index, uuid: &str| Gpu { uuid: Some(uuid.to_owned()), ..proc::unknown_gpu(index) };
        let mut gpus = [gpu(0, "GPU-a"), gpu(1, "GPU-b"), gpu(2, "GPU-a")];
        reject_duplicates(&mut gpus);
        assert_eq!(gpus.clone().map(|gpu| gpu.access.obstacle()), [None, None, Some(Obstacle::SharedName)]);
    }

    #[test]
    fn reports_gpus_without_any_device_file() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("dev")).unwrap();
        std::fs::write(root.path().join("dev/nvidia0"), "").unwrap();
        let gpus = proc::probe(root.path(), device::access).gpus;
        assert_eq!(no_device_files(&gpus), None, "given, but not a device file");
        let gpu = Gpu { access: Access::unusable(Obstacle::NotGiven, ""), ..proc::unknown_gpu(0) };
        assert!(no_device_files(&[gpu]).unwrap().what.contains("access to none"));
    }

    #[test]
    fn condition_belongs_to_its_gpu_and_excludes_a_lost_one() {
        let lost = |index| Condition { index, obstacle: Some(Obstacle::Lost), ..Condition::default() };
        let fine = |index| Condition { index, ..Condition::default() };
        let denied = Access::unusable(Obstacle::Denied, "");
        let mut gpus = [
            proc::unknown_gpu(0),
            proc::unknown_gpu(1),
            Gpu { access: denied, ..proc::unknown_gpu(2) },
            proc::unknown_gpu(3),
        ];
        attach_conditions(&mut gpus, vec![lost(1), fine(0), lost(2), lost(7)]);
        let obstacles = gpus.clone().map(|gpu| gpu.access.obstacle());
        assert_eq!(obstacles, [None, Some(Obstacle::Lost), Some(Obstacle::Denied), None]);
        assert_eq!(gpus.map(|gpu| gpu.condition), [Some(fine(0)), Some(lost(1)), Some(lost(2)), None]);
    }

    #[test]
    fn warns_of_mig_mode_without_usable_instances() {
        let instance = |access| MigInstance { access, ..MigInstance::default() };
        let gpu = |mig: Option<Vec<MigInstance>>| Gpu { mig, ..proc::unknown_gpu(3) };
        let not_given = instance(Access::unusable(Obstacle::NotGiven, "cap9 is not in this container"));
        let nameless = instance(Access::unusable(Obstacle::Nameless, "no UUID"));
        let usable = instance(Access::Usable);
        assert_eq!(mig_finding(&gpu(None)), None);
        assert_eq!(mig_finding(&gpu(Some(vec![usable.clone()]))), None);
        assert!(mig_finding(&gpu(Some(vec![]))).unwrap().what.contains("without an instance"));
        let lost = Gpu { access: Access::unusable(Obstacle::Lost, ""), ..gpu(Some(vec![])) };
        assert_eq!(mig_finding(&lost), None, "reported as lost");
        let finding = mig_finding(&gpu(Some(vec![usable, not_given.clone(), not_given, nameless]))).unwrap();
        assert!(finding.what.starts_with("3 of 4 MIG instances of NVIDIA GPU 3"), "{finding}");
        let fixes = [PASS_INSTANCES, Obstacle::Nameless.cause_and_fix(Vendor::Nvidia).1];
        assert!(fixes.iter().all(|fix| finding.fix.matches(fix).count() == 1), "{finding}");
    }

    #[test]
    fn stuck_driver_leaves_only_names_of_device_files() {
        let root = crate::tests::tree(&[("dev/nvidia3", ""), ("dev/nvidia1", ""), ("dev/nvidiactl", "")]);
        assert!(has_traces(root.path()) && !has_traces(&root.path().join("dev")));
        let gpus = gpus_not_opened(root.path(), &SandboxError::Exited(1));
        let facts: Vec<_> = gpus.iter().map(|gpu| (gpu.index, gpu.minor, gpu.access.obstacle())).collect();
        assert_eq!(facts, [(0, Some(1), Some(Obstacle::Hang)), (1, Some(3), Some(Obstacle::Hang))]);
        assert_eq!(gpus[1].device_file.as_deref(), Some(Path::new("/dev/nvidia3")));
    }
}
