//! GPU detection and allocation: count changes between starts, denied GPUs, hostile names, a hung driver.

use crate::docker::{Container, DEMO, Image, PLAIN, Volume, directory, is_of_a_busy_machine};

/// Output of `sinfo -o "%n %G"` (the form in the documentation) without the socket suffix of multi-socket machines.
fn gres(container: &Container) -> String {
    let output = container.exec(&["sinfo", "--noheader", "-o", "%n %G"]).ok();
    output.split("(S:").next().unwrap_or_default().trim().to_owned()
}

/// The node state in Slurm's spelling.
fn state(container: &Container) -> String {
    container.exec(&["sinfo", "--noheader", "-o", "%T"]).ok().trim().to_owned()
}

fn demo(gpus: &str) -> Image {
    Image::new(DEMO).with(["--env", &format!("DEMO_GPUS={gpus}")])
}

/// The demo image with a machine description and stand-in device files for `files` GPUs. Bypasses the demo's entry point.
fn machine(description: &std::path::Path, files: u32) -> Image {
    let image =
        Image::new(DEMO).mount(description, "/etc/fake-nvml.toml").with(["--entrypoint", "slurminit"]).command(["run"]);
    let image = image.with(["--device", "/dev/null:/dev/nvidiactl"]);
    (0..files).fold(image, |image, minor| image.with(["--device", &format!("/dev/null:/dev/nvidia{minor}")]))
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn registers_and_allocates_two_gpus() {
    let container = demo("2").serve();
    assert_eq!(gres(&container), "localhost gpu:nvidia:2");
    let node = container.exec(&["scontrol", "show", "node=localhost"]).ok();
    assert!(node.contains("Gres=gpu:nvidia:2"), "{node}");
    let both = container.exec(&["srun", "--gres=gpu:2", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES"]).ok();
    assert_eq!(both, "0,1\n");
    let too_many = container.exec(&["srun", "--gres=gpu:3", "true"]);
    assert_ne!(too_many.code, 0);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn two_jobs_get_different_gpus() {
    let container = demo("2").serve();
    let line = "srun --gres=gpu:1 sh -c 'echo $CUDA_VISIBLE_DEVICES; touch /tmp/a; until [ -e /tmp/b ]; do sleep 0.1; done' & \
                until [ -e /tmp/a ]; do sleep 0.1; done; srun --gres=gpu:1 sh -c 'echo $CUDA_VISIBLE_DEVICES; touch /tmp/b'; wait";
    assert_eq!(container.sh(&format!("timeout 30 sh -c \"$(cat <<'LINE'\n{line}\nLINE\n)\"")), "0\n1");
}

/// With one type per GPU, a job can request specific GPUs.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn type_by_index_allocates_exactly_requested_gpus() {
    let directory = directory(&[("slurminit.toml", "[gpu]\ntype_name = \"index\"\n")]);
    let config = directory.path().join("slurminit.toml");
    let container = demo("4").mount(&config, "/config/slurminit.toml").serve();
    assert_eq!(gres(&container), "localhost gpu:gpu0:1,gpu:gpu1:1,gpu:gpu2:1,gpu:gpu3:1", "{}", container.log());
    let visible = |gres: &str| container.exec(&["srun", gres, "sh", "-c", "echo $CUDA_VISIBLE_DEVICES"]).ok();
    assert_eq!(visible("--gres=gpu:gpu0:1,gpu:gpu2:1"), "0,2\n");
    assert_eq!(visible("--gres=gpu:gpu3:1,gpu:gpu1:1"), "1,3\n");
    assert_ne!(container.exec(&["srun", "--gres=gpu:gpu2:2", "true"]).code, 0);
}

/// Starts with 2, 1, 0 and 4 GPUs on the same volumes.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn gpu_count_change_keeps_jobs_and_munge_key() {
    let (slurm, key) = (Volume::new("state"), Volume::new("key"));
    let image =
        |gpus| demo(gpus).with(["--hostname", "node1"]).volume(&slurm, "/var/lib/slurm").volume(&key, "/etc/munge");
    let mut munge_key = None;
    let mut job = String::new();
    for (gpus, expected) in [
        ("2", "localhost gpu:nvidia:2"),
        ("1", "localhost gpu:nvidia:1"),
        ("0", "localhost (null)"),
        ("4", "localhost gpu:nvidia:4"),
    ] {
        let container = image(gpus).serve();
        assert_eq!(gres(&container), expected, "{}", container.log());
        assert_eq!(state(&container), "idle", "{gpus} GPUs: {}", container.log());
        assert_eq!(container.sh("sinfo --noheader --list-reasons"), "", "{gpus} GPUs: a stale drain");
        if job.is_empty() {
            job = container.sh("sbatch --parsable --hold --job-name kept --wrap 'echo kept'");
        }
        assert_eq!(container.sh("squeue --noheader -o '%i %j %T'"), format!("{job} kept PENDING"), "{gpus} GPUs");
        let sum = container.sh("sha256sum /etc/munge/munge.key");
        assert_eq!(*munge_key.get_or_insert(sum.clone()), sum, "{gpus} GPUs: the key changed");
        if expected.contains("gpu") {
            container.exec(&["srun", "--gres=gpu:nvidia:1", "true"]).ok();
        }
        assert_eq!(container.stop(), 0, "{}", container.log());
    }
    let last = image("4").serve();
    last.sh(&format!("scontrol release {job}"));
    let done =
        format!("timeout 120 sh -c 'until scontrol show job {job} | grep -q JobState=COMPLETED; do sleep 0.1; done'");
    last.sh(&done);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn keeps_administrators_drain() {
    let slurm = Volume::new("state");
    let image = demo("2").with(["--hostname", "node1"]).volume(&slurm, "/var/lib/slurm");
    let first = image.serve();
    first.sh("scontrol update nodename=localhost state=drain reason='fan replaced'");
    assert_eq!(first.stop(), 0);
    let second = image.start();
    second.until("sinfo --noheader -o %T 2>/dev/null | grep -q drained");
    assert!(second.sh("sinfo --noheader --list-reasons").contains("fan replaced"));
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn excludes_and_names_denied_gpu() {
    let directory = directory(&[("machine.toml", "[[gpu]]\n[[gpu]]\ndenied = true\n[[gpu]]\n")]);
    let container = machine(&directory.path().join("machine.toml"), 3).serve();
    assert_eq!(gres(&container), "localhost gpu:nvidia:2", "{}", container.log());
    let files = container.sh("grep -o 'File=[^ ]*' /etc/slurm/gres.conf");
    assert_eq!(files, "File=/dev/nvidia0\nFile=/dev/nvidia2", "{}", container.log());
    assert!(container.log().contains("nvidia1") || container.log().contains("GPU 1"), "{}", container.log());
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn excludes_gpu_without_device_file() {
    let directory = directory(&[("machine.toml", "[[gpu]]\n[[gpu]]\n")]);
    let container = machine(&directory.path().join("machine.toml"), 1).serve();
    assert_eq!(gres(&container), "localhost gpu:nvidia:1", "{}", container.log());
    assert!(container.log().contains("/dev/nvidia1"), "{}", container.log());
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn hostile_gpu_names_inject_no_configuration() {
    let evil = r#"
[[gpu]]
name = "NVIDIA\nNodeName=evil CPUs=64 # ,=\\ Gres=gpu:9 \u001b[31m"
[[gpu]]
name = [255, 254, 10, 44, 61, 35]
"#;
    let directory = directory(&[("machine.toml", evil), ("slurminit.toml", "[gpu]\ntype_name = \"model\"\n")]);
    let image = machine(&directory.path().join("machine.toml"), 2);
    let container = image.mount(&directory.path().join("slurminit.toml"), "/config/slurminit.toml").serve();
    assert_eq!(container.sh("sinfo --noheader -N -o '%n %T'"), "localhost idle", "{}", container.log());
    assert_eq!(container.sh("cat /etc/slurm/*.conf | grep -v '^#' | grep -c 'evil CPUs' || true"), "0");
    assert_eq!(container.sh("grep -c '^NodeName=' /etc/slurm/slurm.conf"), "1");
    assert!(!container.log().contains('\u{1b}'), "an escape sequence reached the log");
    container.exec(&["srun", "--gres=gpu:2", "true"]).ok();
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn hung_driver_delays_start_only_by_detect_timeout() {
    let machine_toml = "[[gpu]]\n[[fault]]\nat = \"init\"\nkind = \"hang\"\n";
    let directory = directory(&[("machine.toml", machine_toml), ("slurminit.toml", "[gpu]\ndetect_timeout = 1\n")]);
    let image = machine(&directory.path().join("machine.toml"), 1);
    let image = image.mount(&directory.path().join("slurminit.toml"), "/config/slurminit.toml");
    let outcome = image.with(["--hostname", "node1"]).run(&["run", "--", "srun", "hostname"]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (0, "node1\n"), "{}", outcome.stderr);
}

/// An NVIDIA image without a GPU logs a warning and runs. `SLURMINIT_ON_MISMATCH=fail` makes it exit.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn reports_missing_gpu_which_can_be_fatal() {
    let warned = demo("0").run(&["srun", "true"]);
    assert_eq!(warned.code, 0, "{}", warned.stderr);
    assert!(warned.stderr.contains("GPU_TYPE") && warned.stderr.contains("nvidia"), "{}", warned.stderr);
    let refused = demo("0").with(["--env", "SLURMINIT_ON_MISMATCH=fail"]).run(&["srun", "true"]);
    assert_eq!(refused.code, 105, "{}", refused.stderr);
}

/// The documented "Manual GPU Configuration": user files with the marker `USER_CUSTOMIZED`.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn installs_customized_files_unchanged() {
    let generated = demo("2").with(["--hostname", "node1"]).run(&["cat", "/etc/slurm/slurm.conf"]).ok();
    let without_node: Vec<&str> = generated.lines().filter(|line| !line.starts_with("NodeName=")).collect();
    let node = "NodeName=localhost CPUs=1 RealMemory=500 Gres=gpu:nvidia:1 State=UNKNOWN";
    let slurm_conf = format!("# USER_CUSTOMIZED=true\n{}\n{node}\n", without_node.join("\n"));
    let gres_conf =
        "# USER_CUSTOMIZED=true\nNodeName=localhost Name=gpu Type=nvidia File=/dev/nvidia1 Flags=nvidia_gpu_env\n";
    let directory = directory(&[("slurm.conf", &slurm_conf), ("gres.conf", gres_conf)]);
    let container = demo("2").with(["--hostname", "node1"]).mount(directory.path(), "/config").serve();
    assert_eq!(gres(&container), "localhost gpu:nvidia:1", "{}", container.log());
    assert_eq!(container.exec(&["cat", "/etc/slurm/slurm.conf"]).ok(), slurm_conf);
    assert_eq!(container.exec(&["cat", "/etc/slurm/gres.conf"]).ok(), gres_conf);
    assert_eq!(std::fs::read_to_string(directory.path().join("slurm.conf")).unwrap(), slurm_conf);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn ignores_file_without_customized_marker() {
    let directory = directory(&[("gres.conf", "Name=gpu Type=nvidia File=/dev/nvidia1\n")]);
    let outcome = demo("2").mount(directory.path(), "/config").run(&["sinfo", "--noheader", "-o", "%n %G"]);
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    assert!(outcome.stdout.starts_with("localhost gpu:nvidia:2"), "{}", outcome.stdout);
    assert!(outcome.stderr.contains("/config/gres.conf"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("USER_CUSTOMIZED"), "{}", outcome.stderr);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn logs_nothing_without_gpu() {
    let outcome = Image::new(PLAIN).json_log().run(&["sinfo", "--noheader", "-o", "%n %G"]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (0, "localhost (null)\n"), "{}", outcome.stderr);
    let is_busy = |line: &&str| serde_json::from_str(line).is_ok_and(|record| is_of_a_busy_machine(&record));
    let lines: Vec<&str> = outcome.stderr.lines().filter(|line| !is_busy(line)).collect();
    assert!(lines.is_empty(), "{lines:#?}");
}
