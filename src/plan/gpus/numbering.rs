//! Compares the device numbers of the vendors' runtimes with the positions that Slurm passes to jobs.
//!
//! Slurm numbers the lines of gres.conf, across all vendors, and puts these positions into a job's environment.
//!
//! CUDA numbers the GPUs whose device files it can open, from 0, whatever their minors are. By default the fastest GPU
//! comes first, and equal models are in bus order; with CUDA_DEVICE_ORDER=PCI_BUS_ID, all GPUs are in bus order (CUDA
//! C++ Programming Guide, "CUDA Environment Variables"). If a MIG instance is visible, CUDA enumerates no whole GPU, and
//! an instance has no number (MIG User Guide, "CUDA Device Enumeration"). A UUID is always right, but programs that
//! expect numbers reject it.
//!
//! ROCr numbers the GPU nodes of KFD whose render node can be opened, in KFD's order (ROCR-Runtime, topology.c and
//! amd_filter_device.cpp, the same in ROCm 6.2 and 7). It also accepts UUIDs, but the partitions of a GPU share one
//! UUID, and ROCr ignores the rest of a list after a repeated UUID. Only the number is always right.
//!
//! Level Zero numbers what it can open in /dev/dri, including integrated GPUs. ZE_AFFINITY_MASK counts cards in bus
//! order only with two settings from the vendor's table; by default it counts the stacks of a card (compute-runtime,
//! execution_environment.cpp; Intel's oneAPI optimization guide, "Exposing the Device Hierarchy").

use config::CudaDevices;
use model::inventory::{Gpu, Inventory, Obstacle, Vendor};

use super::offer::Offer;

/// The runtimes' names for the devices of gres.conf.
pub(super) struct Numbering {
    /// For each line, the name in its vendor's runtime.
    pub(super) names: Vec<String>,
    /// For each line, the UUID for CUDA if `names` has a number that depends on the GPUs that the job's user can open.
    pub(super) uuids: Vec<Option<String>>,
    /// Whether each position in Slurm's list equals the runtime's number without further settings.
    pub(super) matches_slurm_positions: bool,
}

/// Determines each device's name in its vendor's runtime, in the order of `offers`.
pub(super) fn number(inventory: &Inventory, wanted: CudaDevices, offers: &[Offer<'_>]) -> Numbering {
    let by_number = wanted == CudaDevices::Number && cuda_counts(inventory, offers);
    let name = |offer: &Offer<'_>| match offer.cuda_name() {
        _ if offer.gpu.vendor.traits().runtime.selects_by_number => number_among_open(offer.gpu, inventory).to_string(),
        Some(uuid) if !by_number => uuid.to_owned(),
        _ => cuda_number(offer.gpu, inventory).to_string(),
    };
    let names: Vec<String> = offers.iter().map(name).collect();
    let is_alone = |gpu: &Gpu| seen_by_runtime(inventory, gpu.vendor).nth(1).is_none();
    let uuid = |(offer, name): (&Offer<'_>, &String)| {
        let uuid = offer.cuda_name().filter(|uuid| offer.gpu.vendor.traits().has_cuda && uuid != name);
        uuid.filter(|_| !is_alone(offer.gpu)).map(str::to_owned)
    };
    let uuids = offers.iter().zip(&names).map(uuid).collect();
    let one_vendor = offers.windows(2).all(|pair| pair[0].gpu.vendor == pair[1].gpu.vendor);
    let positions_are_names = (0_usize..).zip(&names).all(|(position, name)| position.to_string() == *name);
    let needs_settings = offers.iter().any(|offer| {
        let runtime = &offer.gpu.vendor.traits().runtime;
        let is_in_order = runtime.equal_models_in_bus_order && is_one_model(inventory, offer.gpu.vendor);
        !runtime.settings.is_empty() && !is_in_order
    });
    Numbering { names, uuids, matches_slurm_positions: one_vendor && !needs_settings && positions_are_names }
}

/// Whether the number of each offered GPU in CUDA is known: none of the GPUs that CUDA may open is in MIG mode, their bus order is known, and
/// CUDA certainly counts each of them up to the last offered one.
fn cuda_counts(inventory: &Inventory, offers: &[Offer<'_>]) -> bool {
    let counted = |gpu: &Gpu| gpu.access.obstacle().map_or(Some(true), Obstacle::is_counted);
    let mut gpus: Vec<&Gpu> = inventory.cuda_gpus().filter(|gpu| counted(gpu) != Some(false)).collect();
    gpus.sort_by_key(|gpu| gpu.pci_address);
    let in_order = |pair: &[&Gpu]| pair[0].pci_address.is_some() && pair[0].pci_address < pair[1].pci_address;
    let is_offered = |gpu: &&&Gpu| offers.iter().any(|offer| std::ptr::eq(offer.gpu, **gpu));
    let mut up_to_last = gpus.iter().rev().skip_while(|gpu| !is_offered(gpu));
    gpus.iter().all(|gpu| gpu.mig.is_none())
        && gpus.windows(2).all(in_order)
        && up_to_last.all(|gpu| counted(gpu) == Some(true))
}

fn is_one_model(inventory: &Inventory, vendor: Vendor) -> bool {
    let mut seen = seen_by_runtime(inventory, vendor);
    let first = seen.next().map(|gpu| &gpu.model);
    seen.all(|gpu| Some(&gpu.model) == first)
}

/// The vendor's GPUs that can be opened in this container, whether or not jobs may use them.
fn seen_by_runtime(inventory: &Inventory, vendor: Vendor) -> impl Iterator<Item = &Gpu> {
    let is_seen = |gpu: &&Gpu| gpu.access.obstacle().is_none_or(Obstacle::is_seen_by_runtime);
    inventory.gpus.iter().filter(move |gpu| gpu.vendor == vendor).filter(is_seen)
}

/// The number in bus order among the GPUs that CUDA can open. It is only a guess if [`cuda_counts`] is false, and then serves only GPUs
/// without a UUID.
fn cuda_number(own: &Gpu, inventory: &Inventory) -> usize {
    let whole = seen_by_runtime(inventory, own.vendor).filter(|gpu| gpu.mig.is_none());
    whole.filter(|gpu| (gpu.pci_address, gpu.index) < (own.pci_address, own.index)).count()
}

fn number_among_open(own: &Gpu, inventory: &Inventory) -> usize {
    let of_vendor = || inventory.gpus.iter().filter(|gpu| gpu.vendor == own.vendor);
    let opens = |gpu: &&Gpu| {
        // A KFD node that shares an earlier KFD node's render node can be opened too; only Slurm cannot use it.
        let mut seen = seen_by_runtime(inventory, own.vendor);
        seen.any(|other| other.index <= gpu.index && other.device_file == gpu.device_file)
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

#[cfg(test)]
mod tests {
    use super::super::offer::offers;
    use super::*;
    use crate::Reasons;
    use model::inventory::{Access, MigInstance};

    /// A GPU whose minor differs from every runtime number.
    fn gpu(index: u32, bus: u32, access: Access) -> Gpu {
        Gpu {
            index,
            uuid: Some(format!("GPU-{index}")),
            model: Some("NVIDIA H200".to_owned()),
            minor: Some(9 - index),
            device_file: Some(format!("/dev/nvidia{}", 9 - index).into()),
            pci_address: format!("0000:{bus:02x}:00.0").parse().ok(),
            access,
            ..Gpu::default()
        }
    }

    fn unusable(obstacle: Obstacle) -> Access {
        Access::unusable(obstacle, "")
    }

    /// The names, whether Slurm's positions equal them, and the number of UUIDs for isolated users.
    fn numbered(gpus: &[Gpu], setting: CudaDevices) -> (Vec<String>, bool, usize) {
        let inventory = Inventory { gpus: gpus.to_vec(), ..Inventory::default() };
        let numbering = number(&inventory, setting, &offers(&inventory, &mut Reasons::default()));
        (numbering.names, numbering.matches_slurm_positions, numbering.uuids.into_iter().flatten().count())
    }

    #[test]
    fn cuda_numbers_count_usable_gpus_in_bus_order() {
        let pair = |first: Access| [gpu(0, 1, first), gpu(1, 2, Access::Usable), gpu(2, 3, Access::Usable)];
        for (first, names, matches_slurm_positions) in [
            (Access::Usable, ["0", "1", "2"].as_slice(), true),
            (unusable(Obstacle::NotGiven), &["0", "1"], true),
            (unusable(Obstacle::Denied), &["0", "1"], true),
            (unusable(Obstacle::NotChosen), &["1", "2"], false),
            (unusable(Obstacle::Lost), &["GPU-1", "GPU-2"], false),
            (unusable(Obstacle::Faulty), &["GPU-1", "GPU-2"], false),
            (unusable(Obstacle::Starting), &["GPU-1", "GPU-2"], false),
        ] {
            let (actual, matches_slurm, _) = numbered(&pair(first.clone()), CudaDevices::Number);
            assert_eq!(
                (actual.as_slice(), matches_slurm),
                (names.iter().map(ToString::to_string).collect::<Vec<_>>().as_slice(), matches_slurm_positions),
                "{first:?}"
            );
        }
        // A GPU that CUDA may or may not count does not affect the numbers before it.
        let lost_last = [gpu(0, 1, Access::Usable), gpu(1, 2, unusable(Obstacle::Lost))];
        assert_eq!(numbered(&lost_last, CudaDevices::Number), (vec!["0".to_owned()], true, 0));
        let reversed = [gpu(0, 2, Access::Usable), gpu(1, 1, Access::Usable)];
        assert_eq!(numbered(&reversed, CudaDevices::Number), (vec!["1".to_owned(), "0".to_owned()], false, 2));
    }

    #[test]
    fn uses_uuids_on_request_with_mig_or_unknown_order() {
        let two = || [gpu(0, 1, Access::Usable), gpu(1, 2, Access::Usable)];
        let uuids = (vec!["GPU-0".to_owned(), "GPU-1".to_owned()], false, 0);
        assert_eq!(numbered(&two(), CudaDevices::Uuid), uuids);
        let mut unplaced = two();
        unplaced[1].pci_address = None;
        assert_eq!(numbered(&unplaced, CudaDevices::Number), uuids);
        let mut mig = two();
        mig[1].mig = Some(vec![MigInstance::default()]);
        assert_eq!(numbered(&mig, CudaDevices::Number).0, ["GPU-0"]);
        mig[1].access = unusable(Obstacle::NotGiven);
        assert_eq!(numbered(&mig, CudaDevices::Number), (vec!["0".to_owned()], true, 0));
        // Different models require CUDA_DEVICE_ORDER.
        let mut models = two();
        models[1].model = Some("NVIDIA L40S".to_owned());
        assert_eq!(numbered(&models, CudaDevices::Number), (vec!["0".to_owned(), "1".to_owned()], false, 2));
    }

    #[test]
    fn amd_number_counts_openable_nodes_before_own() {
        let amd = |index: u32, minor: u32, access: Access| Gpu {
            vendor: Vendor::Amd,
            device_file: Some(format!("/dev/dri/renderD{minor}").into()),
            ..gpu(index, index, access)
        };
        let gpus = [
            amd(0, 128, unusable(Obstacle::NotGiven)),
            amd(1, 129, Access::Usable),
            amd(2, 129, unusable(Obstacle::SharedFile)),
            amd(3, 130, unusable(Obstacle::Denied)),
            // The later KFD node with the same file does not make this one openable.
            amd(4, 131, unusable(Obstacle::Lost)),
            amd(5, 131, Access::Usable),
            amd(6, 132, Access::Usable),
            gpu(7, 7, Access::Usable),
        ];
        assert_eq!(numbered(&gpus, CudaDevices::Number), (["0", "0", "2", "3"].map(str::to_owned).to_vec(), false, 0));
    }

    #[test]
    fn plugin_fails_at_partitions_and_at_another_order() {
        let fault = |vendor, buses: &[u32]| {
            let gpus =
                (0..).zip(buses).map(|(index, bus)| Gpu { vendor, ..gpu(index, *bus, Access::Usable) }).collect();
            let inventory = Inventory { gpus, ..Inventory::default() };
            plugin_fault(vendor, &offers(&inventory, &mut Reasons::default()))
        };
        let (twins, order) = Vendor::Amd.traits().slurm.plugin_order.unwrap();
        assert_eq!(fault(Vendor::Amd, &[1, 2, 3]), None);
        assert_eq!(fault(Vendor::Amd, &[1, 2, 2]), Some(twins));
        assert_eq!(fault(Vendor::Amd, &[2, 1]), Some(order));
        assert_eq!(fault(Vendor::Nvidia, &[2, 1, 1]), None);
    }
}
