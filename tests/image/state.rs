//! slurmctld's saved state: locking, permissions, a full disk and unreadable state.

use std::fs;

use crate::docker::{Container, Image, PLAIN, Volume, directory, docker};

const STATE: &str = "/var/lib/slurm";

/// The next job ID reported by slurmctld.
#[track_caller]
fn next_id(container: &Container) -> u32 {
    container.sh("scontrol show config | sed -n 's/^NEXT_JOB_ID *= *//p'").parse().expect("NEXT_JOB_ID is a number")
}

/// Kills slurmctld and waits until its replacement responds.
#[track_caller]
fn crash(container: &Container) {
    let pid = container.sh("pgrep -ox slurmctld");
    container.sh(&format!("kill -KILL {pid}"));
    container.until(&format!("[ \"$(pgrep -ox slurmctld)\" != {pid} ] && scontrol ping | grep -q \"is UP\""));
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn refuses_second_container_on_state_volume() {
    let state = Volume::new("state");
    let image = Image::new(PLAIN).volume(&state, STATE);
    let first = image.clone().with(["--hostname", "first"]).serve();
    let job = first.sh("sbatch --parsable --hold --wrap true");
    let before = first.sh("stat -c %i /var/lib/slurm/slurmctld/hash.1/job.1/script; squeue --noheader");
    for command in [&["true"][..], &[]] {
        let refused = image.run(command);
        assert_eq!(refused.code, 78, "{refused:?}");
        assert!(refused.stderr.contains("first") && refused.stderr.contains(STATE), "{refused:?}");
    }
    assert_eq!(image.clone().with(["--env", "SLURMINIT_ROLE=none"]).run(&["true"]).code, 0);
    assert_eq!(first.sh("stat -c %i /var/lib/slurm/slurmctld/hash.1/job.1/script; squeue --noheader"), before);
    assert_ne!(
        first
            .exec(&["setpriv", "--reuid=1", "--regid=1", "--clear-groups", "cat", "/var/lib/slurm/slurminit.lock"])
            .code,
        0
    );

    // The lock is released when its container is killed.
    first.until("grep -q wrap /var/lib/slurm/slurmctld/job_state");
    docker(["kill", &first.name]).ok();
    docker(["start", &first.name]).ok();
    first.wait_until_healthy();
    first.stop();
    let second = image.with(["--hostname", "first"]).serve();
    assert_eq!(second.sh("squeue --noheader -o %i"), job);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn keeps_jobs_and_ids_on_full_state_disk() {
    let config = directory(&[("slurminit.toml", "")]);
    let image = Image::new(PLAIN).mount(config.path(), "/config");
    let container = image.with(["--tmpfs", "/var/lib/slurm:size=8m,exec"]).serve();
    container.sh("sbatch --hold --wrap true");
    container.until("grep -q wrap /var/lib/slurm/slurmctld/job_state");
    container.exec(&["dd", "if=/dev/zero", "of=/var/lib/slurm/fill", "bs=4k"]);
    assert_eq!(container.exec(&["slurminit", "health"]).code, 1);
    assert_eq!(container.exec(&["slurminit", "health", "--live"]).code, 0);

    // A job without a batch script writes nothing to the disk.
    container.sh("srun --hold true >/dev/null 2>&1 </dev/null &");
    container.until("squeue --noheader --name=true | grep -q .");
    let next = next_id(&container);
    let pid = container.sh("pgrep -ox slurmctld");
    assert_eq!(container.exec(&["slurminit", "restart", "slurmctld"]).code, 1);
    fs::write(config.path().join("slurminit.toml"), "[slurm.conf]\nTCPTimeout = 3\n").unwrap();
    assert_eq!(container.exec(&["slurminit", "reload"]).code, 1);
    assert_eq!(container.sh("pgrep -ox slurmctld"), pid);
    assert_eq!(container.sh("squeue --noheader | wc -l"), "2");

    crash(&container);
    let after = next_id(&container);
    assert!(after > next, "{after} after {next}\n{}", container.log());

    container.sh("rm /var/lib/slurm/fill");
    container.wait_until_healthy();
    assert_eq!(container.exec(&["slurminit", "reload"]).code, 0, "{}", container.log());
    container.sh("slurminit restart slurmctld");
    assert_eq!(next_id(&container), after, "{}", container.log());
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn skips_no_job_ids_if_slurmctld_never_read_state() {
    let state = Volume::new("state");
    let image = Image::new(PLAIN).with(["--hostname", "node1"]).volume(&state, STATE);
    let first = image.serve();
    let job: u32 = first.sh("sbatch --parsable --hold --wrap true").parse().unwrap();
    first.stop();

    let other = image.clone().with(["--env", "SLURMINIT_CLUSTER_NAME=other"]).run(&["true"]);
    assert_eq!(other.code, 78, "{other:?}");
    let crashing = "[supervise]\nrestart_initial_delay = 0.01\n[daemon.slurmctld]\ncommand = ['false']\n";
    let config = directory(&[("slurminit.toml", crashing)]);
    let crashed = image.clone().mount(config.path(), "/config").run(&["true"]);
    assert_eq!(crashed.code, 101, "{crashed:?}");

    let last = image.serve();
    assert_eq!(next_id(&last), job + 1, "{}", last.log());
    // A slurmctld that became ready has read the state.
    crash(&last);
    assert!(next_id(&last) > job + 1, "{}", last.log());
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn waits_for_password_lock_and_hides_settings_from_users() {
    let toml = "[[user]]\nname = 'alice'\nuid = 1001\n[[service]]\nname = 'bot'\ncommand = ['sleep', 'inf']\nenv = { PASSWORD = 'x' }\n";
    let config = directory(&[("slurminit.toml", toml)]);
    let container = Image::new(PLAIN).mount(config.path(), "/config").serve();
    let lock = "perl -e 'use Fcntl; open(F, \"+<\", \"/etc/.pwd.lock\") or exit 1; $l = pack(\"s s x4 l! l! i x4\", F_WRLCK, 0, 0, 0, 0); fcntl(F, F_SETLK, $l) \
                or exit 1; open(G, \">/tmp/locked\"); select(undef, undef, undef, 0.05) until -e \"/tmp/release\"'";
    container.sh(&format!("setsid {lock} >/dev/null 2>&1 </dev/null &"));
    container.until("test -e /tmp/locked");
    container.sh("setsid sh -c 'slurminit reload; echo $? >/tmp/code' >/dev/null 2>&1 </dev/null &");
    container.until("pgrep -f \"^[^ ]*slurminit prepare\"");
    let command_line = container.sh("tr '\\0' ' ' </proc/$(pgrep -of '^[^ ]*slurminit prepare')/cmdline");
    assert!(
        command_line.contains("--reload") && !command_line.contains("bot") && !command_line.contains("role"),
        "{command_line}"
    );
    assert_ne!(container.exec(&["test", "-e", "/tmp/code"]).code, 0, "the reload did not wait for the lock");
    container.sh("touch /tmp/release");
    container.until("test -s /tmp/code");
    assert_eq!(container.sh("cat /tmp/code"), "0", "{}", container.log());
}

/// Byte offset of the protocol version in a state file's header (`slurm_protocol_common.h`).
const RELEASE: usize = 21;

fn write_release(container: &Container, file: &str, release: &str) {
    container.sh(&format!("printf '\\{release}' | dd of={file} bs=1 seek={RELEASE} conv=notrunc 2>/dev/null"));
}

/// An older image must not discard the state of a newer Slurm, nor Debian 13 that of a slurminit that supported Debian 12.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn rejects_unreadable_slurm_state_without_changing_it() {
    let state = Volume::new("state");
    let image = Image::new(PLAIN).volume(&state, STATE);
    let first = image.serve();
    first.sh("sbatch --hold --job-name=kept --wrap true");
    assert_eq!(first.stop(), 0);
    let editor = image.clone().with(["--env", "SLURMINIT_ROLE=none"]).command(["sleep", "infinity"]).start();
    let sums = || editor.sh("cd /var/lib/slurm/slurmctld && sha256sum job_state node_state part_state");
    let file = "/var/lib/slurm/slurmctld/job_state";
    let saved = editor.sh(&format!("od -An -tu1 -j{RELEASE} -N1 {file} | tr -d ' '")).parse::<u32>().unwrap();
    assert_eq!(saved, 42, "Debian 13 has Slurm 24.11");
    for (octal, release) in [("054", "25.11"), ("046", "22.05")] {
        write_release(&editor, file, octal);
        let before = sums();
        let refused = image.run(&["true"]);
        assert_eq!(refused.code, 78, "{refused:?}");
        assert!(refused.stderr.contains(release) && !refused.stderr.contains("slurmctld version"), "{refused:?}");
        assert_eq!(sums(), before);
    }
    write_release(&editor, file, "052");
    assert_eq!(image.serve().sh("squeue --noheader --format=%j"), "kept");
}

/// Writes a header of Slurm 24.05 without jobs; tests/versions/run upgrades real state.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn logs_state_upgrade_once_before_slurmctld_writes() {
    let state = Volume::new("state");
    let image = Image::new(PLAIN).volume(&state, STATE).json_log();
    let first = image.serve();
    assert!(first.records("state-upgrade").is_empty());
    assert_eq!(first.stop(), 0);
    let editor = image.clone().with(["--env", "SLURMINIT_ROLE=none"]).command(["sleep", "infinity"]).start();
    editor
        .sh("cd /var/lib/slurm/slurmctld && rm -f *.old node_state resv_state part_state && truncate -s 43 job_state");
    write_release(&editor, "/var/lib/slurm/slurmctld/job_state", "051");
    let second = image.serve();
    let log = second.log();
    let upgrades = second.records("state-upgrade");
    assert_eq!(upgrades.len(), 1, "{log}");
    assert_eq!([&upgrades[0]["fields"]["saved"], &upgrades[0]["fields"]["own"]], ["24.05", "24.11"]);
    assert!(log.find("state-upgrade") < log.find("slurmctld version"), "{log}");
    second.stop();
    assert!(image.serve().records("state-upgrade").is_empty());
}
