//! What goes wrong outside of us ends in a message that names it, and in a documented exit code.

use crate::docker::{Image, Outcome, PLAIN, Volume, debians, directory};

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
    assert_eq!(outcome.stdout, "", "nothing ran");
    assert!(!outcome.stderr.contains("panicked"), "{}", outcome.stderr);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn broken_toml() {
    assert_refused(&with_toml("# fine\n[gpu\n"), 78, &["/config/slurminit.toml:2:"]);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn unknown_key() {
    assert_refused(&with_toml("# fine\n[gpu]\ntype_nam = \"model\"\n"), 78, &["/config/slurminit.toml:3:", "type_nam"]);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn value_of_wrong_type() {
    assert_refused(&with_toml("[node]\ncpus = \"many\"\n"), 78, &["/config/slurminit.toml:2:", "cpus"]);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn environment_variable_that_means_nothing() {
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
fn grace_that_is_longer_than_stop() {
    assert_refused(&with_toml("[jobs]\ngrace = 20\n"), 78, &["/config/slurminit.toml:2:9: jobs.grace", "stop_timeout"]);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn directory_that_cannot_be_written() {
    let slurm = Volume::new("etc-slurm");
    let image = Image::new(PLAIN).with(["--volume", &format!("{}:/etc/slurm:ro", slurm.name)]);
    assert_refused(&image.run(&["srun", "hostname"]), 104, &["/etc/slurm", "ead-only"]);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn disk_that_is_full() {
    let outcome = Image::new(PLAIN).with(["--tmpfs", "/etc/slurm:size=4k"]).run(&["srun", "hostname"]);
    assert_refused(&outcome, 104, &["/etc/slurm", "No space left"]);
}

/// The old files are still whole when the new ones do not fit.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn full_disk_leaves_old_files() {
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
fn daemon_that_is_missing() {
    let outcome = with_toml("[daemon.slurmctld]\ncommand = [\"/opt/slurm/sbin/slurmctld\", \"-D\"]\n");
    assert_refused(&outcome, 101, &["/opt/slurm/sbin/slurmctld"]);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn port_in_use() {
    let first = Image::new(PLAIN).serve();
    let outcome =
        Image::new(PLAIN).with(["--network", &format!("container:{}", first.name)]).run(&["srun", "hostname"]);
    assert_refused(&outcome, 101, &["6817"]);
}

/// What only Slurm can judge: one death, the line of the operator's file, 78.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn names_operators_line_that_slurm_rejects_at_start_on_each_debian() {
    for image in debians(PLAIN) {
        for (toml, place) in [
            ("[slurm.conf]\nMaxJobCuont = 5\n", "slurminit.toml:2:15: slurm.conf.MaxJobCuont"),
            ("[slurm.conf]\nKillWait = 3\nMaxJobCount = 'abc'\n", "slurminit.toml:3:15: slurm.conf.MaxJobCount"),
            ("[slurm.conf]\nSchedulerType = 'sched/bakfill'\n", "slurminit.toml:2:17: slurm.conf.SchedulerType"),
            ("[slurm.conf]\nTaskPlugin = 'task/affinityy'\n", "slurminit.toml:2:14: slurm.conf.TaskPlugin"),
            ("[slurm.conf]\nProctrackType = 'proctrack/x'\n", "slurminit.toml:2:17: slurm.conf.ProctrackType"),
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
            let outcome = Image::new(image).mount(directory.path(), "/config").run(&["srun", "hostname"]);
            assert_refused(&outcome, 78, &["rejected by Slurm: ", place]);
            assert!(outcome.stderr.matches("exited with code 1").count() < 3, "{image}: {}", outcome.stderr);
        }
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn names_line_of_own_file_that_slurm_rejects() {
    let own = "# USER_CUSTOMIZED=true\nNameX=gpu File=/dev/null\n";
    let directory = directory(&[("gres.conf", own)]);
    let outcome = Image::new(PLAIN).mount(directory.path(), "/config").run(&["srun", "hostname"]);
    assert_refused(&outcome, 78, &["/config/gres.conf:2: rejected by Slurm: "]);
}

/// munged would refuse such keys with a message that few understand.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn munge_key_that_others_can_read_is_never_used() {
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
