//! The GPUs' faults, as `slurminit agent` reports them.

use crate::commands::columns::wrap;
use faults::report::{GpuReport, Release, Report};

/// The faults and releases of the GPUs, and the agent's report about the node; empty if there is none of these. `now` is in seconds since
/// 1970.
pub(super) fn faults(report: &Report, now: u64, age: impl Fn(u64) -> String) -> String {
    let gpu_faults = |gpu: &GpuReport| {
        let name = &gpu.identity;
        let availability = if gpu.is_out { "; not available to jobs" } else { "" };
        let fault = |fault: &faults::report::OpenFault| {
            let duration = age(now.saturating_sub(fault.since) * 1000);
            wrap(&format!("{name}: {} (for {duration}){availability}; fix: {}", fault.what, fault.fix), "  ")
        };
        let faults: String = gpu.faults.iter().map(fault).collect();
        let state = match gpu.release {
            Some(Release::Pending) => "being released for work on the host (slurminit gpu release)".to_owned(),
            Some(Release::Done) => "released for work on the host; return it with `slurminit gpu return`".to_owned(),
            Some(Release::Returning) if gpu.is_out => "returned, being checked; not available to jobs yet".to_owned(),
            Some(Release::Returning) => "returned, being checked".to_owned(),
            None if faults.is_empty() && gpu.is_out => "no open fault; not available to jobs yet".to_owned(),
            None => return faults,
        };
        faults + &wrap(&format!("{name}: {state}"), "  ")
    };
    let gpus: String = report.gpus.iter().map(gpu_faults).collect();
    let node = report.node.as_ref().map(|node| wrap(&format!("the node: {node}"), "  ")).unwrap_or_default();
    if gpus.is_empty() && node.is_empty() { String::new() } else { format!("\n{gpus}{node}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use faults::fault::{FaultKind, Policy};
    use faults::report::OpenFault;
    use faults::sample::Identity;

    #[test]
    fn shows_age_and_fix_of_faults_only() {
        let age = |ms: u64| format!("{}s", ms / 1000);
        assert_eq!(faults(&Report { gpus: vec![GpuReport::default()], ..Report::default() }, 9, age), "");
        let fault = OpenFault {
            kind: FaultKind::Lost,
            policy: Policy::Drain,
            since: 5,
            what: "the driver has lost it".to_owned(),
            fix: "reboot the host".to_owned(),
        };
        let gpu = GpuReport {
            identity: Identity { index: 3, file: Some("/dev/nvidia3".to_owned()), ..Identity::default() },
            faults: vec![fault],
            is_out: true,
            ..GpuReport::default()
        };
        let healthy =
            GpuReport { identity: Identity { index: 4, ..Identity::default() }, is_out: true, ..GpuReport::default() };
        let released = GpuReport {
            identity: Identity { index: 5, ..Identity::default() },
            is_out: true,
            release: Some(Release::Done),
            ..GpuReport::default()
        };
        let report =
            Report { gpus: vec![gpu, healthy, released], node: Some("GPU 3 left out".to_owned()), ..Report::default() };
        assert_eq!(
            faults(&report, 9, age).split_whitespace().collect::<Vec<_>>().join(" "),
            "GPU 3 (/dev/nvidia3): the driver has lost it (for 4s); not available to jobs; fix: reboot the host \
             GPU 4: no open fault; not available to jobs yet \
             GPU 5: released for work on the host; return it with `slurminit gpu return` the node: GPU 3 left out"
        );
    }
}
