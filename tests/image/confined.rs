//! Containers with a read-only root, an unprivileged user, or only the capabilities listed in docs/security.md.

use crate::docker::{Image, PLAIN, Volume};

/// The minimal set. `requires_each_capability_and_names_missing_one` checks that each is necessary.
const NEEDED: [&str; 5] = ["CHOWN", "DAC_OVERRIDE", "KILL", "SETGID", "SETUID"];

fn with_capabilities(image: Image, names: &[&str]) -> Image {
    names.iter().fold(image.with(["--cap-drop=ALL"]), |image, name| image.with(["--cap-add", name]))
}

fn read_only(image: &str) -> Image {
    Image::new(image).with(["--read-only"]).with(["--tmpfs", "/run"]).with(["--tmpfs", "/etc/slurm:exec"])
}

/// Runs a job, submits a batch job, runs a step in it and cancels it, as root and as nobody.
const JOBS: &str = "set -e; cd /; \
    for as in 'sh -c' 'runuser -u nobody -- sh -c'; do \
        $as 'srun true'; \
        id=$($as 'sbatch --parsable --output=/dev/null --wrap \"sleep 1000\"'); \
        timeout 120 sh -c \"until squeue --noheader --states=RUNNING --jobs=$id | grep -q .; do sleep 0.1; done\"; \
        $as \"srun --jobid=$id --overlap true\"; \
        $as \"scancel $id\"; \
        timeout 120 sh -c \"while squeue --noheader --jobs=$id 2>/dev/null | grep -q .; do sleep 0.1; done\"; \
    done";

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn read_only_root_with_least_capabilities_runs_jobs_of_every_user() {
    let (state, key) = (Volume::new("state"), Volume::new("key"));
    let image = with_capabilities(read_only(PLAIN), &NEEDED).with(["--security-opt=no-new-privileges"]);
    let image = image.volume(&state, "/var/lib/slurm").volume(&key, "/etc/munge").with(["--hostname", "node1"]);
    // The second start uses the files that the first one created.
    for _ in 0..2 {
        let container = image.serve();
        container.sh(JOBS);
        let code = container.stop();
        assert_eq!(code, 0, "{}", container.log());
        let log = container.log();
        assert!(!log.contains("ead-only file system") && !log.contains("ermission denied"), "{log}");
        assert!(!log.contains("capability"), "{log}");
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn requires_each_capability_and_names_missing_one() {
    for missing in NEEDED {
        let others: Vec<&str> = NEEDED.into_iter().filter(|name| *name != missing).collect();
        let image = with_capabilities(Image::new(PLAIN), &others).with(["--env", "SLURMINIT_LOG_LEVEL=warn"]);
        let outcome = image.run(&["srun", "true"]);
        // The cluster starts without KILL, but cannot be stopped.
        assert_eq!(outcome.code == 0, missing == "KILL", "{missing}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(missing), "{missing}: {}", outcome.stderr);
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn read_only_root_reports_what_must_be_writable() {
    let bare = Image::new(PLAIN).with(["--read-only"]).run(&["true"]);
    assert_eq!(bare.code, 104, "{}", bare.stderr);
    assert!(bare.stderr.contains("--tmpfs /run"), "{}", bare.stderr);
    let without_state = read_only(PLAIN).with(["--tmpfs", "/etc/munge"]).run(&["true"]);
    assert_eq!(without_state.code, 104, "{}", without_state.stderr);
    assert!(without_state.stderr.contains("/var/lib/slurm: Read-only"), "{}", without_state.stderr);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn reports_noexec_tmpfs_and_repairs_world_writable_one() {
    let image = read_only(PLAIN).with(["--tmpfs", "/etc/munge"]).with(["--tmpfs", "/var/lib/slurm"]);
    let open = image.with(["--tmpfs", "/etc/slurm:mode=1777"]).run(&["stat", "--format=%a", "/etc/slurm"]);
    assert_eq!((open.code, open.stdout.trim()), (0, "755"), "{}", open.stderr);
    assert!(open.stderr.contains("--tmpfs /var/lib/slurm:exec"), "{}", open.stderr);
    assert!(open.stderr.contains("--tmpfs /etc/slurm:exec"), "{}", open.stderr);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn role_none_runs_as_any_user_without_capabilities() {
    let image = Image::new(PLAIN).with(["--env", "SLURMINIT_ROLE=none"]).with(["--user", "1234:99"]);
    let confined = image.clone().with(["--read-only"]).with(["--cap-drop=ALL"]);
    for image in [image, confined.with(["--security-opt=no-new-privileges"])] {
        let outcome = image.run(&["sh", "-c", "id -u; id -g; exit 7"]);
        assert_eq!((outcome.code, outcome.stdout.as_str()), (7, "1234\n99\n"), "{}", outcome.stderr);
        assert_eq!(outcome.stderr, "");
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn refuses_to_start_cluster_as_unprivileged_user() {
    let outcome = Image::new(PLAIN).with(["--user", "1234"]).run(&["true"]);
    assert_eq!(outcome.code, 104, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("root"), "{}", outcome.stderr);
}
