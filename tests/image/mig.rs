//! MIG instances on the real Slurm: each job's CUDA_VISIBLE_DEVICES names its instance.

use tempfile::TempDir;

use crate::docker::{BOOKWORM, Container, DEMO, Image, Volume, directory, docker};

/// GPU 0 is whole and has minor 1, GPU 1 has minor 0 and is in MIG mode; one of NVML's slots is empty.
const MACHINE: &str = r#"
[[gpu]]
minor = 1
[[gpu]]
minor = 0
[[gpu.mig]]
gi = 9
[[gpu.mig]]
profile = "3g.71gb"
gi = 2
memory_mib = 71424
[[gpu.mig]]
gi = 10
slot = 4
"#;

const MINORS: &str = "gpu0/gi2/access 156\ngpu0/gi2/ci0/access 157\ngpu0/gi9/access 219\ngpu0/gi9/ci0/access 220\n\
                      gpu0/gi10/access 228\ngpu0/gi10/ci0/access 229\n";

const WHOLE: &str = "GPU-fa4e0000-0000-0000-0000-000000000000";
const SMALL: [&str; 2] = ["MIG-fa4e0000-0000-0000-0000-000000000001", "MIG-fa4e0000-0000-0000-0002-000000000001"];
const LARGE: &str = "MIG-fa4e0000-0000-0000-0001-000000000001";

fn files() -> TempDir {
    directory(&[("machine.toml", MACHINE), ("minors", MINORS)])
}

/// Docker mounts nothing below /proc, so the container does it itself before it becomes slurminit.
fn machine(image: &str, files: &TempDir) -> Image {
    let become_slurminit = "mount -t tmpfs none /proc/driver && mkdir /proc/driver/nvidia-caps && \
                            cp /minors /proc/driver/nvidia-caps/mig-minors && exec slurminit run";
    let image = Image::new(image)
        .mount(&files.path().join("machine.toml"), "/etc/fake-nvml.toml")
        .mount(&files.path().join("minors"), "/minors")
        .with(["--cap-add", "SYS_ADMIN", "--security-opt", "apparmor=unconfined", "--entrypoint", "sh"])
        .command(["-c", become_slurminit]);
    let devices = ["nvidiactl", "nvidia0", "nvidia1"].map(str::to_owned);
    let capabilities = [156, 157, 219, 220, 228, 229].map(|number| format!("nvidia-caps/nvidia-cap{number}"));
    let device = |image: Image, name: &String| image.with(["--device", &format!("/dev/null:/dev/{name}")]);
    capabilities.iter().chain(&devices).fold(image, device)
}

/// CUDA_VISIBLE_DEVICES of a step.
fn devices(container: &Container, gres: &str) -> String {
    let gres = format!("--gres={gres}");
    container.exec(&["timeout", "30", "srun", &gres, "printenv", "CUDA_VISIBLE_DEVICES"]).ok().trim_end().to_owned()
}

fn jobs_get_their_instances(image: &str) {
    let files = files();
    let container = machine(image, &files).serve();
    // Without the sockets that sinfo appends where a machine has several.
    let node = container.sh("sinfo --noheader -N -o '%T %G' | sed 's/(S:[^)]*)//g'");
    assert_eq!(node, "idle gpu:nvidia:1,gpu:nvidia_h200_1g.18gb:2,gpu:nvidia_h200_3g.71gb:1", "{}", container.log());
    assert_eq!(devices(&container, "gpu:nvidia_h200_1g.18gb:1"), SMALL[0]);
    assert_eq!(devices(&container, "gpu:nvidia_h200_3g.71gb:1"), LARGE);
    assert_eq!(devices(&container, "gpu:nvidia:1"), WHOLE);
    assert_eq!(devices(&container, "gpu:4"), [WHOLE, SMALL[0], SMALL[1], LARGE].join(","));
    let script = "printenv CUDA_VISIBLE_DEVICES; srun --gres=gpu:nvidia_h200_1g.18gb:1 printenv CUDA_VISIBLE_DEVICES";
    container
        .sh(&format!("timeout 60 sbatch --wait --output /tmp/out --gres=gpu:nvidia_h200_1g.18gb:2 --wrap '{script}'"));
    assert_eq!(container.sh("cat /tmp/out"), format!("{},{}\n{}", SMALL[0], SMALL[1], SMALL[0]));
    assert_eq!(container.exec(&["srun", "printenv", "CUDA_VISIBLE_DEVICES"]).stdout, "", "a job without a GPU");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn job_gets_uuid_of_its_instance() {
    jobs_get_their_instances(DEMO);
}

/// Slurm 22.05, and an image without Slurm's NVML plugin.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn job_gets_uuid_of_its_instance_on_debian12() {
    jobs_get_their_instances(BOOKWORM);
}

/// Slurm's own plugin, which stops at an empty slot: so there is none here.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn slurms_own_plugin_names_the_instance_too() {
    let files = directory(&[("machine.toml", &MACHINE.replace("slot = 4", "")), ("minors", MINORS)]);
    let container = machine(DEMO, &files).with(["--env", "SLURMINIT_GRES=autodetect"]).serve();
    assert_eq!(devices(&container, "gpu:nvidia_h200_1g.18gb:1"), SMALL[0], "{}", container.log());
    assert_eq!(devices(&container, "gpu:nvidia_h200_3g.71gb:1"), LARGE);
    // The job's end is not the node's: what it left is looked for first.
    container.until("sinfo --noheader -o %T | grep -qx idle");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn mig_mode_without_an_instance_offers_nothing() {
    let files = directory(&[("machine.toml", "[[gpu]]\nmig = 'enabled'\n"), ("minors", "")]);
    let container = machine(DEMO, &files).serve();
    assert_eq!(container.sh("sinfo --noheader -o '%T %G'"), "idle (null)", "{}", container.log());
    assert!(container.log().contains("MIG"), "{}", container.log());
}

/// Slurm sorts the GPUs of a node by type, so a position is not CUDA's number any more.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn with_two_models_in_turn_job_gets_gpu_of_its_type() {
    let machine_toml = "[[gpu]]\n[[gpu]]\nname = 'NVIDIA L40S'\n[[gpu]]\n";
    let files = directory(&[
        ("machine.toml", machine_toml),
        ("minors", ""),
        ("slurminit.toml", "[gpu]\ntype_name = \"model\"\n"),
    ]);
    let image = machine(DEMO, &files).with(["--device", "/dev/null:/dev/nvidia2"]);
    let container = image.mount(&files.path().join("slurminit.toml"), "/config/slurminit.toml").serve();
    assert_eq!(devices(&container, "gpu:nvidia_l40s:1"), "1");
    assert_eq!(devices(&container, "gpu:nvidia_h200:2"), "0,2");
    assert_eq!(container.sh("timeout 60 srun --gres=gpu:1 printenv CUDA_DEVICE_ORDER"), "PCI_BUS_ID");
}

/// dcgm-exporter knows an instance by the number of its GPU and that of its GPU instance.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn exporters_on_the_host_learn_which_job_has_which_instance() {
    let (files, map) = (files(), Volume::new("map"));
    let config = directory(&[("slurminit.toml", "[metrics]\njob_map = '/run/job-map'\n")]);
    let image = machine(DEMO, &files).mount(config.path(), "/config").volume(&map, "/run/job-map");
    let container = image.serve();
    let submit = |gres: &str| {
        container.sh(&format!("cd /tmp; sbatch --parsable --no-requeue --mem=100 --gres={gres} --wrap 'sleep 600'"))
    };
    let jobs = [submit("gpu:nvidia_h200_3g.71gb:1"), submit("gpu:nvidia:1")];
    container.until("[ $(ls /run/job-map | wc -l) = 2 ]");
    assert_eq!(container.sh("cd /run/job-map; grep . 0.2 1"), format!("0.2:{}\n1:{}", jobs[0], jobs[1]));
    container.sh(&format!("scancel {} {}", jobs[0], jobs[1]));
    container.until("[ $(ls /run/job-map | wc -l) = 0 ]");
    // What a start finds there is of a container that was killed.
    container.sh("echo 99 >/run/job-map/0.9; echo 98 >/run/job-map/7.9");
    docker(["kill", &container.name]).ok();
    docker(["start", &container.name]).ok();
    container.wait_until_healthy();
    assert_eq!(container.sh("ls /run/job-map"), "7.9");
}
