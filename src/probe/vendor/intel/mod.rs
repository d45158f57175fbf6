//! Intel GPUs, as the kernel's DRM subsystem lists them in sysfs.
//!
//! sysfs shows every render node of the machine, and `/dev/dri` contains those that were passed to the container. Only
//! the nodes in `/dev/dri` are counted. Intel's runtime opens only these nodes, too.

use std::fs;
use std::path::Path;

use crate::vendor::VendorProbe;
use crate::{ProbeResult, device, groups, left_out, pci, regular};
use model::inventory::{Access, Driver, Gpu, PciAddress, Source, Vendor};

/// The discrete GPUs by PCI device ID (compute-runtime, devices_base.inl). If the driver does not report memory, this
/// is the only sign of a discrete card on the root bus of a virtual machine.
const CARDS: [(u16, &str); 29] = [
    (0x0b69, "Intel Data Center GPU Max 1450"),
    (0x0bd5, "Intel Data Center GPU Max 1550"),
    (0x0bd6, "Intel Data Center GPU Max 1550"),
    (0x0bd7, "Intel Data Center GPU Max 1350"),
    (0x0bd8, "Intel Data Center GPU Max 1350"),
    (0x0bd9, "Intel Data Center GPU Max 1100"),
    (0x0bda, "Intel Data Center GPU Max 1100"),
    (0x0bdb, "Intel Data Center GPU Max 1100"),
    (0x5690, "Intel Arc A770M"),
    (0x5691, "Intel Arc A730M"),
    (0x5692, "Intel Arc A550M"),
    (0x5693, "Intel Arc A370M"),
    (0x5694, "Intel Arc A350M"),
    (0x56a0, "Intel Arc A770"),
    (0x56a1, "Intel Arc A750"),
    (0x56a2, "Intel Arc A580"),
    (0x56a5, "Intel Arc A380"),
    (0x56a6, "Intel Arc A310"),
    (0x56b0, "Intel Arc Pro A30M"),
    (0x56b1, "Intel Arc Pro A40"),
    (0x56b2, "Intel Arc Pro A60M"),
    (0x56b3, "Intel Arc Pro A60"),
    (0x56c0, "Intel Data Center GPU Flex 170"),
    (0x56c1, "Intel Data Center GPU Flex 140"),
    (0x56c2, "Intel Data Center GPU Flex 170V"),
    (0xe20b, "Intel Arc B580"),
    (0xe20c, "Intel Arc B570"),
    (0xe211, "Intel Arc Pro B60"),
    (0xe212, "Intel Arc Pro B50"),
];

/// Intel's GPUs.
#[derive(Debug)]
pub struct Intel;

impl VendorProbe for Intel {
    fn has_traces(&self, root: &Path) -> bool {
        root.join("dev/dri").is_dir()
    }

    fn probe(&self, root: &Path) -> ProbeResult {
        probe(root)
    }

    fn list(&self, root: &Path) -> Vec<Gpu> {
        gpus(root, &nodes(root), device::access_without_open)
    }
}

/// Reads sysfs, and opens each device as a job would. Call it only inside the sandbox.
fn probe(root: &Path) -> ProbeResult {
    let nodes = nodes(root);
    let gpus = gpus(root, &nodes, device::access);
    let driver = nodes.first().map(|node| Driver {
        vendor: Vendor::Intel,
        source: Source::Drm,
        version: node
            .driver
            .as_deref()
            .and_then(|name| regular::line(&root.join("sys/module").join(name).join("version"))),
        cuda_version: None,
    });
    let findings = left_out::findings(&gpus).into_iter().chain(groups::finding(root, Vendor::Intel, &gpus)).collect();
    ProbeResult { driver, gpus, findings }
}

/// The render nodes, in the order in which the runtime numbers them; its device selector uses these numbers.
fn nodes(root: &Path) -> Vec<Node> {
    let entries = fs::read_dir(root.join("sys/class/drm")).into_iter().flatten().flatten();
    let mut nodes: Vec<Node> = entries.filter_map(|entry| node(root, &entry)).collect();
    nodes.sort_by_key(|node| (node.address, node.minor));
    nodes
}

fn gpus(root: &Path, nodes: &[Node], check_access: fn(&Path) -> Access) -> Vec<Gpu> {
    (0..).zip(nodes).map(|(index, node)| gpu(root, index, node, check_access)).collect()
}

/// A render node in this container.
struct Node {
    minor: u32,
    address: Option<PciAddress>,
    /// `xe` or `i915`.
    driver: Option<String>,
    model: Option<&'static str>,
    memory_mib: Option<u64>,
}

impl Node {
    /// A GPU with its own memory, or one of [`CARDS`], is a discrete card. Otherwise the location decides, because the kernel's i915
    /// reports no memory: an integrated GPU is on the root bus, at 0000:00:02.0 (igt-gpu-tools, igt_device_scan.c), a discrete card behind a bridge.
    fn is_integrated(&self) -> bool {
        let is_behind_bridge = self.address.is_some_and(|address| !address.is_on_root_bus());
        self.memory_mib.is_none() && self.model.is_none() && !is_behind_bridge
    }
}

fn node(root: &Path, entry: &fs::DirEntry) -> Option<Node> {
    let name = entry.file_name().into_string().ok()?;
    let minor = name.strip_prefix("renderD")?.parse().ok()?;
    let device = entry.path().join("device");
    let is_available = regular::line(&device.join("vendor"))? == Vendor::Intel.traits().pci_vendor
        && root.join("dev/dri").join(&name).exists();
    let number =
        regular::line(&device.join("device")).and_then(|text| u16::from_str_radix(text.strip_prefix("0x")?, 16).ok());
    let target = |link: &Path| fs::read_link(link).ok()?.file_name()?.to_str().map(str::to_owned);
    is_available.then(|| Node {
        minor,
        address: target(&device).and_then(|name| name.parse().ok()),
        driver: target(&device.join("driver")),
        model: CARDS.iter().find(|(card, _)| Some(*card) == number).map(|(_, model)| *model),
        memory_mib: memory_mib(&device),
    })
}

/// The memory of all tiles, in MiB. xe reports it for each tile (kernel 6.8, xe_tile_sysfs.c); i915 reports the total, and only in Intel's
/// own packages.
fn memory_mib(device: &Path) -> Option<u64> {
    let bytes = |directory: &Path, file: &str| regular::line(&directory.join(file))?.parse::<u64>().ok();
    let sum = |directory: &Path, prefix: &str, file: &str| -> u64 {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let own = entries.filter(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix)));
        own.filter_map(|entry| bytes(&entry.path(), file)).fold(0, u64::saturating_add)
    };
    let tiles = sum(device, "tile", "physical_vram_size_bytes");
    let all = if tiles > 0 { tiles } else { sum(&device.join("drm"), "card", "lmem_total_bytes") };
    (all > 0).then_some(all >> 20)
}

fn gpu(root: &Path, index: u32, node: &Node, check_access: fn(&Path) -> Access) -> Gpu {
    let file = format!("dev/dri/renderD{}", node.minor);
    let locality = node.address.map(|address| pci::locality(root, address)).unwrap_or_default();
    Gpu {
        vendor: Vendor::Intel,
        index,
        minor: Some(node.minor),
        model: node.model.map(str::to_owned),
        pci_address: node.address,
        memory_mib: node.memory_mib,
        integrated: node.is_integrated(),
        cpus: locality.cpus,
        numa_node: locality.numa_node,
        access: check_access(&root.join(&file)),
        device_file: Some(format!("/{file}").into()),
        ..Gpu::default()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use model::inventory::Obstacle;

    /// A machine with Intel GPUs, in the kernel's format.
    struct Machine {
        root: tempfile::TempDir,
    }

    impl Machine {
        fn new() -> Self {
            Self { root: tempfile::tempdir().unwrap() }
        }

        fn write(&self, path: &str, content: &str) {
            let path = self.root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }

        /// Adds a GPU of this driver with a render node; /dev/null stands for the device.
        fn gpu(self, address: &str, number: &str, driver: &str, minor: u32) -> Self {
            let device = format!("sys/devices/pci0000:00/{address}");
            for (file, text) in
                [("vendor", "0x8086"), ("device", number), ("local_cpulist", "0-3"), ("numa_node", "-1")]
            {
                self.write(&format!("{device}/{file}"), &format!("{text}\n"));
            }
            let path = |path: &str| self.root.path().join(path);
            for directory in ["sys/bus/pci/devices", "dev/dri", &format!("sys/class/drm/renderD{minor}")] {
                fs::create_dir_all(path(directory)).unwrap();
            }
            symlink(format!("../../../bus/pci/drivers/{driver}"), path(&format!("{device}/driver"))).unwrap();
            symlink(path(&device), path(&format!("sys/class/drm/renderD{minor}/device"))).unwrap();
            symlink(path(&device), path(&format!("sys/bus/pci/devices/{address}"))).unwrap();
            symlink("/dev/null", path(&format!("dev/dri/renderD{minor}"))).unwrap();
            self
        }

        fn file(self, path: &str, content: &str) -> Self {
            self.write(path, content);
            self
        }

        fn probe(&self) -> ProbeResult {
            probe(self.root.path())
        }
    }

    #[test]
    fn lists_cards_in_bus_order_with_memory() {
        let machine = Machine::new()
            .gpu("0000:83:00.0", "0x56a0", "i915", 128)
            .gpu("0000:03:00.0", "0xe20b", "xe", 129)
            .gpu("0000:43:00.0", "0x0bd5", "i915", 130)
            .file("sys/devices/pci0000:00/0000:03:00.0/tile0/physical_vram_size_bytes", "12884901888\n")
            .file("sys/devices/pci0000:00/0000:43:00.0/drm/card2/lmem_total_bytes", "137438953472\n");
        let found = machine.probe();
        let cards: Vec<_> =
            found.gpus.iter().map(|gpu| (gpu.minor.unwrap(), gpu.model.as_deref().unwrap(), gpu.memory_mib)).collect();
        assert_eq!(
            cards,
            [
                (129, "Intel Arc B580", Some(12288)),
                (130, "Intel Data Center GPU Max 1550", Some(131_072)),
                (128, "Intel Arc A770", None),
            ]
        );
        assert!(found.gpus.iter().all(|gpu| gpu.is_usable() && !gpu.integrated && gpu.numa_node.is_none()));
        assert_eq!(found.gpus[0].cpus.as_ref().unwrap().to_string(), "0-3");
        assert_eq!(found.gpus[0].pci_address, "0000:03:00.0".parse().ok());
        let root = machine.root.path();
        assert!(Intel.has_traces(root) && !Intel.has_traces(&root.join("sys")));
        assert_eq!((Intel.probe(root).gpus, Intel.list(root)), (found.gpus.clone(), found.gpus.clone()));
        assert_eq!(found.driver.unwrap().source, Source::Drm);
    }

    #[test]
    fn recognizes_integrated_gpu_by_location_and_missing_memory() {
        let machine = Machine::new()
            // Integrated GPUs with either driver, and a virtual function.
            .gpu("0000:00:02.0", "0x46a6", "i915", 128)
            .gpu("0000:00:02.1", "0x46a6", "xe", 129)
            // Cards on the root bus of a virtual machine, one of them unknown.
            .gpu("0000:00:05.0", "0x56c0", "i915", 130)
            .gpu("0000:00:06.0", "0xffff", "xe", 131)
            .gpu("0000:04:00.0", "0xffff", "i915", 132)
            .file("sys/devices/pci0000:00/0000:00:06.0/tile0/physical_vram_size_bytes", "17179869184\n");
        let integrated: Vec<bool> = machine.probe().gpus.iter().map(|gpu| gpu.integrated).collect();
        assert_eq!(integrated, [true, true, false, false, false]);
    }

    #[test]
    fn counts_only_intel_devices_passed_to_container() {
        let machine =
            Machine::new().gpu("0000:03:00.0", "0x56a0", "i915", 128).gpu("0000:04:00.0", "0x56a0", "i915", 129);
        fs::remove_file(machine.root.path().join("dev/dri/renderD128")).unwrap();
        machine.write("sys/devices/pci0000:00/amd/vendor", "0x1002\n");
        machine.write("sys/class/drm/renderD130/device/vendor", "0x1002\n");
        machine.write("dev/dri/renderD130", "");
        machine.write("dev/dri/renderD131", "");
        let found = machine.probe();
        assert_eq!(found.gpus.iter().map(|gpu| gpu.minor.unwrap()).collect::<Vec<_>>(), [129]);
        assert_eq!(Machine::new().probe(), ProbeResult::default());
    }

    #[test]
    fn reports_regular_file_in_place_of_render_node() {
        let machine = Machine::new().gpu("0000:03:00.0", "0x56a0", "xe", 128);
        let node = machine.root.path().join("dev/dri/renderD128");
        fs::remove_file(&node).unwrap();
        fs::write(&node, "").unwrap();
        let found = machine.probe();
        assert_eq!(found.gpus[0].access.obstacle(), Some(Obstacle::NoDevice));
        assert!(matches!(found.gpus[0].access, Access::Unusable { .. }) && found.findings.len() == 1, "{found:?}");
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(32))]
        #[test]
        fn arbitrary_input_does_not_panic(
            text in "(?s).{0,32}",
            name in "renderD[0-9x+]{0,9}",
            file in "vendor|device|tile0/physical_vram_size_bytes",
        ) {
            let machine = Machine::new().gpu("0000:03:00.0", "0x56a0", "xe", 128);
            machine.write(&format!("sys/devices/pci0000:00/0000:03:00.0/{file}"), &text);
            machine.write(&format!("sys/class/drm/{name}/device/{file}"), &text);
            machine.write(&format!("dev/dri/x{name}"), "");
            machine.probe();
        }
    }
}
