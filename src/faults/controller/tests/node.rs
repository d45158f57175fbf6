//! Draining the node, and returning its GPUs to jobs.

use crate::report::Release;

use super::*;

#[test]
fn loses_and_regains_one_gpu() {
    let mut cluster = Cluster::new(4);
    cluster.jobs[1] = Some(7);
    cluster.lose(3);
    assert!(
        cluster.drained.as_deref().is_some_and(|reason| reason.starts_with("GPU 3 (0000:13:00.0): the GPU is lost"))
    );
    assert_eq!(cluster.offered.len(), 4, "job 7 would be aborted");
    assert!(cluster.health.report(ProcessId::default()).node.is_some_and(|node| node.ends_with("have ended: 7")));
    cluster.lose(3);
    cluster.jobs[1] = None;
    cluster.lose(3);
    assert_eq!((cluster.offered.clone(), cluster.drained.clone()), (vec![0, 1, 2], None));
    assert!(cluster.health.report(ProcessId::default()).gpus[3].is_out);
    // The GPU returns after several healthy samples, and when no job has another GPU.
    cluster.jobs[0] = Some(8);
    cluster.sample(&[]);
    cluster.sample(&[]);
    cluster.sample(&[]);
    assert_eq!((cluster.offered.len(), cluster.drained.clone()), (3, None));
    cluster.jobs[0] = None;
    cluster.sample(&[]);
    cluster.sample(&[]);
    assert_eq!((cluster.offered.len(), cluster.drained.clone()), (4, None));
    assert_eq!(cluster.health.report(ProcessId::default()).node, None);
    assert!(cluster.log.iter().any(|line| line.contains("all GPUs available to jobs again (4 in total)")));
}

#[test]
fn recovered_gpu_drains_busy_node_after_one_hour() {
    let mut cluster = Cluster::new(2);
    cluster.lose(1);
    assert_eq!(cluster.offered, [0]);
    cluster.jobs[0] = Some(9);
    for _ in 0..800 {
        cluster.sample(&[]);
    }
    assert!(cluster.drained.as_deref().is_some_and(|reason| reason.starts_with("GPU 1 recovered")));
    cluster.jobs[0] = None;
    cluster.sample(&[]);
    assert_eq!((cluster.offered.len(), cluster.drained), (2, None));
}

#[test]
fn keeps_administrators_drain() {
    let mut cluster = Cluster::new(2);
    cluster.drained = Some("fan".to_owned());
    cluster.lose(0);
    assert_eq!((cluster.offered.clone(), cluster.drained.as_deref()), (vec![1], Some("fan")));
    (0..3).for_each(|_| cluster.sample(&[]));
    assert_eq!((cluster.offered.len(), cluster.drained.as_deref()), (2, Some("fan")));
}

#[test]
fn fixed_gpu_count_keeps_node_drained_until_gpu_recovers() {
    let mut cluster = Cluster::with(2, "", Recount::Never);
    cluster.lose(0);
    (0..20).for_each(|_| cluster.lose(0));
    assert_eq!(cluster.offered.len(), 2);
    assert!(
        cluster.drained.is_some()
            && cluster
                .health
                .report(ProcessId::default())
                .node
                .is_some_and(|node| node.contains("restart this container"))
    );
    // A node that an operator resumes is drained again, because jobs would fail on it.
    cluster.drained = None;
    (0..3).for_each(|_| cluster.lose(0));
    assert!(cluster.drained.is_some());
    (0..3).for_each(|_| cluster.sample(&[]));
    assert_eq!(cluster.drained, None);
}

#[test]
fn fixed_gpu_count_does_not_drain_node_for_recovered_gpu() {
    let mut cluster = Cluster::with(2, "", Recount::Never);
    let out = LeftOutGpu { gpu: identity(1), reason: "lost".to_owned() };
    cluster.health = HealthController::new(Faults::default(), 5000, Recount::Never, None, &[out]);
    cluster.offered = vec![0];
    cluster.health.set_offered(cluster.offer());
    cluster.jobs[0] = Some(9);
    (0..800).for_each(|_| cluster.sample(&[]));
    assert_eq!((cluster.drained.as_deref(), cluster.offered.len()), (None, 1));
    let doing = cluster.health.report(ProcessId::default()).node.unwrap();
    assert!(doing.contains("at the next start of this container"), "{doing}");
}

#[test]
fn recount_without_jobs_waits_for_all_jobs() {
    let mut cluster = Cluster::with(2, "", Recount::WithoutJobs);
    (cluster.jobs[1], cluster.has_other_job) = (Some(7), true);
    cluster.lose(0);
    (0..5).for_each(|_| cluster.lose(0));
    cluster.jobs[1] = None;
    (0..5).for_each(|_| cluster.lose(0));
    assert!(cluster.drained.is_some() && cluster.offered.len() == 2);
    let doing = cluster.health.report(ProcessId::default()).node.unwrap();
    assert!(doing.contains("until all jobs on the node have ended"), "{doing}");
    cluster.has_other_job = false;
    cluster.lose(0);
    assert_eq!((cluster.offered.clone(), cluster.drained.clone()), (vec![1], None));
    // The return of the GPU also waits for a job without a GPU.
    cluster.has_other_job = true;
    (0..5).for_each(|_| cluster.sample(&[]));
    assert_eq!((cluster.offered.len(), cluster.drained.clone()), (1, None));
    cluster.has_other_job = false;
    (0..2).for_each(|_| cluster.sample(&[]));
    assert_eq!((cluster.offered.len(), cluster.drained), (2, None));
}

#[test]
fn retries_failed_reload_with_backoff() {
    let mut cluster = Cluster::new(1);
    cluster.reload_fails = true;
    (0..1000).for_each(|_| cluster.lose(0));
    let attempts = cluster.log.iter().filter(|line| line.contains("could not change the node's GPU count")).count();
    assert!((8..20).contains(&attempts), "{attempts}");
    assert!(cluster.drained.is_some());
    cluster.reload_fails = false;
    (0..130).for_each(|_| cluster.lose(0));
    assert_eq!((cluster.offered.len(), cluster.drained), (0, None));
}

#[test]
fn restarted_agent_finishes_drain_and_returns_gpu() {
    let mut cluster = Cluster::new(2);
    cluster.jobs[1] = Some(3);
    cluster.event(0, 79);
    assert!(cluster.drained.is_some());
    // Killed during a drain: the next agent continues the drain.
    let former = cluster.health.report(ProcessId::default());
    cluster.health = HealthController::new(Faults::default(), 5000, Recount::WithoutGpuJobs, Some(&former), &[]);
    cluster.health.set_offered(cluster.offer());
    cluster.sample(&[]);
    assert_eq!(cluster.offered.len(), 2);
    cluster.jobs[1] = None;
    cluster.sample(&[]);
    assert_eq!((cluster.offered.clone(), cluster.drained.clone()), (vec![1], None));
    // An intended restart clears the fault, so the GPU returns.
    let mut former = cluster.health.report(ProcessId::default());
    let out = vec![LeftOutGpu { gpu: identity(0), reason: String::new() }];
    former.gpus.iter_mut().for_each(|gpu| gpu.faults.clear());
    cluster.health = HealthController::new(Faults::default(), 5000, Recount::WithoutGpuJobs, Some(&former), &out);
    cluster.health.set_offered(cluster.offer());
    (0..4).for_each(|_| cluster.sample(&[]));
    assert_eq!((cluster.offered.len(), cluster.drained.clone()), (2, None));
}

#[test]
fn repeats_resume_until_slurmctld_keeps_it() {
    let mut cluster = Cluster::new(2);
    cluster.lose(1);
    assert_eq!((cluster.offered.clone(), cluster.drained.clone()), (vec![0], None));
    // slurmctld is killed before it saved the resume, and restarts.
    cluster.drained = Some("GPU 1: lost".to_owned());
    cluster.lose(1);
    cluster.is_slurmctld_down = true;
    (0..5).for_each(|_| cluster.lose(1));
    cluster.is_slurmctld_down = false;
    (0..2).for_each(|_| cluster.lose(1));
    assert_eq!((cluster.offered.clone(), cluster.drained.clone()), (vec![0], None));
    // slurmctld loses the resume after the recovery.
    (0..4).for_each(|_| cluster.lose(1));
    cluster.drained = Some("GPU 1 recovered".to_owned());
    cluster.sample(&[]);
    cluster.sample(&[]);
    assert_eq!((cluster.offered.len(), cluster.drained.clone()), (2, None));
    cluster.drained = Some("GPU 1 recovered".to_owned());
    (0..4).for_each(|_| cluster.sample(&[]));
    assert_eq!(cluster.drained, None);
    // Once the resume is saved, the agent does not query again, and leaves an administrator's drain alone.
    (0..4).for_each(|_| cluster.sample(&[]));
    cluster.drained = Some("fan".to_owned());
    let queries = cluster.queries;
    (0..20).for_each(|_| cluster.sample(&[]));
    assert_eq!(
        (cluster.queries, cluster.health.next_deadline(), cluster.drained.as_deref()),
        (queries, None, Some("fan"))
    );
}

#[test]
fn keeps_administrators_drain_after_resume() {
    let mut cluster = Cluster::new(2);
    cluster.lose(1);
    cluster.drained = Some("fan".to_owned());
    (0..10).for_each(|_| cluster.lose(1));
    assert_eq!((cluster.drained.as_deref(), cluster.health.next_deadline()), (Some("fan"), None));
}

/// AMD partitions of a GPU share its PCI address and have no UUID.
#[test]
fn distinguishes_partitions_of_a_gpu_by_render_node() {
    let part = |index: u32| Identity {
        vendor: Vendor::Amd,
        index,
        pci_address: "0000:0a:00.0".parse().ok(),
        file: Some(format!("/dev/dri/renderD{}", 128 + index)),
        ..Identity::default()
    };
    let mut health = HealthController::new(Faults::default(), 5000, Recount::WithoutGpuJobs, None, &[]);
    health.set_offered((0..4).map(part).collect());
    let now = Clock::default();
    health.begin_round(now, Vendor::Amd, (0..4).map(part).collect());
    health.end_round(now, Vendor::Amd);
    let report = health.report(ProcessId::default());
    assert_eq!(report.gpus.iter().map(|gpu| gpu.offered.clone()).collect::<Vec<_>>(), [[0], [1], [2], [3]]);
    // One partition disappears.
    health.begin_round(now, Vendor::Amd, (0..3).map(part).collect());
    health.end_round(now, Vendor::Amd);
    let faults: Vec<usize> = health.report(ProcessId::default()).gpus.iter().map(|gpu| gpu.faults.len()).collect();
    assert_eq!(faults, [0, 0, 0, 1]);
    // A MIG instance has its GPU's PCI address and its own device file.
    let whole = Identity { file: Some("/dev/nvidia0".to_owned()), ..identity(0) };
    let instance = |file: &str| Identity { uuid: None, file: Some(file.to_owned()), ..identity(0) };
    let all = [
        instance("/dev/nvidia-caps/nvidia-cap12"),
        instance("/dev/nvidia-caps/nvidia-cap21"),
        instance("/dev/nvidia1"),
    ];
    assert_eq!(indices(&whole, &all), [0, 1]);
}

/// The driver takes seconds to open each GPU, so the start does not wait for all of them.
#[test]
fn gpu_opened_after_start_is_offered_automatically() {
    let mut cluster = Cluster::new(3);
    cluster.offered = vec![0];
    let awaited = |index: u32| Identity { uuid: None, ..identity(index) };
    cluster.health = HealthController::new(Faults::default(), 5000, Recount::WithoutGpuJobs, None, &[]);
    cluster.health.set_offered(cluster.offer());
    cluster.health.set_awaited(vec![awaited(1), awaited(2)]);
    // Only the PCI addresses are known so far.
    for index in 0..3 {
        cluster.health.on_gpu_opening(cluster.now, Identity { uuid: None, ..identity(index) });
    }
    cluster.settle();
    assert_eq!((cluster.offered.len(), cluster.drained.clone(), cluster.log.len()), (1, None, 0));
    assert_eq!(cluster.health.report(ProcessId::default()).gpus.len(), 3);
    // GPU 1 responds while a job has a GPU. It is offered after the job, together with GPU 2.
    cluster.jobs[0] = Some(7);
    cluster.health.begin_round(cluster.now, NVIDIA, cluster.gpus.clone());
    cluster.health.add_sample(cluster.now, &identity(1).key(), Cluster::healthy());
    cluster.settle();
    assert_eq!(
        (cluster.offered.len(), cluster.health.report(ProcessId::default()).gpus.len()),
        (1, 3),
        "{:?}",
        cluster.log
    );
    cluster.sample(&[]);
    cluster.jobs[0] = None;
    cluster.sample(&[]);
    assert_eq!(cluster.offered, [0, 1, 2]);
    cluster.health.set_awaited(Vec::new());
    (0..3).for_each(|_| cluster.sample(&[]));
    assert_eq!((cluster.drained.clone(), cluster.health.report(ProcessId::default()).node), (None, None));
    assert!(cluster.health.report(ProcessId::default()).gpus.iter().all(|gpu| gpu.faults.is_empty() && !gpu.is_out));
}

/// Reloads that do not wait for the GPU either must not cause a loop.
#[test]
fn retries_reload_for_awaited_gpu_once_a_minute() {
    let mut cluster = Cluster::new(2);
    cluster.offered = vec![0];
    cluster.health = HealthController::new(Faults::default(), 5000, Recount::WithoutGpuJobs, None, &[]);
    cluster.health.set_offered(cluster.offer());
    cluster.health.set_awaited(vec![Identity { vendor: NVIDIA, index: 1, ..Identity::default() }]);
    (0..60).for_each(|_| cluster.sample(&[]));
    let reloads =
        cluster.log.iter().filter(|line| line.contains("available to jobs") || line.contains("resumed with")).count();
    assert!((4..=7).contains(&reloads), "{reloads}: {:?}", cluster.log);
}

/// The host's tools refuse to reset a GPU that any process has open.
#[test]
fn released_gpu_waits_for_jobs_and_returns_after_check() {
    let mut cluster = Cluster::new(2);
    let gpu = |cluster: &Cluster| cluster.health.report(ProcessId::default()).gpus[1].clone();
    cluster.jobs[1] = Some(7);
    cluster.event(1, 31);
    cluster.health.set_released(&[identity(1)]);
    cluster.sample(&[]);
    assert!(
        cluster.drained.as_deref().is_some_and(|reason| reason.contains("released for work")),
        "{:?}",
        cluster.drained
    );
    assert_eq!(
        (gpu(&cluster).release, cluster.health.gpus_to_close(NVIDIA).len()),
        (Some(Release::Pending), 0),
        "a job has the GPU"
    );
    cluster.jobs[1] = None;
    cluster.sample(&[]);
    assert_eq!((cluster.offered.clone(), cluster.drained.clone()), (vec![0], None));
    assert_eq!(cluster.health.gpus_to_close(NVIDIA), [identity(1)]);
    assert_eq!(cluster.health.gpus_to_check(NVIDIA), [], "a released GPU is not checked");
    assert_eq!(gpu(&cluster).release, Some(Release::Pending), "the GPU is still open");
    cluster.health.set_closed([identity(1).key()].into());
    assert_eq!(gpu(&cluster).release, Some(Release::Done));
    let is_returning = |cluster: &Cluster| [0, 1].map(|index| cluster.health.is_returning(&identity(index).key()));
    assert_eq!(is_returning(&cluster), [false, false]);
    // The administrator returns the GPU, but the first check finds a fault.
    cluster.health.set_released(&[]);
    assert_eq!(
        (gpu(&cluster).release, cluster.health.gpus_to_check(NVIDIA)),
        (Some(Release::Returning), vec![identity(1)])
    );
    cluster.settle();
    assert_eq!(
        (cluster.offered.clone(), is_returning(&cluster)),
        (vec![0], [false, true]),
        "offered only after a check"
    );
    let readings = Readings { recovery_action: Some(1), ..Readings::default() };
    let broken = GpuSample { readings, ..GpuSample::default() };
    cluster.sample(&[(1, broken)]);
    cluster.sample(&[]);
    assert_eq!((cluster.offered.clone(), gpu(&cluster).release), (vec![0], None));
    assert_eq!(is_returning(&cluster), [false, false]);
    (0..3).for_each(|_| cluster.sample(&[]));
    assert_eq!((cluster.offered.clone(), cluster.drained.clone()), (vec![0, 1], None));
}

/// Without a recovery action, an XID is cleared when the administrator returns the GPU.
#[test]
fn faulty_gpu_is_closed_and_returns_after_release() {
    let mut cluster = Cluster::new(2);
    let no_action = || [(0, GpuSample::default()), (1, GpuSample::default())];
    cluster.sample(&no_action());
    cluster.event(1, 62);
    assert_eq!((cluster.offered.clone(), cluster.health.gpus_to_close(NVIDIA)), (vec![0], vec![identity(1)]));
    assert_eq!(cluster.health.gpus_to_check(NVIDIA), [identity(1)]);
    cluster.health.set_released(&[identity(1)]);
    cluster.sample(&no_action());
    assert_eq!(cluster.health.gpus_to_check(NVIDIA), []);
    // The GPU is returned too early: the check finds it lost.
    cluster.health.set_released(&[]);
    cluster.sample(&[(1, GpuSample { trouble: Some(FaultKind::Lost), ..GpuSample::default() })]);
    assert_eq!(
        (cluster.health.report(ProcessId::default()).gpus[1].release, cluster.faults(1), cluster.offered.len()),
        (None, vec![FaultKind::Lost], 1)
    );
    cluster.health.set_released(&[identity(1)]);
    cluster.health.set_released(&[]);
    (0..2).for_each(|_| cluster.sample(&no_action()));
    assert_eq!((cluster.offered.clone(), cluster.drained.clone()), (vec![0, 1], None));
}

/// Only NVIDIA's tools need a closed GPU. The agent keeps the others open.
#[test]
fn release_ends_on_gpus_that_stay_open() {
    for vendor in Vendor::ALL {
        let mut health = HealthController::new(Faults::default(), 5000, Recount::WithoutGpuJobs, None, &[]);
        let gpu = Identity { vendor, ..identity(0) };
        health.begin_round(Clock::default(), vendor, vec![gpu.clone()]);
        health.set_released(&[gpu]);
        let expected = if vendor == NVIDIA { Release::Pending } else { Release::Done };
        assert_eq!(health.report(ProcessId::default()).gpus[0].release, Some(expected), "{vendor}");
    }
}

#[test]
fn report_of_a_drain_names_the_returned_gpu() {
    let mut cluster = Cluster::new(2);
    cluster.health.set_released(&[identity(1)]);
    cluster.sample(&[]);
    assert_eq!(cluster.offered, [0]);
    cluster.reload_fails = true;
    cluster.health.set_released(&[]);
    (0..3).for_each(|_| cluster.sample(&[]));
    assert_eq!(cluster.health.report(ProcessId::default()).node.as_deref(), Some("drained to offer GPU 1 again"));
}

#[test]
fn jobs_of_a_used_gpu_are_queried_every_half_minute() {
    let queries = |memory_mib| {
        let mut cluster = Cluster::new(1);
        let condition = Condition { memory_mib: Some((memory_mib, 81_920)), ..Condition::default() };
        let before = cluster.queries;
        (0..12).for_each(|_| cluster.sample(&[(0, GpuSample { condition: condition.clone(), ..Cluster::healthy() })]));
        cluster.queries - before
    };
    assert_eq!(queries(0), 0);
    assert!((2..=3).contains(&queries(20_480)), "{} in a minute", queries(20_480));
}
