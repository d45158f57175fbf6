//! The agent's files in the run directory, which only root can write to.

use std::io::{self, Write as _};
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use faults::controller::LeftOutGpu;
use faults::report::{FILE, Report};
use faults::sample::Identity;
use model::inventory::{Access, Gpu, Inventory, Obstacle};
use sys::proc;
use sys::trusted_path;
use sys::trusted_path::Dir;

/// The GPUs that a reload leaves out.
const OUT: &str = "gpus-out.json";

/// The GPUs that an administrator released for work on the host.
const RELEASED: &str = "gpus-released.json";

/// Replaces the report.
pub(super) fn write_report(run: &Path, report: &Report) -> io::Result<()> {
    replace(run, FILE, report, 0o644)
}

/// The report of the previous agent.
pub(super) fn former_report(run: &Path) -> Option<Report> {
    read(run, FILE)
}

/// The report of a running agent, readable by all users.
pub fn report(run: &Path) -> Option<Report> {
    let text = std::fs::read(run.join(FILE)).ok()?;
    serde_json::from_slice::<Report>(&text).ok().filter(|report| proc::is_running(report.process))
}

/// Replaces the list of GPUs that are left out.
pub(super) fn write_out(run: &Path, out: &[LeftOutGpu]) -> io::Result<()> {
    replace(run, OUT, &out, 0o644)
}

/// The GPUs that are excluded from jobs; empty if the list cannot be read.
pub fn left_out(run: &Path) -> Vec<LeftOutGpu> {
    read(run, OUT).unwrap_or_default()
}

/// The GPUs that are released.
pub fn released(run: &Path) -> Vec<Identity> {
    read(run, RELEASED).unwrap_or_default()
}

/// Replaces the list of released GPUs.
///
/// # Errors
/// The file cannot be written.
pub fn write_released(run: &Path, released: &[Identity]) -> io::Result<()> {
    replace(run, RELEASED, &released, 0o600)
}

/// Marks the GPUs to leave out as unusable. A GPU that its driver no longer lists is inserted in the order of the PCI addresses.
pub fn leave_out(run: &Path, inventory: &mut Inventory) {
    mark(&left_out(run), inventory);
}

fn mark(outs: &[LeftOutGpu], inventory: &mut Inventory) {
    for out in outs {
        if !inventory.gpus.iter().any(|gpu| out.gpu.is_same_gpu(&gpu.into())) {
            let missing = Gpu {
                vendor: out.gpu.vendor,
                index: out.gpu.index,
                uuid: out.gpu.uuid.clone(),
                pci_address: out.gpu.pci_address,
                model: out.gpu.model.clone(),
                device_file: out.gpu.file.as_ref().map(Into::into),
                access: Access::unusable(Obstacle::Lost, "the driver no longer lists the GPU"),
                ..Gpu::default()
            };
            let is_later = |gpu: &Gpu| gpu.vendor == missing.vendor && gpu.pci_address > missing.pci_address;
            let place = inventory.gpus.iter().position(is_later).unwrap_or(inventory.gpus.len());
            inventory.gpus.insert(place, missing);
        }
        for gpu in inventory.gpus.iter_mut().filter(|gpu| gpu.is_usable() && out.gpu.is_same_gpu(&(&**gpu).into())) {
            gpu.access = Access::unusable(Obstacle::Faulty, out.reason.clone());
        }
    }
}

/// Removes the lists of left-out and released GPUs, and the report: a start checks all GPUs.
pub fn forget(run: &Path) -> io::Result<()> {
    let run = directory(run)?;
    run.remove(OUT)?;
    run.remove(RELEASED)?;
    run.remove(FILE)
}

pub(super) fn directory(run: &Path) -> io::Result<Dir> {
    let run = trusted_path::open(Path::new("/"), run)?;
    run.require_ours()?;
    Ok(run)
}

pub(super) fn read<T: DeserializeOwned>(run: &Path, name: &str) -> Option<T> {
    let text = directory(run).ok()?.read(name).ok()?;
    serde_json::from_slice(&text).ok()
}

pub(super) fn replace(run: &Path, name: &str, value: &impl Serialize, mode: u32) -> io::Result<()> {
    let (run, new) = (directory(run)?, format!("{name}.new"));
    run.remove(&new)?;
    run.create(&new, mode)?.write_all(&serde_json::to_vec(value)?)?;
    run.rename(&new, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_gpu_keeps_its_position_in_inventory() {
        let gpu = |index: u32, bus: u32| Gpu {
            index,
            pci_address: format!("0000:{bus:02x}:00.0").parse().ok(),
            ..Gpu::default()
        };
        let left_out = |bus: u32| LeftOutGpu {
            gpu: Identity { pci_address: gpu(0, bus).pci_address, ..Identity::default() },
            ..LeftOutGpu::default()
        };
        // The driver renumbers the GPUs after the lost one.
        let mut inventory = Inventory { gpus: vec![gpu(0, 0x11), gpu(1, 0x12)], ..Inventory::default() };
        mark(&[left_out(0x10), left_out(0x12)], &mut inventory);
        let place_and_obstacle = |gpu: &Gpu| (gpu.pci_address.map(|address| address.bus), gpu.access.obstacle());
        let want = [(Some(0x10), Some(Obstacle::Lost)), (Some(0x11), None), (Some(0x12), Some(Obstacle::Faulty))];
        assert_eq!(inventory.gpus.iter().map(place_and_obstacle).collect::<Vec<_>>(), want);
    }
}
