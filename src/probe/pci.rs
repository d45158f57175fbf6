//! The locality of a PCI device, its nearest CPUs and NUMA node, from sysfs.

use std::fs;
use std::path::Path;

use model::inventory::{CpuSet, PciAddress};

/// The kernel allows no more NUMA nodes (CONFIG_NODES_SHIFT is 10 at most).
const HIGHEST_NUMA_NODE: u32 = 1023;

/// The CPUs and the NUMA node near a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Locality {
    /// `local_cpulist`; `None` if it is empty or unreadable.
    pub cpus: Option<CpuSet>,
    /// `numa_node`; `None` if it is -1 (unknown), implausible or unreadable.
    pub numa_node: Option<u32>,
}

/// Reads `/sys/bus/pci/devices/ADDRESS` under `root`.
pub fn locality(root: &Path, address: PciAddress) -> Locality {
    let device = root.join("sys/bus/pci/devices").join(address.to_string());
    let read = |file: &str| fs::read_to_string(device.join(file)).ok();
    Locality {
        cpus: read("local_cpulist").and_then(|text| text.parse().ok()).filter(|cpus: &CpuSet| !cpus.is_empty()),
        numa_node: read("numa_node").and_then(|text| text.trim().parse().ok()).and_then(numa_node),
    }
}

/// The first of `nodes` without CPUs: it is the device's own memory.
pub(super) fn memory_node(root: &Path, nodes: impl IntoIterator<Item = Option<u32>>) -> Option<u32> {
    let has_no_cpus = |node: &u32| {
        let cpus = fs::read_to_string(root.join(format!("sys/devices/system/node/node{node}/cpulist")));
        cpus.is_ok_and(|cpus| cpus.trim().is_empty())
    };
    nodes.into_iter().flatten().find(has_no_cpus)
}

/// Whether the device sleeps, so that most reads of its files would wake it (Linux, Documentation/ABI/testing/sysfs-devices-power).
pub(super) fn is_asleep(root: &Path, address: PciAddress) -> bool {
    let status = root.join("sys/bus/pci/devices").join(address.to_string()).join("power/runtime_status");
    fs::read_to_string(status).is_ok_and(|status| matches!(status.trim(), "suspended" | "suspending"))
}

/// `node`, if it is plausible: drivers return 0xffffffff for "unknown".
pub fn numa_node(node: u32) -> Option<u32> {
    (node <= HIGHEST_NUMA_NODE).then_some(node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numa_node_minus_one_is_unknown() {
        let root = tempfile::tempdir().unwrap();
        let device = root.path().join("sys/bus/pci/devices/0000:17:00.0");
        fs::create_dir_all(&device).unwrap();
        let address = "0000:17:00.0".parse().unwrap();
        assert_eq!(locality(root.path(), address), Locality::default());
        fs::write(device.join("local_cpulist"), "0-3,8-11\n").unwrap();
        fs::write(device.join("numa_node"), "1\n").unwrap();
        assert_eq!(locality(root.path(), address), Locality { cpus: "0-3,8-11".parse().ok(), numa_node: Some(1) });
        fs::write(device.join("local_cpulist"), "\n").unwrap();
        fs::write(device.join("numa_node"), "-1\n").unwrap();
        assert_eq!(locality(root.path(), address), Locality::default());
    }
}
