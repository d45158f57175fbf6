//! Host faults: name of the record, entry that detects the fault, host with the fault.

use std::process::Output;

use model::inventory::Vendor;
use serde_json::json;

use crate::configure::host::Host;

type Case = (&'static str, &'static str, Host);

pub(crate) const H200: &str = "NVIDIA H200";

/// A host with one H200 and a complete driver, toolkit and Docker setup.
pub(crate) fn healthy() -> Host {
    let host =
        Host::with_docker(&["nvidia", "runc"]).nvidia(1, H200, "550.127.05").toolkit(true).trial(Vendor::Nvidia, 1);
    with_tools(host)
        .answer("docker", "labels", r#"{"io.slurminit.gpu-type": "nvidia"}"#)
        .answer("docker", "running", "1c1d\n")
        .answer("docker", "containers", &docker_inspect(json!([{ "Driver": "nvidia", "Count": -1 }])))
}

/// Adds default output for the tools that every host has.
pub(crate) fn with_tools(host: Host) -> Host {
    host.answer("timedatectl", "clock", "yes\n").answer("docker", "running", "").answer("docker", "labels", "null")
}

fn docker_inspect(requests: serde_json::Value) -> String {
    json!([{ "Name": "/slurminit", "HostConfig": { "Runtime": "runc", "Devices": [], "DeviceRequests": requests } }])
        .to_string()
}

fn kubernetes(host: Host, labelled: bool, gpus: &str, ready: u32, desired: u32) -> Host {
    let labels = if labelled { json!({ "nvidia.com/gpu": "true" }) } else { json!({}) };
    let nodes = json!({ "items": [{ "metadata": { "name": "node1", "labels": labels }, "status": { "allocatable": { "nvidia.com/gpu": gpus } } }] });
    let sets = json!({ "items": [{
        "metadata": { "name": "nvidia-device-plugin-daemonset" },
        "status": { "numberReady": ready, "desiredNumberScheduled": desired },
    }] });
    host.answer("kubectl", "nodes", &nodes.to_string()).answer("kubectl", "daemonsets", &sets.to_string())
}

pub(crate) fn all() -> Vec<Case> {
    let stopped = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?";
    let refused =
        "docker: Error response from daemon: could not select device driver \"\" with capabilities: [[gpu]].\n";
    let mismatch = "Failed to initialize NVML: Driver/library version mismatch\n";
    let one_gpu = || with_tools(Host::with_docker(&["nvidia", "runc"]).nvidia(1, H200, "550.127.05").toolkit(true));
    vec![
        (
            "host-is-mac",
            "platform",
            with_tools(Host::with_docker(&[])).file("System/Library/CoreServices/SystemVersion.plist", ""),
        ),
        (
            "host-engine-stopped",
            "engine",
            one_gpu().engine(&[], json!({ "ServerVersion": "", "ServerErrors": [stopped] })),
        ),
        (
            "host-compose-too-old",
            "compose",
            with_tools(Host::new().engine(&["runc"], json!({}))).answer("docker-compose", "compose-1", "1.25.5\n"),
        ),
        ("host-without-gpu", "driver", with_tools(Host::with_docker(&["runc"]))),
        (
            "host-without-driver",
            "driver",
            with_tools(Host::with_docker(&["runc"])).pci("0000:17:00.0", "0x10de", "0x030200"),
        ),
        (
            "host-with-nouveau",
            "driver",
            with_tools(Host::with_docker(&["runc"]))
                .pci("0000:17:00.0", "0x10de", "0x030200")
                .file("sys/module/nouveau/refcnt", "1\n"),
        ),
        (
            "host-driver-hangs",
            "driver",
            one_gpu().failure(
                "nvidia-smi",
                "list",
                9,
                "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n",
            ),
        ),
        ("host-library-and-module-differ", "driver", one_gpu().failure("nvidia-smi", "list", 18, mismatch)),
        (
            "host-driver-too-old",
            "driver",
            with_tools(Host::with_docker(&["nvidia"]).nvidia(1, "Tesla K80", "460.32.03").toolkit(true)),
        ),
        ("host-without-toolkit", "toolkit", with_tools(Host::with_docker(&["runc"]).nvidia(1, H200, "550.127.05"))),
        (
            "host-toolkit-not-registered",
            "toolkit",
            with_tools(Host::with_docker(&["runc"]).nvidia(1, H200, "550.127.05").toolkit(false)),
        ),
        (
            "host-toolkit-not-registered-rootless",
            "toolkit",
            with_tools(Host::with_docker(&["runc"]).nvidia(1, H200, "550.127.05").toolkit(false))
                .engine(&["runc"], json!({ "SecurityOptions": ["name=rootless"] })),
        ),
        (
            "host-passthrough-fails",
            "passthrough",
            one_gpu().trial(Vendor::Nvidia, 1).failure("docker", "trial-nvidia", 125, refused),
        ),
        (
            "host-container-without-gpu",
            "container-gpus",
            one_gpu().answer("docker", "running", "1c1d\n").answer(
                "docker",
                "containers",
                &docker_inspect(json!(null)),
            ),
        ),
        (
            "host-image-without-gpu",
            "image-gpu-type",
            one_gpu().trial(Vendor::Nvidia, 1).answer("docker", "labels", r#"{"io.slurminit.gpu-type": "none"}"#),
        ),
        ("host-device-plugin-not-ready", "device-plugin", kubernetes(one_gpu(), true, "0", 0, 1)),
        ("host-device-plugin-without-nodes", "device-plugin", kubernetes(one_gpu(), false, "0", 0, 0)),
        ("host-pods-without-gpus", "device-plugin", kubernetes(one_gpu(), true, "0", 1, 1)),
        ("host-clock-alone", "host-clock", healthy().answer("timedatectl", "clock", "no\n")),
    ]
}

/// Runs `slurminit doctor`; fake-nvml reports one GPU, which matches the host's files.
pub(crate) fn examine(host: &Host) -> Output {
    let machine = host.path("fake-nvml.toml");
    let version = std::fs::read_to_string(host.path("root/proc/driver/nvidia/version")).unwrap_or_default();
    let driver = version.split_whitespace().nth(7).unwrap_or_default();
    let gpu = "[[gpu]]\npersistence = true\nnuma = 0\nminor = 0\npci = \"00000000:17:00.0\"\n";
    std::fs::write(&machine, format!("driver = \"{driver}\"\n{gpu}")).unwrap();
    let mut command = super::doctor();
    command.arg("--root").arg(host.path("root")).env("PATH", host.path("tools"));
    if host.path("root/dev/nvidia0").exists() {
        command.env("SLURMINIT_NVML_LIBRARY", super::fake_nvml()).env("FAKE_NVML", machine);
    }
    command.output().unwrap()
}
