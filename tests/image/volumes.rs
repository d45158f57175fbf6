//! The munge key and the state on volumes, across containers.

use crate::docker::{DEMO, Image, PLAIN, Volume, directory, docker, tag};

const KEY: &str = "sha256sum < /etc/munge/munge.key";

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn each_cluster_generates_its_own_key() {
    let image = Image::new(PLAIN);
    let (first, second) = (image.run(&["sh", "-c", KEY]).ok(), image.run(&["sh", "-c", KEY]).ok());
    assert_ne!(first, second);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn only_munge_can_read_key() {
    let outcome = Image::new(PLAIN).run(&["stat", "-c", "%U %a %s", "/etc/munge/munge.key"]);
    let words: Vec<&str> = outcome.stdout.split_whitespace().collect();
    assert_eq!(words[..2], ["munge", "400"], "{outcome:?}");
    assert!(words[2].parse::<u32>().unwrap() >= 32, "{outcome:?}");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn uses_mounted_secret_as_munge_key() {
    let secret = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    let directory = directory(&[("munge.key", secret)]);
    let image = Image::new(PLAIN).mount(&directory.path().join("munge.key"), "/run/secrets/munge.key");
    let outcome = image.run(&["sh", "-c", "srun true && cat /etc/munge/munge.key"]);
    assert_eq!(outcome.stdout, secret, "{}", outcome.stderr);
    assert!(!outcome.stderr.contains(secret));
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn log_does_not_contain_munge_key() {
    let container = Image::new(PLAIN).with(["--env", "SLURMINIT_LOG_LEVEL=trace"]).serve();
    container.sh("srun true");
    let encodings =
        container.sh("od -An -v -tx1 /etc/munge/munge.key | tr -d ' \\n'; echo; base64 -w0 /etc/munge/munge.key");
    let log = container.log().to_lowercase();
    for key in encodings.lines() {
        assert!(!log.contains(&key[..24].to_lowercase()), "the key is in the log");
    }
}

/// After SIGKILL of the container, a new one on the same volume is a working cluster.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn killed_container_leaves_usable_state() {
    let slurm = Volume::new("state");
    let image = Image::new(DEMO).with(["--hostname", "node1"]).volume(&slurm, "/var/lib/slurm");
    let first = image.serve();
    let job = first.sh("sbatch --parsable --hold --wrap true");
    // slurmctld saves changes within 5 s (SaveState thread); no command forces a save.
    first.until("grep -q wrap /var/lib/slurm/slurmctld/job_state");
    docker(["kill", &first.name]).ok();
    drop(first);
    let second = image.serve();
    assert_eq!(second.sh("squeue --noheader -o '%i %T'"), format!("{job} PENDING"), "{}", second.log());
    assert_eq!(second.sh("srun --gres=gpu:2 hostname"), "node1");
}

/// The fix commands in the final log lines work as printed.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn printed_fix_of_truncated_state_works() {
    let slurm = Volume::new("state");
    let container = Image::new(DEMO).with(["--hostname", "node1"]).volume(&slurm, "/var/lib/slurm").serve();
    let job = container.sh("sbatch --parsable --hold --wrap true");
    container.until("grep -q wrap /var/lib/slurm/slurmctld/job_state");
    container.stop();
    let cut = "f=/var/lib/slurm/slurmctld/job_state; truncate --size=$(($(stat -c %s $f) / 2)) $f";
    docker(["run", "--rm", "--volumes-from", &container.name, "--entrypoint", "sh", &tag(DEMO), "-c", cut]).ok();
    docker(["start", &container.name]).ok();
    assert_eq!(container.exit_code(), 101, "{}", container.log());

    let log = container.log();
    let fix = log.lines().find_map(|line| line.split_once("fix: ")?.1.split_once("docker stop"));
    let (_, fix) = fix.unwrap_or_else(|| panic!("no fix in: {log}"));
    let fix = format!("docker stop{fix}").replace("CONTAINER", &container.name).replace("IMAGE", &tag(DEMO));
    for line in fix.split("; ") {
        docker(line.split(' ').skip(1)).ok();
    }
    container.wait_until_healthy();
    assert_eq!(container.sh("squeue --noheader -o '%i %T'"), format!("{job} PENDING"), "{}", container.log());
}
