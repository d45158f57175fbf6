//! NVIDIA's own library, from Debian's packages, on a machine without the driver.

use std::fs;
use std::path::PathBuf;

use fake_nvml::profile::BRANCHES;
use model::inventory::{Kind, Source};

use crate::{Machine, fake_nvml, succeeded};

/// Where tests/real-nvml/fetch has unpacked the packages.
const PLACE: &str = "SLURMINIT_REAL_NVML";

/// The libraries, with their versions.
fn libraries() -> Vec<(String, PathBuf)> {
    let place = std::env::var_os(PLACE).expect("SLURMINIT_REAL_NVML is the directory of tests/real-nvml/fetch");
    let packages = fs::read_dir(place).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
    let directories = packages.map(|package| package.join("usr/lib/x86_64-linux-gnu/nvidia/current"));
    let files = directories.filter_map(|directory| fs::read_dir(directory).ok()).flatten();
    files
        .filter_map(|file| {
            let path = file.unwrap().path();
            let version = path.file_name()?.to_str()?.strip_prefix("libnvidia-ml.so.")?.to_owned();
            version.contains('.').then_some((version, path))
        })
        .collect()
}

/// The names of the calls that a library defines: each is a text of its own in the table of names.
fn calls(library: &[u8]) -> Vec<&str> {
    let words = library.split(|byte| *byte == 0).filter_map(|word| std::str::from_utf8(word).ok());
    let mut names: Vec<&str> = words.filter(|word| word.starts_with("nvml") && !word.contains(' ')).collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[test]
#[ignore = "needs Debian's libnvidia-ml1: docker/test --only nvml"]
fn real_library_without_driver_is_reported_and_files_are_used() {
    let libraries = libraries();
    assert!(!libraries.is_empty());
    for (version, library) in libraries {
        let machine = Machine::new(None).with_devices(&[0]);
        let detect = |arguments: &[&str]| {
            succeeded(machine.command().env("SLURMINIT_NVML_LIBRARY", &library).args(arguments).output().unwrap())
        };
        let inventory: model::inventory::Inventory = serde_json::from_str(&detect(&["--json"])).unwrap();
        let kinds: Vec<Kind> = inventory.findings.iter().map(|finding| finding.kind).collect();
        assert!(kinds.contains(&Kind::DriverNotLoaded), "{version}: {:#?}", inventory.findings);
        assert!(inventory.drivers.iter().all(|driver| driver.source == Source::NvidiaProc), "{version}");
        assert_eq!(inventory.gpus.len(), 1, "{version}");
        println!("libnvidia-ml {version}: {}", inventory.findings[0].what);
    }
}

/// The stand-in has the calls of the real library of its branch, and lacks those that this lacks.
#[test]
#[ignore = "needs Debian's libnvidia-ml1: docker/test --only nvml"]
fn stand_in_has_the_calls_of_real_library() {
    let stand_in = fs::read(fake_nvml()).unwrap();
    let known = |name: &&str| name.starts_with("nvmlDevice") || name.starts_with("nvmlGpm");
    for (version, library) in libraries() {
        let branch = BRANCHES.iter().find(|branch| version.starts_with(&branch.number().to_string()));
        let branch = branch.unwrap_or_else(|| panic!("no profile for {version}"));
        let real = fs::read(library).unwrap();
        let real = calls(&real);
        assert!(real.len() > 200, "{version}: {real:?}");
        let own: Vec<&str> = calls(&stand_in).into_iter().filter(known).filter(|name| name.len() > 10).collect();
        assert!(own.len() > 40, "{own:?}");
        for name in own {
            let lacks = branch.missing.contains(&name);
            assert_eq!(real.contains(&name), !lacks, "{version}: {name}");
        }
    }
}
