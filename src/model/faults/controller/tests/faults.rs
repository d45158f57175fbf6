//! Which fault is reported, counted, or excludes the GPU.

use super::*;
use crate::message::Message;

#[test]
fn reports_program_error_with_job_without_drain() {
    let mut world = World::new(2);
    world.jobs[1] = Some(17);
    for xid in [13, 31, 43] {
        for _ in 0..100 {
            world.event(1, xid);
        }
    }
    assert_eq!((world.drained.clone(), world.offered.len()), (None, 2));
    let lines: Vec<_> = world.log.iter().filter(|line| line.contains("XID")).collect();
    assert_eq!(lines.len(), 3, "each once a minute: {lines:?}");
    assert!(lines[0].contains("job 17 of alice had it") && lines[0].contains("GPU-1") && lines[0].contains("Repair: "));
    assert_eq!(world.health.report(1).gpus[1].counts[&FaultKind::Xid(43)].count, 100);
}

#[test]
fn xid_requiring_reset_drains_until_driver_reports_recovery() {
    let mut world = World::new(2);
    world.event(0, 79);
    assert_eq!((world.offered.clone(), world.drained.clone()), (vec![1], None));
    for _ in 0..11 {
        world.look(&[]);
    }
    assert_eq!(world.offered, [1], "the driver may need a while to say otherwise");
    let reset = Seen { readings: Readings { recovery_action: Some(1), ..Readings::default() }, ..Seen::default() };
    world.look(&[(0, reset)]);
    assert_eq!(world.offered, [1]);
    (0..3).for_each(|_| world.look(&[]));
    assert_eq!(world.offered, [0, 1]);
}

/// Before driver 570 nothing tells that a GPU is well; a row that waits for a reset tells that it is not.
#[test]
fn an_xid_of_a_driver_without_a_recovery_action_ends_after_a_time_that_doubles() {
    let mut world = World::new(2);
    let silent = || [(0, Seen::default()), (1, Seen::default())];
    let pending = RemappedRows { is_pending: true, ..RemappedRows::default() };
    let readings = Readings { remapped_rows: Some(pending), ..Readings::default() };
    for (minutes, is_pending) in [(10, false), (20, true)] {
        world.look(&silent());
        world.event(1, 48);
        let logged = world.log.iter().rfind(|line| line.contains("XID 48")).unwrap();
        assert!(logged.contains(&format!("available again after {minutes} min without an error")), "{logged}");
        // A look takes 5.3 s.
        (0..minutes * 11).for_each(|_| world.look(&silent()));
        assert_eq!(world.offered, [0], "{minutes}");
        if is_pending {
            let waits = Seen { readings: readings.clone(), ..Seen::default() };
            (0..100).for_each(|_| world.look(&[(0, Seen::default()), (1, waits.clone())]));
            assert_eq!(world.offered, [0], "{minutes}");
        }
        (0..9).for_each(|_| world.look(&silent()));
        assert_eq!(world.offered, [0, 1], "{minutes}");
    }
    assert_eq!(world.drained, None);
}

#[test]
fn policies_are_the_operators() {
    let mut world =
        World::with(2, "[faults]\nlost = 'warn'\n[faults.xid]\n13 = 'drain'\n31 = 'ignore'\n", Recount::WithoutGpuJobs);
    world.lost(0);
    world.event(0, 31);
    assert_eq!((world.offered.len(), world.drained.clone()), (2, None));
    world.look(&[]);
    world.event(1, 13);
    assert_eq!(world.offered, [0]);
    assert!(!world.log.iter().any(|line| line.contains("XID 31")));
}

#[test]
fn reports_gpu_lost_only_if_it_was_listed_before() {
    let mut world = World::new(3);
    world.pass(5000);
    world.health.listed(world.now, NVIDIA, world.gpus[..2].to_vec());
    world.health.done(world.now, NVIDIA);
    world.action();
    assert!(world.log.iter().any(|line| line.starts_with("GPU 2") && line.contains("no longer lists the GPU")));
    assert_eq!(world.health.report(1).gpus.len(), 3);
}

#[test]
fn every_sampled_condition_has_its_fault() {
    let seen = |readings: Readings, slowdowns: Vec<Slowdown>| Seen {
        condition: Condition { slowdowns: Some(slowdowns), ..Condition::default() },
        readings,
        trouble: None,
    };
    let failed = RemappedRows { has_failed: true, ..RemappedRows::default() };
    for (shown, kind, drains) in [
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
        let mut world = World::new(2);
        world.look(&[(1, shown)]);
        let kinds: Vec<_> = world.health.report(1).gpus[1].faults.iter().map(|fault| fault.kind).collect();
        assert_eq!(kinds, [kind]);
        assert_eq!(world.offered.len() == 1, drains, "{kind}");
        (0..2).for_each(|_| world.look(&[]));
        assert!(world.health.report(1).gpus[1].faults.is_empty(), "{kind}");
    }
    // Only what comes after the first look is new.
    let with =
        |errors| seen(Readings { ecc_uncorrected: Some(errors), nvlinks_down: Some(2), ..Readings::default() }, vec![]);
    let mut health = HealthController::new(Faults::default(), 5000, Recount::WithoutGpuJobs, None, &[]);
    let now = Clock::default();
    health.listed(now, NVIDIA, vec![identity(0)]);
    for (errors, faults) in [(9, 0), (9, 0), (10, 1), (3, 1)] {
        health.seen(now, &identity(0).key(), with(errors));
        assert_eq!(health.report(1).gpus[0].faults.len(), faults, "{errors}");
    }
}

#[test]
fn reports_memory_in_use_only_without_job() {
    let used = |index| {
        let memory_mib = Some((20_480, 143_771));
        (index, Seen { condition: Condition { memory_mib, ..Condition::default() }, ..World::well() })
    };
    let mut world = World::new(2);
    world.jobs[0] = Some(7);
    (0..30).for_each(|_| world.look(&[used(0), used(1)]));
    let logged: Vec<_> = world.log.iter().filter(|line| line.contains("in use")).collect();
    assert_eq!(logged.len(), 1, "{logged:?}");
    assert!(logged[0].starts_with("GPU 1 (") && logged[0].contains("20480 MiB"), "{logged:?}");
    // The job ends, and what it left stays.
    world.jobs[0] = None;
    (0..30).for_each(|_| world.look(&[used(0), used(1)]));
    assert_eq!(world.health.report(1).gpus[0].faults[0].kind, FaultKind::Leftover);
    (0..3).for_each(|_| world.look(&[]));
    assert!(world.health.report(1).gpus.iter().all(|gpu| gpu.faults.is_empty()));
    assert_eq!((world.offered.len(), world.drained), (2, None));
}

/// slurmctld is stopped: its answers come much later, or not at all.
#[test]
fn reports_fault_before_slurm_answers_and_its_jobs_afterwards() {
    let mut world = World::new(2);
    world.pass(1000);
    world.health.event(world.now, Some(&identity(1).key()), 79);
    let actions = world.health.step(world.now);
    assert!(matches!(actions.as_slice(), [Action::Drain { .. }, Action::Ask]), "{actions:?}");
    let due = world.health.next().unwrap();
    assert!(due <= world.now.ms + 500, "{due}");
    world.now.ms = due;
    let actions = world.health.step(world.now);
    let [Action::Log(_, Message { text: line, .. }), Action::Notify(fault)] = actions.as_slice() else {
        panic!("{actions:?}")
    };
    assert!(line.contains("XID 79") && fault.jobs.is_empty(), "{line}");
    // Nothing spins meanwhile, and another fault does not wait either.
    assert_eq!(world.health.next(), None);
    world.health.event(world.now, Some(&identity(0).key()), 31);
    world.now.ms = world.health.next().unwrap();
    assert!(matches!(world.health.step(world.now).as_slice(), [Action::Log(..), Action::Notify(_)]));
    // It is back, and was logged twice to drain the node.
    for outcome in ["no answer", "no answer"] {
        world.health.drained(world.now, &Drained::Failed(outcome.to_owned()));
        world.pass(10_000);
        let actions = world.health.step(world.now);
        assert!(actions.iter().filter(|action| matches!(action, Action::Log(..))).count() <= 1, "{actions:?}");
        let node = OnNode { gpus: vec![vec![], vec![]], ..OnNode::default() };
        world.health.on_node(world.now, world.now, Some(&node));
        let actions = world.health.step(world.now);
        assert!(matches!(actions.as_slice(), [Action::Drain { .. }, ..]), "{actions:?}");
    }
    world.health.drained(world.now, &Drained::Ours);
    let job = OwnedJob { job: 17, user: "alice".to_owned() };
    let node = OnNode { is_closed: true, is_ours: true, held: 1, gpus: vec![vec![], vec![job]], is_empty: false };
    world.health.event(world.now, Some(&identity(1).key()), 79);
    world.pass(1000);
    world.health.step(world.now);
    world.health.on_node(world.now, world.now, Some(&node));
    assert!(world.health.report(1).gpus[1].jobs.len() == 1);
}

/// A flapping fault is reported once a minute, with its end; a lasting one stays open.
#[test]
fn reports_flapping_fault_once_a_minute() {
    let hot = || Seen {
        condition: Condition { slowdowns: Some(vec![Slowdown::Heat]), ..Condition::default() },
        ..World::well()
    };
    let mut world = World::new(2);
    for _ in 0..12 {
        world.look(&[(1, hot())]);
        (0..2).for_each(|_| world.look(&[]));
    }
    let logged = |world: &World, word: &str| {
        world.log.iter().filter(|line| line.contains("throttled") && line.contains(word)).count()
    };
    // Twelve times in 190 s.
    assert!((3..=4).contains(&logged(&world, "Repair")), "{:?}", world.log);
    assert!(logged(&world, "cleared") <= logged(&world, "Repair"), "{:?}", world.log);
    let before = logged(&world, "Repair");
    (0..13).for_each(|_| world.look(&[(1, hot())]));
    assert_eq!(logged(&world, "Repair"), before + 1, "{:?}", world.log);
}
