//! Compares the device numbers of the vendors' runtimes with the positions that Slurm passes to jobs.
//!
//! Slurm numbers the lines of gres.conf, across all vendors, and puts these positions into a job's environment.
//!
//! CUDA orders GPUs by speed by default (CUDA_DEVICE_ORDER); only equal models appear in the driver's order. MIG
//! instances have no number. A UUID is always right.
//!
//! ROCr numbers the GPU nodes of KFD whose render node can be opened, in KFD's order (ROCR-Runtime, topology.c and
//! amd_filter_device.cpp, the same in ROCm 6.2 and 7). It also accepts UUIDs, but the partitions of a GPU share one,
//! and at a repeated UUID it ignores the rest of the list. Only the number is always right.
//!
//! Level Zero numbers what it can open in /dev/dri, including integrated GPUs. ZE_AFFINITY_MASK counts cards in bus
//! order only with two settings from the vendor's table; by default it counts the stacks of a card (compute-runtime,
//! execution_environment.cpp; Intel's oneAPI optimization guide, "Exposing the Device Hierarchy").

use model::inventory::{Gpu, Inventory, Obstacle, Vendor};

use super::offer::Offer;

/// The runtimes' names for the devices of gres.conf.
pub(super) struct Numbering {
    /// For each line, the name in its vendor's runtime.
    pub(super) names: Vec<String>,
    /// Whether each position in Slurm's list equals the runtime's number.
    pub(super) is_slurms: bool,
}

/// Names the devices, in the order of the lines.
pub(super) fn number(inventory: &Inventory, offers: &[Offer<'_>]) -> Numbering {
    let name = |offer: &Offer<'_>| match offer.cuda_name() {
        _ if offer.gpu.vendor.traits().runtime.counts => number_among_open(offer.gpu, inventory).to_string(),
        Some(uuid) => uuid.to_owned(),
        None => cuda_number(offer.gpu, inventory).to_string(),
    };
    let names: Vec<String> = offers.iter().map(name).collect();
    let one_vendor = offers.windows(2).all(|pair| pair[0].gpu.vendor == pair[1].gpu.vendor);
    let positions_are_names = (0_usize..).zip(&names).all(|(position, name)| position.to_string() == *name);
    let needs_settings = offers.iter().any(|offer| !offer.gpu.vendor.traits().runtime.settings.is_empty());
    let is_slurms = one_vendor && !needs_settings && (positions_are_names || is_cudas_order(offers, inventory));
    Numbering { names, is_slurms }
}

/// True for whole GPUs of a single model that CUDA numbers, with none left out. If a minor differs from the index, the container
/// sees only part of the machine (such as a pod with one GPU), and CUDA's numbers there are unknown.
fn is_cudas_order(offers: &[Offer<'_>], inventory: &Inventory) -> bool {
    let is_next = |(position, offer): (u32, &Offer<'_>)| {
        let Gpu { vendor, index, minor, .. } = offer.gpu;
        vendor.traits().has_cuda
            && offer.instance.is_none()
            && *index == position
            && minor.is_none_or(|minor| minor == position)
    };
    // CUDA puts a faster GPU first, even if jobs may not use it.
    let vendor = offers.first().map(|offer| offer.gpu.vendor).unwrap_or_default();
    let mut seen = seen_by_runtime(inventory, vendor);
    let first = seen.next().map(|gpu| &gpu.model);
    seen.all(|gpu| Some(&gpu.model) == first) && (0..).zip(offers).all(is_next)
}

/// The GPUs that can be opened in this container, whether or not jobs may use them.
fn seen_by_runtime(inventory: &Inventory, vendor: Vendor) -> impl Iterator<Item = &Gpu> {
    let is_seen = |gpu: &&Gpu| gpu.access.obstacle().is_none_or(Obstacle::is_seen_by_runtime);
    inventory.gpus.iter().filter(move |gpu| gpu.vendor == vendor).filter(is_seen)
}

/// The best guess for a GPU without a UUID: CUDA counts the GPUs that it can open.
fn cuda_number(own: &Gpu, inventory: &Inventory) -> usize {
    let whole = seen_by_runtime(inventory, own.vendor).filter(|gpu| gpu.mig.is_none());
    whole.filter(|gpu| gpu.index < own.index).count()
}

fn number_among_open(own: &Gpu, inventory: &Inventory) -> usize {
    let of_vendor = || inventory.gpus.iter().filter(|gpu| gpu.vendor == own.vendor);
    let opens = |gpu: &&Gpu| {
        // A node that shares an earlier node's render node can be opened too; only Slurm cannot use it.
        let is_twin = |other: &Gpu| other.index < gpu.index && other.device_file == gpu.device_file;
        let mut seen = seen_by_runtime(inventory, own.vendor);
        seen.any(|other| other.index == gpu.index || is_twin(other))
    };
    of_vendor().filter(|gpu| gpu.index < own.index).filter(opens).count()
}

/// Why Slurm's plugin would fail with these GPUs; `None` if it would not.
pub(super) fn plugin_fault(vendor: Vendor, offers: &[Offer<'_>]) -> Option<&'static str> {
    let (twins, order) = vendor.traits().slurm.plugin_order?;
    let places: Vec<_> = offers.iter().map(|offer| offer.gpu.pci_address).collect();
    if places.windows(2).any(|pair| pair[0].is_some() && pair[0] == pair[1]) {
        return Some(twins);
    }
    (!places.is_sorted()).then_some(order)
}
