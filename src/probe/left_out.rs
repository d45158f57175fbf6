//! GPUs that a driver reports but that jobs cannot use because of a fault: cause and fix.

use std::collections::BTreeMap;

use model::inventory::{Access, Finding, Gpu, Kind, Obstacle, Vendor};

/// One finding for each vendor and kind of fault. A device that was not passed to the container is not a fault, and a hung driver is reported
/// where it was detected.
pub(super) fn findings(gpus: &[Gpu]) -> Vec<Finding> {
    let mut reasons: BTreeMap<(Vendor, Obstacle), Vec<String>> = BTreeMap::new();
    for gpu in gpus {
        if let Access::Unusable { reason, obstacle } = &gpu.access {
            let name = format!("{} GPU {} ({reason})", gpu.vendor, gpu.index);
            reasons.entry((gpu.vendor, *obstacle)).or_default().push(name);
        }
    }
    reasons.retain(|(_, obstacle), _| obstacle.is_fault() && *obstacle != Obstacle::Hang);
    reasons.into_iter().map(|((vendor, obstacle), gpus)| finding(vendor, obstacle, &gpus)).collect()
}

fn finding(vendor: Vendor, obstacle: Obstacle, gpus: &[String]) -> Finding {
    let list = gpus.join("; ");
    let (cause, fix) = obstacle.cause_and_fix(vendor);
    let summary = |how| format!("{how} GPUs of the {vendor} driver: {list}");
    match obstacle {
        Obstacle::Denied | Obstacle::Mode | Obstacle::NoDevice | Obstacle::NoDriver => {
            let what = format!("unusable {vendor} device files in this container: {list}");
            Finding::error(Kind::GpuDoesNotOpen, what, cause, fix)
        }
        Obstacle::Lost => Finding::error(Kind::GpuLost, summary("lost"), cause, fix),
        _ => Finding::warning(Kind::GpuLeftOut, summary("excluded"), cause, fix),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vendor::nvidia::proc::unknown_gpu;
    use model::inventory::Severity;

    #[test]
    fn reports_faults_by_vendor_and_obstacle_without_missing_gpus() {
        let gpu = |vendor, index, obstacle| Gpu {
            vendor,
            access: Access::unusable(obstacle, format!("reason {index}")),
            ..unknown_gpu(index)
        };
        let gpus = [
            gpu(Vendor::Nvidia, 0, Obstacle::NotGiven),
            gpu(Vendor::Nvidia, 1, Obstacle::Lost),
            gpu(Vendor::Nvidia, 2, Obstacle::Denied),
            gpu(Vendor::Nvidia, 3, Obstacle::Lost),
            gpu(Vendor::Nvidia, 4, Obstacle::Hang),
            gpu(Vendor::Amd, 0, Obstacle::Lost),
            unknown_gpu(5),
        ];
        let found = findings(&gpus);
        let [denied, lost, amd] = found.as_slice() else { panic!("{found:?}") };
        assert!(denied.severity == Severity::Error && denied.fix.contains("re-create"), "{denied:?}");
        assert!(lost.what.ends_with("nvidia GPU 1 (reason 1); nvidia GPU 3 (reason 3)"), "{lost:?}");
        assert!(lost.fix.contains("grep -i xid") && amd.fix.contains("grep -i amdgpu"), "{lost:?} {amd:?}");
    }
}
