//! Resets by the driver.

use super::*;

/// A sample that proves that the GPU responds.
fn responding(index: usize) -> (usize, GpuSample) {
    let condition = Condition { temperature: Some(40), ..Condition::default() };
    (index, GpuSample { condition, ..GpuSample::default() })
}

#[test]
fn reports_reset_with_job_and_keeps_gpu() {
    let mut cluster = Cluster::new(2);
    cluster.jobs[1] = Some(17);
    cluster.reset(1, Some("HWS hang\n\u{1b}[31m"));
    let line = cluster.log.pop().unwrap();
    assert!(
        line.starts_with("GPU 1 (GPU-1, ") && line.contains("HWS hang") && line.contains("job 17 of alice"),
        "{line}"
    );
    assert!(!line.contains(['\n', '\u{1b}']), "{line:?}");
    assert_eq!((cluster.faults(1), cluster.drained.clone()), (vec![FaultKind::Reset], None));
    // A second attempt by the driver counts as the same reset.
    cluster.reset(1, Some("HWS hang"));
    cluster.reset(1, None);
    assert!(cluster.log.pop().unwrap().ends_with("usable again") && cluster.log.is_empty());
    (0..20).for_each(|_| cluster.sample(&[]));
    assert_eq!((cluster.faults(1), cluster.offered.len(), cluster.drained.clone()), (vec![], 2, None));
    assert_eq!(cluster.health.report(ProcessId::default()).gpus[1].counts[&FaultKind::Reset].count, 1);
    // Ignores the end of a reset whose start was missed, and an unknown GPU.
    cluster.reset(1, None);
    cluster.health.on_reset(cluster.now, NVIDIA, &Key::default(), &Phase::Ends);
    cluster.health.on_reset(cluster.now, Vendor::Amd, &identity(0).key(), &Phase::Begins { cause: None });
    cluster.settle();
    assert_eq!((cluster.log.len(), cluster.faults(0)), (0, vec![]));
}

#[test]
fn unfinished_reset_drains_until_its_end() {
    let mut cluster = Cluster::new(2);
    cluster.jobs[1] = Some(7);
    cluster.reset(0, Some("RAS error"));
    (0..5).for_each(|_| cluster.sample(&[]));
    assert_eq!(cluster.drained, None, "a reset may take 30 s");
    (0..2).for_each(|_| cluster.sample(&[]));
    let reason = cluster.drained.clone().unwrap();
    assert!(reason.starts_with("GPU 0 (0000:10:00.0): ") && reason.contains("did not finish"), "{reason}");
    cluster.jobs[1] = None;
    (0..100).for_each(|_| cluster.sample(&[responding(0)]));
    assert_eq!((cluster.offered.clone(), cluster.drained.clone()), (vec![1], None));
    cluster.reset(0, None);
    (0..3).for_each(|_| cluster.sample(&[]));
    assert_eq!((cluster.offered.len(), cluster.drained.clone(), cluster.faults(0)), (2, None, vec![]));
}

#[test]
fn detects_missed_reset_end_from_samples() {
    let mut cluster = Cluster::new(2);
    cluster.reset(0, Some("MES hang"));
    (0..7).for_each(|_| cluster.sample(&[responding(0)]));
    assert_eq!(cluster.offered, [1]);
    // The next agent restores the reset from the report, and its watcher receives events again.
    let former = cluster.health.report(ProcessId::default());
    let out = vec![LeftOutGpu { gpu: identity(0), reason: String::new() }];
    cluster.health = HealthController::new(Faults::default(), 5000, Recount::WithoutGpuJobs, Some(&former), &out);
    assert_eq!(cluster.health.report(ProcessId::default()).gpus[0].since, former.gpus[0].since);
    cluster.health.set_offered(cluster.offer());
    cluster.health.on_watcher_restart(NVIDIA);
    (0..50).for_each(|_| cluster.sample(&[]));
    assert_eq!(cluster.offered, [1], "the GPU does not respond");
    (0..4).for_each(|_| cluster.sample(&[responding(0)]));
    assert_eq!((cluster.offered.len(), cluster.drained.clone(), cluster.faults(0)), (2, None, vec![]));
    // A GPU that was lost and responds again was also reset.
    cluster.reset(1, Some("unknown"));
    (0..9).for_each(|_| cluster.lose(1));
    assert_eq!(cluster.offered, [0]);
    (0..4).for_each(|_| cluster.sample(&[]));
    assert_eq!((cluster.offered.len(), cluster.faults(1)), (2, vec![]));
}

#[test]
fn agent_wakes_at_reset_deadline_and_applies_policy() {
    let mut cluster =
        Cluster::with(2, "[faults]\nreset = 'drain'\nreset-unfinished = 'count'\n", Recount::WithoutGpuJobs);
    cluster.jobs[0] = Some(3);
    cluster.reset(0, Some("user trigger"));
    assert!(cluster.drained.is_some());
    cluster.reset(0, None);
    assert_eq!(cluster.drained, None);
    let mut cluster = Cluster::with(2, "[faults]\nreset-unfinished = 'count'\n", Recount::WithoutGpuJobs);
    cluster.reset(0, Some("user trigger"));
    let began = cluster.now.ms - 300;
    assert_eq!(cluster.health.next_deadline(), Some(began + 30_000));
    (0..9).for_each(|_| cluster.sample(&[]));
    assert_eq!((cluster.drained.clone(), cluster.health.next_deadline()), (None, None));
    assert_eq!(cluster.health.report(ProcessId::default()).gpus[0].counts[&FaultKind::ResetUnfinished].count, 1);
}
