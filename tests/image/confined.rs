//! With a read-only root, as another user, and with only the capabilities that docs/security.md names.

use crate::docker::{Image, PLAIN, Volume, debians};

/// The least set. A test below shows that none of them is too many.
const NEEDED: [&str; 5] = ["CHOWN", "DAC_OVERRIDE", "KILL", "SETGID", "SETUID"];

fn with_capabilities(image: Image, names: &[&str]) -> Image {
    names.iter().fold(image.with(["--cap-drop=ALL"]), |image, name| image.with(["--cap-add", name]))
}

fn read_only(image: &str) -> Image {
    Image::new(image).with(["--read-only"]).with(["--tmpfs", "/run"]).with(["--tmpfs", "/etc/slurm:exec"])
}

/// As root and as another user: a job, a batch job that has a step, and its cancellation.
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
fn read_only_root_with_least_capabilities_runs_jobs_of_every_user_on_each_debian() {
    for image in debians(PLAIN) {
        let (state, key) = (Volume::new("state"), Volume::new("key"));
        let image = with_capabilities(read_only(image), &NEEDED).with(["--security-opt=no-new-privileges"]);
        let image = image.volume(&state, "/var/lib/slurm").volume(&key, "/etc/munge").with(["--hostname", "node1"]);
        // Debian 12's simulates GPUs, for which it would write to the root.
        let image = image.with(["--env", "GPU_TYPE=none"]).with(["--entrypoint", "slurminit"]).command(["run"]);
        // The first start makes everything, the second finds it as the first has left it.
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
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn requires_each_capability_and_names_missing_one() {
    for lacking in NEEDED {
        let others: Vec<&str> = NEEDED.into_iter().filter(|name| *name != lacking).collect();
        let image = with_capabilities(Image::new(PLAIN), &others).with(["--env", "SLURMINIT_LOG_LEVEL=warn"]);
        let outcome = image.run(&["srun", "true"]);
        // The cluster starts without KILL, but cannot be stopped.
        assert_eq!(outcome.code == 0, lacking == "KILL", "{lacking}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(lacking), "{lacking}: {}", outcome.stderr);
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
fn tmpfs_that_jobs_cannot_use_or_could_write_to_is_seen() {
    let image = read_only(PLAIN).with(["--tmpfs", "/etc/munge"]).with(["--tmpfs", "/var/lib/slurm"]);
    let open = image.with(["--tmpfs", "/etc/slurm:mode=1777"]).run(&["stat", "--format=%a", "/etc/slurm"]);
    assert_eq!((open.code, open.stdout.trim()), (0, "755"), "{}", open.stderr);
    assert!(open.stderr.contains("--tmpfs /var/lib/slurm:exec"), "{}", open.stderr);
    assert!(open.stderr.contains("--tmpfs /etc/slurm:exec"), "{}", open.stderr);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn plain_init_runs_as_any_user_without_any_right() {
    let image = Image::new(PLAIN).with(["--env", "SLURMINIT_ROLE=none"]).with(["--user", "1234:99"]);
    let confined = image.clone().with(["--read-only"]).with(["--cap-drop=ALL"]);
    for image in [image, confined.with(["--security-opt=no-new-privileges"])] {
        let outcome = image.run(&["sh", "-c", "id -u; id -g; exit 7"]);
        assert_eq!((outcome.code, outcome.stdout.as_str()), (7, "1234\n99\n"), "{}", outcome.stderr);
        assert_eq!(outcome.stderr, "");
    }
}

/// A cluster is root's; whoever starts one as another user is told so.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn cluster_as_another_user_is_refused() {
    let outcome = Image::new(PLAIN).with(["--user", "1234"]).run(&["true"]);
    assert_eq!(outcome.code, 104, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("root"), "{}", outcome.stderr);
}
