//! Situations on both sides of a limit, and situations that resemble a fault, with the answers of entries: verdict, what doctor sees.

use machine::UnitState;
use serde_json::{Value, json};

use super::container::{Container, credential};
use super::containers::{compute, gpu, healthy, limits, without_gpu};
use super::hosts::{H200, healthy as healthy_host, with_tools};
use crate::configure::host::Host;

type Case<S> = (S, Vec<(&'static str, &'static str, &'static str)>);

pub(crate) fn containers() -> Vec<Case<Container>> {
    [limits_and_clocks(), gpus(), nodes()].into_iter().flatten().collect()
}

fn limits_and_clocks() -> Vec<Case<Container>> {
    let foreign = |container: Container, file, age| {
        container.argument(&["--credential", file]).answer("sh", "foreign", &credential("Success (0)", age))
    };
    let infiniband = |locked, stack| limits(locked, stack).device("dev/infiniband/uverbs0");
    vec![
        (
            foreign(limits("65536", "8388608"), "/credential", 0),
            vec![
                ("clock", "ok", "same key; the credential's timestamp is 0 s behind this machine's clock"),
                ("locked-memory", "ok", "locked-memory limit: 64 KiB"),
                ("stack-limit", "ok", "stack limit: 8 MiB"),
            ],
        ),
        (
            foreign(infiniband("1073741824", "8388607"), "/credential", -119),
            vec![
                ("clock", "ok", "same key; the credential's timestamp is 119 s ahead of this machine's clock"),
                ("locked-memory", "ok", "locked-memory limit: 1024 MiB"),
                ("stack-limit", "warn", "stack limit: 7 MiB"),
            ],
        ),
        (
            foreign(infiniband("1073741823", "unlimited"), "/credential", 120),
            vec![
                (
                    "clock",
                    "warn",
                    "same key; the credential's timestamp is 120 s behind this machine's clock; slurmd rejects steps (\"Job credential expired\") if its clock is 120 s ahead",
                ),
                (
                    "locked-memory",
                    "warn",
                    "locked-memory limit: 1023 MiB, too low for InfiniBand (/dev/infiniband exists)",
                ),
                ("stack-limit", "ok", "stack limit: unlimited"),
            ],
        ),
        (
            foreign(healthy(), "-", 0).variable("TMPDIR", "/missing").failure("address", 2, "garbage\n"),
            vec![
                (
                    "clock",
                    "could-not-look",
                    "cannot copy the credential from standard input to a temporary file: No such file or directory (os error 2)",
                ),
                ("address", "could-not-look", "getent: garbage"),
            ],
        ),
    ]
}

fn gpus() -> Vec<Case<Container>> {
    let with_job = |condition: &str, time: &str| {
        let job = format!("12|12|RUNNING|1|{time}|main|eve|1000|c1|||(null)|None|gres/gpu:1\n");
        gpu(&format!("condition = {{ {condition} }}")).answer("squeue", "running", &job)
    };
    let idle = "utilization = 0, processes = []";
    let visible = |container: Container, list| container.variable("CUDA_VISIBLE_DEVICES", list);
    vec![
        (
            visible(with_job(&format!("compute_mode = \"exclusive\", {idle}"), "0:59"), "0"),
            vec![
                ("gpu-processes", "ok", "GPU 0 is free"),
                ("idle-gpus", "ok", "no running job has had a GPU for a minute or longer; utilization: 0 %"),
                (
                    "visible-devices",
                    "note",
                    "CUDA_VISIBLE_DEVICES=0 in the container's environment applies outside of jobs",
                ),
            ],
        ),
        (
            visible(with_job(idle, "1:00"), "1"),
            vec![
                ("idle-gpus", "warn", "jobs with GPUs for over a minute: 12, but no GPU is active; utilization: 0 %"),
                (
                    "visible-devices",
                    "warn",
                    "CUDA_VISIBLE_DEVICES=1 in the container's environment, but there is only GPU 0",
                ),
            ],
        ),
        (
            with_job("utilization = 1, processes = []", "1:00"),
            vec![("idle-gpus", "ok", "jobs with GPUs for over a minute: 12; active GPUs: 1 of 1; utilization: 1 %")],
        ),
        (
            with_job("utilization = 0, processes = [{ pid = 4711, memory_mib = 500 }]", "1:00"),
            vec![("idle-gpus", "ok", "jobs with GPUs for over a minute: 12; active GPUs: 1 of 1; utilization: 0 %")],
        ),
        (
            visible(without_gpu(), "0"),
            vec![(
                "visible-devices",
                "warn",
                "CUDA_VISIBLE_DEVICES=0 in the container's environment, but there is no usable NVIDIA GPU",
            )],
        ),
    ]
}

fn nodes() -> Vec<Case<Container>> {
    let record = |line: &str| format!("gpu:nvidia:1|{line}\n");
    let node = |line: &str| healthy().answer("sinfo", "node", &record(line));
    let refused = node("inval|gres/gpu count too low (1 < 2)").file(
        "etc/slurm/slurm.conf",
        "Include=localhost\nNodeName=other\n  NodeName=localhost Gres=gpu:nvidia:2\nPartitionName=main Nodes=localhost\n",
    );
    let (reached, own_name) =
        ("no sign that the controller cannot reach the node", "no sign that another container uses this node's name");
    vec![
        (node("drained|fan"), vec![("node", "note", "the node localhost is drained (fan): see the entries below")]),
        (
            node("drained*|fan"),
            vec![("node", "fail", "the node localhost is drained (fan), and slurmd does not respond")],
        ),
        (
            node("down|gres/gpu count too low (1 < 2)"),
            vec![(
                "node",
                "note",
                "the node localhost is down (gres/gpu count too low (1 < 2)): see the entries below",
            )],
        ),
        (
            node("down|Low RealMemory (reported:900 < 100.00% of configured:1000)"),
            vec![(
                "node",
                "note",
                "the node localhost is down (Low RealMemory (reported:900 < 100.00% of configured:1000)): see the entries below",
            )],
        ),
        (
            node("down|broken"),
            vec![
                ("node", "fail", "the node localhost is down (broken)"),
                ("drain", "ok", "the node is not drained"),
                ("gres", "ok", "the node offers gpu:nvidia:1"),
                ("real-memory", "ok", "the memory in slurm.conf is available"),
            ],
        ),
        (
            refused,
            vec![(
                "node",
                "fail",
                "the node localhost is inval (gres/gpu count too low (1 < 2)); slurm.conf: /etc/slurm/slurm.conf:3: NodeName=localhost Gres=gpu:nvidia:2",
            )],
        ),
        (
            compute(UnitState::Ready, &record("idle|none")),
            vec![("called", "ok", reached), ("name-taken", "ok", own_name)],
        ),
        (compute(UnitState::Starting, &record("idle*|none")), vec![("called", "ok", reached)]),
        (compute(UnitState::Starting, &record("down|none")), vec![("name-taken", "ok", own_name)]),
    ]
}

pub(crate) fn hosts() -> Vec<Case<Host>> {
    let label =
        |host: Host, kind: &str| host.answer("docker", "labels", &json!({ "io.slurminit.gpu-type": kind }).to_string());
    let without_gpu = || with_tools(Host::with_docker(&["runc"]));
    let with_gpu = || with_tools(Host::with_docker(&["nvidia"]).nvidia(1, H200, "550.127.05").toolkit(true));
    let running = |host: Host, container: Value| {
        let containers = json!([{ "Name": "/slurminit", "HostConfig": container }]).to_string();
        host.answer("docker", "running", "1c1d\n").answer("docker", "containers", &containers)
    };
    let device = |path: &str| json!({ "Devices": [{ "PathOnHost": path }] });
    let (created, missing) = (
        "container slurminit was created with GPUs",
        "container slurminit was created without GPUs, but this host has GPUs",
    );
    let unreachable =
        "The connection to the server localhost:8080 was refused - did you specify the right host or port?\n";
    let fails = |host: Host, why| host.failure("kubectl", "nodes", 1, why);
    let plugin = ("nvidia-device-plugin-daemonset", 1, 1);
    vec![
        (
            label(without_gpu(), "none"),
            vec![
                ("image-gpu-type", "ok", "image slurminit:latest was built with GPU_TYPE=none and matches this host"),
                ("container-gpus", "note", "this host has no usable GPU"),
                ("device-plugin", "note", "kubectl is not installed, or has no cluster configured"),
            ],
        ),
        (
            fails(label(without_gpu(), "nvidia"), unreachable),
            vec![
                (
                    "image-gpu-type",
                    "note",
                    "image slurminit:latest was built with GPU_TYPE=nvidia, but this host has no GPU with a working driver",
                ),
                ("device-plugin", "note", "kubectl is not installed, or has no cluster configured"),
            ],
        ),
        (
            fails(running(label(with_gpu(), "nvidia"), json!({ "Runtime": "nvidia" })), "Unauthorized\n"),
            vec![
                ("image-gpu-type", "ok", "image slurminit:latest was built with GPU_TYPE=nvidia and matches this host"),
                ("container-gpus", "ok", created),
                ("device-plugin", "could-not-look", "kubectl: Unauthorized"),
            ],
        ),
        (
            with_gpu().answer("timedatectl", "clock", "n/a\n"),
            vec![
                ("image-gpu-type", "note", "image slurminit:latest has no GPU type label"),
                ("container-gpus", "note", "no container of slurminit's image is running"),
                ("host-clock", "could-not-look", "timedatectl reports `n/a`"),
            ],
        ),
        (
            running(with_gpu(), device("/dev/dri/renderD128")).failure(
                "docker",
                "labels",
                1,
                "Error: No such image: slurminit\n",
            ),
            vec![("image-gpu-type", "note", "the image is not built yet"), ("container-gpus", "ok", created)],
        ),
        (
            running(with_gpu(), device("/dev/fuse")).failure("docker", "labels", 1, "permission denied\n"),
            vec![
                ("image-gpu-type", "could-not-look", "docker: permission denied"),
                ("container-gpus", "fail", missing),
            ],
        ),
        (
            cluster(
                &[
                    node(
                        "n1",
                        json!({ "nvidia.com/gpu": "true" }),
                        json!({ "cpu": "64", "nvidia.com/gpu": "8", "nvidia.com/mig-1g.10gb": "4" }),
                    ),
                    node(
                        "n2",
                        json!({ "kubernetes.io/arch": "true", "nvidia.com/gpu": "false" }),
                        json!({ "cpu": "64" }),
                    ),
                ],
                &[plugin, ("kube-proxy", 0, 0)],
            ),
            vec![(
                "device-plugin",
                "ok",
                "nodes: 2; GPUs for pods: 12; request them in the limits of the pod, for example nvidia.com/gpu: 1",
            )],
        ),
        (
            cluster(&[node("n1", json!({ "nvidia.com/gpu.present": "true" }), json!({ "cpu": "8" }))], &[plugin]),
            vec![("device-plugin", "fail", "node n1 has a GPU label but offers no GPUs to pods")],
        ),
        (
            cluster(&[node("n1", json!({ "nvidia.com/gpu": "false" }), json!({ "cpu": "8" }))], &[(plugin.0, 1, 2)]),
            vec![("device-plugin", "fail", "DaemonSet nvidia-device-plugin-daemonset: 1 of 2 pods ready")],
        ),
        (
            cluster(&[node("n1", json!({}), json!({ "cpu": "8" }))], &[("kube-proxy", 1, 1)]),
            vec![("device-plugin", "fail", "no node offers GPUs to pods, and no device plugin was found")],
        ),
        (
            cluster(&[node("n1", json!({}), json!({ "amd.com/gpu": "8" }))], &[]),
            vec![(
                "device-plugin",
                "ok",
                "nodes: 1; GPUs for pods: 8; request them in the limits of the pod, for example nvidia.com/gpu: 1",
            )],
        ),
    ]
}

/// A node of Kubernetes.
fn node(name: &str, labels: Value, allocatable: Value) -> Value {
    json!({ "metadata": { "name": name, "labels": labels }, "status": { "allocatable": allocatable } })
}

/// A host with these nodes and DaemonSets of Kubernetes: name, ready pods, desired pods.
fn cluster(nodes: &[Value], sets: &[(&str, u32, u32)]) -> Host {
    let list = |items: &[Value]| json!({ "items": items }).to_string();
    let set = |(name, ready, desired): &(&str, u32, u32)| json!({ "metadata": { "name": name }, "status": { "numberReady": ready, "desiredNumberScheduled": desired } });
    let sets: Vec<Value> = sets.iter().map(set).collect();
    healthy_host().answer("kubectl", "nodes", &list(nodes)).answer("kubectl", "daemonsets", &list(&sets))
}
