//! The numbers that CUDA and ROCr give devices, against the positions that Slurm hands to jobs.
//!
//! Slurm counts the lines of gres.conf, of all vendors in one row, and puts that position into a job's environment.
//!
//! CUDA orders by speed unless told otherwise (CUDA_DEVICE_ORDER), and only equal models come out in the driver's order.
//! It has no number for a MIG instance. A UUID is right always.
//!
//! ROCr counts the GPU nodes of KFD in their order, and of these only the ones whose render node opens (ROCR-Runtime,
//! topology.c and amd_filter_device.cpp, the same in ROCm 6.2 and 7). It knows UUIDs too, but the partitions of a GPU share
//! theirs, and then it takes the list to end there: only the number is right always.

use crate::inventory::{Gpu, Inventory, Obstacle, Vendor};

use super::offer::Offer;

/// How the runtimes call the devices of gres.conf.
pub(super) struct Numbering {
    /// For each line the name that its vendor's runtime knows it by.
    pub(super) names: Vec<String>,
    /// Whether each position of Slurm's is the runtime's number already.
    pub(super) is_slurms: bool,
}

/// Names the devices, in the order of the lines.
pub(super) fn number(inventory: &Inventory, offers: &[Offer<'_>]) -> Numbering {
    let name = |offer: &Offer<'_>| match offer.gpu.vendor {
        Vendor::Nvidia => {
            offer.cuda_name().map_or_else(|| cuda_number(offer.gpu, inventory).to_string(), str::to_owned)
        }
        Vendor::Amd => rocr_number(offer.gpu, inventory).to_string(),
    };
    let names: Vec<String> = offers.iter().map(name).collect();
    let one_vendor = offers.windows(2).all(|pair| pair[0].gpu.vendor == pair[1].gpu.vendor);
    let positions_are_names = (0_usize..).zip(&names).all(|(position, name)| position.to_string() == *name);
    let is_slurms = one_vendor && (positions_are_names || is_cudas_order(offers, inventory));
    Numbering { names, is_slurms }
}

/// Whole GPUs of one NVIDIA model, none left out. A minor that is not the index is a sign of a machine that is seen in part,
/// such as by a pod with one of its GPUs, and what CUDA counts there is the driver's affair.
fn is_cudas_order(offers: &[Offer<'_>], inventory: &Inventory) -> bool {
    let is_next = |(position, offer): (u32, &Offer<'_>)| {
        let Gpu { vendor, index, minor, .. } = offer.gpu;
        *vendor == Vendor::Nvidia
            && offer.instance.is_none()
            && *index == position
            && minor.is_none_or(|minor| minor == position)
    };
    // A faster one that jobs are not to have still comes first to CUDA.
    let mut seen = seen_by_runtime(inventory, Vendor::Nvidia);
    let first = seen.next().map(|gpu| &gpu.model);
    seen.all(|gpu| Some(&gpu.model) == first) && (0..).zip(offers).all(is_next)
}

/// The GPUs that open in this container, whether or not jobs are to have them.
fn seen_by_runtime(inventory: &Inventory, vendor: Vendor) -> impl Iterator<Item = &Gpu> {
    let is_seen = |gpu: &&Gpu| gpu.access.obstacle().is_none_or(Obstacle::is_seen_by_runtime);
    inventory.gpus.iter().filter(move |gpu| gpu.vendor == vendor).filter(is_seen)
}

/// The best guess for a GPU that has no UUID: CUDA counts what it can open.
fn cuda_number(own: &Gpu, inventory: &Inventory) -> usize {
    let whole = seen_by_runtime(inventory, Vendor::Nvidia).filter(|gpu| gpu.mig.is_none());
    whole.filter(|gpu| gpu.index < own.index).count()
}

fn rocr_number(own: &Gpu, inventory: &Inventory) -> usize {
    let of_amd = || inventory.gpus.iter().filter(|gpu| gpu.vendor == Vendor::Amd);
    let opens = |gpu: &&Gpu| {
        // A node that shares an earlier one's render node opens too; Slurm alone cannot have it.
        let is_twin = |other: &Gpu| other.index < gpu.index && other.device_file == gpu.device_file;
        let mut seen = seen_by_runtime(inventory, Vendor::Amd);
        seen.any(|other| other.index == gpu.index || is_twin(other))
    };
    of_amd().filter(|gpu| gpu.index < own.index).filter(opens).count()
}

/// Why Slurm's rsmi plugin would go wrong with these GPUs; `None` if it would not.
pub(super) fn rsmi_fault(offers: &[Offer<'_>]) -> Option<&'static str> {
    let places: Vec<_> = offers.iter().map(|offer| offer.gpu.pci_address).collect();
    if places.windows(2).any(|pair| pair[0].is_some() && pair[0] == pair[1]) {
        return Some(
            "Slurm's rsmi plugin gives one render node to all partitions of a GPU, and slurmd dies of a file that is there twice",
        );
    }
    (!places.is_sorted()).then_some(
        "Slurm's rsmi plugin numbers the GPUs in the order of the PCI bus, and ROCr in KFD's, so a job would compute on another GPU than its own",
    )
}
