//! The properties of AMD's GPUs and software.

use super::{Files, FixTools, MismatchWords, ObstacleWords, Runtime, Slurm, Traits};

pub(super) const TRAITS: Traits = Traits {
    name: "amd",
    maker: "AMD",
    pci_vendor: "0x1002",
    pci_classes: &["0x03", "0x12"],
    interface: "the AMD kernel driver (KFD)",
    drivers: &["amdgpu"],
    offers_integrated: true,
    has_cuda: false,
    kubernetes: &["amd.com/gpu"],
    docker_options: "--device /dev/kfd --device /dev/dri --security-opt seccomp=unconfined",
    slurm: Slurm {
        flag: "amd_gpu_env",
        auto_detect: "rsmi",
        plugin_names_models: true,
        plugin_source: None,
        plugin_order: Some((
            "Slurm's rsmi plugin uses one render node for all partitions of a GPU, and slurmd exits at a duplicate file",
            "Slurm's rsmi plugin numbers GPUs by PCI bus and ROCr by KFD, so a job would use a GPU \
             that was not allocated to it",
        )),
        compute_prefix: "",
        // The driver is part of the kernel, so its version does not determine which ROCm programs run.
        driver_is_feature: false,
    },
    runtime: Runtime {
        variable: "ROCR_VISIBLE_DEVICES",
        selects_by_number: true,
        selection_rule: "ROCr selects a device by its number among AMD's GPUs",
        ignores_closed_files: false,
        settings: &[],
        equal_models_in_bus_order: false,
    },
    files: Some(Files {
        shared: Some("/dev/kfd"),
        security: Some((
            "seccomp=unconfined",
            "ROCm sets memory policies (set_mempolicy, mbind), which Docker's profile refuses.",
        )),
        incomplete: (
            "the amdgpu driver is not loaded or has no KFD, or this GPU does not support ROCm (most integrated GPUs)",
            "sudo modprobe amdgpu, or install the driver (https://rocm.docs.amd.com/projects/install-on-linux); then check with rocm-smi",
        ),
        groups: "add udev rules for kfd and renderD* (GROUP=\"render\", MODE=\"0660\"), run sudo udevadm trigger, then repeat this command",
        missing: "check that Docker's engine runs on this host (docker context ls); sudo modprobe amdgpu",
        rootless: "as the user that runs the engine: `sudo usermod -aG video,render $USER`, then log out and in again; or use an engine that runs as root",
    }),
    mismatch: MismatchWords {
        start: "docker run --device /dev/kfd --device /dev/dri --group-add $(stat -c %g /dev/kfd) \
                --security-opt seccomp=unconfined ...",
        tool: "rocm-smi",
        no_gpu_cause: "the container was started without /dev/kfd, /dev/dri or their group, \
                       or the host's amdgpu driver is not loaded; jobs on this node cannot use GPUs",
        missing_software: "the image has no ROCm for the GPUs",
        withhold: "do not pass /dev/kfd and /dev/dri to this container",
        no_gpu_in_wsl: None,
    },
    obstacles: ObstacleWords {
        not_given: "no action if intended; otherwise create the container with the GPUs \
                    (docker run --device /dev/kfd --device /dev/dri)",
        denied: (
            "the files of /dev/dri are in this container (perhaps as a volume), but its device rules deny access to them",
            "pass the GPUs as devices: docker run --device /dev/kfd --device /dev/dri",
        ),
        no_driver: "load the driver on the host (modprobe amdgpu), then re-create the container",
        lost: "check amdgpu messages on the host (dmesg | grep -i amdgpu); reset the GPU there (amd-smi reset -G), or \
               reboot the host",
        hang: "check amdgpu messages on the host (dmesg | grep -i amdgpu); reboot the host",
    },
    fix: FixTools {
        reset: |gpu| format!("amd-smi reset --gpureset --gpu {gpu}"),
        other_work: "",
        processes: "amd-smi process",
        diagnostics: "AMD's validation suite (rvs)",
        needs_closed_gpu: false,
    },
};
