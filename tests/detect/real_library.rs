//! NVIDIA's own library, from Debian's packages, on a machine without the driver.

use std::fs;
use std::path::PathBuf;

use fake_nvml::profile::BRANCHES;
use model::inventory::{Kind, Source};

use super::{Machine, fake_nvml, succeeded};

/// Environment variable with the directory into which tests/real-nvml/fetch unpacked the packages.
const VARIABLE: &str = "SLURMINIT_REAL_NVML";

/// The version and path of each library.
fn libraries() -> Vec<(String, PathBuf)> {
    let root = std::env::var_os(VARIABLE).expect("SLURMINIT_REAL_NVML is the directory of tests/real-nvml/fetch");
    let packages = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
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

/// The names of the NVML calls that a library defines, from its string table.
fn calls(library: &[u8]) -> Vec<&str> {
    let texts = library.split(|byte| *byte == 0).filter_map(|text| std::str::from_utf8(text).ok());
    let mut names: Vec<&str> = texts.filter(|text| text.starts_with("nvml") && !text.contains(' ')).collect();
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

/// The real library of each branch has all calls of the stand-in except those that the branch profile lists as missing.
#[test]
#[ignore = "needs Debian's libnvidia-ml1: docker/test --only nvml"]
fn stand_in_calls_match_real_library() {
    let stand_in = fs::read(fake_nvml()).unwrap();
    let is_checked = |name: &&str| name.starts_with("nvmlDevice") || name.starts_with("nvmlGpm");
    for (version, library) in libraries() {
        let branch = BRANCHES.iter().find(|branch| version.starts_with(&branch.number().to_string()));
        let branch = branch.unwrap_or_else(|| panic!("no profile for {version}"));
        let real = fs::read(library).unwrap();
        let real = calls(&real);
        assert!(real.len() > 200, "{version}: {real:?}");
        let names: Vec<&str> = calls(&stand_in).into_iter().filter(is_checked).filter(|name| name.len() > 10).collect();
        assert!(names.len() > 40, "{names:?}");
        for name in names {
            let is_missing = branch.missing.contains(&name);
            assert_eq!(real.contains(&name), !is_missing, "{version}: {name}");
        }
    }
}
