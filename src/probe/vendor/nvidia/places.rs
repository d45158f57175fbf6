//! The GPUs' numbers in NVML, without opening a GPU: NVML numbers the GPUs in the order of their PCI addresses, which /proc lists.

use std::path::Path;

use super::proc;
use faults::sample::Identity;
use model::inventory::{PciAddress, Vendor};

/// The GPUs of /proc by their number in NVML; empty if /proc does not list as many GPUs as NVML counts.
#[derive(Debug)]
pub(super) struct BusOrder(Vec<(PciAddress, Option<u32>)>);

impl BusOrder {
    /// Reads /proc. `count` is NVML's number of GPUs.
    pub(super) fn read(root: &Path, count: u32) -> Self {
        let all = proc::minors(root);
        Self(if u32::try_from(all.len()) == Ok(count) { all } else { Vec::new() })
    }

    /// Whether NVML's GPU `index` is the GPU `known`. If one of the PCI addresses is unknown, the vendor and the index are
    /// compared.
    pub(super) fn is_at(&self, index: u32, known: &Identity) -> bool {
        match (self.at(index), known.pci_address) {
            (Some((address, _)), Some(known)) => *address == known,
            _ => known.vendor == Vendor::Nvidia && known.index == index,
        }
    }

    /// The identity of a GPU that has not responded yet, from /proc.
    pub(super) fn identity(&self, root: &Path, index: u32) -> Identity {
        let place = self.at(index);
        let file = place.and_then(|(_, minor)| *minor).map(|minor| format!("/dev/nvidia{minor}"));
        Identity {
            vendor: Vendor::Nvidia,
            index,
            pci_address: place.map(|(address, _)| *address),
            file: file.filter(|file| root.join(file.trim_start_matches('/')).exists()),
            ..Identity::default()
        }
    }

    fn at(&self, index: u32) -> Option<&(PciAddress, Option<u32>)> {
        self.0.get(usize::try_from(index).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_is_bus_position_if_proc_lists_all_gpus() {
        let information = |address: &str| format!("proc/driver/nvidia/gpus/{address}/information");
        let files =
            [(information("0000:17:00.0"), "Device Minor: 1\n"), (information("0000:0a:00.0"), "Device Minor: 0\n")];
        let root = crate::tests::tree(&files);
        let identity = |bus: &str, index: u32| Identity {
            index,
            pci_address: format!("0000:{bus}:00.0").parse().ok(),
            ..Identity::default()
        };
        let bus_order = BusOrder::read(root.path(), 2);
        assert!(
            bus_order.is_at(1, &identity("17", 1))
                && bus_order.is_at(1, &identity("17", 5))
                && !bus_order.is_at(0, &identity("17", 0))
        );
        assert_eq!(bus_order.identity(root.path(), 1).pci_address, identity("17", 1).pci_address);
        // NVML reports more GPUs than /proc.
        let bus_order = BusOrder::read(root.path(), 3);
        assert!(bus_order.is_at(1, &identity("17", 1)) && !bus_order.is_at(0, &identity("17", 1)));
        assert_eq!(bus_order.identity(root.path(), 2), Identity { index: 2, ..Identity::default() });
    }
}
