//! Checks that the files from which people copy commands name the Slurm versions of `RELEASES`.

use std::path::Path;

use model::inventory::slurm::RELEASES;

/// Files that name a version to build.
const FILES: [&str; 6] = [
    "Dockerfile",
    "docker/bake.hcl",
    "docker/build-slurm",
    "docker/slurm-source/README.md",
    "docs/installation.md",
    "docs/your-software.md",
];

/// Versions such as 25.11.8 of releases that are built from source.
fn versions(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_ascii_digit() && c != '.').map(|word| word.trim_matches('.'));
    words.filter(|word| {
        let release = word.rsplit_once('.').map_or("", |(release, _)| release);
        RELEASES.iter().any(|known| known.source.is_some() && known.version.to_string() == release)
    })
}

#[test]
fn files_name_only_pinned_versions_of_slurm() {
    let pins: Vec<&str> = RELEASES.iter().filter_map(|release| release.source).collect();
    let mut wrong = String::new();
    for file in FILES {
        let text = std::fs::read_to_string(harness::root().join(Path::new(file))).unwrap();
        let named: Vec<&str> = versions(&text).collect();
        assert!(!named.is_empty(), "{file} names no version: remove it here");
        named
            .iter()
            .filter(|version| !pins.contains(version))
            .for_each(|version| wrong += &format!("{file}: {version}\n"));
    }
    assert!(wrong.is_empty(), "not in RELEASES ({pins:?}):\n{wrong}");
    let bake = std::fs::read_to_string(harness::root().join("docker/bake.hcl")).unwrap();
    assert!(pins.iter().all(|pin| bake.contains(&format!("source = \"{pin}\""))), "{pins:?}");
}
