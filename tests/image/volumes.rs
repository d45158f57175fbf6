//! The munge key and the state, from container to container.

use crate::docker::{DEMO, Image, PLAIN, Volume, debians, directory, docker, tag};

const KEY: &str = "sha256sum < /etc/munge/munge.key";

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn every_cluster_has_a_different_key() {
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
fn secret_is_everyones_key() {
    let secret = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    let directory = directory(&[("munge.key", secret)]);
    let image = Image::new(PLAIN).mount(&directory.path().join("munge.key"), "/run/secrets/munge.key");
    let outcome = image.run(&["sh", "-c", "srun true && cat /etc/munge/munge.key"]);
    assert_eq!(outcome.stdout, secret, "{}", outcome.stderr);
    assert!(!outcome.stderr.contains(secret));
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn no_log_contains_the_key() {
    let container = Image::new(PLAIN).with(["--env", "SLURMINIT_LOG_LEVEL=trace"]).serve();
    container.sh("srun true");
    let spelled =
        container.sh("od -An -v -tx1 /etc/munge/munge.key | tr -d ' \\n'; echo; base64 -w0 /etc/munge/munge.key");
    let log = container.log().to_lowercase();
    for key in spelled.lines() {
        assert!(!log.contains(&key[..24].to_lowercase()), "the key is in the log");
    }
}

/// The container dies without a chance to say goodbye; its successor on the same volumes is a working cluster.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn killed_container_leaves_usable_state() {
    let slurm = Volume::new("state");
    let image = Image::new(DEMO).with(["--hostname", "node1"]).volume(&slurm, "/var/lib/slurm");
    let first = image.serve();
    let job = first.sh("sbatch --parsable --hold --wrap true");
    // slurmctld saves what it was told within 5 seconds (its SaveState thread); a save on purpose has no command.
    first.until("grep -q wrap /var/lib/slurm/slurmctld/job_state");
    docker(["kill", &first.name]).ok();
    drop(first);
    let second = image.serve();
    assert_eq!(second.sh("squeue --noheader -o '%i %T'"), format!("{job} PENDING"), "{}", second.log());
    assert_eq!(second.sh("srun --gres=gpu:2 hostname"), "node1");
}

/// The repair in the container's last words is one that can be typed as it is.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn printed_repair_fixes_truncated_state_on_each_debian() {
    for image in debians(DEMO) {
        let slurm = Volume::new("state");
        let container = Image::new(image).with(["--hostname", "node1"]).volume(&slurm, "/var/lib/slurm").serve();
        let job = container.sh("sbatch --parsable --hold --wrap true");
        container.until("grep -q wrap /var/lib/slurm/slurmctld/job_state");
        container.stop();
        let cut = "f=/var/lib/slurm/slurmctld/job_state; truncate --size=$(($(stat -c %s $f) / 2)) $f";
        docker(["run", "--rm", "--volumes-from", &container.name, "--entrypoint", "sh", &tag(image), "-c", cut]).ok();
        docker(["start", &container.name]).ok();
        assert_eq!(container.exit_code(), 101, "{}", container.log());

        let log = container.log();
        let typed = log.lines().find_map(|line| line.split_once("repair: ")?.1.split_once("docker stop"));
        let (_, typed) = typed.unwrap_or_else(|| panic!("{image}: no repair in: {log}"));
        let typed = format!("docker stop{typed}").replace("CONTAINER", &container.name).replace("IMAGE", &tag(image));
        for line in typed.split("; ") {
            docker(line.split(' ').skip(1)).ok();
        }
        container.wait_until_healthy();
        assert_eq!(container.sh("squeue --noheader -o '%i %T'"), format!("{job} PENDING"), "{}", container.log());
    }
}
