//! External errors lead to a message that names the cause, and a documented exit code.

use crate::docker::{Image, Outcome, PLAIN, Volume, directory};

/// The outcome of a start with this slurminit.toml.
fn with_toml(toml: &str) -> Outcome {
    let directory = directory(&[("slurminit.toml", toml)]);
    Image::new(PLAIN).mount(directory.path(), "/config").run(&["srun", "hostname"])
}

#[track_caller]
fn assert_refused(outcome: &Outcome, code: i32, words: &[&str]) {
    assert_eq!(outcome.code, code, "{}", outcome.stderr);
    for word in words {
        assert!(outcome.stderr.contains(word), "`{word}` is not in: {}", outcome.stderr);
    }
    assert_eq!(outcome.stdout, "", "the command ran");
    assert!(!outcome.stderr.contains("panicked"), "{}", outcome.stderr);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn rejects_broken_toml() {
    assert_refused(&with_toml("# fine\n[gpu\n"), 78, &["/config/slurminit.toml:2:"]);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn rejects_unknown_key() {
    assert_refused(&with_toml("# fine\n[gpu]\ntype_nam = \"model\"\n"), 78, &["/config/slurminit.toml:3:", "type_nam"]);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn rejects_value_of_wrong_type() {
    assert_refused(&with_toml("[node]\ncpus = \"many\"\n"), 78, &["/config/slurminit.toml:2:", "cpus"]);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn rejects_invalid_value_of_environment_variable() {
    let outcome = Image::new(PLAIN).with(["--env", "GPU_TYPE=voodoo"]).run(&["srun", "hostname"]);
    assert_refused(&outcome, 78, &["GPU_TYPE", "voodoo"]);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn reports_unknown_variable() {
    let outcome = Image::new(PLAIN).with(["--env", "SLURMINIT_ROL=none"]).run(&["srun", "hostname"]);
    assert_eq!(outcome.code, 0, "{outcome:?}");
    assert!(
        outcome.stderr.contains("SLURMINIT_ROL;") && outcome.stderr.contains("SLURMINIT_ROLE"),
        "{}",
        outcome.stderr
    );
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn rejects_grace_longer_than_stop_timeout() {
    assert_refused(&with_toml("[jobs]\ngrace = 20\n"), 78, &["/config/slurminit.toml:2:9: jobs.grace", "stop_timeout"]);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn reports_read_only_directory() {
    let slurm = Volume::new("etc-slurm");
    let image = Image::new(PLAIN).with(["--volume", &format!("{}:/etc/slurm:ro", slurm.name)]);
    assert_refused(&image.run(&["srun", "hostname"]), 104, &["/etc/slurm", "ead-only"]);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn reports_full_disk() {
    let outcome = Image::new(PLAIN).with(["--tmpfs", "/etc/slurm:size=4k"]).run(&["srun", "hostname"]);
    assert_refused(&outcome, 104, &["/etc/slurm", "No space left"]);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn full_disk_keeps_previous_files_intact() {
    let script = "slurminit prepare >/dev/null 2>&1; sum=$(cat /etc/slurm/*.conf | md5sum); \
                  dd if=/dev/zero of=/etc/slurm/filler bs=1k >/dev/null 2>&1; \
                  SLURMINIT_RESERVE_MIB=1000 slurminit prepare >/dev/null 2>&1 && exit 1; \
                  [ \"$sum\" = \"$(cat /etc/slurm/*.conf | md5sum)\" ] && ls /etc/slurm";
    let image = Image::new(PLAIN).with(["--tmpfs", "/etc/slurm:size=64k"]).with(["--entrypoint", "sh"]);
    let outcome = image.run(&["-c", script]);
    assert_eq!(outcome.code, 0, "{outcome:?}");
    assert!(outcome.stdout.contains("slurm.conf"), "{outcome:?}");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn reports_missing_daemon_program() {
    let outcome = with_toml("[daemon.slurmctld]\ncommand = [\"/opt/slurm/sbin/slurmctld\", \"-D\"]\n");
    assert_refused(&outcome, 101, &["/opt/slurm/sbin/slurmctld"]);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn reports_port_in_use() {
    let first = Image::new(PLAIN).serve();
    let outcome =
        Image::new(PLAIN).with(["--network", &format!("container:{}", first.name)]).run(&["srun", "hostname"]);
    assert_refused(&outcome, 101, &["6817"]);
}

/// Errors that only Slurm detects end the start at the first exit of a daemon, with the operator's line and code 78.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn names_operators_line_that_slurm_rejects_at_start() {
    for (toml, place) in [
        ("[slurm.conf]\nMaxJobCuont = 5\n", "slurminit.toml:2:15: slurm.conf.MaxJobCuont"),
        ("[slurm.conf]\nKillWait = 3\nMaxJobCount = 'abc'\n", "slurminit.toml:3:15: slurm.conf.MaxJobCount"),
        ("[slurm.conf]\nSchedulerType = 'sched/bakfill'\n", "slurminit.toml:2:17: slurm.conf.SchedulerType"),
        (
            "[[partition]]\nname = 'a'\n[[partition]]\nname = 'b'\nMaxTimee = '1:00'\n",
            "slurminit.toml:5:12: partition[1].MaxTimee",
        ),
        (
            "[[partition]]\nname = 'a'\nMaxTime = '1:00'\n[[partition]]\nname = 'b'\nMaxTime = 'abc'\n",
            "slurminit.toml:6:11: partition[1].MaxTime",
        ),
    ] {
        let directory = directory(&[("slurminit.toml", toml)]);
        let outcome = Image::new(PLAIN).mount(directory.path(), "/config").run(&["srun", "hostname"]);
        assert_refused(&outcome, 78, &["rejected by Slurm: ", place]);
        assert!(outcome.stderr.matches("exited with code 1").count() < 3, "{}", outcome.stderr);
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn names_line_of_customized_file_that_slurm_rejects() {
    let gres = "# USER_CUSTOMIZED=true\nNameX=gpu File=/dev/null\n";
    let directory = directory(&[("gres.conf", gres)]);
    let outcome = Image::new(PLAIN).mount(directory.path(), "/config").run(&["srun", "hostname"]);
    assert_refused(&outcome, 78, &["/config/gres.conf:2: rejected by Slurm: "]);
}

/// munged itself would reject a world-readable key with an unclear message.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn world_readable_munge_key_is_repaired_or_rejected() {
    let script = "head -c 64 /dev/urandom > /etc/munge/munge.key; chmod 0644 /etc/munge/munge.key; chown root /etc/munge/munge.key; \
                  before=$(md5sum < /etc/munge/munge.key); slurminit run -- srun true; code=$?; \
                  echo code=$code $(stat -c '%U %a' /etc/munge/munge.key) same=$([ \"$before\" = \"$(md5sum < /etc/munge/munge.key)\" ]; echo $?)";
    let outcome = Image::new(PLAIN).with(["--entrypoint", "sh"]).run(&["-c", script]);
    let repaired = "code=0 munge 400 same=0\n";
    assert!(
        outcome.stdout == repaired
            || (!outcome.stdout.contains("code=0") && outcome.stderr.contains("/etc/munge/munge.key")),
        "{outcome:?}"
    );
}
