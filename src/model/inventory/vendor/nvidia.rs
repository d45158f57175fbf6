//! The properties of NVIDIA's GPUs and software.

use super::{FixTools, MismatchWords, ObstacleWords, Runtime, Slurm, Source, Traits};

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
            "Slurm's plugin requires NVML (libnvidia-ml.so.1), which does not work in this container: Slurm would drain the node",
            "start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        )),
        plugin_order: None,
        compute_prefix: "cc",
        driver_is_feature: true,
    },
    runtime: Runtime {
        variable: "CUDA_VISIBLE_DEVICES",
        selects_by_number: false,
        selection_rule: "CUDA selects a device by its number in bus order, or by its UUID",
        ignores_closed_files: true,
        settings: &[("CUDA_DEVICE_ORDER", "PCI_BUS_ID")],
        equal_models_in_bus_order: true,
    },
    files: None,
    mismatch: MismatchWords {
        start: "docker run --gpus all ..., after `nvidia-ctk runtime configure --runtime=docker` on the host",
        tool: "nvidia-smi",
        no_gpu_cause: "the container was started without GPUs, the container toolkit is not set up, \
                       or the host's driver is not loaded; jobs on this node cannot use GPUs",
        missing_software: "the image has no NVIDIA software except the files that the container runtime mounts",
        withhold: "start the container without --gpus (NVIDIA_VISIBLE_DEVICES=void)",
        no_gpu_in_wsl: Some((
            "the container was started without GPUs, or Windows has no NVIDIA driver that supports WSL2",
            "docker run --gpus all ...; install the current driver in Windows, then `wsl --update`; to run without GPUs, set GPU_TYPE=none",
        )),
    },
    obstacles: ObstacleWords {
        not_given: "no action if intended; otherwise create the container with the GPUs (docker run --gpus all)",
        denied: (
            "probably the container's device rules were rewritten (systemctl daemon-reload on the host)",
            "re-create the container (docker compose up --force-recreate); a restart is not enough",
        ),
        no_driver: "run nvidia-smi on the host; load the driver there (modprobe nvidia), then re-create the container",
        lost: "check Xid messages on the host (dmesg | grep -i xid); reset the GPU there (nvidia-smi -r), or reboot the host",
        hang: "check NVRM and Xid messages on the host (dmesg); reboot the host",
    },
    fix: FixTools {
        reset: |gpu| format!("nvidia-smi --gpu-reset -i {gpu}"),
        other_work: ", or change the GPU's MIG mode",
        processes: "nvidia-smi",
        diagnostics: "NVIDIA's field diagnostics",
        needs_closed_gpu: true,
    },
};
