//! The memory of an AMD GPU, and whether the processor shares it.
//!
//! For an integrated GPU, KFD's memory banks include RAM that the GPU may borrow (kernel 6.10 and newer: up to half of
//! the RAM). The PCI device's `mem_info_vram_total` is the GPU's own memory: what the firmware reserved, or, on an
//! MI300A, the memory of its NUMA node, which the GPU shares with the processor.

use std::fs;
use std::path::Path;

use super::topology::{GpuNode, GpuProperties};
use crate::memory::node_kib;

/// Instruction sets that only APUs have (LLVM, "User Guide for AMDGPU Backend", Processors), without those of some old
/// APUs. The MI300A shares gfx942 with discrete GPUs.
const APU_ISAS: [&str; 14] = [
    "gfx801", "gfx902", "gfx909", "gfx90c", "gfx1013", "gfx1033", "gfx1035", "gfx1036", "gfx1037", "gfx1103",
    "gfx1150", "gfx1151", "gfx1152", "gfx1153",
];

/// A GPU's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct GpuMemory {
    /// The GPU's own memory in MiB; `None` if the driver lists none.
    pub(super) mib: Option<u64>,
    /// Whether this is the memory of the GPU's NUMA node, from which the kernel also allocates memory to processes.
    pub(super) is_shared: bool,
    /// Whether KFD lists more than the GPU's own memory, because the GPU can borrow RAM.
    is_borrowing: bool,
}

/// The memory of `node`, which is close to `numa_node`.
pub(super) fn read(root: &Path, node: &GpuNode, numa_node: Option<u32>) -> GpuMemory {
    let device = root.join("sys/bus/pci/devices").join(node.properties.pci_address.to_string());
    let own = fs::read_to_string(device.join("mem_info_vram_total")).ok();
    let own = own.and_then(|text| text.trim().parse::<u64>().ok()).filter(|bytes| *bytes > 0).map(|bytes| bytes >> 20);
    let listed = node.memory_mib();
    // `own` is the memory of the whole device, of which a partition has a share.
    let mib = match (listed, own) {
        (Some(listed), Some(own)) => Some(listed.min(own)),
        (listed, own) => listed.or(own),
    };
    let is_borrowing = listed.zip(own).is_some_and(|(listed, own)| listed > own);
    let numa_node_mib = numa_node.and_then(|node| node_kib(root, node)).map(|kib| kib >> 10);
    // Memory that the firmware reserves for a GPU is not part of the NUMA node's memory, and much smaller.
    let is_shared = is_apu(&node.properties) && own.zip(numa_node_mib).is_some_and(|(own, numa)| own >= numa);
    GpuMemory { mib, is_shared, is_borrowing }
}

/// Whether this is a small GPU integrated into a processor. An MI300A is not: it borrows no RAM, and its instruction set is that of a
/// discrete GPU.
pub(super) fn is_integrated(properties: &GpuProperties, memory: &GpuMemory) -> bool {
    memory.is_borrowing || has_apu_isa(properties)
}

/// Whether the GPU is part of an APU. An MI300A has the same instruction set as an MI300X, and with some kernels its
/// node contains no cores, so it is recognized by its device ID.
fn is_apu(properties: &GpuProperties) -> bool {
    const MI300A: u64 = 0x74a0;
    properties.has_cpus || properties.device_id == MI300A || has_apu_isa(properties)
}

fn has_apu_isa(properties: &GpuProperties) -> bool {
    properties.gfx.as_deref().is_some_and(|gfx| APU_ISAS.contains(&gfx))
}
