//! Reports, counts and policies of faults.

use super::*;
use model::message::Message;

#[test]
fn reports_program_error_with_job_without_drain() {
    let mut cluster = Cluster::new(2);
    cluster.jobs[1] = Some(17);
    for xid in [13, 31, 43] {
        for _ in 0..100 {
            cluster.event(1, xid);
        }
    }
    assert_eq!((cluster.drained.clone(), cluster.offered.len()), (None, 2));
    let lines: Vec<_> = cluster.log.iter().filter(|line| line.contains("XID")).collect();
    assert_eq!(lines.len(), 3, "one line per XID and minute: {lines:?}");
    assert!(lines[0].contains("; used by job 17 of alice") && lines[0].contains("GPU-1") && lines[0].contains("Fix: "));
    assert_eq!(cluster.health.report(ProcessId::default()).gpus[1].counts[&FaultKind::Xid(43)].count, 100);
}

#[test]
fn reports_job_once_when_slurmctld_answers_late() {
    let mut cluster = Cluster::new(2);
    cluster.event(0, 31);
    cluster.jobs[1] = Some(17);
    cluster.advance(1000);
    cluster.health.add_event(cluster.now, Some(&cluster.gpus[1].key()), 43);
    let (query, other): (Vec<_>, _) =
        cluster.health.step(cluster.now).into_iter().partition(|action| matches!(action, Action::QueryJobs));
    other.into_iter().for_each(|action| cluster.perform(action));
    cluster.advance(500);
    cluster.run_actions();
    let lines = |cluster: &Cluster| cluster.log.iter().filter(|line| line.contains("XID")).count();
    let jobs = |cluster: &Cluster| -> Vec<usize> {
        cluster.health.report(ProcessId::default()).recent.iter().map(|fault| fault.jobs.len()).collect()
    };
    assert_eq!((lines(&cluster), jobs(&cluster)), (2, vec![0, 0]), "{:?}", cluster.log);
    query.into_iter().for_each(|action| cluster.perform(action));
    (0..3).for_each(|_| cluster.sample(&[]));
    assert_eq!((lines(&cluster), jobs(&cluster)), (3, vec![0, 1]), "{:?}", cluster.log);
    let of_job: Vec<_> = cluster.log.iter().filter(|line| line.contains("job 17 of alice")).collect();
    assert!(of_job.len() == 1 && of_job[0].starts_with("GPU 1 (") && of_job[0].contains("XID 43"), "{of_job:?}");
}

#[test]
fn xid_requiring_reset_drains_until_driver_reports_recovery() {
    let mut cluster = Cluster::new(2);
    cluster.event(0, 79);
    assert_eq!((cluster.offered.clone(), cluster.drained.clone()), (vec![1], None));
    for _ in 0..11 {
        cluster.sample(&[]);
    }
    assert_eq!(cluster.offered, [1], "the driver may take a while to report the recovery action");
    let readings = Readings { recovery_action: Some(1), ..Readings::default() };
    let reset = GpuSample { readings, ..GpuSample::default() };
    cluster.sample(&[(0, reset)]);
    assert_eq!(cluster.offered, [1]);
    (0..3).for_each(|_| cluster.sample(&[]));
    assert_eq!(cluster.offered, [0, 1]);
}

/// Drivers before 570 report no recovery action. A pending row remapping still shows that a reset is needed.
#[test]
fn xid_without_recovery_action_clears_after_doubling_time() {
    let mut cluster = Cluster::new(2);
    let no_action = || [(0, GpuSample::default()), (1, GpuSample::default())];
    let pending = RemappedRows { is_pending: true, ..RemappedRows::default() };
    let readings = Readings { remapped_rows: Some(pending), ..Readings::default() };
    for (minutes, is_pending) in [(10, false), (20, true)] {
        cluster.sample(&no_action());
        cluster.event(1, 48);
        let logged = cluster.log.iter().rfind(|line| line.contains("XID 48")).unwrap();
        assert!(logged.contains(&format!("available again after {minutes} min without an error")), "{logged}");
        // A sampling round takes 5.3 s.
        (0..minutes * 11).for_each(|_| cluster.sample(&no_action()));
        assert_eq!(cluster.offered, [0], "{minutes}");
        if is_pending {
            let remapping = GpuSample { readings: readings.clone(), ..GpuSample::default() };
            (0..100).for_each(|_| cluster.sample(&[(0, GpuSample::default()), (1, remapping.clone())]));
            assert_eq!(cluster.offered, [0], "{minutes}");
        }
        (0..9).for_each(|_| cluster.sample(&no_action()));
        assert_eq!(cluster.offered, [0, 1], "{minutes}");
    }
    assert_eq!(cluster.drained, None);
}

#[test]
fn repeated_xid_excludes_gpu_for_at_most_six_hours() {
    let mut cluster = Cluster::new(1);
    cluster.sample(&[(0, GpuSample::default())]);
    for minutes in [10, 20, 40, 80, 160, 320, 360, 360] {
        cluster.event(0, 48);
        let logged = cluster.log.iter().rfind(|line| line.contains("XID 48")).unwrap();
        assert!(logged.contains(&format!("after {minutes} min without an error")), "{logged}");
        cluster.advance(100_000);
    }
}

#[test]
fn gpu_is_named_before_and_after_its_first_sample() {
    let cluster = Cluster::new(1);
    assert_eq!(cluster.health.name_of(&identity(0)), "GPU 0 (GPU-0, 0000:10:00.0)");
    let by_address = Identity { uuid: None, ..identity(0) };
    assert_eq!(cluster.health.name_of(&by_address), "GPU 0 (GPU-0, 0000:10:00.0)");
    assert_eq!(cluster.health.name_of(&identity(7)), "GPU GPU-7");
}

#[test]
fn configured_policies_override_defaults() {
    let mut cluster = Cluster::with(
        2,
        "[faults]\nlost = 'warn'\n[faults.xid]\n13 = 'drain'\n31 = 'ignore'\n",
        Recount::WithoutGpuJobs,
    );
    cluster.lose(0);
    cluster.event(0, 31);
    assert_eq!((cluster.offered.len(), cluster.drained.clone()), (2, None));
    cluster.sample(&[]);
    cluster.event(1, 13);
    assert_eq!(cluster.offered, [0]);
    assert!(!cluster.log.iter().any(|line| line.contains("XID 31")));
}

#[test]
fn reports_gpu_lost_only_if_it_was_listed_before() {
    let mut cluster = Cluster::new(3);
    cluster.advance(5000);
    cluster.health.begin_round(cluster.now, NVIDIA, cluster.gpus[..2].to_vec());
    cluster.health.end_round(cluster.now, NVIDIA);
    cluster.settle();
    assert!(cluster.log.iter().any(|line| line.starts_with("GPU 2") && line.contains("no longer lists the GPU")));
    assert_eq!(cluster.health.report(ProcessId::default()).gpus.len(), 3);
}

#[test]
fn sampled_condition_opens_and_clears_fault() {
    let seen = |readings: Readings, slowdowns: Vec<Slowdown>| GpuSample {
        condition: Condition { slowdowns: Some(slowdowns), ..Condition::default() },
        readings,
        trouble: None,
    };
    let failed = RemappedRows { has_failed: true, ..RemappedRows::default() };
    for (sample, kind, drains) in [
        (
            seen(Readings { recovery_action: Some(2), ..Readings::default() }, vec![]),
            FaultKind::RecoveryAction(2),
            true,
        ),
        (
            seen(Readings { remapped_rows: Some(failed), ..Readings::default() }, vec![]),
            FaultKind::RowRemapFailed,
            true,
        ),
        (seen(Readings::default(), vec![Slowdown::Heat]), FaultKind::Heat, false),
        (seen(Readings::default(), vec![Slowdown::PowerBrake, Slowdown::PowerCap]), FaultKind::PowerBrake, false),
    ] {
        let mut cluster = Cluster::new(2);
        cluster.sample(&[(1, sample)]);
        let kinds: Vec<_> =
            cluster.health.report(ProcessId::default()).gpus[1].faults.iter().map(|fault| fault.kind).collect();
        assert_eq!(kinds, [kind]);
        assert_eq!(cluster.offered.len() == 1, drains, "{kind}");
        (0..2).for_each(|_| cluster.sample(&[]));
        assert!(cluster.health.report(ProcessId::default()).gpus[1].faults.is_empty(), "{kind}");
    }
    // Only errors after the first sample are new.
    let with =
        |errors| seen(Readings { ecc_uncorrected: Some(errors), nvlinks_down: Some(2), ..Readings::default() }, vec![]);
    let mut health = HealthController::new(Faults::default(), 5000, Recount::WithoutGpuJobs, None, &[]);
    let now = Clock::default();
    health.begin_round(now, NVIDIA, vec![identity(0)]);
    for (errors, faults) in [(9, 0), (9, 0), (10, 1), (3, 1)] {
        health.add_sample(now, &identity(0).key(), with(errors));
        assert_eq!(health.report(ProcessId::default()).gpus[0].faults.len(), faults, "{errors}");
    }
}

#[test]
fn reports_memory_in_use_only_without_job() {
    let used = |index| {
        let memory_mib = Some((20_480, 143_771));
        (index, GpuSample { condition: Condition { memory_mib, ..Condition::default() }, ..Cluster::healthy() })
    };
    let mut cluster = Cluster::new(2);
    cluster.jobs[0] = Some(7);
    (0..30).for_each(|_| cluster.sample(&[used(0), used(1)]));
    let logged: Vec<_> = cluster.log.iter().filter(|line| line.contains("in use")).collect();
    assert_eq!(logged.len(), 1, "{logged:?}");
    assert!(logged[0].starts_with("GPU 1 (") && logged[0].contains("20480 MiB"), "{logged:?}");
    // The job ends, but its memory stays in use.
    cluster.jobs[0] = None;
    (0..30).for_each(|_| cluster.sample(&[used(0), used(1)]));
    assert_eq!(cluster.health.report(ProcessId::default()).gpus[0].faults[0].kind, FaultKind::Leftover);
    (0..3).for_each(|_| cluster.sample(&[]));
    assert!(cluster.health.report(ProcessId::default()).gpus.iter().all(|gpu| gpu.faults.is_empty()));
    assert_eq!((cluster.offered.len(), cluster.drained), (2, None));
}

/// A stopped slurmctld answers late or not at all.
#[test]
fn reports_fault_before_slurm_answers_and_its_jobs_afterwards() {
    let mut cluster = Cluster::new(2);
    cluster.advance(1000);
    cluster.health.add_event(cluster.now, Some(&identity(1).key()), 79);
    let actions = cluster.health.step(cluster.now);
    assert!(matches!(actions.as_slice(), [Action::Drain { .. }, Action::QueryJobs]), "{actions:?}");
    let due = cluster.health.next_deadline().unwrap();
    assert!(due <= cluster.now.ms + 500, "{due}");
    cluster.now.ms = due;
    let actions = cluster.health.step(cluster.now);
    let [Action::Log(_, Message { text: line, .. }), Action::Notify(fault)] = actions.as_slice() else {
        panic!("{actions:?}")
    };
    assert!(line.contains("XID 79") && fault.jobs.is_empty(), "{line}");
    // There is no busy loop while Slurm does not answer, and another fault is also reported without waiting.
    assert_eq!(cluster.health.next_deadline(), None);
    cluster.health.add_event(cluster.now, Some(&identity(0).key()), 31);
    cluster.now.ms = cluster.health.next_deadline().unwrap();
    assert!(matches!(cluster.health.step(cluster.now).as_slice(), [Action::Log(..), Action::Notify(_)]));
    // slurmctld is back. A failed drain is logged at most once and is retried.
    for outcome in ["no answer", "no answer"] {
        cluster.health.on_drain_outcome(cluster.now, &DrainOutcome::Failed(outcome.to_owned()));
        cluster.advance(10_000);
        let actions = cluster.health.step(cluster.now);
        assert!(actions.iter().filter(|action| matches!(action, Action::Log(..))).count() <= 1, "{actions:?}");
        let node = SlurmNodeState { gpus: vec![vec![], vec![]], ..SlurmNodeState::default() };
        cluster.health.on_node_state(cluster.now, cluster.now, Some(&node));
        let actions = cluster.health.step(cluster.now);
        assert!(matches!(actions.as_slice(), [Action::Drain { .. }, ..]), "{actions:?}");
    }
    cluster.health.on_drain_outcome(cluster.now, &DrainOutcome::Ours);
    let job = OwnedJob { job: 17, user: "alice".to_owned() };
    let node = SlurmNodeState {
        is_closed: true,
        is_ours: true,
        allocated_gpus: 1,
        gpus: vec![vec![], vec![job]],
        is_empty: false,
    };
    cluster.health.add_event(cluster.now, Some(&identity(1).key()), 79);
    cluster.advance(1000);
    cluster.health.step(cluster.now);
    cluster.health.on_node_state(cluster.now, cluster.now, Some(&node));
    assert!(cluster.health.report(ProcessId::default()).gpus[1].jobs.len() == 1);
}

/// A flapping fault is reported once a minute, with its end; a lasting one stays open.
#[test]
fn reports_flapping_fault_once_a_minute() {
    let hot = || GpuSample {
        condition: Condition { slowdowns: Some(vec![Slowdown::Heat]), ..Condition::default() },
        ..Cluster::healthy()
    };
    let mut cluster = Cluster::new(2);
    for _ in 0..12 {
        cluster.sample(&[(1, hot())]);
        (0..2).for_each(|_| cluster.sample(&[]));
    }
    let logged = |cluster: &Cluster, word: &str| {
        cluster.log.iter().filter(|line| line.contains("throttled") && line.contains(word)).count()
    };
    // Twelve faults in 190 s.
    assert!((3..=4).contains(&logged(&cluster, "Fix:")), "{:?}", cluster.log);
    assert!(logged(&cluster, "cleared") <= logged(&cluster, "Fix:"), "{:?}", cluster.log);
    let before = logged(&cluster, "Fix:");
    (0..13).for_each(|_| cluster.sample(&[(1, hot())]));
    assert_eq!(logged(&cluster, "Fix:"), before + 1, "{:?}", cluster.log);
}

/// A reset does not repair a GPU whose host must be rebooted.
#[test]
fn recovery_action_decides_the_fix_and_replaces_the_former_action() {
    let action = |action| {
        let readings = Readings { recovery_action: Some(action), ..Readings::default() };
        [(0, GpuSample { readings, ..GpuSample::default() })]
    };
    let mut cluster = Cluster::new(2);
    cluster.event(0, 48);
    cluster.sample(&action(1));
    cluster.sample(&action(2));
    assert_eq!(cluster.faults(0), [FaultKind::Xid(48), FaultKind::RecoveryAction(2)]);
    let report = cluster.health.report(ProcessId::default()).gpus[0].clone();
    for fault in &report.faults {
        assert!(fault.fix.starts_with("reboot the host"), "{fault:?}");
    }
    assert_eq!(report.counts.len(), 3, "{:?}", report.counts);
}

/// NVIDIA's driver counts uncorrectable errors over the GPU's lifetime, AMD's driver since it was loaded.
#[test]
fn repair_ends_memory_errors_and_later_ones_are_reported() {
    let seen = |errors, action| GpuSample {
        readings: Readings {
            ecc_uncorrected: Some(errors),
            ras_uncorrected: Some(errors),
            recovery_action: Some(action),
            ..Readings::default()
        },
        ..GpuSample::default()
    };
    let ecc = FaultKind::EccUncorrected;
    let mut cluster = Cluster::new(1);
    cluster.sample(&[(0, seen(0, 0))]);
    cluster.sample(&[(0, seen(2, 1))]);
    assert_eq!(cluster.faults(0), [FaultKind::RecoveryAction(1), ecc]);
    // A reset on the host: the driver requires no more action, but its counters keep their values.
    (0..3).for_each(|_| cluster.sample(&[(0, seen(2, 0))]));
    assert_eq!(cluster.faults(0), []);
    cluster.sample(&[(0, seen(3, 0))]);
    assert_eq!(cluster.faults(0), [ecc]);
    cluster.health.set_released(&[identity(0)]);
    cluster.health.set_released(&[]);
    (0..3).for_each(|_| cluster.sample(&[(0, seen(3, 0))]));
    assert_eq!(cluster.faults(0), [], "returned by the administrator");
    let restart_agent = |cluster: &mut Cluster, errors| {
        let former = cluster.health.report(ProcessId::default());
        cluster.health = HealthController::new(Faults::default(), 5000, Recount::WithoutGpuJobs, Some(&former), &[]);
        cluster.health.set_offered(cluster.offer());
        (0..3).for_each(|_| cluster.sample(&[(0, seen(errors, 0))]));
        cluster.faults(0)
    };
    assert_eq!(restart_agent(&mut cluster, 3), [], "the next agent accepts errors from before the repair");
    cluster.sample(&[(0, seen(4, 0))]);
    assert_eq!(restart_agent(&mut cluster, 4), [ecc], "errors after the repair remain a fault");
}
