//! AMD.

use super::{Files, MismatchWords, ObstacleWords, Runtime, Slurm, Traits};

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
            "Slurm's rsmi plugin numbers GPUs by PCI bus and ROCr by KFD, so a job would use another \
             GPU than allocated",
        )),
        compute_prefix: "",
        // The driver is the kernel's own, so its version says nothing about ROCm.
        driver_is_feature: false,
    },
    runtime: Runtime {
        variable: "ROCR_VISIBLE_DEVICES",
        counts: true,
        finds: "ROCr selects a device by its number among AMD's",
        skips_closed: false,
        settings: &[],
    },
    files: Some(Files {
        shared: Some("/dev/kfd"),
        security: Some((
            "seccomp=unconfined",
            "ROCm sets memory policies (set_mempolicy, mbind), which Docker's profile refuses.",
        )),
        incomplete: (
            "the amdgpu driver is not loaded or has no KFD, or this GPU does not support ROCm (most integrated GPUs)",
            "for a GPU that ROCm supports: sudo modprobe amdgpu, or install the driver as \
             https://rocm.docs.amd.com/projects/install-on-linux/en/latest/ says; rocm-smi then lists it",
        ),
        groups: "sudo groupadd --force --system render; a udev rule gives it the files: \
                 KERNEL==\"kfd\", GROUP=\"render\", MODE=\"0660\" and SUBSYSTEM==\"drm\", KERNEL==\"renderD*\", \
                 GROUP=\"render\", MODE=\"0660\" in /etc/udev/rules.d/70-amdgpu.rules; then sudo udevadm control --reload \
                 && sudo udevadm trigger, and run this again",
        missing: "see that Docker's engine runs on this host (docker context ls); sudo modprobe amdgpu",
        rootless: "add the engine's user to the groups of /dev/kfd and /dev/dri/renderD* \
                   (sudo usermod -aG video,render $USER), log out and in again; or use an engine that runs as root",
    }),
    mismatch: MismatchWords {
        start: "docker run --device /dev/kfd --device /dev/dri --group-add $(stat -c %g /dev/kfd) \
                --security-opt seccomp=unconfined ...",
        tool: "rocm-smi",
        unseen: "the container was started without /dev/kfd and /dev/dri, its processes are not in the \
                 group of these files, or the host's amdgpu driver is not loaded; GPU jobs are rejected",
        lacks: "the image has no ROCm for them",
        withhold: "do not pass /dev/kfd and /dev/dri to this container",
        unseen_in_wsl: None,
    },
    obstacles: ObstacleWords {
        not_given: "no action if intended; otherwise create the container with them \
                    (docker run --device /dev/kfd --device /dev/dri)",
        denied: (
            "the files of /dev/dri are in this container (perhaps by a volume), but its device rules deny them",
            "pass them as devices: docker run --device /dev/kfd --device /dev/dri",
        ),
        no_driver: "load the driver on the host (modprobe amdgpu), then re-create the container",
        lost: "check amdgpu messages on the host (dmesg | grep -i amdgpu); reset the GPU there (amd-smi reset -G), or \
               reboot the host",
        hang: "check amdgpu messages on the host (dmesg | grep -i amdgpu); reboot the host",
    },
};
