//! Visible GPUs and other accelerators that jobs cannot use, each with the reason.

use std::fs;
use std::path::Path;

use super::regular;
use model::inventory::{Finding, Gpu, Kind, PciAddress, Traits, Vendor, WSL_DEVICE};
use model::printable::count;

/// Searches /sys and /dev; opens no device. `gpus` are those that a driver reports.
pub fn findings(root: &Path, gpus: &[Gpu]) -> Vec<Finding> {
    let mut findings: Vec<Finding> = wsl(root, gpus).into_iter().chain(driverless(root)).collect();
    findings.extend(accelerators(root));
    findings
}

/// If WSL2's GPU device exists but no GPU was detected, the GPU is not an NVIDIA GPU, or NVIDIA's driver is missing in Windows, or its
/// library in the container (`--gpus all`).
fn wsl(root: &Path, gpus: &[Gpu]) -> Option<Finding> {
    let has_device = root.join(WSL_DEVICE.trim_start_matches('/')).exists();
    (has_device && gpus.is_empty()).then(|| {
        Finding::warning(
            Kind::GpuNotGiven,
            "WSL2's GPU device is in this container, but no NVIDIA GPU responds",
            "in WSL2, slurminit supports only NVIDIA GPUs: AMD's kernel interface (KFD) is missing there, as are Intel's render nodes",
            "NVIDIA: install the driver in Windows, then `wsl --update` and `docker run --gpus all`; AMD and Intel: use native Linux instead of WSL2",
        )
    })
}

/// Reports GPUs that are not bound to their vendor's driver. Libraries and device files do not show such GPUs.
fn driverless(root: &Path) -> Vec<Finding> {
    let entries = fs::read_dir(root.join("sys/bus/pci/devices")).into_iter().flatten().flatten();
    let mut devices: Vec<(Vendor, String)> = entries.filter_map(|entry| without_driver(&entry)).collect();
    devices.sort();
    let finding = |vendor: Vendor| {
        let Traits { maker, drivers, .. } = vendor.traits();
        let driver = drivers.join(" or ");
        let unusable: Vec<&str> =
            devices.iter().filter(|(owner, _)| *owner == vendor).map(|(_, device)| device.as_str()).collect();
        let number = count(unusable.len(), "GPU");
        let first = drivers[0];
        (!unusable.is_empty()).then(|| Finding::info(
            Kind::GpuNotOffered,
            format!("{number} of {maker} not bound to the driver {driver}: {}", unusable.join(", ")),
            format!("the host has not loaded {driver}, or another driver or a VM (vfio-pci) uses the GPU"),
            format!("no action if intended; otherwise load the driver on the host (modprobe {first}; lspci -nnk shows the GPU's driver)"),
        ))
    };
    Vendor::ALL.into_iter().filter_map(finding).collect()
}

fn without_driver(entry: &fs::DirEntry) -> Option<(Vendor, String)> {
    let read = |file: &str| regular::line(&entry.path().join(file));
    let number = read("vendor")?;
    let vendor = Vendor::ALL.into_iter().find(|vendor| vendor.traits().pci_vendor == number)?;
    let class = read("class")?;
    if !vendor.traits().pci_classes.iter().any(|known| class.starts_with(known)) {
        return None;
    }
    let driver = fs::read_link(entry.path().join("driver")).ok();
    let driver = driver.as_deref().and_then(Path::file_name).and_then(std::ffi::OsStr::to_str);
    if driver.is_some_and(|driver| vendor.traits().drivers.contains(&driver)) {
        return None;
    }
    let address: PciAddress = entry.file_name().into_string().ok()?.parse().ok()?;
    // An integrated GPU that jobs would not get anyway is not worth reporting.
    if address.is_on_root_bus() && !vendor.traits().offers_integrated {
        return None;
    }
    let is_plain = |name: &&str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    let driver = driver.filter(is_plain).unwrap_or("no driver");
    Some((vendor, format!("{address} ({driver})")))
}

/// Device files of accelerators that are not supported GPUs: TPUs, Gaudi, NPUs (`/dev/accel*`), Trainium
/// (`/dev/neuron*`).
fn accelerators(root: &Path) -> Option<Finding> {
    let names = |directory: &str, prefix: &str| -> Vec<String> {
        let entries = fs::read_dir(root.join(directory)).into_iter().flatten().flatten();
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let is_device = |name: &String| name.strip_prefix(prefix).is_some_and(is_number);
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(is_device);
        names.map(|name| format!("/{directory}/{name}")).collect()
    };
    let mut files = [names("dev", "accel"), names("dev/accel", "accel"), names("dev", "neuron")].concat();
    files.sort();
    let first = files.first()?;
    Some(Finding::info(
        Kind::GpuNotOffered,
        format!("unsupported accelerators: {}", files.join(", ")),
        "automatic detection supports only GPUs of NVIDIA, AMD and Intel",
        format!(
            "no action if jobs do not use them; otherwise write your own slurm.conf (GresTypes=gpu,accel, and Gres=accel:N of the node) and gres.conf (Name=accel File={first})"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::tree as root;
    use crate::vendor::nvidia::proc::unknown_gpu;

    #[test]
    fn reports_wsl2_device_only_without_nvidia() {
        let root = root(&[("dev/dxg", "")]);
        let found = findings(root.path(), &[]);
        assert!(found[0].cause.contains("only NVIDIA GPUs"), "{found:?}");
        assert_eq!(findings(root.path(), &[unknown_gpu(0)]), []);
    }

    #[test]
    fn reports_gpus_without_driver_once_per_vendor() {
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
            ("0000:c3:00.0", "0x8086", "0x030000", Some("i915")),
            ("0000:c4:00.0", "0x8086", "0x120000", None),
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
        assert!(amd.what.ends_with(": 0000:c1:00.0 (no driver)") && amd.fix.contains("modprobe amdgpu"), "{amd:?}");
    }

    #[test]
    fn reports_other_accelerators_in_one_finding() {
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
        fn arbitrary_input_does_not_panic(text in "(?s).{0,32}", name in "[0-9a-f:.]{0,12}", file in "vendor|class") {
            let root = root(&[(&format!("sys/bus/pci/devices/{name}x/{file}"), &text)]);
            findings(root.path(), &[]);
        }
    }
}
