//! Operator commands that run before and after each job.

use std::os::unix::fs::PermissionsExt as _;

use crate::docker::{Container, DEMO, Image, Volume, directory, docker};

const HOOKS: &str = r#"
[[hooks.pre_job]]
command = ["/config/note", "before it's"]
[[hooks.pre_job]]
command = ["sh", "-c", "[ ! -e /tmp/fail ] || { echo the disk is not there >&2; exit 3; }"]
[[hooks.pre_job]]
command = ["sh", "-c", "[ ! -e /tmp/bad ]"]
on_failure = "drain"
[[hooks.post_job]]
command = ["/config/note", "after"]
[[hooks.post_job]]
command = ["sh", "-c", "[ ! -e /tmp/hang ] || exec sleep 600"]
timeout = 1
"#;

fn serve() -> (Container, tempfile::TempDir) {
    let note = "#!/bin/sh\necho \"$1 $SLURM_JOB_ID ${SLURM_JOB_GPUS-none} $(id -u) $PWD\" >>/tmp/noted\n";
    let config = directory(&[("slurminit.toml", HOOKS), ("note", note)]);
    let file = config.path().join("note");
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o755)).expect("the file exists");
    let image = Image::new(DEMO).with(["--env", "DEMO_GPUS=1"]).json_log();
    (image.mount(config.path(), "/config").serve(), config)
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn hooks_run_as_root_around_each_job_and_failures_are_logged() {
    let (container, _config) = serve();
    container.sh("srun true; srun --gres=gpu:1 true");
    container.until("grep -q \"after 2\" /tmp/noted");
    let noted = container.sh("sort /tmp/noted");
    assert_eq!(noted, "after 1 none 0 /\nafter 2 0 0 /\nbefore it's 1 none 0 /\nbefore it's 2 0 0 /");
    // With the default on_failure, a failing hook does not affect the job.
    container.sh("touch /tmp/fail /tmp/hang; srun true; rm /tmp/fail");
    container.sh("timeout 120 sh -c 'while squeue --noheader | grep .; do sleep 0.1; done'; rm /tmp/hang");
    let failures = container.records("hook-failed");
    let is_reported = |hook: &str, error: &str| {
        let matches = |record: &serde_json::Value| {
            let has =
                |field: &str, part: &str| record["fields"][field].as_str().is_some_and(|text| text.contains(part));
            record["source"] == "slurmd"
                && record["level"] == "warn"
                && has("hook", hook)
                && has("job", "3")
                && has("error", error)
        };
        failures.iter().any(matches)
    };
    assert!(is_reported("pre_job", "the disk is not there") && is_reported("post_job", "1 s"), "{failures:#?}");
    assert!(container.sh("sinfo --noheader --format %T").contains("idle"));
    // A failing hook with on_failure = "drain" keeps the job pending and drains the node.
    container.sh("touch /tmp/bad; sbatch --output /dev/null --wrap true");
    container.until("sinfo --noheader --format %T | grep -q drained");
    assert_eq!(container.sh("squeue --noheader --format %T"), "PENDING");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn job_map_shows_job_of_each_gpu_and_drops_stale_entries() {
    let config = directory(&[("slurminit.toml", "[metrics]\njob_map = '/run/job-map'\n")]);
    let map = Volume::new("map");
    let image = Image::new(DEMO).with(["--env", "DEMO_GPUS=2"]).volume(&map, "/run/job-map");
    let container = image.mount(config.path(), "/config").serve();
    let show_map = "grep -r . /run/job-map | sort | tr \"\\n\" \" \"";
    container.sh("sbatch --no-requeue --output /dev/null --gres=gpu:2 --wrap 'sleep 600'; srun true");
    container.until("[ -s /run/job-map/1 ]");
    assert_eq!(container.sh(show_map).trim(), "/run/job-map/0:1 /run/job-map/1:1");
    container.sh("scancel 1");
    container.until("[ ! -e /run/job-map/0 ] && [ ! -e /run/job-map/1 ]");
    // A killed container leaves stale entries; the next start removes the entries of its own GPUs.
    container.sh("echo 99 >/run/job-map/1; echo 98 >/run/job-map/7");
    docker(["kill", &container.name]).ok();
    docker(["start", &container.name]).ok();
    container.wait_until_healthy();
    assert_eq!(container.sh(show_map).trim(), "/run/job-map/7:98");
}
