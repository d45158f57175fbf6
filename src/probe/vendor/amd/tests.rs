#[path = "../../../../tests/kfd/listing.rs"]
mod listing;

use std::os::unix::fs::symlink;

use super::*;

const NODES: &str = "sys/class/kfd/kfd/topology/nodes";

/// A machine with AMD GPUs, in the kernel's format.
struct Fixture {
    root: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        let fixture = Self { root: tempfile::tempdir().unwrap() };
        fixture.add_node(0, "cpu_cores_count 8\nsimd_count 0\nvendor_id 0\ndrm_render_minor 0\n");
        fixture.add_device("kfd");
        fixture
    }

    fn path(&self) -> &Path {
        self.root.path()
    }

    fn write(&self, path: &str, content: &str) {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn add_node(&self, number: u32, properties: &str) {
        self.write(&format!("{NODES}/{number}/properties"), properties);
    }

    /// /dev/null stands for the device.
    fn add_device(&self, name: &str) {
        let path = self.path().join("dev").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink("/dev/null", path).unwrap();
    }

    /// An MI300X, or the partition `location & 7` of one, with its render node.
    fn add_gpu(&self, number: u32, location: u32, minor: u32, unique_id: u64) {
        self.add_node(
            number,
            &format!(
                "cpu_cores_count 0\nsimd_count 1216\nvendor_id 4098\ndevice_id 29857\nlocation_id {location}\ndomain 0\n\
                 drm_render_minor {minor}\ngfx_target_version 90402\nunique_id {unique_id}\n"
            ),
        );
        self.write(&format!("{NODES}/{number}/mem_banks/0/properties"), "heap_type 1\nsize_in_bytes 206141652992\n");
        self.add_device(&format!("dri/renderD{minor}"));
    }

    fn probe(&self) -> ProbeResult {
        probe(self.path())
    }
}

#[test]
fn machine_without_kfd_has_no_driver() {
    assert_eq!(probe(tempfile::tempdir().unwrap().path()), ProbeResult::default());
}

#[test]
fn orders_gpus_by_node_number_beside_foreign_render_node() {
    let fixture = Fixture::new();
    fixture.add_device("dri/renderD128");
    fixture.add_gpu(10, 0x1900, 130, 10);
    fixture.add_gpu(2, 0x0a00, 129, 2);
    fixture.write("sys/module/amdgpu/version", "6.12.12\n");
    let pci = "sys/bus/pci/devices/0000:0a:00.0";
    fixture.write(&format!("{pci}/local_cpulist"), "0-3\n");
    fixture.write(&format!("{pci}/numa_node"), "1\n");
    fixture.write(&format!("{pci}/product_name"), "AMD Instinct MI300X OAM\n");
    let found = fixture.probe();
    assert_eq!(found.driver.unwrap().version.as_deref(), Some("6.12.12"));
    assert_eq!(found.findings, []);
    let want = Gpu {
        vendor: Vendor::Amd,
        index: 0,
        minor: Some(129),
        device_file: Some("/dev/dri/renderD129".into()),
        uuid: Some("GPU-0000000000000002".into()),
        model: Some("AMD Instinct MI300X OAM".into()),
        pci_address: "0000:0a:00.0".parse().ok(),
        memory_mib: Some(196_592),
        shares_memory: false,
        memory_node: None,
        integrated: false,
        compute: Some("gfx942".into()),
        cpus: "0-3".parse().ok(),
        numa_node: Some(1),
        links: BTreeMap::new(),
        mig: None,
        condition: None,
        nvlink_domain: None,
        access: Access::Usable,
    };
    assert_eq!(found.gpus[0], want);
    assert_eq!((found.gpus[1].index, found.gpus[1].minor), (1, Some(130)));
    assert_eq!(found.gpus[1].model.as_deref(), Some("AMD Instinct MI300X"));
    assert_eq!((&found.gpus[1].cpus, found.gpus[1].numa_node), (&None, None));
}

#[test]
fn partitions_with_shared_serial_number_have_no_uuid() {
    let fixture = Fixture::new();
    fixture.add_gpu(1, 0x0a00, 128, 7);
    fixture.add_gpu(2, 0x0a01, 129, 7);
    let gpus = fixture.probe().gpus;
    assert!(gpus.iter().all(|gpu| gpu.uuid.is_none() && gpu.access == Access::Usable));
    assert_eq!(gpus[0].pci_address, gpus[1].pci_address);
}

#[test]
fn assigns_render_node_to_one_gpu_only() {
    let fixture = Fixture::new();
    fixture.add_gpu(1, 0x0a00, 128, 7);
    fs::remove_file(fixture.path().join("dev/dri/renderD128")).unwrap();
    fixture.add_gpu(2, 0x0a01, 128, 7);
    let gpus = fixture.probe().gpus;
    assert_eq!(gpus[0].access, Access::Usable);
    assert_eq!(
        gpus[1].access,
        Access::unusable(Obstacle::SharedFile, "/dev/dri/renderD128 already belongs to AMD GPU 0")
    );
}

#[test]
fn missing_render_node_affects_one_gpu_and_missing_kfd_all() {
    let fixture = Fixture::new();
    fixture.add_gpu(1, 0x0a00, 128, 1);
    fixture.add_gpu(2, 0x1900, 129, 2);
    fs::remove_file(fixture.path().join("dev/dri/renderD129")).unwrap();
    let usable = |found: &ProbeResult| found.gpus.iter().map(|gpu| gpu.access == Access::Usable).collect::<Vec<_>>();
    let found = fixture.probe();
    assert_eq!((usable(&found), found.findings.len()), (vec![true, false], 0));
    fs::remove_file(fixture.path().join("dev/kfd")).unwrap();
    let found = fixture.probe();
    assert_eq!(usable(&found), [false, false]);
    assert_eq!(found.findings[0].fix, "start the container with --device /dev/kfd --device /dev/dri");
}

#[test]
fn reports_required_device_groups_by_number() {
    assert_eq!(groups::finding_for_groups(Vendor::Amd, &BTreeMap::new()), None);
    let groups = [(110, Path::new("/dev/kfd")), (44, Path::new("/dev/dri/renderD128"))].into();
    let finding = groups::finding_for_groups(Vendor::Amd, &groups).unwrap();
    assert!(
        finding.what.contains("groups with GIDs 44 and 110") && finding.cause.contains("/dev/dri/renderD128"),
        "{finding:?}"
    );
    assert!(finding.fix.contains("(getent group 44 || groupadd -g 44 amd-gpu-44) && "), "{finding:?}");
    assert!(finding.fix.contains("&& usermod -aG 44,110 USER"), "{finding:?}");
}

#[test]
fn integrated_gpu_memory_excludes_shared_ram() {
    let fixture = Fixture::new();
    fixture.add_gpu(1, 0x0a00, 128, 1);
    fixture.add_gpu(2, 0x1900, 129, 2);
    // The 2 compute units of a Ryzen as shown by kernel 6.10: 512 MiB reserved by the firmware, and half of the RAM.
    let ryzen = "cpu_cores_count 0\nsimd_count 4\nvendor_id 4098\ndevice_id 5056\nlocation_id 6400\ndomain 0\n\
                 drm_render_minor 129\ngfx_target_version 100306\nunique_id 0\n";
    fixture.add_node(2, ryzen);
    fixture.write(&format!("{NODES}/2/mem_banks/0/properties"), "heap_type 1\nsize_in_bytes 16784211968\n");
    fixture.write("sys/bus/pci/devices/0000:19:00.0/mem_info_vram_total", "536870912\n");
    fixture.write("sys/bus/pci/devices/0000:0a:00.0/mem_info_vram_total", "206141652992\n");
    let gpus = fixture.probe().gpus;
    assert_eq!((gpus[0].memory_mib, gpus[0].integrated, gpus[0].shares_memory), (Some(196_592), false, false));
    assert_eq!((gpus[1].memory_mib, gpus[1].integrated, gpus[1].shares_memory), (Some(512), true, false));
    // An older kernel lists only the 512 MiB. The instruction set reveals the APU.
    fixture.write(&format!("{NODES}/2/mem_banks/0/properties"), "heap_type 1\nsize_in_bytes 536870912\n");
    assert!(fixture.probe().gpus[1].integrated);
}

#[test]
fn mi300a_has_numa_node_memory_and_is_not_integrated() {
    let fixture = Fixture::new();
    fixture.add_gpu(1, 0x0a00, 128, 1);
    let properties = fs::read_to_string(fixture.path().join(format!("{NODES}/1/properties"))).unwrap();
    fixture.add_node(1, &properties.replace("29857", "29856"));
    fixture.write(&format!("{NODES}/1/mem_banks/0/properties"), "heap_type 1\nsize_in_bytes 135056805888\n");
    fixture.write("sys/bus/pci/devices/0000:0a:00.0/mem_info_vram_total", "135056805888\n");
    fixture.write("sys/bus/pci/devices/0000:0a:00.0/numa_node", "0\n");
    fixture.write("sys/devices/system/node/node0/cpulist", "0-23\n");
    fixture.write("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:       131891412 kB\n");
    let gpu = &fixture.probe().gpus[0];
    assert_eq!((gpu.memory_mib, gpu.integrated, gpu.shares_memory), (Some(128_800), false, true));
    // The processor's memory belongs to the machine, even if a GPU shares it.
    assert_eq!(gpu.memory_node, None);
}

#[test]
fn names_unreadable_or_unknown_node() {
    let fixture = Fixture::new();
    fixture.add_gpu(1, 0x0a00, 128, 1);
    fixture.add_node(2, "simd_count 4\nvendor_id 4098\ndrm_render_minor 0\nlocation_id 9\n");
    fs::create_dir_all(fixture.path().join(format!("{NODES}/3"))).unwrap();
    let found = fixture.probe();
    assert_eq!(found.gpus.len(), 1);
    let [finding] = found.findings.as_slice() else { panic!("{:?}", found.findings) };
    assert!(finding.what.contains("node 2 (no render node"), "{finding:?}");
    assert!(finding.what.contains("node 3 (unreadable: No such file"), "{finding:?}");
}

#[test]
fn distinguishes_hidden_gpus_from_none() {
    let hidden = Topology { hidden: (0..7).collect(), ..Topology::default() };
    let found = findings(&hidden, true);
    assert_eq!(found[0].what, "7 AMD GPU(s) of this machine are hidden from this container");
    assert_eq!(findings(&Topology::default(), false), []);
}

#[test]
fn lightest_cpu_link_locates_gpu_without_pci_device() {
    let fixture = Fixture::new();
    fixture.add_node(1, "cpu_cores_count 8\nsimd_count 0\n");
    fixture.add_gpu(2, 0x0a00, 128, 1);
    for (link, (peer, weight)) in [(0, 40), (1, 20), (3, 13)].into_iter().enumerate() {
        fixture.write(&format!("{NODES}/2/io_links/{link}/properties"), &format!("node_to {peer}\nweight {weight}\n"));
    }
    fixture.write("sys/devices/system/node/node0/cpulist", "0-7\n");
    fixture.write("sys/devices/system/node/node1/cpulist", "\n");
    fixture.write("sys/devices/system/node/node4/cpulist", "8-15\n");
    let place = |found: ProbeResult| (found.gpus[0].cpus.as_ref().map(CpuSet::to_string), found.gpus[0].numa_node);
    assert_eq!(place(fixture.probe()), (Some("8-15".into()), Some(4)));
    fixture.write("sys/devices/system/node/node5/cpulist", "16\n");
    assert_eq!(place(fixture.probe()), (None, None), "the numbers of NUMA and KFD nodes differ");
}

/// A machine with the topology of this listing and every possible render node.
fn fixture_from(listing: &str) -> Fixture {
    let fixture = Fixture { root: tempfile::tempdir().unwrap() };
    for (path, text) in listing::files(listing) {
        fixture.write(&format!("{NODES}/{path}"), &text);
    }
    for (node, cpus) in [(0, "0-55,112-167"), (1, "56-111,168-223")] {
        fixture.write(&format!("sys/devices/system/node/node{node}/cpulist"), cpus);
    }
    fixture.add_device("kfd");
    (128..256).for_each(|minor| fixture.add_device(&format!("dri/renderD{minor}")));
    fixture
}

fn numa_nodes(gpus: &[Gpu]) -> Vec<Option<u32>> {
    gpus.iter().map(|gpu| gpu.numa_node).collect()
}

#[test]
fn eight_mi210_are_eight_gpus_without_memory_size() {
    let ProbeResult { gpus, findings, .. } = fixture_from(listing::EIGHT_MI210).probe();
    assert_eq!((gpus.len(), findings), (8, vec![]));
    assert!(gpus.iter().all(|gpu| gpu.access == Access::Usable && gpu.compute.as_deref() == Some("gfx90a")));
    assert!(gpus.iter().all(|gpu| gpu.uuid.is_some() && gpu.model.as_deref() == Some("AMD Instinct MI210")));
    assert!(gpus.iter().all(|gpu| gpu.memory_mib.is_none()));
    // The lightest link leads to another GPU.
    assert_eq!(numa_nodes(&gpus), [[Some(0); 4], [Some(1); 4]].concat());
    // The nodes are not in PCI order.
    let places = [0, 1, 7].map(|index: usize| gpus[index].pci_address.unwrap().to_string());
    assert_eq!(places, ["0000:5b:00.0", "0000:3b:00.0", "0000:9b:00.0"]);
}

#[test]
fn four_mi308x_in_four_partitions_are_sixteen_gpus() {
    let ProbeResult { gpus, findings, .. } = fixture_from(listing::FOUR_MI308X_IN_FOUR_PARTITIONS).probe();
    assert_eq!(findings, []);
    assert_eq!(numa_nodes(&gpus), [[Some(0); 8], [Some(1); 8]].concat());
    let minors: Vec<u32> = gpus.iter().filter_map(|gpu| gpu.minor).collect();
    assert_eq!(minors, [136..140, 128..132, 152..156, 144..148].into_iter().flatten().collect::<Vec<_>>());
    let chips: std::collections::BTreeSet<_> = gpus.iter().filter_map(|gpu| gpu.pci_address).collect();
    assert_eq!(chips.len(), 4);
    assert!(gpus.iter().all(|gpu| gpu.access == Access::Usable));
    // The last partition of each chip has 16 MiB less than the others.
    let memory = [0, 1, 2, 3].map(|index: usize| gpus[index].memory_mib);
    assert_eq!(memory, [49_152, 49_152, 49_152, 49_136].map(Some));
    assert!(gpus.iter().all(|gpu| gpu.model.as_deref() == Some("AMD Instinct MI308X") && gpu.uuid.is_none()));
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(32))]
    #[test]
    fn arbitrary_input_does_not_panic(text in "(?s).{0,48}", number in proptest::num::u32::ANY) {
        let fixture = Fixture::new();
        fixture.add_gpu(1, number, 128, u64::from(number));
        fixture.add_node(2, &text);
        for file in ["local_cpulist", "numa_node", "product_name", "revision"] {
            fixture.write(&format!("sys/bus/pci/devices/0000:0a:00.0/{file}"), &text);
        }
        fixture.write(&format!("{NODES}/1/mem_banks/1/properties"), &text);
        fixture.write(&format!("{NODES}/1/io_links/0/properties"), &text);
        fixture.write("sys/devices/system/node/node0/cpulist", &text);
        fixture.write("usr/share/libdrm/amdgpu.ids", &text);
        fixture.probe();
    }
}

/// An MI300X has eight render nodes, and a container may have only some of the host's GPUs.
#[test]
fn exporter_number_is_gpu_position_on_host() {
    let fixture = Fixture::new();
    assert_eq!(host_number(fixture.path(), 130), Some(2), "without KFD topology");
    fixture.add_gpu(2, 0x0a00, 128, 7);
    fixture.add_gpu(3, 0x1a00, 136, 8);
    fixture.add_gpu(5, 0x2a00, 152, 9);
    let numbers = [128, 136, 152, 129].map(|minor| host_number(fixture.path(), minor));
    assert_eq!(numbers, [Some(0), Some(1), Some(2), None]);
    assert_eq!(Amd.map_entry(fixture.path(), "/dev/dri/renderD152"), Some(("2".to_owned(), Format::Json)));
    assert_eq!(Amd.map_entry(fixture.path(), "/dev/nvidia0"), None);
}

/// Reading the files of a suspended GPU would wake it.
#[test]
fn does_not_sample_suspended_gpu() {
    let fixture = Fixture::new();
    fixture.add_gpu(1, 0x0a00, 128, 7);
    let device = "sys/bus/pci/devices/0000:0a:00.0";
    fixture.write(&format!("{device}/gpu_busy_percent"), "40\n");
    let sampled = || Amd.sample(fixture.path(), &Amd.list(fixture.path())[0]).0.utilization;
    for (status, utilization) in
        [("active", Some(40)), ("suspended", None), ("suspending", None), ("unsupported", Some(40))]
    {
        fixture.write(&format!("{device}/power/runtime_status"), &format!("{status}\n"));
        assert_eq!(sampled(), utilization, "{status}");
    }
}
