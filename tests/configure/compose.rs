//! Compose itself reads what was written.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::folder;

fn config(compose: &[&str], directory: &Path) -> Output {
    let mut command = Command::new(compose[0]);
    command.args(&compose[1..]).arg("config").current_dir(directory).env_remove("COMPOSE_FILE").env_remove("GPU_TYPE");
    command.stdin(Stdio::null()).output().unwrap()
}

/// Every compose of this machine: the plugin, and the program of its own, which may be an older one.
fn composes() -> Vec<Vec<&'static str>> {
    let version = |compose: &Vec<&str>| {
        let mut command = Command::new(compose[0]);
        command.args(&compose[1..]).args(["version", "--short"]).stdin(Stdio::null());
        command.output().ok().filter(|output| output.status.success()).map(|output| output.stdout)
    };
    let mut all = vec![vec!["docker", "compose"], vec!["docker-compose"]];
    let versions: Vec<_> = all.iter().map(version).collect();
    if versions[1].is_none() || versions[0] == versions[1] {
        all.remove(1);
    }
    if versions[0].is_none() {
        all.remove(0);
    }
    assert!(!all.is_empty(), "neither `docker compose` nor `docker-compose` is here: docker/test installs one");
    all
}

#[test]
#[ignore = "needs compose: run docker/test"]
fn compose_accepts_every_file_and_hands_over_what_it_says() {
    let composes = composes();
    let compose_yaml = harness::root().join("compose.yaml");
    let mut seen = BTreeSet::new();
    let mut files = 0;
    for entry in fs::read_dir(folder()).unwrap() {
        let case = entry.unwrap().path();
        let Ok(text) = fs::read_to_string(case.join("compose.gpus.yaml")) else { continue };
        if !text.starts_with("# Written by slurminit configure") {
            continue;
        }
        files += 1;
        let project = tempfile::TempDir::with_prefix("slurminit-test-").unwrap();
        fs::copy(&compose_yaml, project.path().join("compose.yaml")).unwrap();
        fs::write(project.path().join("compose.gpus.yaml"), &text).unwrap();
        fs::create_dir(project.path().join("docker")).unwrap();
        // One of them holds a COMPOSE_FILE, and its report says to remove that.
        let env = fs::read_to_string(case.join("env")).unwrap();
        let env = env.lines().filter(|line| !line.starts_with("COMPOSE_FILE=")).collect::<Vec<_>>().join("\n");
        fs::write(project.path().join(".env"), &env).unwrap();
        // Many hosts come to the same files, and docker-compose takes a second to read one.
        if !seen.insert((text.clone(), env)) {
            continue;
        }
        for compose in &composes {
            let output = config(compose, project.path());
            let read = String::from_utf8_lossy(&output.stdout).into_owned();
            let shown = format!("{compose:?} {}: {}", case.display(), String::from_utf8_lossy(&output.stderr));
            assert!(output.status.success(), "{shown}");
            // The service is compose.yaml's own, and what was added arrived.
            assert!(read.contains("shm_size") && read.contains("GPU_TYPE"), "{shown}\n{read}");
            for (said, read_as) in [
                ("driver: nvidia", "driver: nvidia"),
                ("nvidia.com/gpu=all", "nvidia.com/gpu=all"),
                ("nvidia.com/gpu=0", "nvidia.com/gpu=0"),
                ("MIG-bb-02", "MIG-bb-02"),
                ("/dev/kfd", "/dev/kfd"),
                ("\"992\"", "992"),
                ("seccomp:unconfined", "seccomp:unconfined"),
                ("utility", "utility"),
            ] {
                assert!(!text.contains(said) || read.contains(read_as), "{said}: {shown}\n{read}");
            }
        }
    }
    assert!(files >= 50, "only {files} files were read");
}
