//! Vendors whose GPUs are passed by their device files: PCI bus, files and groups.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::{gpus_on_pci, names, read};
use crate::configure::situation::{Device, FileGpus};
use model::inventory::{Files, Inventory, Vendor};

pub(super) fn observe(root: &Path, vendor: Vendor, files: &'static Files, inventory: &Inventory) -> FileGpus {
    FileGpus {
        vendor,
        files,
        pci_count: gpus_on_pci(root, vendor),
        shared: files.shared.and_then(|path| device(root, path)),
        render_nodes: render_nodes(root, vendor, inventory),
    }
}

/// The render nodes of the vendor's GPUs that slurminit offers, sorted by number. On many machines renderD128 is an integrated GPU of another vendor.
fn render_nodes(root: &Path, vendor: Vendor, inventory: &Inventory) -> Vec<Device> {
    let pci_vendor = vendor.traits().pci_vendor;
    let is_of_vendor = |name: &String| read(root, &format!("sys/class/drm/{name}/device/vendor")).trim() == pci_vendor;
    let discrete: Vec<u32> = inventory.gpus.iter().filter(|gpu| !gpu.integrated).filter_map(|gpu| gpu.minor).collect();
    let is_offered = |minor: &u32| vendor.traits().offers_integrated || discrete.contains(minor);
    let minor = |name: &String| name.strip_prefix("renderD").and_then(|minor| minor.parse::<u32>().ok());
    let mut nodes: Vec<(u32, String)> = names(root, "dev/dri")
        .into_iter()
        .filter(is_of_vendor)
        .filter_map(|name| Some((minor(&name).filter(is_offered)?, format!("/dev/dri/{name}"))))
        .collect();
    nodes.sort();
    nodes.into_iter().filter_map(|(_, path)| device(root, &path)).collect()
}

/// Reads the metadata of a device file. The file is never opened, because that can wake a GPU.
fn device(root: &Path, path: &str) -> Option<Device> {
    let metadata = fs::metadata(root.join(path.trim_start_matches('/'))).ok()?;
    let is_world_accessible = metadata.mode() & 0o006 == 0o006;
    Some(Device { path: path.to_owned(), group: metadata.gid(), is_world_accessible })
}
