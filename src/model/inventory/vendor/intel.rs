//! The properties of Intel's GPUs and software.

use super::{Files, FixTools, MismatchWords, ObstacleWords, Runtime, Slurm, Traits};

pub(super) const TRAITS: Traits = Traits {
    name: "intel",
    maker: "Intel",
    pci_vendor: "0x8086",
    pci_classes: &["0x03"],
    interface: "Intel's kernel driver (xe or i915)",
    drivers: &["xe", "i915"],
    // With `true`, nearly every desktop would become a GPU node.
    offers_integrated: false,
    has_cuda: false,
    kubernetes: &["gpu.intel.com/xe", "gpu.intel.com/i915"],
    docker_options: "--device /dev/dri",
    slurm: Slurm {
        flag: "intel_gpu_env",
        auto_detect: "oneapi",
        // The plugin's names contain trademark signs: intel(r)_arc(tm)_a770_graphics.
        plugin_names_models: false,
        plugin_source: None,
        plugin_order: None,
        compute_prefix: "",
        driver_is_feature: false,
    },
    // By default Intel's runtime counts cards or their stacks, in file or bus order. These settings make it count cards
    // in bus order, as Slurm's plugin does (Slurm 24.11, gpu_oneapi.c; compute-runtime, execution_environment.cpp).
    runtime: Runtime {
        variable: "ZE_AFFINITY_MASK",
        selects_by_number: true,
        selection_rule: "Level Zero selects a device by its number among Intel's GPUs",
        ignores_closed_files: false,
        settings: &[("ZE_FLAT_DEVICE_HIERARCHY", "COMPOSITE"), ("ZE_ENABLE_PCI_ID_DEVICE_ORDER", "1")],
        equal_models_in_bus_order: false,
    },
    files: Some(Files {
        shared: None,
        security: None,
        incomplete: (
            "neither xe nor i915 drives the GPU, or this kernel is older than the GPU",
            "run lspci -nnk on the host to see the GPU's driver; then sudo modprobe xe (or i915), or install a newer kernel",
        ),
        groups: "add a udev rule for renderD* (GROUP=\"render\", MODE=\"0660\"), run sudo udevadm trigger, then repeat this command",
        missing: "check that Docker's engine runs on this host (docker context ls); sudo modprobe xe (or i915)",
        rootless: "as the user that runs the engine: `sudo usermod -aG video,render $USER`, then log out and in again; or use an engine that runs as root",
    }),
    mismatch: MismatchWords {
        start: "docker run --device /dev/dri --group-add $(stat -c %g /dev/dri/renderD128) ...",
        tool: "clinfo -l",
        no_gpu_cause: "the container was started without /dev/dri or its group, \
                       or the host has no discrete GPU with the driver xe or i915; jobs on this node cannot use GPUs",
        missing_software: "the image has no Level Zero for the GPUs",
        withhold: "do not pass the Intel GPUs' files in /dev/dri to this container",
        no_gpu_in_wsl: None,
    },
    obstacles: ObstacleWords {
        not_given: "no action if intended; otherwise create the container with the GPUs (docker run --device /dev/dri)",
        denied: (
            "the files of /dev/dri are in this container (perhaps as a volume), but its device rules deny access to them",
            "pass the GPUs as devices: docker run --device /dev/dri",
        ),
        no_driver: "load the driver on the host (modprobe xe, or i915), then re-create the container",
        lost: "check the driver's messages on the host (dmesg | grep -i -e xe -e i915); reboot the host",
        hang: "check the driver's messages on the host (dmesg | grep -i -e xe -e i915); reboot the host",
    },
    fix: FixTools {
        reset: |gpu| format!("xpu-smi config --device {gpu} --reset"),
        other_work: "",
        processes: "xpu-smi ps",
        diagnostics: "Intel's diagnostics (xpu-smi diag)",
        needs_closed_gpu: false,
    },
};
