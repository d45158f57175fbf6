//! The host: what must be right before a container can start. The verdicts are those of `slurminit configure`.

use crate::configure::assess;
use crate::configure::situation::Situation;
use crate::entry::{Entry, Judge};
use crate::facts::{HostFacts, Kubernetes, KubernetesNode, RunningContainer};
use config::GpuType;
use model::inventory::{Observations, Vendor};

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "platform",
        symptoms: &["a GPU in a Mac, or an AMD GPU in Windows, and containers see none"],
        looks_at: "the operating system: /proc/version, /etc/os-release, /dev/dxg, Docker's own kernel",
        cause: "Docker on macOS, Docker Desktop on Linux, and WSL2 with another GPU than NVIDIA's cannot pass a GPU to a container",
        repair: "use a Linux host with Docker Engine; Slurm itself works without a GPU",
        judge: Judge::Host(|_, host| Observations::all(assess::platform(&host.situation), nothing)),
    },
    Entry {
        id: "engine",
        symptoms: &[
            "`Cannot connect to the Docker daemon`",
            "`permission denied while trying to connect to the Docker daemon socket`",
        ],
        looks_at: "docker info",
        cause: "the engine is not running, or the user is not in the group docker",
        repair: "`sudo systemctl start docker`; `sudo usermod -aG docker $USER`, then log out and in again",
        judge: Judge::Host(|_, host| assess::engine(&host.situation.engine)),
    },
    Entry {
        id: "compose",
        symptoms: &["`docker compose` is not a command, or refuses `deploy.resources.reservations.devices`"],
        looks_at: "docker compose version, docker-compose version",
        cause: "compose is missing or older than 1.28",
        repair: "`sudo apt-get install docker-compose-v2`",
        judge: Judge::Host(|_, host| assess::compose(host.situation.compose)),
    },
    Entry {
        id: "driver",
        symptoms: &[
            "\"No GPU detected\" during setup",
            "`nvidia-smi` fails or shows no GPUs",
            "GPU count is 0",
            "`Failed to initialize NVML: Driver/library version mismatch`",
        ],
        looks_at: "nvidia-smi -L, /proc/driver/nvidia, the PCI bus, /dev/kfd and /dev/dri",
        cause: "the driver is not installed, was not built for this kernel, is refused by Secure Boot, or was updated without a restart",
        repair: "`ubuntu-drivers install`, Debian: `apt-get install nvidia-driver`, AMD: `amdgpu-install --usecase=rocm`; reboot",
        judge: Judge::Host(|_, host| driver(&host.situation)),
    },
    Entry {
        id: "toolkit",
        symptoms: &[
            "\"GPU detected but Docker passthrough failed\"",
            "`could not select device driver \"\" with capabilities: [[gpu]]`",
        ],
        looks_at: "docker info, /etc/docker/daemon.json, /etc/cdi, the toolkit's programs; the groups of AMD's devices",
        cause: "nvidia-container-toolkit is not installed or not registered with Docker; AMD's devices have no group that can be passed",
        repair: "`sudo nvidia-ctk runtime configure --runtime=docker`, restart docker; AMD: `sudo usermod -a -G video,render $USER`",
        judge: Judge::Host(|_, host| toolkit(host)),
    },
    Entry {
        id: "passthrough",
        symptoms: &["\"GPU detected but Docker passthrough failed\", though all is installed"],
        looks_at: "a short-lived container of slurminit's image with the GPUs",
        cause: "a fault of the engine, the toolkit, the driver, a device or a permission (see the answer)",
        repair: "follow the answer; then run `slurminit configure`",
        judge: Judge::Host(|_, host| passthrough(host)),
    },
    Entry {
        id: "container-gpus",
        symptoms: &["GPU visible on host but not in container"],
        looks_at: "docker inspect of the containers of slurminit's image",
        cause: "the container was created without GPUs: the compose files have no GPU section",
        repair: "`slurminit configure && docker compose up -d --force-recreate`",
        judge: Judge::Host(|_, host| container_gpus(host)),
    },
    Entry {
        id: "image-gpu-type",
        symptoms: &["Container built without GPU, now I have one"],
        looks_at: "the label io.slurminit.gpu-type of the image, and the host's GPUs",
        cause: "the image was built with another GPU_TYPE",
        repair: "`slurminit configure && docker compose build && docker compose up -d`",
        judge: Judge::Host(|_, host| image_gpu_type(host)),
    },
    Entry {
        id: "device-plugin",
        symptoms: &[
            "Kubernetes: the device plugin's DaemonSet shows 0/X pods ready",
            "Kubernetes: GPU resources not available",
        ],
        looks_at: "kubectl get nodes, kubectl get daemonsets --all-namespaces",
        cause: "no node has GPUs, their label is missing, or the device plugin does not run on them",
        repair: "`kubectl label node NODE nvidia.com/gpu=true`; `kubectl delete pods -n kube-system -l name=nvidia-device-plugin-ds`",
        judge: Judge::Host(|_, host| device_plugin(host)),
    },
    Entry {
        id: "host-clock",
        symptoms: &["munge reports `Rewound credential` or `Expired credential`: the clocks of two machines differ"],
        looks_at: "timedatectl show --property=NTPSynchronized",
        cause: "the clock is not synchronized; munge accepts a credential for 5 minutes",
        repair: "`sudo timedatectl set-ntp true`",
        judge: Judge::Host(|_, host| match &host.clock {
            Err(why) => Observations::could_not_look(why.as_str()),
            Ok(true) => Observations::ok("the clock is synchronized (NTP)"),
            Ok(false) => Observations::warn(
                "the clock is not synchronized",
                "no time service is installed, or it cannot reach a server; containers use the host's clock",
                "sudo timedatectl set-ntp true",
            ),
        }),
    },
];

fn nothing() -> Observations {
    Observations::note("not checked")
}

fn driver(seen: &Situation) -> Observations {
    Observations::all(seen.present().flat_map(|gpus| gpus.hardware(seen)), || {
        Observations::note("no GPU on the PCI bus")
    })
}

fn toolkit(host: &HostFacts) -> Observations {
    let seen = &host.situation;
    Observations::all(seen.ready().flat_map(|gpus| gpus.passes(seen, host.trials.of(gpus.vendor()))), || {
        Observations::note("no GPU with a working driver")
    })
}

fn passthrough(host: &HostFacts) -> Observations {
    let seen = &host.situation;
    Observations::all(seen.ready().map(|gpus| gpus.tried(seen, host.trials.of(gpus.vendor()))), || {
        Observations::note("no GPU with a working driver")
    })
}

fn container_gpus(host: &HostFacts) -> Observations {
    let containers = match &host.containers {
        Err(why) => return Observations::could_not_look(why.as_str()),
        Ok(containers) => containers,
    };
    let seen = &host.situation;
    if seen.ready().next().is_none() {
        return Observations::note("this host has no usable GPU");
    }
    let of_container = |RunningContainer { name, has_gpu }: &RunningContainer| match has_gpu {
        true => Observations::ok(format!("container {name} was created with GPUs")),
        false => Observations::fail(
            format!("container {name} was created without GPUs, but this host has GPUs"),
            "neither a compose file nor an option of docker run passes the GPUs",
            "slurminit configure && docker compose up -d --force-recreate",
        ),
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
    let seen = &host.situation;
    let vendors: Vec<Vendor> = seen.ready().map(|gpus| gpus.vendor()).collect();
    let wanted = vendors.first().copied().map_or(GpuType::None, GpuType::from);
    let name = &image.name;
    match image.gpu_type.as_deref() {
        None => Observations::note(format!("image {name} has no GPU type label")),
        Some(built) if built == wanted.as_str() || vendors.iter().any(|vendor| vendor.as_str() == built) => {
            Observations::ok(format!("image {name} was built with GPU_TYPE={built} and matches this host"))
        }
        Some(built) if wanted == GpuType::None => Observations::note(format!(
            "image {name} was built with GPU_TYPE={built}, but this host has no GPU with a driver"
        )),
        Some(built) => Observations::fail(
            format!(
                "image {name} was built with GPU_TYPE={built}, but this host has GPUs of {wanted}",
                wanted = wanted.as_str()
            ),
            "the image was built before the GPU was installed, on another host, or without GPU_TYPE",
            "slurminit configure && docker compose build && docker compose up -d",
        ),
    }
}

fn device_plugin(host: &HostFacts) -> Observations {
    let kubernetes = match &host.kubernetes {
        Err(why) => return Observations::could_not_look(why.as_str()),
        Ok(None) => return Observations::note("no Kubernetes here"),
        Ok(Some(kubernetes)) => kubernetes,
    };
    let Kubernetes { nodes, plugins } = kubernetes;
    let plugin_troubles = plugins.iter().filter(|(_, ready, wanted)| ready < wanted || *wanted == 0).map(|(name, ready, wanted)| {
        Observations::fail(
            format!("DaemonSet {name}: {ready} of {wanted} pods ready"),
            if *wanted == 0 { "no node matches the plugin's node selector" } else { "the plugin's pods do not start, or cannot reach /var/lib/kubelet/device-plugins" },
            if *wanted == 0 {
                "kubectl label node NODE nvidia.com/gpu=true"
            } else {
                "kubectl describe daemonset -n kube-system; then kubectl delete pods -n kube-system -l name=nvidia-device-plugin-ds"
            },
        )
    });
    let bare = |node: &&KubernetesNode| node.has_gpu_label && node.gpus == 0;
    let node_troubles = nodes.iter().filter(bare).map(|node| {
        Observations::fail(
            format!("node {} has a GPU label but offers no GPUs to pods", node.name),
            "the device plugin is not running there, or finds no driver",
            "kubectl get pods --all-namespaces -o wide | grep device-plugin; see the log of the pod",
        )
    });
    let missing = (plugins.is_empty() && nodes.iter().all(|node| node.gpus == 0)).then(|| {
        Observations::fail(
            "no node offers GPUs to pods; no device plugin installed",
            "Kubernetes requires the device plugin of NVIDIA or AMD",
            "install the device plugin: https://github.com/NVIDIA/k8s-device-plugin#quick-start, or the GPU operator",
        )
    });
    let all: u64 = nodes.iter().map(|node| node.gpus).sum();
    Observations::all(plugin_troubles.chain(node_troubles).chain(missing), || {
        Observations::ok(format!(
            "{} nodes offer {all} GPUs to pods; request them with limits: nvidia.com/gpu",
            nodes.len()
        ))
    })
}
