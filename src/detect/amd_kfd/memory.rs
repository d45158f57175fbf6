//! What memory an AMD GPU has, and whose it is.
//!
//! KFD's banks of a GPU that is a part of the processor hold RAM that it may borrow (kernel 6.10 and newer: up to half of it).
//! The PCI device's `mem_info_vram_total` is what is its own: what the firmware kept from the kernel, or, with an MI300A, the
//! memory of its NUMA node, which is the processor's as well.

use std::fs;
use std::path::Path;

use super::topology::{GpuNode, GpuProperties};

/// The instruction sets that exist in APUs only (LLVM, "User Guide for AMDGPU Backend", Processors). Those of the MI300A,
/// gfx942, and of old APUs are discrete GPUs' as well.
const OF_APUS: [&str; 14] = [
    "gfx801", "gfx902", "gfx909", "gfx90c", "gfx1013", "gfx1033", "gfx1035", "gfx1036", "gfx1037", "gfx1103",
    "gfx1150", "gfx1151", "gfx1152", "gfx1153",
];

/// A GPU's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct GpuMemory {
    /// Its own in MiB; `None` where the driver lists none.
    pub(super) mib: Option<u64>,
    /// Whether that is its NUMA node's memory, which the kernel gives to processes too.
    pub(super) is_shared: bool,
    /// Whether KFD lists more, which is borrowed.
    borrows: bool,
}

/// The memory of `node`, which is near to `numa_node`.
pub(super) fn of(root: &Path, node: &GpuNode, numa_node: Option<u32>) -> GpuMemory {
    let device = root.join("sys/bus/pci/devices").join(node.properties.pci_address.to_string());
    let own = fs::read_to_string(device.join("mem_info_vram_total")).ok();
    let own = own.and_then(|text| text.trim().parse::<u64>().ok()).filter(|bytes| *bytes > 0).map(|bytes| bytes >> 20);
    let listed = node.memory_mib();
    // A partition has a part of what the whole device says.
    let mib = match (listed, own) {
        (Some(listed), Some(own)) => Some(listed.min(own)),
        (listed, own) => listed.or(own),
    };
    let borrows = listed.zip(own).is_some_and(|(listed, own)| listed > own);
    let of_node = node_mib(root, numa_node);
    // What the firmware keeps for a GPU is not in the node's memory, and much less than it.
    let is_shared = is_apu(&node.properties) && own.zip(of_node).is_some_and(|(own, of_node)| own >= of_node);
    GpuMemory { mib, is_shared, borrows }
}

/// Whether it is the small GPU of a processor. An MI300A is not: its memory is all its own.
pub(super) fn is_integrated(properties: &GpuProperties, memory: &GpuMemory) -> bool {
    memory.borrows || is_apus_isa(properties)
}

/// An MI300A has the instruction set of the MI300X, and with some kernels no cores in its node: its memory tells.
fn is_apu(properties: &GpuProperties) -> bool {
    const MI300A: u64 = 0x74a0;
    properties.has_cpus || properties.device_id == MI300A || is_apus_isa(properties)
}

fn is_apus_isa(properties: &GpuProperties) -> bool {
    properties.gfx.as_deref().is_some_and(|gfx| OF_APUS.contains(&gfx))
}

/// `Node 0 MemTotal:       131891412 kB`
fn node_mib(root: &Path, node: Option<u32>) -> Option<u64> {
    let node = node?;
    let text = fs::read_to_string(root.join(format!("sys/devices/system/node/node{node}/meminfo"))).ok()?;
    let total = text.lines().find_map(|line| line.split_once("MemTotal:").map(|(_, value)| value))?;
    total.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib >> 10)
}
