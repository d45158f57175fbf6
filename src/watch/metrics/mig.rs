//! Metrics of MIG instances under the names of utkuozdemir/nvidia_gpu_exporter (`nvidia_smi_mig_*`).
//!
//! Memory and activity belong to the GPU instance, which its compute instances share: one series per GPU instance.

use super::exposition::{Family, Kind, Value};
use super::gpus::{bare, uuid};
use faults::report::GpuReport;
use model::inventory::InstanceReadings;

/// Name and help text of a family, and its value for an instance.
type Row = (&'static str, &'static str, fn(&InstanceReadings) -> Value);

const MEASURED: [Row; 3] = [
    ("memory_used_bytes", "Memory in use on the GPU instance.", |instance| instance.memory_used.into()),
    ("sm_activity_ratio", "Fraction of time in which the multiprocessors had work.", |instance| ratio(instance.sm_ppm)),
    ("tensor_activity_ratio", "Fraction of time in which the tensor cores were busy.", |instance| {
        ratio(instance.tensor_ppm)
    }),
];

pub(super) fn families(gpus: &[GpuReport]) -> Vec<Family> {
    let mut info = Family::new("nvidia_smi_mig_info", Kind::Gauge, "Properties of the MIG instance, as labels.");
    let instances = || gpus.iter().flat_map(|gpu| gpu.readings.instances.iter().map(|one| (uuid(gpu), one)));
    for (gpu, instance) in instances() {
        let own = instance.uuid.as_deref().map(|uuid| bare(uuid, "mig-")).unwrap_or_default();
        let labels = [
            ("uuid", gpu.as_str()),
            ("mig_uuid", &own),
            ("gpu_instance_id", &instance.gpu_instance.to_string()),
            ("compute_instance_id", &instance.compute_instance.to_string()),
            ("profile", instance.profile.as_deref().unwrap_or_default()),
        ];
        info.add(&labels, 1_u64);
    }
    let measured = MEASURED.iter().map(|(name, help, value)| {
        let mut family = Family::new(format!("nvidia_smi_mig_{name}"), Kind::Gauge, help);
        // The family ignores further compute instances of a GPU instance.
        for (gpu, instance) in instances() {
            family.add(&[("uuid", &gpu), ("gpu_instance_id", &instance.gpu_instance.to_string())], value(instance));
        }
        family
    });
    [info].into_iter().chain(measured).collect()
}

fn ratio(ppm: Option<u32>) -> Value {
    ppm.map(|ppm| f64::from(ppm) / 1e6).into()
}
