//! Parses the nodes of KFD's topology in sysfs.
//!
//! The kernel's `drivers/gpu/drm/amd/amdkfd/kfd_topology.c` writes the files: each line has a name, a space and a
//! decimal number.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use model::inventory::PciAddress;

/// AMD's PCI vendor ID, 0x1002.
const AMD: u64 = 4098;

/// Memory of the GPU itself, host-visible or not (`HSA_MEM_HEAP_TYPE_FB_PUBLIC`, `..._FB_PRIVATE`).
const GPU_HEAPS: [u64; 2] = [1, 2];

/// The topology, in the order of the kernel's node numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Topology {
    pub(super) gpus: Vec<GpuNode>,
    /// The numbers of the CPU nodes, ascending.
    pub(super) cpu_nodes: Vec<u64>,
    /// The numbers of the nodes that the device cgroup hides from this container.
    pub(super) hidden: Vec<u64>,
    /// Nodes that cannot be read or parsed, each with the reason.
    pub(super) unrecognized_nodes: Vec<(u64, String)>,
}

/// A GPU, or one partition of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GpuNode {
    /// The kernel's number of the node.
    pub(super) number: u64,
    pub(super) directory: PathBuf,
    pub(super) properties: GpuProperties,
}

/// The contents of a GPU node's `properties`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GpuProperties {
    /// N of `/dev/dri/renderDN`.
    pub(super) render_minor: u32,
    /// The PCI device; partitions of one GPU share it.
    pub(super) pci_address: PciAddress,
    /// The PCI device ID.
    pub(super) device_id: u64,
    /// The serial number of the chip; partitions of one GPU share it.
    pub(super) unique_id: Option<u64>,
    /// The name of the instruction set, such as `gfx942`.
    pub(super) gfx: Option<String>,
    /// Whether the node also contains processor cores, as in early APUs.
    pub(super) has_cpus: bool,
}

/// A node of the topology.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    Cpu,
    Gpu(GpuProperties),
    /// An unrecognized node, with the reason.
    Unrecognized(&'static str),
}

/// Reads the nodes below `directory` through `read`. Tests replace `read`, because only the kernel can return EPERM to root.
pub(super) fn read(directory: &Path, read: impl Fn(&Path) -> io::Result<String>) -> Topology {
    let mut topology = Topology::default();
    for number in numbers_in(directory) {
        let directory = directory.join(number.to_string());
        match read(&directory.join("properties")) {
            Ok(text) => match parse_node(&text) {
                Node::Cpu => topology.cpu_nodes.push(number),
                Node::Gpu(properties) => topology.gpus.push(GpuNode { number, directory, properties }),
                Node::Unrecognized(why) => topology.unrecognized_nodes.push((number, why.to_owned())),
            },
            // The open succeeds; only the read is checked against the device cgroup.
            Err(error) if error.raw_os_error() == Some(Errno::EPERM as i32) => topology.hidden.push(number),
            Err(error) => topology.unrecognized_nodes.push((number, format!("unreadable: {error}"))),
        }
    }
    topology
}

impl GpuNode {
    /// The GPU's own memory in MiB; `None` if the driver lists no memory bank for it.
    pub(super) fn memory_mib(&self) -> Option<u64> {
        let banks = property_files(&self.directory.join("mem_banks"));
        let bytes = banks.filter_map(|text| parse_gpu_bank(&text)).reduce(u64::saturating_add)?;
        Some(bytes / (1024 * 1024))
    }

    /// The CPU node at the other end of the lightest link, as an index into `cpu_nodes`.
    pub(super) fn nearest_cpu_node(&self, cpu_nodes: &[u64]) -> Option<usize> {
        let links = property_files(&self.directory.join("io_links"));
        let to_cpus = links.filter_map(|text| {
            let peer = value(&text, "node_to")?;
            Some((value(&text, "weight")?, cpu_nodes.iter().position(|node| *node == peer)?))
        });
        to_cpus.min().map(|(_, position)| position)
    }
}

/// The numeric entries of `directory`, ascending: sysfs lists 10 before 2.
fn numbers_in(directory: &Path) -> Vec<u64> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut numbers: Vec<u64> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}

/// The text of each `directory/N/properties`.
fn property_files(directory: &Path) -> impl Iterator<Item = String> + use<> {
    let directory = directory.to_owned();
    numbers_in(&directory)
        .into_iter()
        .filter_map(move |number| fs::read_to_string(directory.join(number.to_string()).join("properties")).ok())
}

/// The number in the line `name NUMBER`.
fn value(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

fn parse_node(text: &str) -> Node {
    let positive = |name| value(text, name).filter(|number| *number > 0);
    let cpus = positive("cpu_cores_count");
    match (cpus, positive("simd_count")) {
        (Some(_), None) => Node::Cpu,
        (None, None) => Node::Unrecognized("neither processor cores nor compute units"),
        (cpus, Some(_)) => parse_gpu(text, cpus.is_some()).map_or_else(Node::Unrecognized, Node::Gpu),
    }
}

fn parse_gpu(text: &str, has_cpus: bool) -> Result<GpuProperties, &'static str> {
    let positive = |name| value(text, name).filter(|number| *number > 0);
    if value(text, "vendor_id") != Some(AMD) {
        return Err("vendor_id is not AMD's");
    }
    let render_minor = positive("drm_render_minor").and_then(|minor| minor.try_into().ok());
    let location = value(text, "location_id");
    Ok(GpuProperties {
        render_minor: render_minor.ok_or("no render node (drm_render_minor)")?,
        pci_address: location
            .and_then(|location| pci_address(value(text, "domain").unwrap_or(0), location))
            .ok_or("no PCI address (location_id)")?,
        device_id: value(text, "device_id").unwrap_or(0),
        unique_id: positive("unique_id"),
        gfx: positive("gfx_target_version").map(gfx_name),
        has_cpus,
    })
}

/// The low three bits of `location_id` are the partition number (newer kernels: bits 28 to 31). In sysfs the device is
/// always function 0.
fn pci_address(domain: u64, location_id: u64) -> Option<PciAddress> {
    let [.., bus, device_and_function] = location_id.to_be_bytes();
    Some(PciAddress { domain: domain.try_into().ok()?, bus, device: device_and_function >> 3, function: 0 })
}

/// 90402 is `gfx942`, 90010 is `gfx90a`: major and minor in decimal, stepping in hexadecimal.
fn gfx_name(version: u64) -> String {
    let (major, minor, stepping) = (version / 10_000, version / 100 % 100, version % 100);
    format!("gfx{major}{minor}{stepping:x}")
}

/// The size in bytes of a memory bank on the GPU.
fn parse_gpu_bank(text: &str) -> Option<u64> {
    value(text, "heap_type").filter(|heap| GPU_HEAPS.contains(heap))?;
    value(text, "size_in_bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gfx_names_match_compiler() {
        assert_eq!([90_402, 90_010, 100_306, 110_003].map(gfx_name), ["gfx942", "gfx90a", "gfx1036", "gfx1103"]);
    }

    #[test]
    fn partitions_map_to_pci_function_0() {
        for location in [2560, 2563, 2560 | 3 << 28] {
            assert_eq!(pci_address(1, location).unwrap().to_string(), "0001:0a:00.0");
        }
        assert_eq!(pci_address(0, 0x1_0010).unwrap().to_string(), "0000:00:02.0");
        assert_eq!(pci_address(1 << 40, 0), None);
    }

    #[test]
    fn matches_whole_property_name() {
        assert_eq!(value("simd_count_x 3\nsimd_count 4\n", "simd_count"), Some(4));
    }

    #[test]
    fn counts_forbidden_nodes_and_names_unreadable_ones() {
        let nodes = tempfile::tempdir().unwrap();
        for node in ["0", "1", "2", "10", "x"] {
            fs::create_dir(nodes.path().join(node)).unwrap();
        }
        let answers = |path: &Path| match path.parent().and_then(Path::file_name).and_then(|name| name.to_str()) {
            Some("0" | "10") => Ok("cpu_cores_count 8\nsimd_count 0\n".to_owned()),
            Some("1") => Err(Errno::EPERM.into()),
            Some("2") => Err(Errno::ENOENT.into()),
            other => panic!("unexpected read of {other:?}"),
        };
        let unrecognized_nodes = vec![(2, "unreadable: No such file or directory (os error 2)".to_owned())];
        let want = Topology { gpus: Vec::new(), cpu_nodes: vec![0, 10], hidden: vec![1], unrecognized_nodes };
        assert_eq!(read(nodes.path(), answers), want);
    }

    #[test]
    fn unrecognized_kernel_node_has_reason() {
        let gpu = "simd_count 8\nvendor_id 4098\ndrm_render_minor 128\nlocation_id 2560\n";
        assert!(matches!(parse_node(gpu), Node::Gpu(_)));
        for (text, word) in [
            (String::new(), "neither"),
            (gpu.replace("4098", "4318"), "vendor_id"),
            (gpu.replace("128", "0"), "render node"),
            (gpu.replace("location_id 2560", "location_id x"), "PCI address"),
        ] {
            assert!(matches!(parse_node(&text), Node::Unrecognized(why) if why.contains(word)), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_input_does_not_panic(
            number in proptest::num::u64::ANY,
            text in "(?s).{0,40}",
            names in "[a-z_]{1,12} [0-9]{1,24}",
        ) {
            for text in [text, names] {
                parse_node(&text);
                parse_gpu_bank(&text);
            }
            parse_node(&format!(
                "simd_count {number}\nvendor_id 4098\ndrm_render_minor {number}\nlocation_id {number}\n\
                 domain {number}\ndevice_id {number}\nunique_id {number}\ngfx_target_version {number}\n"
            ));
            parse_node(&format!("simd_count 1\nvendor_id 4098\ndrm_render_minor 128\nlocation_id {number}\n"));
            gfx_name(number);
        }
    }
}
