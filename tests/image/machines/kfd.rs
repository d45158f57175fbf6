//! AMD GPUs in sysfs, in the format of the kernel's KFD.

use super::tree::Tree;

pub(crate) const NODES: &str = "sys/class/kfd/kfd/topology/nodes";

/// A GPU, whole or partitioned.
#[derive(Clone, Copy)]
pub(crate) struct Chip {
    /// PCI domain and bus.
    pub(crate) domain: u32,
    pub(crate) bus: u32,
    /// Number of the first render node. Further partitions have the following numbers.
    pub(crate) minor: u32,
    pub(crate) partitions: u32,
    /// PCI device and ISA.
    pub(crate) device: u32,
    pub(crate) gfx: u32,
    /// CPU cores in the same KFD node. Only a first-generation APU has any.
    pub(crate) cpu_cores: u32,
    /// Memory that KFD lists, in GiB.
    pub(crate) gib: u64,
    /// VRAM of the chip, in GiB.
    pub(crate) own_gib: u64,
    /// The nearest CPU node.
    pub(crate) socket: u32,
}

/// A whole MI210.
pub(crate) const MI210: Chip = Chip {
    domain: 0,
    bus: 0x63,
    minor: 128,
    partitions: 1,
    device: 0x740f,
    gfx: 90_010,
    cpu_cores: 0,
    gib: 64,
    own_gib: 64,
    socket: 0,
};
/// A whole MI300X.
pub(crate) const MI300X: Chip = Chip { device: 0x74a1, gfx: 90_402, ..MI210 };
/// The integrated GPU of a Ryzen, with two compute units. It can use half of the host memory.
pub(crate) const RYZEN: Chip = Chip { device: 0x13c0, gfx: 100_306, gib: 16, own_gib: 1, ..MI210 };

/// Writes the topology: one CPU node per socket, then the chips in the given order, which is ROCr's.
pub(crate) fn write(tree: &mut Tree, sockets: u32, chips: &[Chip]) {
    for socket in 0..sockets {
        tree.file(&format!("{NODES}/{socket}/gpu_id"), "0");
        let properties = "cpu_cores_count 1\nsimd_count 0\nmem_banks_count 1\nvendor_id 0\ndevice_id 0\nlocation_id 0\n\
                          domain 0\ndrm_render_minor 0";
        tree.file(&format!("{NODES}/{socket}/properties"), properties);
    }
    let mut node = sockets;
    for (serial, chip) in (1_u64..).zip(chips) {
        for partition in 0..chip.partitions {
            write_gpu(tree, node, chip, partition, 0x6f00_0000_0000_0000 + serial);
            node += 1;
        }
        let address = format!("{:04x}:{:02x}:00.0", chip.domain, chip.bus);
        tree.file(&format!("sys/bus/pci/devices/{address}/numa_node"), &chip.socket.to_string());
        tree.file(&format!("sys/bus/pci/devices/{address}/local_cpulist"), &chip.socket.to_string());
        let vram = (chip.own_gib << 30).to_string();
        tree.file(&format!("sys/bus/pci/devices/{address}/mem_info_vram_total"), &vram);
    }
}

/// Writes one partition in the format of the kernel's kfd_topology.c.
fn write_gpu(tree: &mut Tree, node: u32, chip: &Chip, partition: u32, unique_id: u64) {
    let Chip { domain, bus, device, gfx, cpu_cores, .. } = chip;
    let (minor, location, simds) = (chip.minor + partition, bus << 8 | partition, 320 / chip.partitions);
    let directory = format!("{NODES}/{node}");
    tree.file(&format!("{directory}/gpu_id"), &(24_248 + node).to_string());
    let properties = format!(
        "cpu_cores_count {cpu_cores}\nsimd_count {simds}\nmem_banks_count 1\ngfx_target_version {gfx}\nvendor_id 4098\n\
         device_id {device}\nlocation_id {location}\ndomain {domain}\ndrm_render_minor {minor}\nunique_id {unique_id}\n\
         num_xcc 1"
    );
    tree.file(&format!("{directory}/properties"), &properties);
    let bytes = (chip.gib << 30) / u64::from(chip.partitions);
    tree.file(&format!("{directory}/mem_banks/0/properties"), &format!("heap_type 1\nsize_in_bytes {bytes}"));
    tree.file(&format!("{directory}/io_links/0/properties"), &format!("node_to {}\nweight 20", chip.socket));
}
