//! NVIDIA GPUs without NVML: `/proc/driver/nvidia`, the device files, and sysfs. Whatever opens a device file runs inside the sandbox.
//!
//! These sources do not contain memory size, compute capability or links.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::nvml;
use crate::pci;
use model::inventory::{Access, Driver, Gpu, MigInstance, Obstacle, PciAddress, Source, Vendor, WSL_DEVICE};

/// The data from the kernel's files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Detected {
    /// The driver; `None` if /proc contains no driver version and no GPU was found.
    pub driver: Option<Driver>,
    /// The GPUs in the order of their PCI addresses, as in NVML, then device files that /proc does not list.
    pub gpus: Vec<Gpu>,
}

/// Whether a device file can be used.
type AccessCheck = fn(&Path) -> Access;

/// Reads `/proc/driver/nvidia`, the device files and sysfs, and calls `check_access` for the device file of each GPU.
pub fn probe(root: &Path, check_access: AccessCheck) -> Detected {
    let into_gpu = |(address, entry): (PciAddress, Entry)| entry.into_gpu(root, address, check_access);
    let mut gpus: Vec<Gpu> = entries(root).into_iter().map(into_gpu).collect();
    // /proc does not list a fake device (`docker run --device /dev/null:/dev/nvidia0`).
    for minor in device_minors(root) {
        if gpus.iter().all(|gpu| gpu.minor != Some(minor)) {
            gpus.push(with_minor(root, minor, check_access));
        }
    }
    for (index, gpu) in (0..).zip(&mut gpus) {
        gpu.index = index;
        gpu.mig = gpu.minor.and_then(|minor| mig_instances(root, minor));
    }
    let version = fs::read_to_string(root.join("proc/driver/nvidia/version")).ok();
    let driver = (version.is_some() || !gpus.is_empty()).then(|| Driver {
        vendor: Vendor::Nvidia,
        source: Source::NvidiaProc,
        version: version.as_deref().and_then(driver_version),
        cuda_version: None,
    });
    Detected { driver, gpus }
}

/// An NVIDIA GPU of which only the index is known.
pub(crate) fn unknown_gpu(index: u32) -> Gpu {
    Gpu { index, ..Gpu::default() }
}

/// An entry for each GPU instance of a GPU. The driver creates a directory for each:
/// `/proc/driver/nvidia/capabilities/gpu0/mig/gi9` (NVIDIA's MIG guide). `None` without such a directory; MIG mode may
/// be on nevertheless.
fn mig_instances(root: &Path, minor: u32) -> Option<Vec<MigInstance>> {
    let directory = fs::read_dir(root.join(format!("proc/driver/nvidia/capabilities/gpu{minor}/mig"))).ok()?;
    let number = |name: &str| name.strip_prefix("gi")?.parse().ok();
    let mut found: Vec<u32> = directory.flatten().filter_map(|entry| number(entry.file_name().to_str()?)).collect();
    found.sort_unstable();
    let instance = |gpu_instance| MigInstance {
        gpu_instance: Some(gpu_instance),
        access: Access::unusable(
            Obstacle::Nameless,
            format!("the UUID of GPU instance {gpu_instance} is available only from NVML"),
        ),
        ..MigInstance::default()
    };
    (!found.is_empty()).then(|| found.into_iter().map(instance).collect())
}

fn with_minor(root: &Path, minor: u32, check_access: AccessCheck) -> Gpu {
    let (device_file, access) = device_file(root, Some(minor), check_access);
    Gpu { minor: Some(minor), device_file, access, ..unknown_gpu(0) }
}

/// The minors of the files `/dev/nvidiaN`, ascending. Opens none of them.
pub fn device_minors(root: &Path) -> Vec<u32> {
    let Ok(directory) = fs::read_dir(root.join("dev")) else { return Vec::new() };
    let minor = |name: &str| name.strip_prefix("nvidia").filter(|number| is_number(number))?.parse().ok();
    let mut minors: Vec<u32> =
        directory.flatten().filter_map(|entry| minor(entry.file_name().to_str()?)).filter(is_minor).collect();
    minors.sort_unstable();
    minors
}

/// Rejects `nvidia01` and `nvidia+1`, which `parse` would read as 1.
fn is_number(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && (text.len() == 1 || !text.starts_with('0'))
}

fn is_minor(minor: &u32) -> bool {
    *minor <= nvml::MAX_MINOR
}

/// The device file of the GPU with this minor, as named in the container, and whether it can be used.
pub(super) fn device_file(root: &Path, minor: Option<u32>, check_access: AccessCheck) -> (Option<PathBuf>, Access) {
    let path = minor.map(|minor| format!("dev/nvidia{minor}"));
    // WSL2 has one device for all GPUs and no /dev/nvidiaN.
    let wsl = WSL_DEVICE.trim_start_matches('/');
    let is_wsl = root.join(wsl).exists() && !path.as_ref().is_some_and(|path| root.join(path).exists());
    let name = if is_wsl { Some(wsl.to_owned()) } else { path };
    match name {
        Some(name) => (Some(Path::new("/").join(&name)), check_access(&root.join(&name))),
        None => (None, Access::unusable(Obstacle::UnknownFile, "the driver does not report the GPU's /dev/nvidiaN")),
    }
}

/// The minor of the GPU at `address`, according to `/proc`.
pub(super) fn minor_of(root: &Path, address: PciAddress) -> Option<u32> {
    entries(root).remove(&address)?.minor
}

/// The NUMA node of the GPU's memory (POWER9, Grace): `Node: 255`; -1 means none.
pub(super) fn memory_node(root: &Path, address: PciAddress) -> Option<u32> {
    let file = root.join("proc/driver/nvidia/gpus").join(address.to_string()).join("numa_status");
    let text = fs::read_to_string(file).ok()?;
    let node = text.lines().find_map(|line| line.trim().strip_prefix("Node:"))?;
    node.trim().parse().ok().and_then(pci::numa_node)
}

/// A file `/proc/driver/nvidia/gpus/ADDRESS/information`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Entry {
    model: Option<String>,
    uuid: Option<String>,
    minor: Option<u32>,
}

impl Entry {
    fn parse(text: &str) -> Self {
        let mut entry = Self::default();
        for (key, value) in text.lines().filter_map(|line| line.split_once(':')) {
            let value = value.trim();
            match key.trim() {
                "Model" => entry.model = nvml::name(value),
                // Until the GPU is used for the first time, the value contains question marks, which `identifier` rejects.
                "GPU UUID" => entry.uuid = nvml::identifier(value.to_owned()),
                "Device Minor" => entry.minor = value.parse().ok().filter(is_minor),
                _ => {}
            }
        }
        entry
    }

    fn into_gpu(self, root: &Path, address: PciAddress, check_access: AccessCheck) -> Gpu {
        let (device_file, access) = device_file(root, self.minor, check_access);
        let locality = pci::locality(root, address);
        Gpu {
            minor: self.minor,
            device_file,
            uuid: self.uuid,
            model: self.model,
            pci_address: Some(address),
            cpus: locality.cpus,
            numa_node: locality.numa_node,
            memory_node: pci::memory_node(root, [memory_node(root, address), locality.numa_node]),
            access,
            ..unknown_gpu(0)
        }
    }
}

/// The minors of the GPUs in /proc, by PCI address.
pub(super) fn minors(root: &Path) -> Vec<(PciAddress, Option<u32>)> {
    entries(root).into_iter().map(|(address, entry)| (address, entry.minor)).collect()
}

fn entries(root: &Path) -> BTreeMap<PciAddress, Entry> {
    let Ok(directory) = fs::read_dir(root.join("proc/driver/nvidia/gpus")) else { return BTreeMap::new() };
    directory
        .flatten()
        .filter_map(|gpu| {
            let address = gpu.file_name().to_str()?.parse().ok()?;
            let text = fs::read(gpu.path().join("information")).ok()?;
            Some((address, Entry::parse(&String::from_utf8_lossy(&text))))
        })
        .collect()
}

/// Takes the version from `NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.154.05  Thu Dec 28 ...`.
fn driver_version(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with("NVRM version:"))?;
    line.split_whitespace().find(|word| is_version(word)).map(str::to_owned)
}

/// Whether the text consists of two to four numbers with dots between them: `590.48.01`.
pub(super) fn is_version(text: &str) -> bool {
    let is_part = |part: &str| part.len() <= 5 && part.parse::<u32>().is_ok();
    (2..=4).contains(&text.split('.').count()) && text.split('.').all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device;

    #[test]
    fn parses_driver_information_file() {
        let entry = Entry::parse(
            "Model: \t\t NVIDIA H200\nIRQ:   \t\t 77\nGPU UUID: \t GPU-1c1d0000-0000-0000-0000-000000000003\n\
             Bus Location: \t 0000:17:00.0\nDevice Minor: \t 3\nGPU Excluded:\t No\n",
        );
        assert_eq!(entry.model.as_deref(), Some("NVIDIA H200"));
        assert_eq!(entry.uuid.as_deref(), Some("GPU-1c1d0000-0000-0000-0000-000000000003"));
        assert_eq!(entry.minor, Some(3));
        assert_eq!(Entry::parse("GPU UUID: GPU-????????-????\nDevice Minor: 4294967295\nModel:\n"), Entry::default());
    }

    #[test]
    fn reads_version_of_closed_and_open_kernel_module() {
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.154.05  Thu Dec 28 15:37:48 UTC 2023\nGCC version:  gcc 12.3.0\n";
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  590.48.01  Release Build\n";
        assert_eq!(driver_version(closed).as_deref(), Some("535.154.05"));
        assert_eq!(driver_version(open).as_deref(), Some("590.48.01"));
        assert_eq!(driver_version("GCC version:  gcc 12.3.0\n"), None);
    }

    #[test]
    fn lists_minors_of_gpu_device_files_only() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("dev")).unwrap();
        for name in ["nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm", "nvidia", "nvidia01", "nvidia9999999"] {
            fs::write(root.path().join("dev").join(name), "").unwrap();
        }
        assert_eq!(device_minors(root.path()), [2, 10]);
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]
        #[test]
        fn arbitrary_input_yields_no_panic_or_invalid_name(
            text in "(?s).{0,64}",
            value in "(?s)[^\n]{0,40}",
            name in "nvidia[0-9+]{0,12}",
        ) {
            let root = tempfile::tempdir().unwrap();
            let write = |file: &str, text: &str| {
                let path = root.path().join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            };
            write("proc/driver/nvidia/version", &text);
            let lines = format!("Model: {value}\nGPU UUID: {value}\nDevice Minor: {value}\n{text}");
            write("proc/driver/nvidia/gpus/0000:17:00.0/information", &lines);
            write("sys/bus/pci/devices/0000:17:00.0/local_cpulist", &text);
            write("sys/bus/pci/devices/0000:17:00.0/numa_node", &value);
            write("proc/driver/nvidia/capabilities/gpu0/mig/gi1/access", &text);
            write(&format!("dev/{name}"), "");
            for gpu in probe(root.path(), device::access).gpus {
                let uuid = gpu.uuid.unwrap_or_default();
                proptest::prop_assert!(uuid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'), "{uuid:?}");
                proptest::prop_assert!(gpu.minor.is_none_or(|minor| is_minor(&minor)));
            }
        }
    }

    #[test]
    fn kernels_files_name_minor_and_instances() {
        let root = crate::tests::tree(&[
            ("proc/driver/nvidia/gpus/0000:17:00.0/information", "Device Minor: 3\n"),
            ("proc/driver/nvidia/capabilities/gpu3/mig/gi9/access", ""),
            ("proc/driver/nvidia/capabilities/gpu3/mig/gi13/access", ""),
            ("proc/driver/nvidia/capabilities/gpu4/mig/config", ""),
        ]);
        let minor = |address: &str| minor_of(root.path(), address.parse().unwrap());
        assert_eq!((minor("0000:17:00.0"), minor("0000:18:00.0")), (Some(3), None));
        let instances = mig_instances(root.path(), 3).unwrap();
        let instances: Vec<_> = instances.iter().map(|one| (one.gpu_instance, one.access.obstacle())).collect();
        assert_eq!(instances, [9, 13].map(|number| (Some(number), Some(Obstacle::Nameless))));
        assert_eq!((mig_instances(root.path(), 4), mig_instances(root.path(), 5)), (None, None));
    }
}
