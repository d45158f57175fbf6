//! GPUs under load: memory, processes, speed.

use crate::entry::{Check, Entry};
use crate::facts::{Facts, Side};
use model::inventory::{ComputeMode, Condition, Gpu, GpuProcess, Observations, Obstacle, Slowdown, Vendor};
use model::queued_job::QueuedJob;

/// At or above this percentage of used memory, doctor reports a GPU as full.
const FULL_PERCENT: u64 = 95;
/// At or above this utilization, in percent, a GPU is expected to use the full speed of its link.
const BUSY_PERCENT: u32 = 50;
/// The driver itself may use this much memory of a GPU, in MiB.
const DRIVER_MEMORY_MIB: u64 = 1024;
/// How long a program may load data before it uses the GPU, in seconds.
const LOADING_SECONDS: u64 = 60;

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "gpu-memory",
        symptoms: &["`RuntimeError: CUDA out of memory`", "`CUDA error: out of memory`"],
        examines: "the memory of each GPU, through NVML",
        cause: "the program needs more memory than the GPU has, or other processes use the GPU's memory",
        fix: "list the processes with `nvidia-smi`; use a smaller batch or mixed precision, and one job per GPU (`--gres=gpu:1`)",
        check: Check::Anywhere(|facts| for_each_gpu(facts, memory)),
    },
    Entry {
        id: "gpu-processes",
        symptoms: &["GPU already in use by another process", "`CUDA-capable device(s) is/are busy or unavailable`"],
        examines: "the processes, memory and compute mode of each GPU (NVML), and the running jobs with GPUs",
        cause: "the GPU is used outside of Slurm or by a job without `--gres`, or its compute mode allows one process or none",
        fix: "list the processes with `nvidia-smi pmon -c 1` on the host, and run them as jobs, or pass other GPUs to this container; to allow several processes, run `sudo nvidia-smi -c DEFAULT` on the host",
        check: Check::Anywhere(|facts| Observations::either(conditions(facts).map(|all| processes(all, facts)))),
    },
    Entry {
        id: "gpu-speed",
        symptoms: &["GPU utilization low despite heavy workload"],
        examines: "throttle reasons, temperature and PCI Express link of each GPU (NVML)",
        cause: "heat, the power supply, or a degraded PCI Express link",
        fix: "see `nvidia-smi -q -d PERFORMANCE,TEMPERATURE`; check cooling and power; re-seat the card; or lower the power limit: \
                 `sudo nvidia-smi -pl WATTS` on the host",
        check: Check::Anywhere(|facts| for_each_gpu(facts, speed_or_note)),
    },
    Entry {
        id: "idle-gpus",
        symptoms: &["GPU utilization is 0%", "Code not using GPU"],
        examines: "the running jobs with GPUs, and the processes and utilization of all GPUs (NVML)",
        cause: "the program does not use the GPU of its job: no `.cuda()`, a CPU build of PyTorch, a device that is not cuda:0",
        fix: "check with `srun --overlap --jobid=JOBID python3 -c 'import torch; print(torch.cuda.is_available())'`; use `.to(\"cuda\")` in the program",
        check: Check::Container(|facts, container| {
            let jobs = container.slurm.gpu_jobs.as_ref().map_err(|why| Observations::could_not_look(why.as_str()));
            Observations::either(conditions(facts).and_then(|all| Ok(idle(all, jobs?))))
        }),
    },
    Entry {
        id: "persistence",
        symptoms: &["GPU state lost between container restarts", "the first use of a GPU takes seconds"],
        examines: "the persistence mode of each GPU, through NVML",
        cause: "without persistence mode the driver unloads an unused GPU and initializes it again at the next use",
        fix: "`sudo systemctl enable --now nvidia-persistenced`, or `sudo nvidia-smi -pm 1`, on the host",
        check: Check::Anywhere(|facts| Observations::either(conditions(facts).map(persistence))),
    },
    Entry {
        id: "numa",
        symptoms: &[
            "`successful NUMA node read from SysFS had negative value (-1), but there must be at least one NUMA node, so \
             returning NUMA node zero`",
        ],
        examines: "numa_node of each GPU in /sys/bus/pci/devices",
        cause: "the firmware does not report the GPU's NUMA node (-1 means unknown); the usual cause is a virtual machine \
                without virtual NUMA",
        fix: "none needed on a machine with one socket, where TensorFlow's message is harmless; otherwise turn on virtual NUMA (VMware: `chipset.motherboardLayout = \"acpi\"`), or update the firmware",
        check: Check::Anywhere(numa),
    },
];

/// The result of `check` for each GPU, or of [`unresponsive_gpu`] if the GPU cannot be queried; without conditions, the reason.
fn for_each_gpu(facts: &Facts, check: fn(&Condition) -> Observations) -> Observations {
    let observe =
        |condition: &Condition| unresponsive_gpu(condition, vendor(facts)).unwrap_or_else(|| check(condition));
    let observe_all = |conditions: &[Condition]| Observations::all(conditions.iter().map(observe), no_gpu);
    Observations::either(conditions(facts).map(observe_all))
}

/// The observation about a GPU that cannot be queried: it is lost, needs a reset, or NVML cannot open it. `None` for any
/// other GPU.
pub(crate) fn unresponsive_gpu(condition: &Condition, vendor: Vendor) -> Option<Observations> {
    let index = condition.index;
    let obstacle = condition.obstacle?;
    let (cause, fix) = obstacle.cause_and_fix(vendor);
    Some(match obstacle {
        Obstacle::Lost => Observations::fail(format!("GPU {index} is lost or needs a reset"), cause, fix),
        _ => Observations::could_not_look(format!("NVML cannot open GPU {index}")),
    })
}

/// The vendor of the GPUs whose condition is known.
fn vendor(facts: &Facts) -> Vendor {
    facts.inventory().cuda_gpus().next().map(|gpu| gpu.vendor).unwrap_or_default()
}

/// The condition of the GPUs. Without an NVIDIA GPU, an error of NVML is ignored.
fn conditions(facts: &Facts) -> Result<&[Condition], Observations> {
    let has_gpu = facts.inventory().cuda_gpus().next().is_some();
    match &facts.root.read().conditions {
        Err(why) if has_gpu => Err(Observations::could_not_look(format!("NVML failed: {why}"))),
        Ok(all) if !all.is_empty() => Ok(all),
        _ => Err(no_gpu()),
    }
}

fn no_gpu() -> Observations {
    Observations::note("no NVIDIA GPU found")
}

fn format_processes(processes: &[GpuProcess]) -> String {
    let format_process = |process: &GpuProcess| match process.memory_mib {
        Some(memory) => format!("{} ({memory} MiB)", process.pid),
        None => process.pid.to_string(),
    };
    processes.iter().map(format_process).collect::<Vec<_>>().join(", ")
}

fn memory(condition: &Condition) -> Observations {
    let index = condition.index;
    let Some((used, total)) = condition.memory_mib.filter(|(_, total)| *total > 0) else {
        return Observations::could_not_look(format!("GPU {index} does not report its memory"));
    };
    let description = format!("GPU {index} uses {used} of {total} MiB");
    if used * 100 < total * FULL_PERCENT {
        return Observations::ok(description);
    }
    let processes = condition.processes.as_deref().unwrap_or_default();
    let users = match processes {
        [] => "processes that NVML does not list".to_owned(),
        processes => format!("processes {}", format_processes(processes)),
    };
    Observations::usual_warning(format!("{description}: {users}"))
}

fn processes(all: &[Condition], facts: &Facts) -> Observations {
    let jobs = match &facts.side {
        Side::Host(_) => None,
        Side::Container(container) => container.slurm.gpu_jobs.as_ref().ok().map(Vec::len),
    };
    let check = |it: &Condition| unresponsive_gpu(it, vendor(facts)).unwrap_or_else(|| gpu_conflict(it, jobs));
    Observations::all(all.iter().map(check), no_gpu)
}

/// Checks the GPU's compute mode, and whether the GPU is used outside of jobs. `jobs` is the number of jobs with GPUs; `None` if unknown.
fn gpu_conflict(condition: &Condition, jobs: Option<usize>) -> Observations {
    let index = condition.index;
    match condition.compute_mode {
        Some(ComputeMode::Prohibited) => {
            return Observations::usual_fault(format!("GPU {index} allows no compute processes (PROHIBITED)"));
        }
        Some(ComputeMode::Exclusive) if condition.processes.as_ref().is_some_and(|all| !all.is_empty()) => {
            let processes = format_processes(condition.processes.as_deref().unwrap_or_default());
            return Observations::usual_warning(format!(
                "GPU {index} allows one process (EXCLUSIVE_PROCESS), and is in use: processes {processes}"
            ));
        }
        _ => {}
    }
    if condition.processes.is_none() && condition.memory_mib.is_none() {
        return Observations::could_not_look(format!("the driver reports neither processes nor memory of GPU {index}"));
    }
    let processes = condition.processes.as_deref().unwrap_or_default();
    let used = condition.memory_mib.map_or(0, |(used, _)| used);
    let is_used = !processes.is_empty() || used > DRIVER_MEMORY_MIB;
    let usage = match processes {
        [] => format!("{used} MiB are in use"),
        processes => format!("processes {}", format_processes(processes)),
    };
    match (is_used, jobs) {
        (false, _) => Observations::ok(format!("GPU {index} is free")),
        (true, Some(0)) => {
            Observations::usual_warning(format!("GPU {index} is in use, but no Slurm job has a GPU: {usage}"))
        }
        (true, Some(_)) => Observations::ok(format!("GPU {index} is in use, and Slurm jobs have GPUs: {usage}")),
        (true, None) => Observations::note(format!("GPU {index} is in use: {usage}")),
    }
}

fn speed_or_note(condition: &Condition) -> Observations {
    speed(condition).unwrap_or_else(|| {
        Observations::note(format!(
            "the driver reports neither throttling nor the PCI Express link of GPU {}",
            condition.index
        ))
    })
}

/// Checks a GPU for throttling, and its PCI Express link; `None` if the driver reports neither.
pub(crate) fn speed(condition: &Condition) -> Option<Observations> {
    let slowdowns = match (&condition.slowdowns, condition.pcie) {
        (None, None) => return None,
        (slowdowns, _) => slowdowns.iter().flatten(),
    };
    let Condition { index, temperature, utilization, .. } = condition;
    let heat = temperature.map_or_else(|| "temperature unknown".to_owned(), |degrees| format!("at {degrees} °C"));
    let of_slowdown = |slowdown: &Slowdown| match slowdown {
        Slowdown::Heat => Observations::warn(
            format!("GPU {index} is throttled, {heat}"),
            "overheating",
            "check fans and air flow; until then lower the power limit: sudo nvidia-smi -pl WATTS on the host",
        ),
        Slowdown::PowerBrake => Observations::warn(
            format!("GPU {index} is throttled by the power supply"),
            "the power brake is active: the power supply is overloaded or has failed",
            "check the power supplies; see nvidia-smi -q -d PERFORMANCE",
        ),
        Slowdown::Hardware => Observations::warn(
            format!("GPU {index} is throttled by its hardware, {heat}"),
            "overheating, or the power draw is too high",
            "see nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE",
        ),
        Slowdown::PowerCap => Observations::hint(
            format!("GPU {index} runs at its power limit"),
            "normal under full load",
            "to change the limit: sudo nvidia-smi -pl WATTS on the host",
        ),
    };
    let busy = utilization.filter(|percent| *percent >= BUSY_PERCENT);
    let narrow = condition.pcie.filter(|link| link.lanes < link.most_lanes).map(|link| {
        Observations::warn(
            format!("GPU {index} has {} of {} PCI Express lanes", link.lanes, link.most_lanes),
            "the card is not seated properly, or the slot has fewer lanes",
            "re-seat the card, or use another slot; see nvidia-smi -q | grep -A 2 'Link Width'",
        )
    });
    // A GPU with little work lowers the speed of its link, but not the number of lanes.
    let slow =
        condition.pcie.zip(busy).filter(|(link, _)| link.generation < link.highest_generation).map(|(link, busy)| {
            Observations::warn(
                format!(
                    "GPU {index} uses PCI Express generation {} at a utilization of {busy} %, but supports generation {}",
                    link.generation, link.highest_generation
                ),
                "the link has errors, or the firmware limits its speed",
                "see dmesg | grep -i -e aer -e pcie on the host; re-seat the card",
            )
        });
    let percent = utilization.map_or_else(|| "unknown".to_owned(), |percent| format!("{percent} %"));
    let clocks = if condition.slowdowns.is_some() { "is not throttled" } else { "does not report throttling" };
    Some(Observations::all(slowdowns.map(of_slowdown).chain(narrow).chain(slow), || {
        Observations::ok(format!("GPU {index} {clocks}, {heat}, utilization {percent}"))
    }))
}

fn idle(all: &[Condition], jobs: &[QueuedJob]) -> Observations {
    let is_long = |job: &&QueuedJob| job.seconds() >= Some(LOADING_SECONDS);
    let long: Vec<String> = jobs.iter().filter(is_long).map(|job| job.number.to_string()).collect();
    let is_working = |it: &Condition| {
        it.utilization.is_some_and(|percent| percent > 0) || it.processes.as_ref().is_some_and(|all| !all.is_empty())
    };
    let working = all.iter().filter(|condition| is_working(condition)).count();
    let percents = all.iter().map(|it| it.utilization.map_or_else(|| "?".to_owned(), |percent| format!("{percent} %")));
    let percents = percents.collect::<Vec<_>>().join(", ");
    if long.is_empty() {
        return Observations::ok(format!(
            "no running job has had a GPU for a minute or longer; utilization: {percents}"
        ));
    }
    if working > 0 {
        return Observations::ok(format!(
            "jobs with GPUs for over a minute: {}; active GPUs: {working} of {}; utilization: {percents}",
            long.join(", "),
            all.len()
        ));
    }
    Observations::usual_warning(format!(
        "jobs with GPUs for over a minute: {}, but no GPU is active; utilization: {percents}",
        long.join(", ")
    ))
}

fn persistence(all: &[Condition]) -> Observations {
    persistence_of(&all.iter().collect::<Vec<_>>())
        .unwrap_or_else(|| Observations::note("the driver does not report the persistence mode"))
}

/// The observation about persistence mode; `None` if the driver does not report the mode.
pub(crate) fn persistence_of(all: &[&Condition]) -> Option<Observations> {
    if all.iter().all(|it| it.is_persistent.is_none()) {
        return None;
    }
    let off: Vec<String> =
        all.iter().filter(|it| it.is_persistent == Some(false)).map(|it| it.index.to_string()).collect();
    if off.is_empty() {
        let on = all.iter().filter(|it| it.is_persistent == Some(true)).map(|it| it.index.to_string());
        let on = on.collect::<Vec<_>>().join(", ");
        return Some(Observations::ok(format!("persistence mode is on for GPU {on}")));
    }
    Some(Observations::hint(
        format!("persistence mode is off for GPU {}", off.join(", ")),
        "the driver unloads an unused GPU: clock and power settings are lost, and the next use starts slower",
        "sudo systemctl enable --now nvidia-persistenced, or sudo nvidia-smi -pm 1, on the host",
    ))
}

fn numa(facts: &Facts) -> Observations {
    let pci_gpus = || facts.inventory().gpus.iter().filter(|gpu| gpu.pci_address.is_some());
    let name = |gpu: &Gpu| {
        let address = gpu.pci_address.map(|address| address.to_string()).unwrap_or_default();
        format!("{} GPU {} ({address})", gpu.vendor, gpu.index)
    };
    let unknown: Vec<String> = pci_gpus().filter(|gpu| gpu.numa_node.is_none()).map(name).collect();
    if pci_gpus().next().is_none() {
        return Observations::note("no GPU with a PCI address found");
    }
    if unknown.is_empty() {
        return Observations::ok("the NUMA node of each GPU is known");
    }
    let description = format!("unknown NUMA node (-1): {}", unknown.join(", "));
    let sockets = facts.inventory().cpu.sockets.len();
    if sockets > 1 {
        return Observations::usual_warning(format!(
            "{description}, on a machine with {sockets} sockets: Slurm cannot place jobs near their GPU"
        ));
    }
    Observations::usual_hint(description)
}
