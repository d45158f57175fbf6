//! Symptoms from GPU guides for containers and clusters, each with a fault that causes it and the record of the answer.
//! Guides are listed by title.

/// A symptom of a guide.
pub(crate) struct Symptom {
    /// The symptom as the guide describes it.
    pub(crate) symptom: &'static str,
    /// How the test causes the symptom.
    pub(crate) fault: &'static str,
    /// The record of the answer, in `tests/doctor/answers`.
    pub(crate) case: &'static str,
}

/// A guide, or another source of symptoms.
pub(crate) struct Source {
    pub(crate) title: &'static str,
    pub(crate) symptoms: &'static [Symptom],
}

const fn row(symptom: &'static str, fault: &'static str, case: &'static str) -> Symptom {
    Symptom { symptom, fault, case }
}

pub(crate) const SOURCES: &[Source] = &[
    Source {
        title: "GPU Support in dsHPC",
        symptoms: &[
            row("\"No GPU detected\" during setup", "a GPU on the PCI bus, no driver", "host-without-driver"),
            row("\"No GPU detected\" during setup", "no GPU", "host-without-gpu"),
            row("\"GPU detected but Docker passthrough failed\"", "driver, no toolkit", "host-without-toolkit"),
            row(
                "\"GPU detected but Docker passthrough failed\"",
                "toolkit not registered with Docker",
                "host-toolkit-not-registered",
            ),
            row(
                "\"GPU detected but Docker passthrough failed\"",
                "the trial container does not start",
                "host-passthrough-fails",
            ),
            row(
                "GPU visible on host but not in container",
                "a container created without GPUs",
                "host-container-without-gpu",
            ),
            row("GPU visible on host but not in container", "the same container, checked from inside", "no-gpu"),
            row(
                "Slurm says \"Invalid GRES specification\"",
                "real daemons: a custom slurm.conf without GPUs, `srun --gres=gpu:1`",
                "image-invalid-gres",
            ),
            row(
                "Slurm says \"Invalid GRES specification\"",
                "a custom slurm.conf with 4 GPUs on a node with 1",
                "own-gres-claims-more",
            ),
            row("Container built without GPU, now I have one", "GPU_TYPE=none and a GPU", "image-built-without-gpu"),
            row(
                "Container built without GPU, now I have one",
                "image label `none` on a host with a GPU",
                "host-image-without-gpu",
            ),
            row("Why macOS Doesn't Support GPU", "a macOS host", "host-is-mac"),
        ],
    },
    Source {
        title: "GPU Support Guide of pytorch-cloud",
        symptoms: &[
            row("DaemonSet shows 0/X pods ready", "0 of 1 device plugin pods ready", "host-device-plugin-not-ready"),
            row("DaemonSet shows 0/X pods ready", "no node has the label", "host-device-plugin-without-nodes"),
            row("GPU resources not available", "a labelled node offers no GPU", "host-pods-without-gpus"),
            row(
                "`nvidia-smi: command not found`",
                "driver capabilities without `utility`",
                "without-utility-capability",
            ),
            row("`RuntimeError: No CUDA GPUs are available`", "a pod without GPU", "no-gpu-in-kubernetes"),
            row(
                "`CUDA driver version is insufficient`",
                "CUDA 13 in the image, a driver for 12.4",
                "cuda-newer-than-driver",
            ),
            row(
                "PyTorch can't find CUDA libraries",
                "driver capabilities without `compute`",
                "without-compute-capability",
            ),
            row("`RuntimeError: CUDA out of memory`", "a GPU with 143000 of 143771 MiB in use", "memory-is-full"),
            row("Jobs failing with OOM errors", "the kernel killed 3 processes", "killed-for-memory"),
            row("GPU Persistence Mode", "persistence mode off", "persistence-off"),
        ],
    },
    Source {
        title: "GPU Allocation Guide of KohakuRiver",
        symptoms: &[
            row("No GPU info in node list", "device files without the management library", "image-library-missing"),
            row("GPU count is 0", "the driver does not respond", "host-driver-hangs"),
            row("GPU count is 0", "NVML reports GPUs, but their device files are missing", "no-gpu-counted"),
            row(
                "Invalid GPU ID",
                "CUDA_VISIBLE_DEVICES=2,3 in a container with one GPU",
                "visible-devices-of-the-host",
            ),
            row("Invalid GPU ID", "`--gres=gpu:1` on a node without GPU", "image-no-gres"),
            row("Container missing CUDA", "no libcuda.so.1", "without-compute-capability"),
            row(
                "Driver mismatch",
                "library and kernel module of different releases",
                "image-library-of-another-release",
            ),
            row("Code not using GPU", "a job with a GPU for 10 minutes and no process on it", "job-on-the-cpu"),
            row(
                "Wrong device index",
                "CUDA_VISIBLE_DEVICES=2,3 in a container with one GPU",
                "visible-devices-of-the-host",
            ),
            row("Missing libraries", "no libcuda.so.1", "without-compute-capability"),
        ],
    },
    Source {
        title: "GPU Configuration Guide of a multi-agent Docker environment",
        symptoms: &[
            row("`nvidia-smi` fails or shows no GPUs", "the nouveau driver is loaded", "host-with-nouveau"),
            row("`nvidia-smi` fails or shows no GPUs", "nvidia-smi fails", "host-driver-hangs"),
            row("`could not select device driver`", "the trial fails with this error", "host-passthrough-fails"),
            row(
                "`CUDA driver version is insufficient for CUDA runtime version`",
                "a CUDA 13 toolkit, a driver for 12.4",
                "cuda-toolkit-newer-than-driver",
            ),
            row("CUDA Version Mismatch", "a driver older than CUDA 11", "host-driver-too-old"),
            row("`CUDA out of memory`", "a GPU with 143000 of 143771 MiB in use", "memory-is-full"),
            row(
                "GPU already in use by another process",
                "a process on the GPU without a job",
                "gpu-used-outside-slurm",
            ),
            row("GPU already in use by another process", "exclusive mode with one process", "exclusive-mode"),
            row("GPU utilization low despite heavy workload", "clocks lowered by thermal slowdown", "too-hot"),
            row("GPU utilization low despite heavy workload", "4 of 16 lanes", "narrow-link"),
            row("GPU utilization low despite heavy workload", "a slow link under load", "slow-link"),
            row("GPU state lost between container restarts", "persistence mode off", "persistence-off"),
            row("Docker Performance Settings: `shm_size`", "a container with Docker's 64 MiB", "image-shared-memory"),
            row("Docker Performance Settings: `memlock`", "64 KiB lockable, with InfiniBand", "little-locked-memory"),
            row("Docker Performance Settings: `stack`", "a stack limit of 1 MiB", "small-stack"),
            row(
                "NVIDIA Driver Settings: NVIDIA_DISABLE_REQUIRE",
                "CUDA 13 required, a driver for 12.4",
                "requirement-disabled",
            ),
            row("NVIDIA Driver Settings: NVIDIA_MIG_CONFIG_DEVICES", "the variable is set", "mig-variables"),
            row(
                "GPU Capabilities: `capabilities: [gpu, compute, utility]`",
                "the same list in the variable",
                "unknown-capability",
            ),
        ],
    },
    Source {
        title: "GPU enablement",
        symptoms: &[
            row(
                "`successful NUMA node read from SysFS had negative value (-1)`",
                "numa_node is -1, one socket",
                "numa-unknown",
            ),
            row(
                "`successful NUMA node read from SysFS had negative value (-1)`",
                "numa_node is -1, two sockets",
                "numa-unknown-on-two-sockets",
            ),
            row("How to expose GPU to a VM: vGPU", "a GPU with the name of a compute vGPU", "virtual-gpu"),
            row("How to expose GPU to a VM: vGPU", "a GPU with the name of a desktop vGPU", "virtual-gpu-without-cuda"),
            row("GPU or vGPU to a worker's pod", "a HAMi memory limit", "share-by-variable"),
            row("GPU or vGPU to a worker's pod", "HAMi's library in /etc/ld.so.preload", "share-by-library"),
            row(
                "tf-notebook service fails to connect to ipkernel, through a proxy",
                "http_proxy without no_proxy",
                "proxy-without-exceptions",
            ),
        ],
    },
    Source {
        title: "Known problems of Slurm and GPUs in containers",
        symptoms: &[
            row("NVML returns `Unknown Error`", "nvmlInit returns this error", "image-unknown-error"),
            row(
                "the device files exist but cannot be opened",
                "a file that is not a device node",
                "image-device-does-not-open",
            ),
            row("the management library is missing", "device files without the library", "image-library-missing"),
            row(
                "library and kernel module are of different releases",
                "nvmlInit returns this error",
                "image-library-of-another-release",
            ),
            row("the driver hangs", "nvmlInit never returns", "driver-hangs"),
            row(
                "a drain that outlives its cause",
                "real daemons: a drain with Slurm's reason that outlives its cause",
                "image-stale-drain",
            ),
            row(
                "a drain by an administrator",
                "real daemons: `scontrol update state=drain`",
                "image-drained-by-administrator",
            ),
            row(
                "`gres/gpu count reported lower than configured`",
                "real daemons: a custom slurm.conf with more GPUs",
                "image-gres-lower",
            ),
            row("`Low RealMemory`", "real daemons: a custom slurm.conf with more memory", "image-real-memory"),
            row("one munge key in every container of an image", "a key older than its container", "image-shared-key"),
            row(
                "munge: the keys of two machines differ",
                "a credential of one container decoded in another",
                "image-another-key",
            ),
            row(
                "munge: the clocks of two machines differ",
                "a credential from the future: `Rewound credential`",
                "clock-behind",
            ),
            row("munge: the clocks of two machines differ", "real munged: an expired credential", "image-clock-skew"),
            row("`Address already in use`", "two containers that share a network", "image-port-taken"),
            row(
                "`CLUSTER NAME MISMATCH`",
                "the state volume of a cluster with another name",
                "image-state-of-another-cluster",
            ),
            row("`No space left on device`", "a state directory of 8 MiB", "image-disk-full"),
            row("`--network none`", "a container without network", "image-no-address"),
        ],
    },
];
