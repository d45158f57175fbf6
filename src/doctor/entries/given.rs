//! Container settings: variables of NVIDIA's runtime, GPU shares, limits, and permissions for container images and peer memory.

use crate::entry::{Check, Entry};
use crate::facts::{ContainerFacts, Facts, Limit};
use model::cuda::unmet_condition;
use model::inventory::Observations;

use super::cuda::newest_cuda;

/// The size of /dev/shm, in MiB, that NVIDIA's own images request (`--shm-size=1g`, NGC's notes on PyTorch).
const MIN_SHARED_MIB: u64 = 1024;
/// The size, in bytes, of the buffers that programs typically register for RDMA.
const MIN_LOCKED_BYTES: u64 = 1024 << 20;
/// The kernel's default stack limit in bytes, which is also Docker's.
const DEFAULT_STACK_BYTES: u64 = 8 << 20;
/// The values allowed in NVIDIA_DRIVER_CAPABILITIES (NVIDIA container toolkit, "Driver Capabilities").
const CAPABILITIES: [&str; 8] = ["compute", "compat32", "graphics", "utility", "video", "display", "ngx", "all"];

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "nvidia-require",
        symptoms: &["`nvidia-container-cli: requirement error: unsatisfied condition: cuda>=...`"],
        examines: "NVIDIA_REQUIRE_CUDA, and the driver's version and CUDA version",
        cause: "the image requires a newer CUDA than the host's driver supports; with NVIDIA_DISABLE_REQUIRE or CDI, this requirement is not checked, and the container starts",
        fix: "install a newer driver on the host, or use an image with an older CUDA; then remove NVIDIA_DISABLE_REQUIRE",
        check: Check::Container(|facts, _| driver_requirement(facts)),
    },
    Entry {
        id: "nvidia-variables",
        symptoms: &[
            "`unsupported capabilities found in ...` when the container is created",
            "`cannot set MIG_CONFIG_DEVICES in non privileged container`",
        ],
        examines: "NVIDIA_DRIVER_CAPABILITIES, NVIDIA_MIG_CONFIG_DEVICES, NVIDIA_MIG_MONITOR_DEVICES",
        cause: "NVIDIA's runtime rejects an unknown capability (`gpu` belongs only in compose's `capabilities:`); the NVIDIA_MIG_ variables \
                let root in this container change or monitor the host's MIG instances, and slurminit does not need them",
        fix: "set NVIDIA_DRIVER_CAPABILITIES=compute,utility; remove NVIDIA_MIG_CONFIG_DEVICES and NVIDIA_MIG_MONITOR_DEVICES",
        check: Check::Container(|facts, _| variables(facts)),
    },
    Entry {
        id: "virtual-gpu",
        symptoms: &[
            "a vGPU: CUDA is slow or stops after a while (`nvidia-smi -q` reports the License Status `Unlicensed`)",
            "an A-series or B-series vGPU: `no CUDA-capable device is detected`",
        ],
        examines: "the model name of each NVIDIA GPU: that of a vGPU ends with its profile (`A100-40C`)",
        cause: "the machine is a VM with a vGPU; only C-series and Q-series profiles support CUDA, and without a licence the driver throttles the \
                vGPU and later refuses CUDA",
        fix: "check the licence in the VM (`nvidia-smi -q | grep -A 2 'vGPU Software'`); if the profile is not of the C-series or Q-series, request one from the hypervisor's administrator",
        check: Check::Anywhere(virtual_gpus),
    },
    Entry {
        id: "gpu-share",
        symptoms: &[
            "`nvidia-smi` shows less memory than the card has",
            "out of memory though the GPU is nearly empty, in a pod with a share of a GPU (HAMi, gpushare, MPS)",
        ],
        examines: "the variables and the preloaded library of GPU-sharing schemes",
        cause: "the container has a share of a GPU, but Slurm counts a whole GPU",
        fix: "run one job at a time (`--gres=gpu:1`), within the share; for more, request a whole GPU in the pod",
        check: Check::Container(gpu_share),
    },
    Entry {
        id: "shared-memory",
        symptoms: &[
            "`DataLoader worker (pid ...) is killed by signal: Bus error`, `out of shared memory`",
            "NCCL: `Error while creating shared memory segment`",
        ],
        examines: "the size of /dev/shm",
        cause: "Docker gives a container 64 MiB of shared memory; PyTorch's DataLoader workers and NCCL need 1 GiB or more",
        fix: "`docker run --shm-size=1g ...`; compose: `shm_size: 1gb`; Kubernetes: an emptyDir with `medium: Memory` at /dev/shm",
        check: Check::Container(shared_memory),
    },
    Entry {
        id: "locked-memory",
        symptoms: &[
            "`ibv_reg_mr` or `ibv_create_cq` fails with `Cannot allocate memory`",
            "NCCL falls back to sockets",
        ],
        examines: "the limit on locked memory (RLIMIT_MEMLOCK), and whether /dev/infiniband exists",
        cause: "buffers for InfiniBand and RoCE are locked in memory, and the limit is too low; a job inherits the limit of the shell that submits it",
        fix: "`docker run --ulimit memlock=-1 ...`; compose: `ulimits: {memlock: -1}`",
        check: Check::Container(|_, container| locked_memory(container)),
    },
    Entry {
        id: "container-images",
        symptoms: &[
            "`srun --container`: `this container can neither create user namespaces (...) nor run PRoot (...)`",
            "a job in a container image is slow with many files",
        ],
        examines: "whether an ordinary user can create user and mount namespaces, or run a program with PRoot",
        cause: "the engine's seccomp profile or AppArmor refuses namespaces; slurminit then uses PRoot, which needs a writable /tmp and \
                slows down system calls on files",
        fix: "`docker run --security-opt seccomp=docker/seccomp-userns.json ...` (AppArmor: also apparmor=unconfined), or install proot in the \
                 image and use `--tmpfs /tmp:mode=1777`",
        check: Check::Container(|_, container| container_images(container)),
    },
    Entry {
        id: "peer-memory",
        symptoms: &["MPICH: `process_vm_readv failed (errno 1)`, or a hang with larger messages"],
        examines: "whether process_vm_readv works, and Yama's ptrace_scope",
        cause: "the seccomp profile of Docker before 23, or Yama (ptrace_scope), refuses process_vm_readv; Open MPI detects that, MPICH does not",
        fix: "none needed: slurminit's TaskProlog sets MPIR_CVAR_CH4_CMA_ENABLE=0, so messages within a node are copied twice; to avoid the extra copy, use Docker 23 or newer and set \
                 kernel.yama.ptrace_scope=0",
        check: Check::Container(|facts, _| peer_memory(facts)),
    },
    Entry {
        id: "stack-limit",
        symptoms: &["`Segmentation fault` in Fortran, OpenMP or deeply recursive programs"],
        examines: "the limit on the stack (RLIMIT_STACK)",
        cause: "the container's stack limit is below the default of 8 MiB; a job inherits the limit of the shell that submits it",
        fix: "`docker run --ulimit stack=67108864 ...`; compose: `ulimits: {stack: 67108864}`; for OpenMP, also set OMP_STACKSIZE",
        check: Check::Container(|_, container| stack(container)),
    },
];

fn driver_requirement(facts: &Facts) -> Observations {
    let Some(requirement) = facts.environment.require_cuda.as_deref() else {
        return Observations::note("NVIDIA_REQUIRE_CUDA is not set; no driver requirement");
    };
    let Some(driver) = facts.inventory().cuda_driver() else { return Observations::note("no NVIDIA driver found") };
    let cuda = newest_cuda(driver);
    let version = driver.version.as_deref();
    if unmet_condition(requirement, cuda.as_deref(), version).is_none() {
        return Observations::ok(format!("the driver meets NVIDIA_REQUIRE_CUDA={requirement}"));
    }
    Observations::usual_warning(format!(
        "driver {} with CUDA up to {} does not meet NVIDIA_REQUIRE_CUDA={requirement}",
        version.unwrap_or("of unknown version"),
        cuda.as_deref().unwrap_or("an unknown version")
    ))
}

fn variables(facts: &Facts) -> Observations {
    let environment = &facts.environment;
    let mig = environment.mig_variables.iter().map(|name| Observations::usual_warning(format!("{name} is set")));
    let capabilities = environment.driver_capabilities.as_deref().unwrap_or_default();
    let unknown =
        capabilities.split(',').map(str::trim).filter(|word| !word.is_empty() && !CAPABILITIES.contains(word));
    let unknown = unknown.map(|word| {
        Observations::usual_warning(format!("unknown value `{word}` in NVIDIA_DRIVER_CAPABILITIES={capabilities}"))
    });
    Observations::all(mig.chain(unknown).collect::<Vec<_>>(), || {
        Observations::ok("no unusual NVIDIA runtime variables")
    })
}

/// The series of a virtual GPU, from the end of its name: `GRID T4-16Q`, `NVIDIA A100-4-20C` (MIG-backed).
fn series(model: &str) -> Option<char> {
    let (_, profile) = model.trim_end().rsplit_once('-')?;
    let series = profile.chars().last().filter(|series| "ABCQ".contains(*series))?;
    let size = profile.strip_suffix(series)?;
    (!size.is_empty() && size.bytes().all(|byte| byte.is_ascii_digit())).then_some(series)
}

fn virtual_gpus(facts: &Facts) -> Observations {
    let models =
        facts.inventory().cuda_gpus().filter_map(|gpu| Some((gpu.model.as_deref()?, series(gpu.model.as_deref()?)?)));
    Observations::all(models.map(|(model, series)| virtual_gpu(model, series)).collect::<Vec<_>>(), || {
        Observations::ok("no vGPU")
    })
}

fn virtual_gpu(model: &str, series: char) -> Observations {
    if matches!(series, 'A' | 'B') {
        return Observations::usual_warning(format!("{model} is a {series}-series vGPU, which does not support CUDA"));
    }
    Observations::usual_hint(format!("{model} is a vGPU (usually a share of a physical GPU)"))
}

fn gpu_share(facts: &Facts, container: &ContainerFacts) -> Observations {
    let environment = facts.environment.gpu_share.map(|name| format!("{name} is set"));
    let library = container.cheap.settings.sharing_library.as_ref().map(|library| format!("{library} is preloaded"));
    let Some(evidence) = environment.or(library) else { return Observations::ok("no GPU sharing detected") };
    Observations::usual_warning(format!("the container has a share of a GPU: {evidence}"))
}

fn container_images(container: &ContainerFacts) -> Observations {
    match &container.namespaces {
        Ok(()) => Observations::ok("jobs can run in container images (with user namespaces)"),
        Err(_) if container.proot.is_ok() => Observations::ok("jobs can run in container images (with PRoot)"),
        Err(why) => Observations::usual_warning(format!(
            "jobs cannot run in container images: no user namespaces ({why}), and no PRoot ({})",
            container.proot.as_ref().err().map_or("", String::as_str)
        )),
    }
}

fn peer_memory(facts: &Facts) -> Observations {
    if !facts.inventory().refuses_peer_memory {
        return Observations::ok("processes of the same user can read each other's memory (process_vm_readv)");
    }
    Observations::usual_hint("process_vm_readv is refused; jobs run with MPIR_CVAR_CH4_CMA_ENABLE=0")
}

fn shared_memory(facts: &Facts, container: &ContainerFacts) -> Observations {
    let Some(mib) = container.cheap.settings.shared_memory_mib else {
        return Observations::note("/dev/shm not found");
    };
    let has_gpu = facts.inventory().usable_gpus().next().is_some();
    if mib >= MIN_SHARED_MIB || !has_gpu {
        return Observations::ok(format!("/dev/shm has {mib} MiB"));
    }
    Observations::usual_hint(format!("/dev/shm has {mib} MiB"))
}

fn format_limit(limit: Limit) -> String {
    match limit {
        Limit::Unlimited => "unlimited".to_owned(),
        Limit::Bytes(bytes) if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
        Limit::Bytes(bytes) => format!("{} KiB", bytes >> 10),
    }
}

fn locked_memory(container: &ContainerFacts) -> Observations {
    let settings = &container.cheap.settings;
    let Some(limit) = settings.locked_memory else { return Observations::note("limits unknown") };
    let description = format!("locked-memory limit: {}", format_limit(limit));
    match limit {
        Limit::Bytes(bytes) if bytes < MIN_LOCKED_BYTES && settings.has_infiniband => {
            Observations::usual_warning(format!("{description}, too low for InfiniBand (/dev/infiniband exists)"))
        }
        _ => Observations::ok(description),
    }
}

fn stack(container: &ContainerFacts) -> Observations {
    let Some(limit) = container.cheap.settings.stack else { return Observations::note("limits unknown") };
    let description = format!("stack limit: {}", format_limit(limit));
    match limit {
        Limit::Bytes(bytes) if bytes < DEFAULT_STACK_BYTES => Observations::usual_warning(description),
        _ => Observations::ok(description),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognizes_virtual_gpu_by_suffix() {
        for (model, expected) in [
            ("GRID A100-40C", Some('C')),
            ("NVIDIA A100-4-20C", Some('C')),
            ("GRID T4-16Q", Some('Q')),
            ("NVIDIA A40-1B", Some('B')),
            ("NVIDIA A100-SXM4-40GB", None),
            ("NVIDIA H200", None),
            ("NVIDIA RTX A6000", None),
            ("Tesla V100-SXM2-16GB", None),
            ("x-C", None),
            ("", None),
        ] {
            assert_eq!(series(model), expected, "{model}");
        }
    }
}
