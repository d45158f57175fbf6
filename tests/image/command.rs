//! `docker run --rm IMAGE COMMAND`.

use crate::docker::{DEMO, Image, PLAIN, directory, docker};

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn stdout_has_only_output_of_command() {
    let outcome = Image::new(PLAIN).with(["--hostname", "node1"]).run(&["srun", "hostname"]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (0, "node1\n"), "{}", outcome.stderr);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn exits_with_code_of_command() {
    let image = Image::new(PLAIN);
    for (command, code) in [
        (&["srun", "false"][..], 1),
        (&["srun", "sh", "-c", "exit 7"], 7),
        (&["sh", "-c", "exit 7"], 7),
        (&["sh", "-c", "kill -TERM $$"], 128 + 15),
        (&["no-such-command"], 127),
        (&["/etc/slurm"], 126),
    ] {
        let outcome = image.run(command);
        assert_eq!(outcome.code, code, "{command:?}: {}", outcome.stderr);
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn error_names_missing_command() {
    let outcome = Image::new(PLAIN).run(&["no-such-command"]);
    assert!(outcome.stderr.contains("no-such-command"), "{}", outcome.stderr);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn two_tasks_run_at_once() {
    let image = Image::new(PLAIN).with(["--hostname", "node1"]);
    let outcome = image.run(&["srun", "--overcommit", "-n2", "hostname"]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (0, "node1\nnode1\n"), "{}", outcome.stderr);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn job_gets_requested_gpu() {
    let outcome = Image::new(DEMO).run(&["srun", "--gres=gpu:nvidia:1", "env"]);
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    assert!(outcome.stdout.lines().any(|line| line == "CUDA_VISIBLE_DEVICES=0"), "{}", outcome.stdout);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn logs_that_gpus_are_simulated() {
    let outcome = Image::new(DEMO).run(&["true"]);
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    assert!(outcome.stderr.to_lowercase().contains("simulated"), "{}", outcome.stderr);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn docker_stop_is_clean() {
    let container = Image::new(PLAIN).serve();
    // Docker's default timeout of ten seconds must be enough.
    docker(["stop", &container.name]).ok();
    assert_eq!(container.exit_code(), 0, "{}", container.log());
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn stop_during_start_is_clean_stop() {
    let container = Image::new(PLAIN).start();
    // The kernel drops signals to PID 1 until slurminit has installed its handlers.
    container.wait_for_handlers();
    let code = container.stop();
    assert_eq!(code, 0, "{}", container.log());
}

/// Docker grants no CAP_SYS_NICE, so the Slurm configuration must not require it.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn unprivileged_user_runs_jobs() {
    let outcome = Image::new(PLAIN).run(&["runuser", "-u", "nobody", "--", "srun", "id", "-un"]);
    assert_eq!((outcome.code, outcome.stdout.trim()), (0, "nobody"), "{outcome:?}");
}

/// The command inherits the caller's umask (`podman run --umask`), which does not affect the modes of slurminit's directories.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn command_gets_umask_of_caller_and_users_reach_the_cluster() {
    let nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups";
    let command = format!("umask; cd /tmp; {nobody} slurminit status >/dev/null && {nobody} srun sh -c umask");
    let line = format!("umask 077; exec slurminit run -- sh -c '{command}'");
    let outcome = Image::new(PLAIN).with(["--entrypoint", "sh"]).run(&["-c", &line]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (0, "0077\n0077\n"), "{}", outcome.stderr);
}

/// Variables that a derived image or its users set for their own programs must not break slurminit's programs.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn starts_with_variables_of_derived_images() {
    let image = Image::new(PLAIN).with(["--hostname", "node1"]);
    for path in ["/usr/bin:/bin", "/opt/conda/bin", "/nowhere:"] {
        let outcome = image.clone().with(["--env", &format!("PATH={path}")]).run(&["srun", "hostname"]);
        assert_eq!((outcome.code, outcome.stdout.as_str()), (0, "node1\n"), "{path}: {outcome:?}");
    }
    // Broken copies of libraries that only munged loads. A broken C library would break every program.
    let bad =
        directory(&[("libgcrypt.so.20", "x"), ("libgpg-error.so.0", "x"), ("libbz2.so.1.0", "x"), ("libz.so.1", "x")]);
    let image = image.mount(bad.path(), "/bad");
    for variable in ["LD_LIBRARY_PATH=/bad", "LD_LIBRARY_PATH=/nowhere:/bad", "LD_PRELOAD=/bad/libgcrypt.so.20"] {
        let outcome = image.clone().with(["--env", variable]).run(&["srun", "hostname"]);
        assert_eq!((outcome.code, outcome.stdout.as_str()), (0, "node1\n"), "{variable}: {outcome:?}");
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn reports_mount_over_account_file() {
    let accounts = directory(&[
        ("host", "root:x:0:0::/root:/bin/sh\nana:x:1000:1000::/home/ana:/bin/sh\n"),
        ("without-munge", "root:x:0:0::/root:/bin/sh\nslurm:x:64030:64030::/:/bin/sh\n"),
        ("empty", ""),
    ]);
    for name in ["host", "without-munge", "empty"] {
        let outcome = Image::new(PLAIN).mount(&accounts.path().join(name), "/etc/passwd").run(&["true"]);
        let last = outcome.stderr.lines().last().unwrap_or_default();
        assert_eq!(outcome.code, 104, "{name}: {outcome:?}");
        assert!(last.contains("/etc/passwd is mounted") && last.contains("[users] from"), "{name}: {outcome:?}");
    }
}
