//! Compose parses each generated file.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::folder;

fn config(compose: &[&str], directory: &Path) -> Output {
    let mut command = Command::new(compose[0]);
    command.args(&compose[1..]).arg("config").current_dir(directory).env_remove("COMPOSE_FILE").env_remove("GPU_TYPE");
    command.stdin(Stdio::null()).output().unwrap()
}

/// Each Compose on this machine: the plugin, and the standalone program, which may be older.
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
    assert!(!all.is_empty(), "neither `docker compose` nor `docker-compose` is installed: docker/test installs one");
    all
}

#[test]
#[ignore = "needs compose: run docker/test"]
fn compose_accepts_each_generated_file_and_keeps_its_settings() {
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
        // One case sets COMPOSE_FILE; its report recommends removing the variable.
        let env = fs::read_to_string(case.join("env")).unwrap();
        let env = env.lines().filter(|line| !line.starts_with("COMPOSE_FILE=")).collect::<Vec<_>>().join("\n");
        fs::write(project.path().join(".env"), &env).unwrap();
        // Many hosts produce the same files, and docker-compose takes a second per file.
        if !seen.insert((text.clone(), env)) {
            continue;
        }
        for compose in &composes {
            let output = config(compose, project.path());
            let parsed = String::from_utf8_lossy(&output.stdout).into_owned();
            let context = format!("{compose:?} {}: {}", case.display(), String::from_utf8_lossy(&output.stderr));
            assert!(output.status.success(), "{context}");
            // The service from compose.yaml, merged with the generated settings.
            assert!(parsed.contains("shm_size") && parsed.contains("GPU_TYPE"), "{context}\n{parsed}");
            for (setting, parsed_setting) in [
                ("driver: nvidia", "driver: nvidia"),
                ("nvidia.com/gpu=all", "nvidia.com/gpu=all"),
                ("nvidia.com/gpu=0", "nvidia.com/gpu=0"),
                ("MIG-bb-02", "MIG-bb-02"),
                ("/dev/kfd", "/dev/kfd"),
                ("\"992\"", "992"),
                ("seccomp:unconfined", "seccomp:unconfined"),
                ("utility", "utility"),
            ] {
                assert!(!text.contains(setting) || parsed.contains(parsed_setting), "{setting}: {context}\n{parsed}");
            }
        }
    }
    assert!(files >= 50, "only {files} files were read");
}
