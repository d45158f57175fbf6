//! The host: Docker, GPUs, Kubernetes and the clock. For Docker and GPUs, the verdicts are those of `slurminit configure`.

use crate::configure::assess;
use crate::configure::host_gpus::HostGpus;
use crate::configure::situation::Situation;
use crate::entry::{Check, Entry};
use crate::facts::{HostFacts, Kubernetes, KubernetesNode, RunningContainer};
use config::GpuType;
use model::inventory::{Observations, Vendor};

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "platform",
        symptoms: &["the host is a Mac, or runs Windows with an AMD or Intel GPU, and containers have no GPU"],
        examines: "the operating system: /proc/version, /etc/os-release, /dev/dxg, the kernel version of the Docker engine",
        cause: "Docker on macOS, Docker Desktop on Linux, and WSL2 with a GPU that is not NVIDIA's cannot pass a GPU to a container",
        fix: "use a Linux host with Docker Engine; Slurm itself works without a GPU",
        check: Check::Host(|_, host| Observations::all(assess::platform(&host.situation), not_checked)),
    },
    Entry {
        id: "engine",
        symptoms: &[
            "`Cannot connect to the Docker daemon`",
            "`permission denied while trying to connect to the Docker daemon socket`",
        ],
        examines: "docker info",
        cause: "the engine is not running, or the user is not in the group docker",
        fix: "`sudo systemctl start docker`; `sudo usermod -aG docker $USER`, then log out and in again",
        check: Check::Host(|_, host| assess::engine(&host.situation.engine)),
    },
    Entry {
        id: "compose",
        symptoms: &["`docker compose` is not a command, or refuses `deploy.resources.reservations.devices`"],
        examines: "docker compose version, docker-compose version",
        cause: "compose is missing or older than 1.28",
        fix: "Ubuntu: `sudo apt-get install docker-compose-v2`; otherwise see https://docs.docker.com/compose/install/linux/",
        check: Check::Host(|_, host| assess::compose(host.situation.compose)),
    },
    Entry {
        id: "driver",
        symptoms: &[
            "dsHPC's setup reports \"No GPU detected\"",
            "`nvidia-smi` fails or shows no GPUs",
            "GPU count is 0",
            "`Failed to initialize NVML: Driver/library version mismatch`",
        ],
        examines: "nvidia-smi -L, /proc/driver/nvidia, the PCI bus, /dev/kfd and /dev/dri",
        cause: "the driver is not installed, was not built for this kernel, is refused by Secure Boot, or was updated without a reboot",
        fix: "Ubuntu: `sudo ubuntu-drivers install`; Debian: `sudo apt-get install nvidia-driver`; AMD: `amdgpu-install --usecase=rocm`; then reboot",
        check: Check::Host(|_, host| driver(&host.situation)),
    },
    Entry {
        id: "toolkit",
        symptoms: &[
            "dsHPC's setup reports \"GPU detected but Docker passthrough failed\"",
            "`could not select device driver \"\" with capabilities: [[gpu]]`",
        ],
        examines: "docker info, /etc/docker/daemon.json, /etc/cdi, /run/cdi, the toolkit's programs and configuration; the groups \
                 of AMD's and Intel's devices",
        cause: "nvidia-container-toolkit is not installed or not registered with Docker; AMD's or Intel's devices have no group that can be passed",
        fix: "`sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker`; AMD, Intel: add udev rules that set the group of /dev/kfd and /dev/dri/renderD* to render",
        check: Check::Host(|_, host| toolkit(host)),
    },
    Entry {
        id: "passthrough",
        symptoms: &[
            "dsHPC's setup reports \"GPU detected but Docker passthrough failed\", although everything is installed",
        ],
        examines: "a short-lived container of slurminit's image with the GPUs",
        cause: "a fault of the engine, the toolkit, the driver, a device or a permission (see the finding)",
        fix: "follow the fix of the finding; then run `slurminit configure`",
        check: Check::Host(|_, host| passthrough(host)),
    },
    Entry {
        id: "container-gpus",
        symptoms: &["GPU visible on host but not in container"],
        examines: "docker inspect of the running containers of slurminit's image",
        cause: "neither a compose file nor an option of docker run passes the GPUs",
        fix: "`slurminit configure && docker compose up -d --force-recreate`",
        check: Check::Host(|_, host| container_gpus(host)),
    },
    Entry {
        id: "image-gpu-type",
        symptoms: &["Container built without GPU, now I have one"],
        examines: "the label io.slurminit.gpu-type of the image, and the host's GPUs",
        cause: "the image was built before the GPU was installed, on another host, or without GPU_TYPE",
        fix: "`slurminit configure && docker compose build && docker compose up -d`",
        check: Check::Host(|_, host| image_gpu_type(host)),
    },
    Entry {
        id: "device-plugin",
        symptoms: &[
            "Kubernetes: the device plugin's DaemonSet shows 0/X pods ready",
            "Kubernetes: GPU resources not available",
        ],
        examines: "kubectl get nodes, kubectl get daemonsets --all-namespaces",
        cause: "no node has GPUs, the nodes with GPUs have no label, or the device plugin is not running on them",
        fix: "NVIDIA: `kubectl label node NODE nvidia.com/gpu=true`; to restart the plugin's pods: `kubectl delete pods -n kube-system -l name=nvidia-device-plugin-ds`",
        check: Check::Host(|_, host| device_plugin(host)),
    },
    Entry {
        id: "host-clock",
        symptoms: &["munge reports `Rewound credential` or `Expired credential`: the clocks of two machines differ"],
        examines: "timedatectl show --property=NTPSynchronized",
        cause: "no time service is installed, or it cannot reach a server; munge accepts a credential for 5 minutes",
        fix: "`sudo timedatectl set-ntp true`",
        check: Check::Host(|_, host| match &host.clock {
            Err(why) => Observations::could_not_look(why.as_str()),
            Ok(true) => Observations::ok("the clock is synchronized (NTP)"),
            Ok(false) => Observations::usual_warning("the clock is not synchronized"),
        }),
    },
];

fn not_checked() -> Observations {
    Observations::note("not checked")
}

fn driver(situation: &Situation) -> Observations {
    Observations::all(situation.present_gpus().flat_map(|gpus| gpus.hardware(situation)), || {
        Observations::note("no GPU on the PCI bus")
    })
}

fn toolkit(host: &HostFacts) -> Observations {
    let situation = &host.situation;
    let setup = |gpus: &dyn HostGpus| gpus.passthrough_setup(situation, host.trials.of(gpus.vendor()));
    Observations::all(situation.ready_gpus().flat_map(setup), || Observations::note("no GPU with a working driver"))
}

fn passthrough(host: &HostFacts) -> Observations {
    let situation = &host.situation;
    let result = |gpus: &dyn HostGpus| gpus.trial_result(situation, host.trials.of(gpus.vendor()));
    Observations::all(situation.ready_gpus().map(result), || Observations::note("no GPU with a working driver"))
}

fn container_gpus(host: &HostFacts) -> Observations {
    let containers = match &host.containers {
        Err(why) => return Observations::could_not_look(why.as_str()),
        Ok(containers) => containers,
    };
    let situation = &host.situation;
    if situation.ready_gpus().next().is_none() {
        return Observations::note("this host has no usable GPU");
    }
    let of_container = |RunningContainer { name, has_gpu }: &RunningContainer| match has_gpu {
        true => Observations::ok(format!("container {name} was created with GPUs")),
        false => {
            Observations::usual_fault(format!("container {name} was created without GPUs, but this host has GPUs"))
        }
    };
    Observations::all(containers.iter().map(of_container), || {
        Observations::note("no container of slurminit's image is running")
    })
}

fn image_gpu_type(host: &HostFacts) -> Observations {
    let image = match &host.image {
        Err(why) => return Observations::could_not_look(why.as_str()),
        Ok(None) => return Observations::note("the image is not built yet"),
        Ok(Some(image)) => image,
    };
    let situation = &host.situation;
    let vendors: Vec<Vendor> = situation.ready_gpus().map(|gpus| gpus.vendor()).collect();
    let expected = vendors.first().copied().map_or(GpuType::None, GpuType::from);
    let name = &image.name;
    match image.gpu_type.as_deref() {
        None => Observations::note(format!("image {name} has no GPU type label")),
        Some(label) if label == expected.as_str() || vendors.iter().any(|vendor| vendor.as_str() == label) => {
            Observations::ok(format!("image {name} was built with GPU_TYPE={label} and matches this host"))
        }
        Some(label) if expected == GpuType::None => Observations::note(format!(
            "image {name} was built with GPU_TYPE={label}, but this host has no GPU with a working driver"
        )),
        Some(label) => Observations::usual_fault(format!(
            "image {name} was built with GPU_TYPE={label}, but this host has {} GPUs",
            expected.as_str()
        )),
    }
}

fn device_plugin(host: &HostFacts) -> Observations {
    let kubernetes = match &host.kubernetes {
        Err(why) => return Observations::could_not_look(why.as_str()),
        Ok(None) => return Observations::note("kubectl is not installed, or has no cluster configured"),
        Ok(Some(kubernetes)) => kubernetes,
    };
    let Kubernetes { nodes, plugins } = kubernetes;
    let is_incomplete = |(_, ready, desired): &&(String, u64, u64)| ready < desired || *desired == 0;
    let plugin_failures = plugins.iter().filter(is_incomplete).map(|(name, ready, desired)| {
        let (cause, fix) = if *desired == 0 {
            (
                "no node matches the plugin's node selector, affinity and tolerations",
                "see the node selector in kubectl get daemonsets --all-namespaces; label the GPU nodes with it, for example kubectl label node NODE nvidia.com/gpu=true",
            )
        } else {
            (
                "the plugin's pods do not start, or cannot reach /var/lib/kubelet/device-plugins",
                "find the pod with kubectl get pods --all-namespaces | grep device-plugin; see kubectl describe pod and kubectl logs of the pod that is not ready",
            )
        };
        Observations::fail(format!("DaemonSet {name}: {ready} of {desired} pods ready"), cause, fix)
    });
    let offers_no_gpu = |node: &&KubernetesNode| node.has_gpu_label && node.gpus == 0;
    let node_failures = nodes.iter().filter(offers_no_gpu).map(|node| {
        Observations::fail(
            format!("node {} has a GPU label but offers no GPUs to pods", node.name),
            "the device plugin is not running on this node, or finds no driver",
            "find the pod of this node with kubectl get pods --all-namespaces -o wide | grep device-plugin; see its log",
        )
    });
    let missing = (plugins.is_empty() && nodes.iter().all(|node| node.gpus == 0)).then(|| {
        Observations::fail(
            "no node offers GPUs to pods, and no device plugin was found",
            "Kubernetes requires the device plugin of the GPUs' vendor",
            "install the device plugin (NVIDIA: https://github.com/NVIDIA/k8s-device-plugin#quick-start, AMD: https://github.com/ROCm/k8s-device-plugin), or the GPU operator",
        )
    });
    let gpus: u64 = nodes.iter().map(|node| node.gpus).sum();
    Observations::all(plugin_failures.chain(node_failures).chain(missing), || {
        Observations::ok(format!(
            "nodes: {}; GPUs for pods: {gpus}; request them in the limits of the pod, for example nvidia.com/gpu: 1",
            nodes.len()
        ))
    })
}
