//! The test hosts, by the name of the folder with the expected results.

use model::inventory::{Access, Inventory, Obstacle, Vendor};
use serde_json::json;

use super::host::{Host, gpu};

const H200: &str = "NVIDIA H200";
const DRIVER: &str = "550.127.05";
const NO_DRIVER_FOR_GPUS: &str =
    "docker: Error response from daemon: could not select device driver \"\" with capabilities: [[gpu]].\n";
const BPF: &str = "docker: Error response from daemon: failed to create task for container: OCI runtime create failed: stderr: \
    Auto-detected mode as 'legacy'\nnvidia-container-cli: mount error: failed to add device rules: unable to find any existing \
    device filters attached to the cgroup: bpf_prog_query(BPF_CGROUP_DEVICE) failed: operation not permitted: unknown.\n";

/// Two H200 with a working driver and toolkit.
fn two_h200() -> Host {
    Host::with_docker(&["io.containerd.runc.v2", "nvidia", "runc"]).nvidia(2, H200, DRIVER).toolkit(true)
}

fn without_runtime() -> Host {
    Host::with_docker(&["runc"]).nvidia(1, "NVIDIA GeForce RTX 3080", "535.154.05")
}

fn rootless() -> Host {
    let options = json!({ "SecurityOptions": ["name=seccomp,profile=builtin", "name=rootless"] });
    two_h200().engine(&["nvidia", "runc"], options)
}

fn wsl2() -> Host {
    let desktop = json!({ "OperatingSystem": "Docker Desktop", "KernelVersion": "5.15.153.1-microsoft-standard-WSL2" });
    Host::with_docker(&[])
        .engine(&["runc"], desktop)
        .file("proc/version", "Linux version 5.15.153.1-microsoft-standard-WSL2 (root@941d701f84f1)\n")
        .file("etc/os-release", "PRETTY_NAME=\"Ubuntu 22.04.4 LTS\"\n")
        .file("dev/dxg", "")
}

fn two_mi210() -> Host {
    Host::with_docker(&["runc"]).amd(2, 44, 992)
}

/// All cases: the folder name and the test host.
pub(crate) fn all() -> Vec<(&'static str, Host)> {
    let mut cases = docker();
    cases.extend(nvidia());
    cases.extend(amd());
    cases.extend(intel());
    cases.extend(desktop());
    cases.extend(files());
    cases
}

fn docker() -> Vec<(&'static str, Host)> {
    let stopped = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?";
    let refused =
        "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock";
    let errors = |message: &str| json!({ "ServerVersion": "", "ServerErrors": [message] });
    vec![
        ("bare", Host::new()),
        ("no-gpu", Host::with_docker(&["runc"])),
        ("engine-stopped", two_h200().engine(&[], errors(stopped))),
        ("engine-stopped-before-20-10", Host::new().failure("docker", "info", 1, &format!("{stopped}\n"))),
        ("no-permission-on-the-socket", two_h200().engine(&[], errors(refused))),
        ("engine-hangs", Host::with_docker(&["runc"]).hangs("info").argument(["--timeout", "3"])),
        ("no-compose", Host::new().engine(&["runc"], json!({}))),
        ("old-compose", Host::new().engine(&["runc"], json!({})).answer("docker-compose", "compose-1", "1.25.5\n")),
        ("compose-1", Host::new().engine(&["runc"], json!({})).answer("docker-compose", "compose-1", "1.29.2\n")),
        ("inside-the-image", without_tools(two_h200()).file("run/docker.sock", "")),
        ("inside-the-image-amd", without_tools(two_mi210()).file("usr/bin/dockerd", "")),
    ]
}

/// The host as seen from inside the image: no docker command, no nvidia-smi.
fn without_tools(host: Host) -> Host {
    for tool in ["docker", "nvidia-smi"] {
        let _ = std::fs::remove_file(host.path("tools").join(tool));
    }
    host
}

fn nvidia() -> Vec<(&'static str, Host)> {
    let cdi = json!({ "CDISpecDirs": ["/etc/cdi", "/var/run/cdi"] });
    let spec = "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n";
    let with_mig = "GPU 0: NVIDIA H200 (UUID: GPU-1c1d)\n  MIG 1g.18gb     Device  0: (UUID: MIG-aa-01)\n  \
                    MIG 2g.35gb     Device  1: (UUID: MIG-bb-02)\n";
    let denied = Access::unusable(Obstacle::Denied, "/dev/nvidia0 is denied by the container's device rules");
    let denied_inventory = Inventory { gpus: vec![gpu(Vendor::Nvidia, 0, denied)], ..Inventory::default() };
    vec![
        ("nvidia", two_h200().trial(Vendor::Nvidia, 2)),
        ("nvidia-image-not-built", two_h200()),
        ("nvidia-without-toolkit", without_runtime()),
        (
            "nvidia-without-toolkit-tried",
            without_runtime().trial(Vendor::Nvidia, 0).failure("docker", "trial-nvidia", 125, NO_DRIVER_FOR_GPUS),
        ),
        ("nvidia-toolkit-without-runtime", without_runtime().toolkit(false)),
        ("nvidia-toolkit-without-runtime-works", without_runtime().toolkit(false).trial(Vendor::Nvidia, 1)),
        ("nvidia-engine-not-restarted", without_runtime().toolkit(true)),
        ("nvidia-rootless", rootless()),
        ("nvidia-rootless-tried", rootless().trial(Vendor::Nvidia, 0).failure("docker", "trial-nvidia", 125, BPF)),
        (
            "nvidia-rootless-configured",
            rootless().file("etc/nvidia-container-runtime/config.toml", "[nvidia-container-cli]\nno-cgroups = true\n"),
        ),
        (
            "nvidia-no-cgroups-unchanged",
            two_h200()
                .file("etc/nvidia-container-runtime/config.toml", "[nvidia-container-cli]\nno-cgroups = true\n")
                .trial_inventory(Vendor::Nvidia, &denied_inventory),
        ),
        (
            "nvidia-cdi-only",
            without_runtime()
                .engine(&["runc"], cdi.clone())
                .toolkit(false)
                .file("etc/cdi/nvidia.yaml", spec)
                .trial(Vendor::Nvidia, 1),
        ),
        (
            "nvidia-cdi-by-number",
            without_runtime().engine(&["runc"], cdi).file("run/cdi/nvidia.yaml", spec).argument(["--gpus", "0"]),
        ),
        (
            "nvidia-cdi-inside-the-image",
            without_tools(without_runtime()).file("run/docker.sock", "").file("etc/cdi/nvidia.yaml", spec),
        ),
        ("nvidia-cdi-off", without_runtime().file("etc/cdi/nvidia.yaml", spec)),
        ("nvidia-mig", two_h200().answer("nvidia-smi", "list", with_mig)),
        ("nvidia-mig-one", two_h200().answer("nvidia-smi", "list", with_mig).argument(["--gpus", "MIG-bb-02"])),
        ("nvidia-by-number", two_h200().argument(["--gpus", "1"])),
        ("nvidia-by-uuid", two_h200().argument(["--gpus", "GPU-1c1d0000-0000-0000-0000-000000000001,0"])),
        ("nvidia-driver-too-old", Host::with_docker(&["nvidia"]).nvidia(1, "Tesla K80", "460.32.03").toolkit(true)),
        (
            "nvidia-driver-for-cuda-11",
            Host::with_docker(&["nvidia"]).nvidia(1, "Tesla V100", "515.65.01").toolkit(true),
        ),
        (
            "nvidia-driver-and-library-differ",
            two_h200().failure("nvidia-smi", "list", 18, "").answer(
                "nvidia-smi",
                "list",
                "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.135\n",
            ),
        ),
        (
            "nvidia-nouveau",
            Host::with_docker(&["runc"])
                .pci("0000:01:00.0", "0x10de", "0x030000")
                .file("sys/module/nouveau/refcnt", "1\n"),
        ),
        ("nvidia-without-driver", Host::with_docker(&["runc"]).pci("0000:01:00.0", "0x10de", "0x030000")),
        ("nvidia-device-denied", two_h200().trial_inventory(Vendor::Nvidia, &denied_inventory)),
        (
            "nvidia-hostile-name",
            Host::with_docker(&["nvidia"]).nvidia(1, "H\u{1b}[31m'\"\u{202e}", DRIVER).toolkit(true),
        ),
    ]
}

fn amd() -> Vec<(&'static str, Host)> {
    let no_kfd = "docker: Error response from daemon: error gathering device information while adding custom device \
                  \"/dev/kfd\": no such file or directory.\n";
    vec![
        ("amd", two_mi210().trial(Vendor::Amd, 2)),
        ("amd-image-not-built", two_mi210()),
        ("amd-by-number", two_mi210().argument(["--gpus", "1"])),
        ("amd-without-groups", Host::with_docker(&["runc"]).amd(1, 0, 0)),
        ("amd-without-kfd", Host::with_docker(&["runc"]).pci("0000:0a:00.0", "0x1002", "0x030000")),
        ("amd-rootless", two_mi210().engine(&["runc"], json!({ "SecurityOptions": ["name=rootless"] }))),
        ("amd-engine-elsewhere", two_mi210().trial(Vendor::Amd, 0).failure("docker", "trial-amd", 125, no_kfd)),
        ("both-vendors", two_h200().amd(1, 44, 992).trial(Vendor::Nvidia, 2).trial(Vendor::Amd, 1)),
        ("both-vendors-unknown-number", two_h200().amd(1, 44, 992).argument(["--gpu-type", "amd", "--gpus", "1"])),
        ("both-vendors-amd-requested", two_h200().amd(1, 44, 992).argument(["--gpu-type", "amd"])),
    ]
}

/// An integrated GPU does not justify a GPU image, alone or beside a discrete card.
fn intel() -> Vec<(&'static str, Host)> {
    let with_integrated = |host: Host| host.intel("0000:00:02.0", "0x46a6", 128, 992);
    let one_card = || with_integrated(Host::with_docker(&["runc"])).intel("0000:03:00.0", "0x56a0", 129, 992);
    let card_and_amd = || Host::with_docker(&["runc"]).intel("0000:03:00.0", "0x56a0", 135, 992).amd(1, 44, 992);
    let two_cards = || one_card().intel("0000:83:00.0", "0xe20b", 130, 992);
    vec![
        ("intel", two_cards().trial(Vendor::Intel, 2)),
        ("intel-by-number", two_cards().argument(["--gpus", "1"])),
        ("intel-integrated", with_integrated(Host::with_docker(&["runc"]))),
        ("intel-integrated-beside-nvidia", with_integrated(two_h200()).trial(Vendor::Nvidia, 2)),
        ("intel-without-driver", Host::with_docker(&["runc"]).pci("0000:03:00.0", "0x8086", "0x030000")),
        ("intel-and-amd", card_and_amd().trial(Vendor::Amd, 1).trial(Vendor::Intel, 1)),
    ]
}

fn desktop() -> Vec<(&'static str, Host)> {
    let kernel = json!({ "OperatingSystem": "Docker Desktop", "KernelVersion": "6.6.12-linuxkit" });
    let list = "GPU 0: NVIDIA GeForce RTX 4090 (UUID: GPU-4090)\n";
    vec![
        (
            "wsl2-nvidia",
            wsl2().file("usr/lib/wsl/lib/libnvidia-ml.so.1", "").answer("nvidia-smi", "list", list).answer(
                "nvidia-smi",
                "driver",
                "551.86\n",
            ),
        ),
        ("wsl2-amd", wsl2()),
        ("wsl2-nvidia-not-responding", wsl2().file("usr/lib/wsl/lib/libnvidia-ml.so.1", "")),
        (
            "docker-desktop-on-macos",
            Host::with_docker(&[])
                .engine(&["runc"], kernel.clone())
                .file("proc/version", "Linux version 6.6.12-linuxkit (root@buildkitsandbox)\n")
                .file("etc/os-release", "PRETTY_NAME=\"Docker Desktop\"\n"),
        ),
        ("docker-desktop-on-linux", two_h200().engine(&["runc"], kernel)),
    ]
}

fn files() -> Vec<(&'static str, Host)> {
    let generated = "# Written by slurminit configure for the GPUs of this host, by an older version\n\
                     services:\n  slurm:\n    build:\n      args:\n        GPU_TYPE: none\n";
    vec![
        ("user-file", two_h200().project("compose.override.yaml", "services:\n  slurm:\n    mem_limit: 8g\n")),
        ("user-file-with-another-name", two_h200().project("docker-compose.override.yml", "services: {}\n")),
        ("user-file-with-generated-name", two_h200().project("compose.gpus.yaml", "services: {}\n")),
        ("user-compose-yaml", two_h200().project("compose.yaml", "# not compose.gpus.yaml\nservices:\n  slurm:\n    image: slurminit:latest\n")),
        (
            "user-file-with-all-settings",
            two_h200().project(
                "compose.override.yaml",
                "services:\n  slurm:\n    mem_limit: 8g\n    build:\n      args:\n        GPU_TYPE: nvidia\n    deploy:\n      \
                 resources:\n        reservations:\n          devices:\n            - driver: nvidia\n              count: all\n              \
                 capabilities: [gpu, compute, utility]\n",
            ),
        ),
        (
            "user-file-without-gpu",
            Host::with_docker(&["runc"])
                .project("compose.override.yaml", "services:\n  slurm:\n    mem_limit: 8g\n")
                .project(".env", "COMPOSE_FILE=compose.yaml:compose.mine.yaml\n"),
        ),
        ("generated-file-replaced", two_h200().project("compose.gpus.yaml", generated)),
        ("second-run", two_h200().project(".env", "PASSWORD=secret\n").twice()),
        ("env-kept", two_h200().project(".env", "# mine\nGPU_TYPE=none\nPASSWORD=secret")),
        (
            "dry-run",
            two_h200()
                .project(".env", "PASSWORD=secret\n")
                .argument(["--dry-run"]),
        ),
        ("requested-none", without_runtime().argument(["--gpu-type", "none"])),
        ("requested-vendor", without_runtime().argument(["--gpu-type", "nvidia"])),
        ("no-trial", two_h200().trial(Vendor::Nvidia, 2).argument(["--no-trial"])),
    ]
}
