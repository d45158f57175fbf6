//! The GPUs in the container.

use super::cuda::{cuda_libraries, cuda_version, visible_devices};
use crate::entry::{Check, Entry};
use crate::facts::{ContainerFacts, Facts};
use faults::fault::Policy;
use model::inventory::{Access, DeviceFiles, Gpu, Kind, Observations};
use model::printable::count;

const RECREATE: &str = "`docker compose up -d --force-recreate`";

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "no-gpu",
        symptoms: &[
            "GPU visible on host but not in container",
            "`RuntimeError: No CUDA GPUs are available`",
            "GPU count is 0",
        ],
        examines: "the GPUs in NVML, /proc/driver/nvidia, KFD and /sys/class/drm, and their device files",
        cause: "the container was created without GPUs; in Kubernetes: the pod does not request any",
        fix: "`slurminit configure && docker compose up -d --force-recreate`; Kubernetes: `limits: {nvidia.com/gpu: 1}` (or \
                 amd.com/gpu) in the pod, and a toleration for the nodes' taint",
        check: Check::FindingsAnd(&[Kind::GpuNotGiven], no_gpu),
    },
    Entry {
        id: "gpu-type",
        symptoms: &["Container built without GPU, now I have one", "the image was built for X, and ..."],
        examines: "GPU_TYPE, and the vendors of the usable GPUs",
        cause: "the image was built for another machine, or the GPUs were not passed to the container",
        fix: "`docker compose build --build-arg GPU_TYPE=nvidia && docker compose up -d` (or amd, intel, none)",
        check: Check::Findings(&[Kind::GpuType], "GPU_TYPE matches the GPUs, or is not set"),
    },
    Entry {
        id: "nvml-library",
        symptoms: &[
            "No GPU info in node list",
            "`the GPUs are listed from /proc and /dev, without memory size, compute capability and NVLinks`",
        ],
        examines: "libnvidia-ml.so.1",
        cause: "NVIDIA_DRIVER_CAPABILITIES lacks `utility`, so the library is not in the container",
        fix: "`docker run -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ...`",
        check: Check::FindingsAnd(&[Kind::NvmlLibrary], |facts, _, found| {
            driver_observations(facts, found, "no problem with loading NVIDIA's management library (NVML)")
        }),
    },
    Entry {
        id: "nvml-versions",
        symptoms: &["`Driver/library version mismatch`", "Driver mismatch"],
        examines: "nvmlInit",
        cause: "the host's driver was updated and the old kernel module is still loaded, or the image contains its own library",
        fix: "reboot the host, or reload its NVIDIA kernel modules, then `docker compose up -d --force-recreate`; or remove the driver library from the image",
        check: Check::FindingsAnd(&[Kind::NvmlVersions], |facts, _, found| {
            driver_observations(facts, found, "no version mismatch between the library and the kernel driver")
        }),
    },
    Entry {
        id: "device-rules",
        symptoms: &[
            "GPUs worked before, but now NVML fails with `Unknown Error`",
            "the device files exist but cannot be opened",
        ],
        examines: "whether nvmlInit succeeds, and whether each device file can be opened",
        cause: "the container's device rules were rewritten on the host (`systemctl daemon-reload`)",
        fix: RECREATE,
        check: Check::Findings(&[Kind::GpuDoesNotOpen, Kind::NvmlRefuses], "all device files can be opened"),
    },
    Entry {
        id: "driver-answers",
        symptoms: &["the driver hangs or crashes; \"the preparation is still running\"", "a GPU fell off the bus"],
        examines: "NVML, KFD and /sys/class/drm, each queried with a timeout",
        cause: "a GPU failed or is being reset, or persistence mode is off and the driver is initializing many GPUs",
        fix: "see `dmesg | grep -i -e nvrm -e xid -e amdgpu` on the host; turn on persistence mode (`sudo systemctl enable --now nvidia-persistenced`), or reboot",
        check: Check::Findings(&[Kind::DriverFails, Kind::DriverNotLoaded, Kind::GpuLost], "all drivers respond"),
    },
    Entry {
        id: "gpu-faults",
        symptoms: &[
            "the node is drained, and its reason begins with `slurminit: GPU`",
            "a GPU is no longer available to jobs",
            "an XID in the log",
        ],
        examines: "the report of `slurminit agent` about the GPUs",
        cause: "a GPU failed: the driver reported an XID, lost the GPU, or does not respond",
        fix: "follow the fix of the finding; the GPU returns automatically after recovery, or after `slurminit restart agent`",
        check: Check::Container(|_, container| gpu_faults(container)),
    },
    Entry {
        id: "amd-devices",
        symptoms: &["AMD: /dev/kfd exists, but no GPU"],
        examines: "/dev/kfd, /dev/dri/renderD*, /sys/class/kfd",
        cause: "the render nodes are not in the container, its device rules deny them, or the host's driver lists no GPU in /sys/class/kfd",
        fix: "`slurminit configure && docker compose up -d --force-recreate`, or `docker run --device /dev/kfd --device /dev/dri ...`",
        check: Check::FindingsAnd(&[Kind::AmdDevices], amd_devices),
    },
    Entry {
        id: "left-out",
        symptoms: &["fewer GPUs than the machine has"],
        examines: "each GPU that a driver lists",
        cause: "a GPU was not passed to the container, is excluded by `[gpu] only` or `except`, or is integrated, lost or a duplicate",
        fix: "see `slurminit detect`; to pass all: `slurminit configure --gpus all && docker compose up -d --force-recreate`",
        check: Check::FindingsAnd(&[Kind::GpuLeftOut], left_out),
    },
    Entry {
        id: "mig",
        symptoms: &["a GPU is in MIG mode and not available to jobs"],
        examines: "the MIG mode and the instances of each GPU",
        cause: "the GPU has no instance, or the container was started before the instance existed",
        fix: "`sudo nvidia-smi mig -cgi PROFILE -C` on the host, then `docker compose up -d --force-recreate`",
        check: Check::Findings(&[Kind::Mig], "no GPU is in MIG mode without a usable instance"),
    },
    Entry {
        id: "cuda-libraries",
        symptoms: &[
            "PyTorch can't find CUDA libraries",
            "Container missing CUDA",
            "Missing libraries",
            "`nvidia-smi: command not found`",
        ],
        examines: "libcuda.so.1 and nvidia-smi in the container, NVIDIA_DRIVER_CAPABILITIES",
        cause: "NVIDIA_DRIVER_CAPABILITIES lacks `compute` (libcuda.so.1) or `utility` (nvidia-smi), or NVIDIA's runtime was not used",
        fix: "`docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ...`; for PyTorch, `pip install torch` \
                 installs the other CUDA libraries",
        check: Check::Start(Kind::CudaLibraries, cuda_libraries),
    },
    Entry {
        id: "cuda-version",
        symptoms: &["`CUDA driver version is insufficient for CUDA runtime version`", "CUDA version mismatch"],
        examines: "CUDA_VERSION, /usr/local/cuda, libcudart.so.*, and the CUDA version of the driver",
        cause: "the host's driver is too old for the image's CUDA: CUDA 11 needs driver 470.57.02, CUDA 12 needs 525.60.13, CUDA 13 needs 580",
        fix: "install a newer driver on the host (`sudo ubuntu-drivers install` on Ubuntu, then reboot), or use an image with an older CUDA",
        check: Check::Start(Kind::CudaVersion, cuda_version),
    },
    Entry {
        id: "visible-devices",
        symptoms: &["Invalid GPU ID", "Wrong device index"],
        examines: "CUDA_VISIBLE_DEVICES in the container's environment",
        cause: "every container and every job numbers its GPUs from 0, regardless of their indexes on the host",
        fix: "leave CUDA_VISIBLE_DEVICES to Slurm (remove it from `environment:`), request GPUs with `--gres=gpu:1`, use `cuda:0` in the job",
        check: Check::Start(Kind::VisibleDevices, visible_devices),
    },
    Entry {
        id: "job-devices",
        symptoms: &[
            "`CUDA_VISIBLE_DEVICES` is a number on a node with MIG, and CUDA finds no GPU",
            "an AMD job sees `CUDA_VISIBLE_DEVICES` on a node with NVIDIA and AMD GPUs",
        ],
        examines: "TaskProlog, and the order of the lines in gres.conf",
        cause: "your own slurm.conf or `[slurm.conf]` in slurminit.toml sets another TaskProlog, or your own slurm.conf sets none",
        fix: "set TaskProlog=/etc/slurm/task_prolog, or call `/etc/slurm/task_prolog` at the end of your own TaskProlog script",
        check: Check::Findings(&[Kind::JobDevices], "the device numbers in jobs match those of CUDA and ROCr"),
    },
    Entry {
        id: "isolation",
        symptoms: &["a job sees all GPUs although it requested one"],
        examines: "the container's cgroup, and the access to the GPUs' device files",
        cause: "the job requested no GPU from Slurm (--gres, --gpus), or opens the device files directly, which only a writable cgroup or `[gpu] isolate` prevents",
        fix: "`srun --gres=gpu:1 env | grep VISIBLE` shows the job's GPUs; see [security](security.md)",
        check: Check::FindingsAnd(&[Kind::JobsNotHeld], |facts, _, found| {
            Observations::all(found, || match facts.inventory().usable_gpus().next() {
                Some(_) if facts.inventory().device_files == DeviceFiles::Open && is_isolation_pending(facts) => {
                    Observations::warn(
                        "every user can open at least one GPU",
                        "jobs may have opened the device files, so a reload does not change their permissions",
                        "to isolate the GPUs: docker compose restart slurm",
                    )
                }
                Some(_) if facts.inventory().device_files == DeviceFiles::Closed => {
                    Observations::ok("only the job's user can open the job's GPUs")
                }
                Some(_) => Observations::ok("the kernel restricts each job to its own GPUs"),
                None => Observations::note("no usable GPU in this container"),
            })
        }),
    },
];

/// The findings; if there are none, `otherwise` or a note that there is no NVIDIA driver.
fn driver_observations(facts: &Facts, found: Vec<Observations>, otherwise: &str) -> Observations {
    let has_driver = facts.inventory().cuda_driver().is_some();
    Observations::all(found, || match has_driver {
        true => Observations::ok(otherwise),
        false => Observations::note("no NVIDIA driver found"),
    })
}

/// The path of the GPU's device file, or the GPU's vendor and index.
fn device_name(gpu: &Gpu) -> String {
    gpu.device_file
        .as_ref()
        .map_or_else(|| format!("{} GPU {}", gpu.vendor, gpu.index), |path| path.display().to_string())
}

fn gpu_faults(container: &ContainerFacts) -> Observations {
    let report = match &container.gpu_health {
        Ok(report) => report,
        Err(why) => return Observations::note(why.clone()),
    };
    let node = report.node.as_ref().map(|node| format!("; the node: {node}")).unwrap_or_default();
    let faults = report.gpus.iter().flat_map(|gpu| gpu.faults.iter().map(move |fault| (gpu, fault)));
    let faults = faults.filter(|(_, fault)| fault.policy >= Policy::Warn).map(|(gpu, fault)| {
        let description = format!("{}: {}{node}", gpu.identity, fault.what);
        let cause = "the agent detected the fault in the driver's data, or the driver does not respond";
        match fault.policy {
            Policy::Drain => Observations::fail(description, cause, &*fault.fix),
            _ => Observations::warn(description, cause, &*fault.fix),
        }
    });
    Observations::all(faults, || Observations::ok(format!("no GPU has a fault that requires action{node}")))
}

fn no_gpu(facts: &Facts, _: &ContainerFacts, found: Vec<Observations>) -> Observations {
    let usable: Vec<String> = facts.inventory().usable_gpus().map(device_name).collect();
    let pod = (usable.is_empty() && facts.environment.is_in_kubernetes)
        .then(|| Observations::usual_warning("this pod has no usable GPU"));
    Observations::all(found.into_iter().chain(pod), || match usable.len() {
        0 => Observations::note("no usable GPU in this container; if the host has GPUs, run slurminit configure there"),
        gpus => Observations::ok(format!("{} usable: {}", count(gpus, "GPU"), usable.join(", "))),
    })
}

/// Whether jobs use the GPU through KFD.
fn has_kfd(gpu: &Gpu) -> bool {
    gpu.vendor.traits().files.as_ref().is_some_and(|files| files.shared == Some("/dev/kfd"))
}

fn amd_devices(facts: &Facts, container: &ContainerFacts, found: Vec<Observations>) -> Observations {
    let has_gpu = facts.inventory().gpus.iter().any(has_kfd);
    Observations::all(found, || match (container.cheap.has_kfd, has_gpu) {
        (true, false) => Observations::usual_warning("/dev/kfd is in this container, but no AMD GPU"),
        (_, true) => Observations::ok("/dev/kfd exists, and the driver lists AMD GPUs"),
        (false, false) => Observations::note("no AMD device"),
    })
}

fn left_out(facts: &Facts, _: &ContainerFacts, found: Vec<Observations>) -> Observations {
    let reasons: Vec<&str> = facts
        .inventory()
        .gpus
        .iter()
        .filter_map(|gpu| match &gpu.access {
            Access::Unusable { reason, .. } => Some(reason.as_str()),
            Access::Usable => None,
        })
        .collect();
    Observations::all(found, || match reasons.as_slice() {
        [] => Observations::ok("all GPUs that the drivers list are usable"),
        reasons => Observations::note(format!("not used: {}", reasons.join("; "))),
    })
}

/// Whether the next start changes slurm.conf or the prolog, which isolate the GPUs.
fn is_isolation_pending(facts: &Facts) -> bool {
    let is_prolog_file = |name: &String| ["slurm.conf", "prolog"].contains(&name.as_str());
    facts.root.read().stale_files.as_ref().is_ok_and(|files| files.iter().any(is_prolog_file))
}
