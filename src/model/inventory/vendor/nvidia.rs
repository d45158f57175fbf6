//! NVIDIA.

use super::{MismatchWords, ObstacleWords, Runtime, Slurm, Source, Traits};

pub(super) const TRAITS: Traits = Traits {
    name: "nvidia",
    maker: "NVIDIA",
    pci_vendor: "0x10de",
    pci_classes: &["0x03"],
    interface: "NVML",
    drivers: &["nvidia"],
    offers_integrated: true,
    has_cuda: true,
    kubernetes: &["nvidia.com/gpu"],
    docker_options: "--gpus all",
    slurm: Slurm {
        flag: "nvidia_gpu_env",
        auto_detect: "nvml",
        plugin_names_models: true,
        plugin_source: Some((
            Source::Nvml,
            "Slurm's plugin asks NVIDIA's library (libnvidia-ml.so.1), and it does not answer in this container: slurmd \
             would find no GPU, and the node be taken out of service",
            "start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        )),
        plugin_order: None,
        compute_prefix: "cc",
        driver_is_feature: true,
    },
    runtime: Runtime {
        variable: "CUDA_VISIBLE_DEVICES",
        counts: false,
        finds: "CUDA finds a device by its UUID",
        skips_closed: true,
        settings: &[],
    },
    files: None,
    mismatch: MismatchWords {
        start: "docker run --gpus all ... (compose: deploy.resources.reservations.devices with driver nvidia), after \
                `nvidia-ctk runtime configure --runtime=docker` on the host",
        tool: "nvidia-smi",
        unseen: "the container was started without GPUs, the NVIDIA container toolkit is not set up for Docker, or the \
                 host's driver is not loaded; jobs that ask for a GPU are refused",
        lacks: "the image has nothing of NVIDIA's beyond what the container runtime brings",
        withhold: "start the container without --gpus (NVIDIA_VISIBLE_DEVICES=void)",
        unseen_in_wsl: Some((
            "the container was started without GPUs, or Windows has no NVIDIA driver that serves WSL2",
            "docker run --gpus all ...; `nvidia-smi` in WSL2 must work: install the current driver in Windows (no Linux driver in \
             WSL2), then `wsl --update`; without GPUs on purpose, set GPU_TYPE=none",
        )),
    },
    obstacles: ObstacleWords {
        not_given: "nothing, if that is meant; else create the container with them (docker run --gpus all)",
        denied: (
            "most often the container's device rules were rewritten under it (systemctl daemon-reload on the host)",
            "re-create the container (docker compose up --force-recreate); a restart is not enough",
        ),
        no_driver: "run nvidia-smi on the host; load the driver there (modprobe nvidia), then create the container anew",
        lost: "look for Xid messages on the host (dmesg | grep -i xid); reset it there (nvidia-smi -r), else reboot the host",
        hang: "look for NVRM and Xid messages on the host (dmesg); reboot it",
    },
};
