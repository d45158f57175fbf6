//! MIG instances on the real Slurm: each job's CUDA_VISIBLE_DEVICES names its instance.

use tempfile::TempDir;

use crate::docker::{Container, DEMO, Image, Volume, directory, docker};

/// GPU 0 is whole and has minor 1. GPU 1 is in MIG mode and has minor 0. One of its NVML slots is empty.
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

/// Docker cannot mount below /proc, so the container mounts there before it executes slurminit.
fn machine(image: &str, files: &TempDir) -> Image {
    let start_script = "mount -t tmpfs none /proc/driver && mkdir /proc/driver/nvidia-caps && \
                        cp /minors /proc/driver/nvidia-caps/mig-minors && exec slurminit run";
    let image = Image::new(image)
        .mount(&files.path().join("machine.toml"), "/etc/fake-nvml.toml")
        .mount(&files.path().join("minors"), "/minors")
        .with(["--cap-add", "SYS_ADMIN", "--security-opt", "apparmor=unconfined", "--entrypoint", "sh"])
        .command(["-c", start_script]);
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

fn assert_jobs_get_instances(image: &str) {
    let files = files();
    let container = machine(image, &files).serve();
    // sinfo appends the sockets if there are several.
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
    assert_jobs_get_instances(DEMO);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn report_shows_use_of_mig_instance_of_job() {
    let busy = MACHINE
        .replace("gi = 9\n", "gi = 9\nbusy = [70.0, 0.0]\nused_mib = 4096\n")
        .replace("gi = 10\n", "gi = 10\nbusy = [20.0, 0.0]\n");
    let busy = busy.replacen("minor = 0\n", "minor = 0\ncondition = { tensor = 0.0 }\n", 1);
    let files =
        directory(&[("machine.toml", &busy), ("minors", MINORS), ("slurminit.toml", "[agent]\ninterval = 1\n")]);
    let container = machine(DEMO, &files).mount(files.path(), "/config").serve();
    let job = container.sh("sbatch --parsable -o /dev/null --gres=gpu:nvidia_h200_1g.18gb:1 --wrap 'sleep 12'");
    container.until(&format!("slurminit report {job} --csv 2>/dev/null | grep -q ,COMPLETED,"));
    let report: serde_json::Value =
        serde_json::from_str(&container.sh(&format!("slurminit report {job} --json"))).unwrap();
    let gpu = &report["jobs"][0]["gpus"][0];
    assert_eq!((gpu["id"].as_str(), gpu["peak_memory_mib"].as_u64()), (Some(SMALL[0]), Some(4096)), "{report:#}");
    assert!((gpu["use_percent"].as_f64().unwrap() - 70.0).abs() <= 1.4, "{report:#}");
}

/// Slurm's NVML plugin stops at an empty slot, so this machine has none.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn slurm_nvml_plugin_sets_instance_uuid() {
    let files = directory(&[("machine.toml", &MACHINE.replace("slot = 4", "")), ("minors", MINORS)]);
    let container = machine(DEMO, &files).with(["--env", "SLURMINIT_GRES=autodetect"]).serve();
    assert_eq!(devices(&container, "gpu:nvidia_h200_1g.18gb:1"), SMALL[0], "{}", container.log());
    assert_eq!(devices(&container, "gpu:nvidia_h200_3g.71gb:1"), LARGE);
    // The node becomes idle later than the job ends: it first checks for leftovers of the job.
    container.until("sinfo --noheader -o %T | grep -qx idle");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn mig_mode_without_instance_offers_no_gpu() {
    let files = directory(&[("machine.toml", "[[gpu]]\nmig = 'enabled'\n"), ("minors", "")]);
    let container = machine(DEMO, &files).serve();
    assert_eq!(container.sh("sinfo --noheader -o '%T %G'"), "idle (null)", "{}", container.log());
    assert!(container.log().contains("MIG"), "{}", container.log());
}

/// Slurm sorts the GPUs of a node by type, so their positions differ from CUDA's numbers.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn job_gets_gpu_of_its_type_with_interleaved_models() {
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

/// dcgm-exporter identifies an instance by the numbers of its GPU and its GPU instance.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn job_map_lists_job_of_each_gpu_and_instance() {
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
    // A start removes the stale files of its own GPUs, left by a killed container.
    container.sh("echo 99 >/run/job-map/0.9; echo 98 >/run/job-map/7.9");
    docker(["kill", &container.name]).ok();
    docker(["start", &container.name]).ok();
    container.wait_until_healthy();
    assert_eq!(container.sh("ls /run/job-map"), "7.9");
}
