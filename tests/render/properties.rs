//! Properties of the rendered files for random inventories, including hostile names.

use std::collections::BTreeSet;
use std::path::PathBuf;

use config::{Config, TypeName};
use model::inventory::slurm::RELEASES;
use model::inventory::{Access, CgroupVersion, CpuSet, Gpu, Inventory, MigInstance, Obstacle, Vendor};
use plan::render::render;
use plan::{FileName, Text, plan};
use proptest::prelude::*;

fn name() -> impl Strategy<Value = Option<String>> {
    prop_oneof![
        Just(None),
        Just(Some("NVIDIA H200".to_owned())),
        Just(Some("x\nNodeName=evil CPUs=1".to_owned())),
        Just(Some("a\\".to_owned())),
        any::<String>().prop_map(Some),
        "[A-Za-z ,=#\"\\\\\n\r\t:()\\[\\]]{0,80}".prop_map(Some),
    ]
}

fn device() -> impl Strategy<Value = Option<PathBuf>> {
    prop_oneof![
        4 => (0..12_u32).prop_map(|minor| Some(PathBuf::from(format!("/dev/nvidia{minor}")))),
        1 => Just(None),
        1 => Just(Some(PathBuf::from("/dev/dxg"))),
        1 => any::<String>().prop_map(|text| Some(PathBuf::from(text))),
        1 => Just(Some(PathBuf::from("/dev/nvidia0 Count=9"))),
    ]
}

prop_compose! {
    fn instance()(
        (profile, uuid) in (name(), prop_oneof![name(), "MIG-[a-z0-9-]{0,9}".prop_map(Some)]),
        device_files in prop_oneof![
            4 => (0..12_u32, 0..4_u32).prop_map(|(gpu, cap)| vec![
                PathBuf::from(format!("/dev/nvidia{gpu}")),
                PathBuf::from(format!("/dev/nvidia-caps/nvidia-cap{cap}")),
                PathBuf::from(format!("/dev/nvidia-caps/nvidia-cap{}", 10 * gpu + cap)),
            ]),
            1 => proptest::collection::vec(device().prop_map(Option::unwrap_or_default), 0..4),
        ],
        usable in proptest::bool::weighted(0.8),
    ) -> MigInstance {
        let access = if usable { Access::Usable } else { Access::unusable(Obstacle::NotGiven, "a\nb") };
        let (gpu_instance, compute_instance) = (Some(1), Some(0));
        MigInstance { profile, uuid, gpu_instance, compute_instance, memory_mib: None, device_files, access }
    }
}

prop_compose! {
    fn gpu()(
        vendor in prop_oneof![Just(Vendor::Nvidia), Just(Vendor::Amd)],
        index in 0..8_u32,
        device_file in device(),
        (uuid, model, compute) in (name(), name(), name()),
        cpus in proptest::option::of(proptest::collection::btree_set(0..16_u32, 0..16)),
        links in proptest::collection::btree_map(0..8_u32, 0..20_u32, 0..8),
        mig in proptest::option::weighted(0.2, proptest::collection::vec(instance(), 0..4)),
        (usable, integrated) in (proptest::bool::weighted(0.8), proptest::bool::weighted(0.1)),
    ) -> Gpu {
        let access = if usable { Access::Usable } else { Access::unusable(Obstacle::NotGiven, "a\nb") };
        Gpu {
            vendor, index, minor: None, device_file, uuid, model, pci_address: None, memory_mib: None, shares_memory: false, memory_node: None, integrated, compute,
            cpus: cpus.map(CpuSet::from_iter), numa_node: None, links, mig, condition: None, nvlink_domain: None, access,
        }
    }
}

prop_compose! {
    fn inventory()(
        gpus in proptest::collection::vec(gpu(), 0..9),
        (sockets, cores, threads) in (0..3_u32, 1..4_u32, 1..3_u32),
        allowed in proptest::collection::btree_set(0..16_u32, 0..16),
        whole in any::<bool>(),
        quota in proptest::option::of(0.1..20.0_f64),
        (total_mib, limit_mib) in (0..100_000_u64, proptest::option::of(1..100_000_u64)),
        (version, writable) in (prop_oneof![Just(CgroupVersion::None), Just(CgroupVersion::V1), Just(CgroupVersion::V2)], any::<bool>()),
        slurm in proptest::option::of(proptest::sample::select(&RELEASES[..])),
    ) -> Inventory {
        let mut inventory = Inventory { hostname: "box".to_owned(), gpus, ..Inventory::default() };
        let mut next = 0..;
        inventory.cpu.sockets = (0..sockets)
            .map(|_| (0..cores).map(|_| next.by_ref().take(threads as usize).collect()).collect())
            .collect();
        let all: CpuSet = inventory.cpu.sockets.iter().flatten().flat_map(CpuSet::iter).collect();
        inventory.cpu.allowed = if whole { all } else { allowed.into_iter().collect() };
        inventory.cpu.quota = quota;
        inventory.memory.total_mib = total_mib;
        inventory.memory.limit_mib = limit_mib;
        inventory.cgroup.version = version;
        inventory.cgroup.writable = writable;
        inventory.cgroup.controllers = ["cpuset", "memory", "devices", "freezer"].map(str::to_owned).into();
        inventory.slurm.plugins = vec!["cgroup_v1".to_owned(), "cgroup_v2".to_owned()];
        inventory.slurm.version = slurm.map(|release| release.version);
        inventory
    }
}

/// The value of `key=value` in a line. Does not support quoted values with spaces.
fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split(' ').find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='))
}

fn texts_of(files: &[Text], name: FileName) -> impl Iterator<Item = &str> {
    files.iter().filter(move |file| file.name == name).map(|file| file.text.as_str())
}

fn gres_count(gres: &str) -> usize {
    gres.split(',')
        .filter(|item| !item.is_empty())
        .map(|item| item.rsplit(':').next().unwrap().parse::<usize>().unwrap())
        .sum()
}

proptest! {
    #[test]
    fn no_name_breaks_file_and_counts_agree(
        inventory in inventory(),
        type_name in prop_oneof![Just(TypeName::Vendor), Just(TypeName::Model), Just(TypeName::Index)],
        // 0 selects MPS.
        sharing in proptest::option::of(0..5_u32),
    ) {
        let mut config = Config::default();
        config.gpu.type_name = type_name;
        config.gpu.mps = sharing == Some(0);
        config.gpu.shards = sharing.and_then(|count| count.try_into().ok());
        let plan = plan(&config, &inventory).unwrap();
        let rendered = render(&plan);
        let text = |name| rendered.iter().find(|file| file.name == name).unwrap().text.as_str();
        for file in &rendered {
            prop_assert!(!file.text.contains(|c: char| c.is_control() && c != '\n'), "{}", file.text);
            prop_assert!(!file.text.contains("\\\n"), "a backslash could continue a line: {}", file.text);
            // oci.conf has three fixed backslashes and no machine data.
            let is_safe = file.name == FileName::OciConf || !file.text.contains('\\');
            prop_assert!(is_safe, "a backslash could escape something: {}", file.text);
        }
        let effective = |name| text(name).lines().filter(|line| !line.is_empty() && !line.starts_with('#'));

        // gres.conf: AutoDetect, then one complete line per GPU, without duplicate device files or injected keys.
        let all: Vec<&str> = effective(FileName::GresConf).collect();
        let (lines, shared): (Vec<&str>, Vec<&str>) = all.iter().partition(|line| !line.starts_with("Name=shard") && !line.starts_with("Name=mps"));
        // Only whole GPUs are shared, each listed once.
        let whole: BTreeSet<_> = lines.iter().filter_map(|line| value(line, "File")).collect();
        let shared_files: BTreeSet<_> = shared.iter().filter_map(|line| value(line, "File")).collect();
        prop_assert!(shared_files.len() == shared.len() && shared_files.is_subset(&whole), "{:?}", shared);
        prop_assert!(sharing.is_some() || shared.is_empty(), "{:?}", shared);
        prop_assert_eq!(lines[0], "AutoDetect=off");
        let mut files = BTreeSet::new();
        for line in &lines[1..] {
            prop_assert!(line.starts_with("Name=gpu Type="), "{}", line);
            for pair in line.split(' ') {
                let (key, word) = pair.split_once('=').unwrap();
                prop_assert!(["Name", "Type", "File", "MultipleFiles", "Cores", "Links", "Flags"].contains(&key), "{}", line);
                prop_assert!(!word.is_empty() && !word.contains(['=', '#', '"', '[']), "{}", line);
            }
            let file = match (value(line, "File"), value(line, "MultipleFiles")) {
                (Some(file), None) => file,
                (None, Some(several)) => several.rsplit_once(',').unwrap().1,
                _ => panic!("expected either File or MultipleFiles: {line}"),
            };
            prop_assert!(files.insert(file), "duplicate device file: {}", line);
            prop_assert_eq!(value(line, "Links").is_some(), value(line, "File").is_some());
        }
        // Whole GPUs come first. Their Links form a square matrix with -1 on the diagonal.
        let links: Vec<&str> = lines[1..].iter().map_while(|line| value(line, "Links")).collect();
        prop_assert_eq!(links.len(), lines[1..].iter().filter(|line| value(line, "File").is_some()).count());
        for (position, row) in links.iter().enumerate() {
            let row: Vec<&str> = row.split(',').collect();
            prop_assert_eq!(row.len(), links.len());
            prop_assert_eq!(row[position], "-1");
        }
        // Slurm sorts the lines by type, so the lines of each type must be contiguous.
        let mut types: Vec<&str> = lines[1..].iter().map(|line| value(line, "Type").unwrap()).collect();
        types.dedup();
        prop_assert_eq!(types.len(), types.iter().collect::<BTreeSet<_>>().len(), "{:?}", types);

        // The device names in the script have no shell metacharacters.
        // Under a CPU quota there is a script even without GPUs.
        let has_devices = |script: &&str| script.contains("for device in");
        for script in texts_of(&rendered, FileName::TaskProlog).filter(has_devices) {
            let is_name = |line: &&str| line.trim_start().starts_with(|c: char| c.is_ascii_digit());
            prop_assert_eq!(script.lines().filter(is_name).count(), lines.len() - 1, "{}", script);
            for line in script.lines().filter(is_name) {
                let name = line.split_once(",}").unwrap().1.strip_suffix(" ;;").unwrap();
                prop_assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || "-/$_".contains(c)), "{}", line);
            }
        }

        // gres.conf lists every GPU whose device file name is valid, and no other.
        let is_valid_name = |file: &&str| {
            file.starts_with("/dev/") && !file.contains(|c: char| !c.is_ascii_alphanumeric() && !"/-_.".contains(c))
        };
        // This includes a GPU in MIG mode without an instance.
        let has_discrete = inventory.gpus.iter().any(|gpu| !gpu.integrated && gpu.access == Access::Usable);
        let expected: BTreeSet<_> = inventory
            .usable_gpus()
            .filter(|gpu| !gpu.integrated || !has_discrete)
            .filter(|gpu| gpu.mig.is_none())
            .filter_map(|gpu| gpu.device_file.as_ref()?.to_str())
            .filter(is_valid_name)
            .collect();
        let instances = inventory.gpus.iter().filter(|gpu| !gpu.integrated || !has_discrete);
        let instances = instances.filter_map(|gpu| gpu.mig.as_ref()).flatten();
        let last: BTreeSet<_> = instances.filter_map(|instance| instance.device_files.last()?.to_str()).collect();
        // A device file that belongs to two GPUs is listed for the first.
        prop_assert!(expected.difference(&last).all(|file| files.contains(file)), "{:?}: {:?}", files, expected);
        // On WSL2, one device file is listed under several paths.
        let is_known = |file: &&str| expected.contains(file) || last.contains(file) || file.ends_with("/./dxg");
        prop_assert!(files.iter().all(is_known), "{:?}", files);

        // slurm.conf: one node. Gres equals the number of gres.conf lines; CPUs and memory do not exceed the inventory.
        let nodes: Vec<&str> = effective(FileName::SlurmConf).filter(|line| line.starts_with("NodeName=")).collect();
        prop_assert_eq!(nodes.len(), 1);
        let gres = value(nodes[0], "Gres").unwrap_or_default();
        let (gpus, shared_gres): (Vec<&str>, Vec<&str>) = gres.split(',').partition(|item| item.starts_with("gpu:") || item.is_empty());
        prop_assert_eq!(gres_count(&gpus.join(",")), lines.len() - 1);
        let per_gpu = if sharing == Some(0) { 100 } else { sharing.unwrap_or_default() as usize };
        prop_assert_eq!(gres_count(&shared_gres.join(",")), shared.len() * per_gpu);
        let cpus: usize = value(nodes[0], "CPUs").unwrap().parse().unwrap();
        prop_assert!(cpus >= 1 && cpus <= inventory.cpu.allowed.len().max(1));
        if let Some(memory) = value(nodes[0], "RealMemory") {
            let memory: u64 = memory.parse().unwrap();
            prop_assert!(memory >= 1 && memory <= inventory.memory.usable_mib());
        }
        if let Some(sockets) = value(nodes[0], "Sockets") {
            let number = |key| value(nodes[0], key).unwrap().parse::<usize>().unwrap();
            prop_assert_eq!(sockets.parse::<usize>().unwrap() * number("CoresPerSocket") * number("ThreadsPerCore"), cpus);
        }
        for line in effective(FileName::SlurmConf) {
            prop_assert!(line.contains('='), "{}", line);
        }
    }

    #[test]
    fn rendering_is_deterministic(inventory in inventory()) {
        let config = Config::default();
        prop_assert_eq!(render(&plan(&config, &inventory).unwrap()), render(&plan(&config, &inventory).unwrap()));
    }
}
