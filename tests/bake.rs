//! docker/bake.hcl: targets, tags and labels of a release as buildx resolves them. Run by `docker/test --only bake`.
#![expect(clippy::disallowed_methods, reason = "a test is not PID 1, so it may wait for the commands it runs")]
#![expect(clippy::expect_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use model::inventory::slurm::{DEFAULT, RELEASES};
use serde_json::Value;

fn root() -> &'static Path {
    harness::root()
}

/// The targets of `docker buildx bake --print release toolkits`, by name.
fn bake_targets(variables: &[(&str, &str)]) -> BTreeMap<String, Value> {
    let mut command = Command::new("docker");
    command.args(["buildx", "bake", "--file", "docker/bake.hcl", "--print", "release", "toolkits"]).current_dir(root());
    let output = command.envs(variables.iter().copied()).output().expect("docker is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    serde_json::from_value(all["target"].clone()).expect("targets by name")
}

fn strings(value: &Value) -> Vec<&str> {
    value.as_array().expect("a list").iter().map(|text| text.as_str().expect("text")).collect()
}

/// The rest of each Dockerfile line that starts with this instruction.
fn lines<'a>(dockerfile: &'a str, instruction: &str) -> Vec<&'a str> {
    dockerfile.lines().filter_map(|line| line.strip_prefix(instruction)).collect()
}

#[test]
#[ignore = "needs docker buildx: run docker/test --only bake"]
fn tags_match_golden_list() {
    let targets = bake_targets(&[("IMAGE", "slurminit"), ("VERSION", "1.2.3"), ("REVISION", "abc")]);
    let mut tags: Vec<String> =
        targets.values().flat_map(|target| strings(&target["tags"])).map(|tag| format!("{tag}\n")).collect();
    tags.sort();
    let repeated = tags.windows(2).find(|pair| pair[0] == pair[1]);
    assert_eq!(repeated, None, "two images share a tag");
    let golden = root().join("tests/bake/tags");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&golden, tags.concat()).unwrap();
    }
    assert_eq!(
        tags.concat(),
        fs::read_to_string(&golden).unwrap(),
        "UPDATE=1 cargo test --test host bake -- --ignored"
    );
}

#[test]
#[ignore = "needs docker buildx: run docker/test --only bake"]
fn targets_use_existing_stages_and_arguments() {
    let dockerfile = fs::read_to_string(root().join("Dockerfile")).unwrap();
    let stages: Vec<&str> =
        lines(&dockerfile, "FROM ").iter().filter_map(|line| line.split_once(" AS ").map(|(_, name)| name)).collect();
    let arguments: Vec<&str> = lines(&dockerfile, "ARG ").iter().filter_map(|line| line.split('=').next()).collect();
    let targets = bake_targets(&[
        ("SOURCE", "https://example.org/slurminit"),
        ("CREATED", "2026-01-02T03:04:05Z"),
        ("BASE_DIGESTS", r#"{"debian:trixie-slim": "sha256:0123"}"#),
    ]);
    assert!(!targets.is_empty());
    let patches = fs::read_dir(root().join("docker/slurm-patches")).unwrap();
    let mut patches: Vec<String> = patches.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    patches.sort();
    let patches = patches.join(" ");
    for (name, target) in &targets {
        assert!(stages.contains(&target["target"].as_str().unwrap()), "{name}: {target}");
        for (argument, value) in target["args"].as_object().unwrap() {
            assert!(arguments.contains(&argument.as_str()), "{name}: the Dockerfile has no ARG {argument}");
            let gpu_stage = format!("gpu-type-{}", value.as_str().unwrap());
            assert!(argument != "GPU_TYPE" || stages.contains(&gpu_stage.as_str()), "{name}: {argument}={value}");
        }
        assert_eq!(target["labels"]["org.opencontainers.image.created"], "2026-01-02T03:04:05Z", "{name}");
        assert_eq!(target["labels"]["org.opencontainers.image.source"], "https://example.org/slurminit", "{name}");
        let base = target["args"]["BASE_IMAGE"].as_str().unwrap();
        assert_eq!(base.ends_with("@sha256:0123"), base.starts_with("debian:trixie"), "{name}: {base}");
        let source = target["args"]["SLURM_VERSION"].as_str().unwrap();
        let version = target["labels"]["io.slurminit.slurm-version"].as_str().unwrap();
        let matches_release =
            if source.is_empty() { name.contains(&version.replace('.', "-")) } else { version == source };
        assert!(matches_release, "{name}: {version}");
        let patched = target["labels"]["io.slurminit.slurm-patches"].as_str().unwrap();
        assert_eq!(patched, if source.is_empty() { "" } else { &patches }, "{name}");
        let attested = target["attest"].to_string();
        assert!(attested.contains("sbom") && attested.contains("provenance"), "{name}: {attested}");
        assert!(strings(&target["platforms"]).contains(&"linux/amd64"), "{name}");
    }
}

/// `RELEASES` is the authoritative list of supported releases.
#[test]
#[ignore = "needs docker buildx: run docker/test --only bake"]
fn release_targets_match_supported_releases() {
    let targets = bake_targets(&[]);
    for release in RELEASES {
        let name = format!("slurm-{}", release.version.to_string().replace('.', "-"));
        let args = &targets[&name]["args"];
        assert_eq!(args["SLURM_VERSION"], release.source.unwrap_or_default(), "{name}");
        let tags = strings(&targets[&name]["tags"]);
        assert!(tags.contains(&format!("slurminit:{}", release.version).as_str()), "{name}: {tags:?}");
        assert_eq!(tags.contains(&"slurminit:latest"), release.version == DEFAULT, "{name}: {tags:?}");
    }
    for (toolkit, gpu) in [("cuda", "nvidia"), ("rocm", "amd")] {
        let target = &targets[&format!("slurm-{toolkit}")];
        assert_eq!(target["args"]["GPU_TYPE"], gpu);
        assert!(target["args"]["BASE_IMAGE"].as_str().is_some_and(|base| base.contains(toolkit)), "{target}");
        assert_ne!(target["args"]["SLURM_VERSION"], "", "{target}");
        assert!(strings(&target["tags"]).contains(&format!("slurminit:{toolkit}").as_str()), "{target}");
        assert_eq!(strings(&target["platforms"]).contains(&"linux/arm64"), toolkit == "cuda", "{target}");
    }
    let plain = targets.values().filter(|target| target["target"] == "image" && target["args"]["GPU_TYPE"] == "none");
    assert_eq!(plain.count(), RELEASES.len());
}
