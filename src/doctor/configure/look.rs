//! Inspects the host below a root directory, and runs its programs. Changes nothing, except that a trial container runs.

mod docker;
mod files;
mod trials;

pub use trials::trials;

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::host_gpus::HostGpus;
use super::nvidia;
use super::situation::{Engine, Platform, PlatformKind, Situation};
use model::inventory::{Inventory, PciAddress, Traits, Vendor};
use sys::tool;

/// Observes the host. Each program of the host may run for `deadline`; `inventory` is the result of detection below the
/// same root.
pub fn observe_host(root: &Path, deadline: Duration, inventory: &Inventory) -> Situation {
    let engine = docker::engine(root, deadline);
    let observe_gpus = |vendor: Vendor| -> Box<dyn HostGpus> {
        match &vendor.traits().files {
            Some(files) => Box::new(files::observe(root, vendor, files, inventory)),
            None => Box::new(nvidia::observe(root, deadline, inventory)),
        }
    };
    Situation {
        platform: platform(root, &engine),
        compose: docker::compose(deadline, &engine),
        gpus: Vendor::ALL.into_iter().map(observe_gpus).collect(),
        engine,
    }
}

/// Whether the engine has the image.
pub fn has_image(deadline: Duration, image: &str) -> bool {
    tool::ask("docker", &["image", "inspect", "--format", "{{.Id}}", image], deadline).output().is_some()
}

fn platform(root: &Path, engine: &Engine) -> Platform {
    if root.join("System/Library/CoreServices/SystemVersion.plist").exists() {
        return Platform { kind: PlatformKind::MacOs, name: "macOS".to_owned() };
    }
    let kernel = read(root, "proc/version").to_lowercase();
    let engine_kernel = engine.info().map(|info| info.kernel.as_str()).unwrap_or_default();
    let kind = if kernel.contains("microsoft") {
        PlatformKind::Wsl2
    } else if kernel.contains("linuxkit") || engine_kernel.contains("linuxkit") {
        PlatformKind::DesktopVm
    } else {
        PlatformKind::Linux
    };
    let release = read(root, "etc/os-release");
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let name = name.map_or("Linux", |name| name.trim_matches(['"', '\'']));
    Platform { kind, name: name.to_owned() }
}

/// The file's text; empty if it cannot be read.
pub(super) fn read(root: &Path, path: &str) -> String {
    fs::read(root.join(path)).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// The names in a directory, sorted; empty if it cannot be read.
pub(super) fn names(root: &Path, path: &str) -> Vec<String> {
    let entries = fs::read_dir(root.join(path)).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// The number of this vendor's GPUs on the PCI bus, without integrated GPUs that slurminit does not offer.
pub(super) fn gpus_on_pci(root: &Path, vendor: Vendor) -> usize {
    let Traits { pci_vendor, pci_classes, offers_integrated, .. } = vendor.traits();
    let devices = names(root, "sys/bus/pci/devices");
    let is_on_root_bus = |name: &str| name.parse().is_ok_and(|address: PciAddress| address.is_on_root_bus());
    let is_gpu = |name: &&String| {
        let file = |file: &str| read(root, &format!("sys/bus/pci/devices/{name}/{file}"));
        let class = file("class");
        let is_offered = *offers_integrated || !is_on_root_bus(name);
        is_offered && file("vendor").trim() == *pci_vendor && pci_classes.iter().any(|known| class.starts_with(known))
    };
    devices.iter().filter(is_gpu).count()
}
