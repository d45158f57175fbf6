//! Metrics of NVIDIA GPUs under the names of dcgm-exporter.
//!
//! DCGM's units: MHz, MiB, percent, watts, mJ, degrees Celsius. Profiling metrics (`DCGM_FI_PROF_...`) are ratios from 0 to 1.

use super::exposition::{Family, Kind, Value};
use super::gpus::{Row, bus_id, free_mib};
use faults::fault::FaultKind;
use faults::report::GpuReport;
use model::inventory::InstanceReadings;

use Kind::{Counter, Gauge};

const ROWS: [Row; 16] = [
    ("DEV_SM_CLOCK", Gauge, "The clock of the multiprocessors (MHz).", |gpu| gpu.readings.clocks.sm.into()),
    ("DEV_MEM_CLOCK", Gauge, "The clock of the memory (MHz).", |gpu| gpu.readings.clocks.memory.into()),
    ("DEV_GPU_TEMP", Gauge, "The temperature (C).", |gpu| gpu.condition.temperature.into()),
    ("DEV_POWER_USAGE", Gauge, "The power draw (W).", |gpu| watts(gpu.readings.power_mw)),
    ("DEV_POWER_MGMT_LIMIT", Gauge, "The power limit (W).", |gpu| watts(gpu.readings.power_limit_mw)),
    ("DEV_TOTAL_ENERGY_CONSUMPTION", Counter, "Energy consumed since the driver was loaded (mJ).", |gpu| {
        gpu.readings.energy_mj.into()
    }),
    ("DEV_GPU_UTIL", Gauge, "Fraction of time in which a kernel ran (%).", |gpu| gpu.condition.utilization.into()),
    ("DEV_MEM_COPY_UTIL", Gauge, "Fraction of time in which memory was read or written (%).", |gpu| {
        gpu.readings.memory_utilization.into()
    }),
    ("DEV_FB_USED", Gauge, "Memory in use (MiB).", |gpu| gpu.condition.memory_mib.map(|(used, _)| used).into()),
    ("DEV_FB_FREE", Gauge, "Free memory (MiB).", |gpu| free_mib(gpu).into()),
    ("DEV_ECC_DBE_VOL_TOTAL", Counter, "Uncorrected errors since the driver was loaded.", |gpu| {
        gpu.condition.ecc.and_then(|ecc| ecc.uncorrected).into()
    }),
    ("DEV_ECC_DBE_AGG_TOTAL", Counter, "Uncorrected errors over the GPU's lifetime.", |gpu| {
        gpu.readings.ecc_uncorrected.into()
    }),
    ("DEV_CORRECTABLE_REMAPPED_ROWS", Counter, "Rows remapped after correctable errors.", |gpu| {
        gpu.readings.remapped_rows.map(|rows| rows.correctable).into()
    }),
    ("DEV_UNCORRECTABLE_REMAPPED_ROWS", Counter, "Rows remapped after uncorrectable errors.", |gpu| {
        gpu.readings.remapped_rows.map(|rows| rows.uncorrectable).into()
    }),
    ("DEV_ROW_REMAP_FAILURE", Gauge, "Whether a row remap failed for lack of spare rows.", |gpu| {
        gpu.readings.remapped_rows.map(|rows| rows.has_failed).into()
    }),
    ("PROF_PIPE_TENSOR_ACTIVE", Gauge, "Fraction of time in which tensor cores were busy.", |gpu| {
        gpu.readings.tensor_ppm.map(|ppm| f64::from(ppm) / 1e6).into()
    }),
];

/// The metric families of GPUs that support CUDA. Measurements are left out if the last sample is too old.
pub(super) fn families(gpus: &[GpuReport], is_fresh: bool, host: &str) -> Vec<Family> {
    let named = |name: &str| format!("DCGM_FI_{name}");
    let nvidia = || gpus.iter().filter(|gpu| gpu.identity.vendor.traits().has_cuda);
    let rows = ROWS.iter().filter(|_| is_fresh);
    let mut families: Vec<Family> = rows
        .map(|(name, kind, help, value)| {
            let mut family = Family::new(named(name), *kind, help);
            let instance_value = INSTANCE_VALUES.iter().find(|(of, _)| of == name).map(|(_, value)| value);
            for gpu in nvidia() {
                let Some(instance_value) = instance_value.filter(|_| !gpu.readings.instances.is_empty()) else {
                    with_labels(gpu, host, None, |labels| family.add(labels, value(gpu)));
                    continue;
                };
                // The family ignores further compute instances of a GPU instance.
                for instance in &gpu.readings.instances {
                    with_labels(gpu, host, Some(instance), |labels| family.add(labels, instance_value(instance)));
                }
            }
            family
        })
        .collect();
    let mut xid = Family::new(named("DEV_XID_ERRORS"), Gauge, "The last XID error; 0 if there was none.");
    nvidia().for_each(|gpu| with_labels(gpu, host, None, |labels| xid.add(labels, last_xid(gpu))));
    families.push(xid);
    families
}

/// The value of a family for an instance.
type InstanceValue = fn(&InstanceReadings) -> Value;

/// The values that DCGM reports for each GPU instance of a GPU in MIG mode.
const INSTANCE_VALUES: [(&str, InstanceValue); 3] = [
    ("DEV_FB_USED", |instance| instance.memory_used.map(|bytes| bytes >> 20).into()),
    ("DEV_FB_FREE", |instance| instance.memory_free.map(|bytes| bytes >> 20).into()),
    ("PROF_PIPE_TENSOR_ACTIVE", |instance| instance.tensor_ppm.map(|ppm| f64::from(ppm) / 1e6).into()),
];

fn with_labels(gpu: &GpuReport, host: &str, instance: Option<&InstanceReadings>, mut add: impl FnMut(&[(&str, &str)])) {
    let (index, address) =
        (gpu.identity.index.to_string(), gpu.identity.pci_address.as_ref().map(bus_id).unwrap_or_default());
    let device = gpu.identity.file.as_deref().unwrap_or_default().trim_start_matches("/dev/");
    let mut labels = vec![
        ("gpu", index.as_str()),
        ("UUID", gpu.identity.uuid.as_deref().unwrap_or_default()),
        ("pci_bus_id", address.as_str()),
        ("device", device),
        ("modelName", gpu.identity.model.as_deref().unwrap_or_default()),
    ];
    let number = instance.map(|instance| instance.gpu_instance.to_string());
    if let Some((instance, number)) = instance.zip(number.as_deref()) {
        labels.push(("GPU_I_PROFILE", gpu_instance_profile(instance.profile.as_deref().unwrap_or_default())));
        labels.push(("GPU_I_ID", number));
    }
    labels.push(("Hostname", host));
    add(&labels);
}

/// The profile of the GPU instance: `2g.35gb` of `1c.2g.35gb`, which names a compute instance in it.
fn gpu_instance_profile(profile: &str) -> &str {
    profile.split_once("c.").filter(|(slices, _)| slices.parse::<u32>().is_ok()).map_or(profile, |(_, rest)| rest)
}

fn last_xid(gpu: &GpuReport) -> u32 {
    let xids = gpu.counts.iter().filter_map(|(kind, count)| match kind {
        FaultKind::Xid(xid) => Some((count.last, *xid)),
        _ => None,
    });
    xids.max().map_or(0, |(_, xid)| xid)
}

#[expect(clippy::cast_precision_loss, reason = "no GPU draws so much")]
fn watts(mw: Option<u64>) -> Value {
    mw.map(|mw| mw as f64 / 1000.0).into()
}
