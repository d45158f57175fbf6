//! Metrics of the GPUs of all vendors (`slurminit_gpu_*`), and of NVIDIA's under the names of
//! utkuozdemir/nvidia_gpu_exporter (`nvidia_smi_*`).
//!
//! Units are Prometheus's own: bytes, watts, joules, hertz, degrees Celsius, ratios from 0 to 1.

use super::exposition::{Family, Kind, Value};
use super::mig;
use faults::fault::FaultKind;
use faults::report::GpuReport;
use model::inventory::{ComputeMode, PciAddress};

/// Name, type and help text of a family, and its value for a GPU.
pub(super) type Row = (&'static str, Kind, &'static str, fn(&GpuReport) -> Value);

use Kind::{Counter, Gauge};

const MIB: u64 = 1 << 20;

const MEASURED: [Row; 42] = [
    ("utilization_gpu_ratio", Gauge, "Fraction of time in which a kernel ran.", |gpu| {
        percent(gpu.condition.utilization)
    }),
    ("utilization_memory_ratio", Gauge, "Fraction of time in which memory was read or written.", |gpu| {
        percent(gpu.readings.memory_utilization)
    }),
    ("memory_used_bytes", Gauge, "Memory in use.", |gpu| {
        gpu.condition.memory_mib.map(|(used, _)| used.saturating_mul(MIB)).into()
    }),
    ("memory_total_bytes", Gauge, "Total memory.", |gpu| {
        gpu.condition.memory_mib.map(|(_, total)| total.saturating_mul(MIB)).into()
    }),
    ("memory_free_bytes", Gauge, "Free memory, without the memory that the driver reserves.", |gpu| {
        free_mib(gpu).map(|free| free.saturating_mul(MIB)).into()
    }),
    ("temperature_gpu", Gauge, "The temperature in degrees Celsius.", |gpu| gpu.condition.temperature.into()),
    ("power_draw_watts", Gauge, "The power draw.", |gpu| thousandth(gpu.readings.power_mw)),
    ("enforced_power_limit_watts", Gauge, "The enforced power limit.", |gpu| thousandth(gpu.readings.power_limit_mw)),
    ("power_limit_watts", Gauge, "The configured power limit.", |gpu| thousandth(gpu.readings.set_power_limit_mw)),
    ("power_default_limit_watts", Gauge, "The default power limit of the model.", |gpu| {
        thousandth(gpu.readings.default_power_limit_mw)
    }),
    ("energy_joules_total", Counter, "Energy consumed since the driver was loaded.", |gpu| {
        thousandth(gpu.readings.energy_mj)
    }),
    ("fan_speed_ratio", Gauge, "The fan speed as a fraction of its maximum.", |gpu| percent(gpu.readings.fan_percent)),
    ("pstate", Gauge, "The performance state, 0 (fastest) to 15.", |gpu| gpu.readings.pstate.into()),
    ("clocks_current_graphics_clock_hz", Gauge, "The graphics clock.", |gpu| hertz(gpu.readings.clocks.graphics)),
    ("clocks_current_sm_clock_hz", Gauge, "The clock of the multiprocessors.", |gpu| hertz(gpu.readings.clocks.sm)),
    ("clocks_current_memory_clock_hz", Gauge, "The clock of the memory.", |gpu| hertz(gpu.readings.clocks.memory)),
    ("clocks_current_video_clock_hz", Gauge, "The clock of the video engines.", |gpu| hertz(gpu.readings.clocks.video)),
    ("clocks_max_graphics_clock_hz", Gauge, "The highest graphics clock.", |gpu| {
        hertz(gpu.readings.highest_clocks.graphics)
    }),
    ("clocks_max_sm_clock_hz", Gauge, "The highest clock of the multiprocessors.", |gpu| {
        hertz(gpu.readings.highest_clocks.sm)
    }),
    ("clocks_max_memory_clock_hz", Gauge, "The highest clock of the memory.", |gpu| {
        hertz(gpu.readings.highest_clocks.memory)
    }),
    ("clocks_event_reasons_active", Gauge, "Reasons that limit the clocks, as NVML's bit mask.", |gpu| {
        gpu.readings.clock_event_reasons.into()
    }),
    ("clocks_event_reasons_gpu_idle", Gauge, "Whether the clocks are low because the GPU is idle.", |gpu| bit(gpu, 0)),
    (
        "clocks_event_reasons_applications_clocks_setting",
        Gauge,
        "Whether the setting for application clocks limits the clocks.",
        |gpu| bit(gpu, 1),
    ),
    ("clocks_event_reasons_sw_power_cap", Gauge, "Whether the power limit lowers the clocks.", |gpu| bit(gpu, 2)),
    ("clocks_event_reasons_hw_slowdown", Gauge, "Whether the hardware lowers the clocks.", |gpu| bit(gpu, 3)),
    ("clocks_event_reasons_sync_boost", Gauge, "Whether a sync boost group lowers the clocks.", |gpu| bit(gpu, 4)),
    (
        "clocks_event_reasons_sw_thermal_slowdown",
        Gauge,
        "Whether the driver lowers the clocks because of heat.",
        |gpu| bit(gpu, 5),
    ),
    (
        "clocks_event_reasons_hw_thermal_slowdown",
        Gauge,
        "Whether the hardware lowers the clocks because of heat.",
        |gpu| bit(gpu, 6),
    ),
    (
        "clocks_event_reasons_hw_power_brake_slowdown",
        Gauge,
        "Whether the power supply's brake signal lowers the clocks.",
        |gpu| bit(gpu, 7),
    ),
    ("ecc_mode_current", Gauge, "Whether the memory's error correction is on.", |gpu| {
        gpu.condition.ecc.map(|ecc| ecc.is_on).into()
    }),
    (
        "ecc_errors_uncorrected_volatile_total",
        Kind::Untyped,
        "Uncorrected errors since the driver was loaded.",
        |gpu| gpu.condition.ecc.and_then(|ecc| ecc.uncorrected).into(),
    ),
    ("ecc_errors_corrected_aggregate_total", Kind::Untyped, "Corrected errors over the GPU's lifetime.", |gpu| {
        gpu.readings.ecc_corrected.into()
    }),
    (
        "ecc_errors_uncorrected_aggregate_total",
        Kind::Untyped,
        "Uncorrected errors over the GPU's lifetime; for AMD, since the driver was loaded.",
        |gpu| gpu.readings.ecc_uncorrected.or(gpu.readings.ras_uncorrected).into(),
    ),
    ("remapped_rows_correctable", Gauge, "Rows remapped after correctable errors.", |gpu| {
        gpu.readings.remapped_rows.map(|rows| rows.correctable).into()
    }),
    ("remapped_rows_uncorrectable", Gauge, "Rows remapped after uncorrectable errors.", |gpu| {
        gpu.readings.remapped_rows.map(|rows| rows.uncorrectable).into()
    }),
    ("remapped_rows_pending", Gauge, "Whether row remaps are pending until a reset.", |gpu| {
        gpu.readings.remapped_rows.map(|rows| rows.is_pending).into()
    }),
    ("remapped_rows_failure", Gauge, "Whether a row remap failed for lack of spare rows.", |gpu| {
        gpu.readings.remapped_rows.map(|rows| rows.has_failed).into()
    }),
    (
        "gpu_recovery_action",
        Gauge,
        "The recovery action requested by the driver (NVML's number): 0 none, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset, \
         5 restore the IMEX domain, 6 bus reset, 7 system reboot.",
        |gpu| gpu.readings.recovery_action.into(),
    ),
    (
        "fabric_state",
        Gauge,
        "State of the GPU's registration with its NVLink fabric: 1 not started, 2 in progress, 3 completed.",
        |gpu| gpu.readings.fabric_state.into(),
    ),
    ("compute_mode", Gauge, "Compute mode: 0 shared, 2 prohibited, 3 one process.", |gpu| {
        let number = |mode| match mode {
            ComputeMode::Shared => 0_u32,
            ComputeMode::Prohibited => 2,
            ComputeMode::Exclusive => 3,
        };
        gpu.condition.compute_mode.map(number).into()
    }),
    ("persistence_mode", Gauge, "Whether the driver remains loaded while the GPU is unused.", |gpu| {
        gpu.condition.is_persistent.into()
    }),
    ("compute_apps", Gauge, "Compute processes on the GPU.", |gpu| {
        gpu.condition.processes.as_ref().map(|all| all.len() as u64).into()
    }),
];

/// Families of the PCI Express link.
const LINK: [Row; 6] = [
    ("pcie_link_gen_current", Gauge, "The current generation of the PCI Express link.", |gpu| {
        gpu.condition.pcie.map(|link| link.generation).into()
    }),
    ("pcie_link_gen_max", Gauge, "The highest PCI Express generation that GPU and machine support.", |gpu| {
        gpu.condition.pcie.map(|link| link.highest_generation).into()
    }),
    ("pcie_link_width_current", Gauge, "The current number of lanes of the PCI Express link.", |gpu| {
        gpu.condition.pcie.map(|link| link.lanes).into()
    }),
    ("pcie_link_width_max", Gauge, "The highest number of PCI Express lanes that GPU and machine support.", |gpu| {
        gpu.condition.pcie.map(|link| link.most_lanes).into()
    }),
    ("pcie_throughput_tx_bytes_per_second", Gauge, "Data sent by the GPU over PCI Express.", |gpu| {
        gpu.readings.pcie_traffic.sent.into()
    }),
    ("pcie_throughput_rx_bytes_per_second", Gauge, "Data received by the GPU over PCI Express.", |gpu| {
        gpu.readings.pcie_traffic.received.into()
    }),
];

/// The measurements of all vendors: the name after `slurminit_gpu_`, and the name of the same value after `nvidia_smi_`.
const NEUTRAL: [(&str, &str); 14] = [
    ("utilization_ratio", "utilization_gpu_ratio"),
    ("memory_utilization_ratio", "utilization_memory_ratio"),
    ("memory_used_bytes", "memory_used_bytes"),
    ("memory_total_bytes", "memory_total_bytes"),
    ("memory_free_bytes", "memory_free_bytes"),
    ("temperature_celsius", "temperature_gpu"),
    ("power_watts", "power_draw_watts"),
    ("power_limit_watts", "enforced_power_limit_watts"),
    ("energy_joules_total", "energy_joules_total"),
    ("fan_ratio", "fan_speed_ratio"),
    ("clock_hertz", "clocks_current_graphics_clock_hz"),
    ("memory_clock_hertz", "clocks_current_memory_clock_hz"),
    ("memory_errors_uncorrected", "ecc_errors_uncorrected_aggregate_total"),
    ("processes", "compute_apps"),
];

/// Prefix of the names of clock limit reasons, and their prefix before NVIDIA's driver 535. Dashboards query either.
const REASONS: [&str; 2] = ["clocks_event_reasons", "clocks_throttle_reasons"];

/// The metric families of the GPUs. Measurements are left out if the last sample is too old.
pub(super) fn families(gpus: &[GpuReport], is_fresh: bool) -> Vec<Family> {
    let mut all = vec![info("slurminit_gpu_info", gpus, |gpu| gpu.identity.vendor.as_str())];
    let named = NEUTRAL.iter().filter_map(|(name, known)| Some((name, MEASURED.iter().find(|row| row.0 == *known)?)));
    all.extend(named.filter(|_| is_fresh).map(|(name, row)| measured(format!("slurminit_gpu_{name}"), row, gpus)));
    let nvidia: Vec<GpuReport> = gpus.iter().filter(|gpu| gpu.identity.vendor.traits().has_cuda).cloned().collect();
    if !nvidia.is_empty() {
        all.extend(of_nvidia(&nvidia, is_fresh));
    }
    all
}

fn of_nvidia(gpus: &[GpuReport], is_fresh: bool) -> Vec<Family> {
    let named = |name: &str| format!("nvidia_smi_{name}");
    let mut index = Family::new(named("index"), Gauge, "The driver's index of the GPU.");
    gpus.iter().for_each(|gpu| index.add(&[("uuid", &uuid(gpu))], gpu.identity.index));
    let success = Family::new(named("last_collect_success"), Gauge, "Whether the agent's report is recent.");
    let mut all = vec![info("nvidia_smi_gpu_info", gpus, |_| ""), index, success.with(&[], is_fresh)];
    if is_fresh {
        let rows = MEASURED.iter().chain(&LINK).map(|row| (row.0.to_owned(), row));
        let older = MEASURED.iter().filter_map(|row| {
            let reason = row.0.strip_prefix(REASONS[0])?;
            Some((format!("{}{reason}", REASONS[1]), row))
        });
        all.extend(rows.chain(older).map(|(name, row)| measured(named(&name), row, gpus)));
        all.extend(mig::families(gpus));
        all.extend(processes(gpus));
    }
    all.extend(xids(gpus));
    all
}

fn measured(name: String, (_, kind, help, value): &Row, gpus: &[GpuReport]) -> Family {
    let kind = if *kind == Kind::Untyped && !name.ends_with("_total") { Gauge } else { *kind };
    let mut family = Family::new(name, kind, help);
    gpus.iter().for_each(|gpu| family.add(&[("uuid", &uuid(gpu))], value(gpu)));
    family
}

/// The properties of each GPU as labels. Empty labels are left out.
fn info(name: &str, gpus: &[GpuReport], vendor: fn(&GpuReport) -> &'static str) -> Family {
    let mut info = Family::new(name, Gauge, "Properties of the GPU, as labels.");
    for gpu in gpus {
        let (uuid, number) = (uuid(gpu), gpu.identity.index.to_string());
        let address = gpu.identity.pci_address.as_ref().map(bus_id).unwrap_or_default();
        let model = gpu.identity.model.as_deref().unwrap_or_default();
        let device = gpu.identity.file.as_deref().unwrap_or_default();
        let identity = [("uuid", uuid.as_str()), ("vendor", vendor(gpu)), ("index", &number), ("device", device)];
        info.add(&[&identity[..], &[("name", model), ("pci_bus_id", &address)]].concat(), 1_u64);
    }
    info
}

fn processes(gpus: &[GpuReport]) -> Vec<Family> {
    let mut info =
        Family::new("nvidia_smi_compute_app_info", Gauge, "A process on the GPU, by its PID in the container.");
    let mut used = Family::new("nvidia_smi_compute_app_used_memory_bytes", Gauge, "GPU memory used by a process.");
    for gpu in gpus {
        for process in gpu.condition.processes.iter().flatten() {
            let (uuid, pid) = (uuid(gpu), process.pid.to_string());
            info.add(&[("uuid", &uuid), ("pid", &pid)], 1_u64);
            used.add(&[("uuid", &uuid), ("pid", &pid)], process.memory_mib.map(|mib| mib.saturating_mul(MIB)));
        }
    }
    let has_processes = gpus.iter().any(|gpu| gpu.condition.processes.is_some());
    let success = Family::new(
        "nvidia_smi_compute_apps_last_collect_success",
        Gauge,
        "Whether the list of processes is available.",
    );
    vec![info, used, success.with(&[], has_processes)]
}

fn xids(gpus: &[GpuReport]) -> [Family; 2] {
    let mut total = Family::new("nvidia_smi_xid_errors_total", Counter, "XID errors since the start of the container.");
    let mut last = Family::new("nvidia_smi_xid_last_timestamp_seconds", Gauge, "Time of the last XID error.");
    for gpu in gpus {
        for (kind, count) in &gpu.counts {
            let FaultKind::Xid(xid) = kind else { continue };
            let (uuid, xid) = (uuid(gpu), xid.to_string());
            total.add(&[("uuid", &uuid), ("xid", &xid)], count.count);
            last.add(&[("uuid", &uuid), ("xid", &xid)], count.last);
        }
    }
    [total, last]
}

/// The value of the `uuid` label: the UUID in lower case without `GPU-`; else the PCI address, with the render node because partitions of a
/// GPU share the address; else the index.
pub(super) fn uuid(gpu: &GpuReport) -> String {
    let own = gpu.identity.uuid.as_deref().map(|uuid| bare(uuid, "gpu-"));
    let node =
        || gpu.identity.file.as_deref().and_then(|file| file.strip_prefix("/dev/dri/")).map(|node| format!("-{node}"));
    let address =
        || gpu.identity.pci_address.as_ref().map(|address| format!("{address}{}", node().unwrap_or_default()));
    own.filter(|uuid| !uuid.is_empty()).or_else(address).unwrap_or_else(|| gpu.identity.index.to_string())
}

/// A UUID in lower case, without its prefix (`GPU-` or `MIG-`).
pub(super) fn bare(uuid: &str, kind: &str) -> String {
    let lower = uuid.trim().to_lowercase();
    lower.strip_prefix(kind).map_or_else(|| lower.clone(), str::to_owned)
}

/// The PCI address as NVML writes it: `00000000:17:00.0`.
pub(super) fn bus_id(address: &PciAddress) -> String {
    format!("{:0>16}", address.to_string().to_uppercase())
}

/// Free memory in MiB. If the driver does not report it, this is the total minus the memory in use.
pub(super) fn free_mib(gpu: &GpuReport) -> Option<u64> {
    let rest = || gpu.condition.memory_mib.map(|(used, total)| total.saturating_sub(used));
    gpu.condition.memory_free_mib.or_else(rest)
}

fn percent(percent: Option<u32>) -> Value {
    percent.map(|percent| f64::from(percent) / 100.0).into()
}

#[expect(clippy::cast_precision_loss, reason = "a measurement needs no more digits")]
fn thousandth(value: Option<u64>) -> Value {
    value.map(|value| value as f64 / 1000.0).into()
}

fn hertz(mhz: Option<u32>) -> Value {
    mhz.map(|mhz| u64::from(mhz) * 1_000_000).into()
}

/// A bit of `nvmlClocksEventReason...`.
fn bit(gpu: &GpuReport, bit: u32) -> Value {
    gpu.readings.clock_event_reasons.map(|reasons| reasons >> bit & 1 == 1).into()
}
