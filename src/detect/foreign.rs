//! GPUs that are seen and cannot be offered, each with the reason.

use std::fs;
use std::path::Path;

use super::regular;
use crate::inventory::{Finding, Gpu, PciAddress, Severity, WSL_DEVICE};

const INTEL: &str = "0x8086";

/// Looks for them in sysfs; opens no device. `gpus` are those that a driver counts.
pub fn findings(root: &Path, gpus: &[Gpu]) -> Vec<Finding> {
    let mut findings: Vec<Finding> = wsl(root, gpus).into_iter().chain(intel(root)).collect();
    findings.extend(driverless(root));
    findings.extend(accelerators(root));
    findings
}

/// In WSL2 a device without NVIDIA's library is that of another maker, or of a Windows without NVIDIA's driver.
fn wsl(root: &Path, gpus: &[Gpu]) -> Option<Finding> {
    let has_device = root.join(WSL_DEVICE.trim_start_matches('/')).exists();
    (has_device && gpus.is_empty()).then(|| Finding {
        severity: Severity::Warning,
        what: "WSL2's GPU device is in this container, and no NVIDIA GPU answers".to_owned(),
        cause: "in WSL2 jobs can be given NVIDIA's GPUs only: AMD's lack their kernel interface (KFD) there, Intel's their render nodes"
            .to_owned(),
        repair: "NVIDIA: install the current driver in Windows, then `wsl --update` and `docker run --gpus all`; AMD and Intel: \
                 use Linux itself"
            .to_owned(),
    })
}

/// Intel's render nodes that this container has.
fn intel(root: &Path) -> Option<Finding> {
    let entries = fs::read_dir(root.join("sys/class/drm")).into_iter().flatten().flatten();
    let node = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let minor = name.strip_prefix("renderD")?.parse::<u16>().ok()?;
        let vendor = regular::text(&entry.path().join("device/vendor")).ok()?;
        let is_here = vendor.trim() == INTEL && root.join("dev/dri").join(&name).exists();
        is_here.then_some(minor)
    };
    let mut minors: Vec<u16> = entries.filter_map(node).collect();
    minors.sort_unstable();
    let files: Vec<String> = minors.iter().map(|minor| format!("/dev/dri/renderD{minor}")).collect();
    let first = files.first()?;
    Some(Finding {
        severity: Severity::Info,
        what: format!("{} of Intel's (driver i915 or xe) are not offered to jobs: {}", count(files.len()), files.join(", ")),
        cause: "which number Intel's runtime gives a GPU depends on how it splits it into stacks (ZE_FLAT_DEVICE_HIERARCHY), and \
                Slurm's AutoDetect=oneapi needs a Slurm built with Level Zero, which Debian's is not"
            .to_owned(),
        repair: format!(
            "nothing, if it only drives a display; else offer it by a gres.conf of your own (USER_CUSTOMIZED) with \
             Name=gpu Type=intel File={first} Flags=intel_gpu_env"
        ),
    })
}

/// PCI's vendor, the driver's name, the vendor's.
const DRIVERS: [(&str, &str, &str); 2] = [("0x10de", "nvidia", "NVIDIA"), ("0x1002", "amdgpu", "AMD")];
/// PCI classes of what computes: display controllers, and processing accelerators such as the MI300.
const CLASSES: [&str; 2] = ["0x03", "0x12"];

/// The machine's NVIDIA and AMD GPUs that another driver has, or none: no library and no device file tells of them.
fn driverless(root: &Path) -> Vec<Finding> {
    let entries = fs::read_dir(root.join("sys/bus/pci/devices")).into_iter().flatten().flatten();
    let mut devices: Vec<(&str, String)> = entries.filter_map(|entry| without_driver(&entry)).collect();
    devices.sort();
    let finding = |(_, driver, vendor): &(&str, &str, &'static str)| {
        let own: Vec<&str> =
            devices.iter().filter(|(maker, _)| maker == vendor).map(|(_, device)| device.as_str()).collect();
        (!own.is_empty()).then(|| Finding {
            severity: Severity::Info,
            what: format!("{} of {vendor}'s without the driver {driver} cannot be used: {}", count(own.len()), own.join(", ")),
            cause: format!("the host has not loaded {driver}, another driver has the GPU, or a virtual machine is to get it (vfio-pci)"),
            repair: format!(
                "nothing, if that is meant; else load the driver on the host (modprobe {driver}; lspci -nnk shows who has the GPU)"
            ),
        })
    };
    DRIVERS.iter().filter_map(finding).collect()
}

fn without_driver(entry: &fs::DirEntry) -> Option<(&'static str, String)> {
    let read = |file: &str| regular::text(&entry.path().join(file)).ok().map(|text| text.trim().to_owned());
    let vendor = read("vendor")?;
    let (_, wanted, maker) = DRIVERS.into_iter().find(|(id, ..)| *id == vendor)?;
    let class = read("class")?;
    if !CLASSES.iter().any(|known| class.starts_with(known)) {
        return None;
    }
    let driver = fs::read_link(entry.path().join("driver")).ok();
    let driver = driver.as_deref().and_then(Path::file_name).and_then(std::ffi::OsStr::to_str);
    if driver == Some(wanted) {
        return None;
    }
    let address = entry.file_name().into_string().ok()?;
    let is_plain = |name: &&str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    let driver = driver.filter(is_plain).unwrap_or("no driver");
    address.parse::<PciAddress>().ok().map(|address| (maker, format!("{address} ({driver})")))
}

/// Device files of accelerators that are no GPUs of ours: TPUs, Gaudi, NPUs (`/dev/accel*`), Trainium (`/dev/neuron*`).
fn accelerators(root: &Path) -> Option<Finding> {
    let names = |directory: &str, prefix: &str| -> Vec<String> {
        let entries = fs::read_dir(root.join(directory)).into_iter().flatten().flatten();
        let is_device = |name: &String| {
            name.strip_prefix(prefix).is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|it| it.is_ascii_digit()))
        };
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(is_device);
        names.map(|name| format!("/{directory}/{name}")).collect()
    };
    let mut files = [names("dev", "accel"), names("dev/accel", "accel"), names("dev", "neuron")].concat();
    files.sort();
    let first = files.first()?;
    Some(Finding {
        severity: Severity::Info,
        what: format!("accelerators that are not offered to jobs: {}", files.join(", ")),
        cause:
            "their numbers and variables are their makers' own; NVIDIA's and AMD's GPUs are what is offered by itself"
                .to_owned(),
        repair: format!(
            "nothing, if jobs need none; else count them as a resource of their own: a gres.conf of your own (USER_CUSTOMIZED) with \
             Name=accel File={first}, and in slurminit.toml GresTypes = \"gpu,accel\" under [slurm.conf]"
        ),
    })
}

fn count(number: usize) -> String {
    if number == 1 { "1 GPU".to_owned() } else { format!("{number} GPUs") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect::nvidia_proc::nameless_gpu;

    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (file, text) in files {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn intels_gpu_is_named_where_its_render_node_is() {
        let root = root(&[
            ("sys/class/drm/renderD128/device/vendor", "0x8086\n"),
            ("sys/class/drm/renderD129/device/vendor", "0x1002\n"),
            ("sys/class/drm/renderD130/device/vendor", "0x8086\n"),
            ("sys/class/drm/card0/device/vendor", "0x8086\n"),
            ("dev/dri/renderD128", ""),
            ("dev/dri/renderD129", ""),
        ]);
        let found = findings(root.path(), &[]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].what.starts_with("1 GPU of Intel's") && found[0].what.ends_with(": /dev/dri/renderD128"),
            "{found:?}"
        );
        assert!(found[0].cause.contains("oneapi") && found[0].repair.contains("intel_gpu_env"), "{found:?}");
    }

    #[test]
    fn a_device_of_wsl2_without_nvidia_is_said_and_with_nvidia_is_not() {
        let root = root(&[("dev/dxg", "")]);
        let found = findings(root.path(), &[]);
        assert!(found[0].cause.contains("NVIDIA's GPUs only"), "{found:?}");
        assert_eq!(findings(root.path(), &[nameless_gpu(0)]), []);
    }

    #[test]
    fn a_gpu_without_its_driver_is_one_line_for_each_maker() {
        let device = |address: &str, file: &str| format!("sys/bus/pci/devices/{address}/{file}");
        let root = tempfile::tempdir().unwrap();
        for (address, vendor, class, driver) in [
            ("0000:17:00.0", "0x10de", "0x030200", Some("nvidia")),
            ("0000:18:00.0", "0x10de", "0x030200", Some("vfio-pci")),
            ("0000:18:00.1", "0x10de", "0x040300", None),
            ("0000:19:00.0", "0x10de", "0x030000", None),
            ("0000:c1:00.0", "0x1002", "0x120000", None),
            ("0000:c2:00.0", "0x1002", "0x038000", Some("amdgpu")),
            ("0000:00:02.0", "0x8086", "0x030000", None),
        ] {
            for (file, text) in [("vendor", vendor), ("class", class)] {
                let path = root.path().join(device(address, file));
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, format!("{text}\n")).unwrap();
            }
            if let Some(driver) = driver {
                let target = format!("../../../bus/pci/drivers/{driver}");
                std::os::unix::fs::symlink(target, root.path().join(device(address, "driver"))).unwrap();
            }
        }
        let found = findings(root.path(), &[]);
        let [nvidia, amd] = found.as_slice() else { panic!("{found:?}") };
        assert!(nvidia.what.ends_with(": 0000:18:00.0 (vfio-pci), 0000:19:00.0 (no driver)"), "{nvidia:?}");
        assert!(amd.what.ends_with(": 0000:c1:00.0 (no driver)") && amd.repair.contains("modprobe amdgpu"), "{amd:?}");
    }

    #[test]
    fn other_accelerators_are_one_line() {
        let root = root(&[
            ("dev/accel/accel0", ""),
            ("dev/accel1", ""),
            ("dev/neuron0", ""),
            ("dev/neuron_x", ""),
            ("dev/accelerate", ""),
        ]);
        let found = findings(root.path(), &[]);
        let [finding] = found.as_slice() else { panic!("{found:?}") };
        assert!(finding.what.ends_with(": /dev/accel/accel0, /dev/accel1, /dev/neuron0"), "{finding:?}");
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(32))]
        #[test]
        fn no_content_panics(text in "(?s).{0,32}", name in "renderD[0-9x+]{0,9}") {
            let vendor = format!("sys/class/drm/{name}/device/vendor");
            let root = root(&[(&vendor, &text), (&format!("dev/dri/{name}"), "")]);
            findings(root.path(), &[]);
        }
    }
}
