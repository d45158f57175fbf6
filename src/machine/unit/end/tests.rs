//! Ends of units in the simulation.

use proptest::prelude::*;

use crate::liveness_result::Liveness;
use crate::tests::*;
use crate::*;
use model::daemons::{ReadinessTest, RestartPolicy};
use model::exit_code;

const SECOND: Duration = Duration::from_secs(1);

fn refused(shortage: ExternalCause) -> Exit {
    Exit::NotStarted(SpawnFailure { code: exit_code::FAILURE, message: String::new(), shortage: Some(shortage) })
}

fn fail_externally(sim: &mut Sim, unit: UnitId, exit: Exit, shortage: ExternalCause) {
    assert!(sim.alive.remove(&Child::Unit(unit)), "{unit:?} is not running");
    sim.send(Event::FailedExternally(unit, exit, shortage));
}

fn wait_for(sim: &mut Sim, child: Child) {
    while !sim.alive.contains(&child) {
        let wake = sim.machine.next_wake().expect("a restart is scheduled");
        sim.wait(wake.saturating_sub(sim.now));
    }
}

#[test]
fn retries_forever_at_process_limit_with_short_pauses() {
    let mut sim = Sim::new(cluster(false));
    sim.ready();
    sim.exits(Child::Unit(SLURMCTLD), Exit::Signal(libc::SIGKILL));
    for _ in 0..1000 {
        let before = sim.now;
        wait_for(&mut sim, Child::Unit(SLURMCTLD));
        assert!(sim.now - before <= 4 * SECOND, "{:?}", sim.now - before);
        sim.exits(Child::Unit(SLURMCTLD), refused(ExternalCause::Processes));
    }
    let count = sim.notices.iter().filter(|notice| matches!(notice, Notice::FailedExternally { .. })).count();
    assert_eq!(count, 10, "logged for failures 1, 2, 4, 8, ...");
    wait_for(&mut sim, Child::Unit(SLURMCTLD));
    sim.send(Event::ReadinessChecked(SLURMCTLD, true));
    assert_eq!(sim.exit, None);
}

#[test]
fn restarts_forever_if_requests_crash_slurmctld() {
    let mut sim = Sim::new(cluster(false));
    sim.ready();
    for _ in 0..100 {
        let before = sim.now;
        wait_for(&mut sim, Child::Unit(SLURMCTLD));
        assert!(sim.now - before <= 4 * SECOND, "{:?}", sim.now - before);
        sim.send(Event::ReadinessChecked(SLURMCTLD, true));
        sim.exits(Child::Unit(SLURMCTLD), Exit::Code(1));
    }
    assert!(!sim.machine.is_stopping());
    let count = sim.notices.iter().filter(|notice| matches!(notice, Notice::CrashLoop { .. })).count();
    assert_eq!(count, 1, "reported once: the cause is not its configuration");
}

#[test]
fn gives_up_on_crashes_after_listening_before_cluster_is_ready() {
    let mut sim = Sim::new(cluster(false));
    sim.prepared();
    sim.send(Event::ReadinessChecked(MUNGED, true));
    for _ in 0..5 {
        wait_for(&mut sim, Child::Unit(SLURMCTLD));
        sim.send(Event::ReadinessChecked(SLURMCTLD, true));
        sim.exits(Child::Unit(SLURMCTLD), Exit::Code(1));
    }
    sim.run_to_exit();
    assert_eq!(sim.exit, Some(exit_code::SLURMCTLD), "slurmctld reads its saved state only after it listens");
}

#[test]
fn on_failure_restarts_only_failed_service() {
    for (exit, state) in [
        (Exit::Code(0), "finished"),
        (Exit::Code(1), "ready"),
        (Exit::Signal(libc::SIGTERM), "ready"),
        (Exit::Signal(libc::SIGKILL), "ready"),
    ] {
        let mut setup = cluster(false);
        setup.units[3].restart = RestartPolicy::OnFailure;
        setup.units[3].readiness = ReadinessTest::Started;
        let mut sim = Sim::new(setup);
        sim.ready();
        sim.exits(Child::Unit(API), exit);
        sim.wait(SECOND);
        assert_eq!(sim.machine.snapshot().units[3].state.to_string(), state, "{:?}", sim.notices.last());
    }
    // A service that did not become ready in time exits with 0 when it is stopped.
    let mut setup = cluster(false);
    setup.units[3].restart = RestartPolicy::OnFailure;
    setup.units[3].ready_timeout = 5 * SECOND;
    let mut sim = Sim::new(setup);
    sim.ready();
    sim.wait(5 * SECOND);
    sim.exits(Child::Unit(API), Exit::Code(0));
    wait_for(&mut sim, Child::Unit(API));
}

#[test]
fn frees_port_taken_from_unit_without_counting_a_failure() {
    let mut sim = Sim::new(cluster(false));
    sim.ready();
    for code in [0, 1] {
        for _ in 0..20 {
            sim.exits(Child::Unit(SLURMCTLD), if code == 0 { Exit::Code(0) } else { Exit::Code(1) });
            if sim.alive.contains(&Child::Unit(SLURMCTLD)) {
                fail_externally(&mut sim, SLURMCTLD, Exit::Code(1), ExternalCause::Port(6817));
            } else {
                wait_for(&mut sim, Child::Unit(SLURMCTLD));
                fail_externally(&mut sim, SLURMCTLD, Exit::Code(1), ExternalCause::Port(6817));
            }
            sim.exits(Child::FreePort(SLURMCTLD), Exit::Code(code));
            wait_for(&mut sim, Child::Unit(SLURMCTLD));
            sim.send(Event::ReadinessChecked(SLURMCTLD, true));
            sim.wait(61 * SECOND);
        }
    }
    assert!(!sim.machine.is_stopping());
}

#[test]
fn gives_up_if_protected_process_owns_port_from_start() {
    for (code, gives_up) in [(0, false), (1, true)] {
        let mut sim = Sim::new(cluster(false));
        sim.prepared();
        sim.send(Event::ReadinessChecked(MUNGED, true));
        for _ in 0..5 {
            wait_for(&mut sim, Child::Unit(SLURMCTLD));
            sim.exits(Child::Unit(SLURMCTLD), refused(ExternalCause::Port(6817)));
            sim.exits(Child::FreePort(SLURMCTLD), Exit::Code(code));
        }
        assert_eq!(sim.machine.is_stopping(), gives_up, "{code}");
        if gives_up {
            sim.run_to_exit();
            assert_eq!(sim.exit, Some(exit_code::SLURMCTLD));
        }
    }
}

/// slurmd waits 19 s for a missing device file. The limit counts failures, however long each takes.
#[test]
fn gives_up_on_slow_failures_of_a_unit_that_was_never_ready() {
    let gives_up = |fail: &dyn Fn(&mut Sim)| {
        let mut sim = Sim::new(cluster(false));
        sim.prepared();
        sim.send(Event::ReadinessChecked(MUNGED, true));
        (0..4).for_each(|_| fail(&mut sim));
        assert!(!sim.machine.is_stopping(), "four failures");
        fail(&mut sim);
        sim.run_to_exit();
        sim.exit
    };
    let exits_after = |seconds: u32| {
        move |sim: &mut Sim| {
            wait_for(sim, Child::Unit(SLURMCTLD));
            sim.wait(seconds * SECOND);
            sim.exits(Child::Unit(SLURMCTLD), Exit::Code(1));
        }
    };
    assert_eq!(gives_up(&exits_after(19)), Some(exit_code::SLURMCTLD));
    assert_eq!(gives_up(&exits_after(59)), Some(exit_code::SLURMCTLD));
    let never_ready = |sim: &mut Sim| {
        wait_for(sim, Child::Unit(SLURMCTLD));
        while !sim.machine.units()[SLURMCTLD].is_stopping() {
            sim.wait(SECOND);
        }
        sim.exits(Child::Unit(SLURMCTLD), Exit::Signal(libc::SIGTERM));
    };
    assert_eq!(gives_up(&never_ready), Some(exit_code::SLURMCTLD), "each start ends at its timeout");
    let port_is_taken = |sim: &mut Sim| {
        wait_for(sim, Child::Unit(SLURMCTLD));
        sim.exits(Child::Unit(SLURMCTLD), refused(ExternalCause::Port(6817)));
        sim.wait(9 * SECOND);
        sim.exits(Child::FreePort(SLURMCTLD), Exit::Code(1));
    };
    assert_eq!(gives_up(&port_is_taken), Some(exit_code::SLURMCTLD), "the owner is looked for 9 s each time");
}

/// A user who slows down every start must not end a cluster that has served.
#[test]
fn slow_failures_of_a_unit_that_was_ready_are_retried() {
    let mut sim = Sim::new(cluster(false));
    sim.ready();
    for _ in 0..20 {
        sim.exits(Child::Unit(SLURMCTLD), Exit::Code(1));
        wait_for(&mut sim, Child::Unit(SLURMCTLD));
        sim.wait(19 * SECOND);
    }
    assert!(!sim.machine.is_stopping());
}

#[test]
fn long_run_resets_external_failure_count() {
    let mut sim = Sim::new(cluster(false));
    sim.ready();
    for _ in 0..6 {
        fail_externally(&mut sim, SLURMD, Exit::Signal(libc::SIGKILL), ExternalCause::Memory);
        wait_for(&mut sim, Child::Unit(SLURMD));
        sim.send(Event::ReadinessChecked(SLURMD, true));
    }
    assert_eq!(sim.machine.units()[SLURMD].external_failures, 6);
    sim.wait(61 * SECOND);
    fail_externally(&mut sim, SLURMD, Exit::Signal(libc::SIGKILL), ExternalCause::Memory);
    assert_eq!(sim.machine.units()[SLURMD].external_failures, 1);
}

/// Actions by which other users can disturb a running cluster.
#[derive(Clone, Debug)]
enum Attack {
    LivenessRound(UnitId, Liveness),
    FailExternally(UnitId, ExternalCause),
    /// A request that crashes the unit; only a ready unit accepts requests.
    Crash(UnitId),
    BecomeReady(UnitId),
    FreePort(u8),
    ExitStopped,
    Wait(u64),
    Wake,
}

fn attack() -> impl Strategy<Value = Attack> {
    let why = String::new;
    let outcomes = prop::sample::select(vec![
        Liveness::Answers,
        Liveness::Silent(why()),
        Liveness::Stopped(why()),
        Liveness::Slow(why()),
        Liveness::Unknown(why()),
    ]);
    let shortages = prop::sample::select(vec![
        ExternalCause::Processes,
        ExternalCause::Memory,
        ExternalCause::Descriptors,
        ExternalCause::Port(6817),
    ]);
    prop_oneof![
        6 => ((0..3_usize).prop_map(UnitId), outcomes)
            .prop_map(|(unit, liveness)| Attack::LivenessRound(unit, liveness)),
        4 => ((0..3_usize).prop_map(UnitId), shortages)
            .prop_map(|(unit, shortage)| Attack::FailExternally(unit, shortage)),
        4 => (0..3_usize).prop_map(UnitId).prop_map(Attack::Crash),
        6 => (0..3_usize).prop_map(UnitId).prop_map(Attack::BecomeReady),
        4 => (0..2_u8).prop_map(Attack::FreePort),
        4 => Just(Attack::ExitStopped),
        2 => (0..400_000_u64).prop_map(Attack::Wait),
        6 => Just(Attack::Wake),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30_000, ..ProptestConfig::default() })]

    /// Hangs, overloads, crashing requests, taken ports and exhausted limits never stop a cluster that was ready.
    #[test]
    fn never_gives_up_after_external_failures(attacks in proptest::collection::vec(attack(), 0..80)) {
        let mut sim = Sim::new(probed(cluster(false)));
        sim.ready();
        for attack in attacks {
            match attack {
                Attack::LivenessRound(unit, liveness) => {
                    let probed_units = sim.machine.units_being_checked().to_vec();
                    for other in probed_units {
                        let result = if other == unit { liveness.clone() } else { Liveness::Answers };
                        sim.send(Event::Liveness(other, result));
                    }
                    if sim.alive.contains(&Child::Liveness) {
                        sim.exits(Child::Liveness, Exit::Code(0));
                    }
                }
                Attack::FailExternally(unit, shortage) => {
                    if sim.alive.contains(&Child::Unit(unit)) {
                        fail_externally(&mut sim, unit, Exit::Code(1), shortage);
                    }
                }
                Attack::Crash(unit) => {
                    if sim.machine.units()[unit].is_ready() {
                        sim.exits(Child::Unit(unit), Exit::Code(1));
                    }
                }
                Attack::BecomeReady(unit) => sim.send(Event::ReadinessChecked(unit, true)),
                Attack::FreePort(code) => {
                    for unit in DAEMONS {
                        if sim.alive.contains(&Child::FreePort(unit)) {
                            sim.exits(Child::FreePort(unit), Exit::Code(code));
                        }
                    }
                }
                Attack::ExitStopped => {
                    // Units that are being stopped because they do not respond exit.
                    let stopping: Vec<_> =
                        sim.alive.iter().copied().filter(|child| sim.stopped.contains(child)).collect();
                    for child in stopping {
                        if let Child::Unit(unit) = child {
                            if sim.machine.units()[unit].is_stopping() {
                                sim.exits(child, Exit::Signal(libc::SIGTERM));
                            }
                        }
                    }
                }
                Attack::Wait(ms) => {
                    // A start that exceeds its timeout is a failure; that is not tested here.
                    for unit in DAEMONS {
                        sim.send(Event::ReadinessChecked(unit, true));
                    }
                    sim.wait(Duration::from_millis(ms));
                }
                Attack::Wake => {
                    let wake = sim.machine.next_wake().unwrap_or(sim.now).min(sim.now + 5 * SECOND);
                    sim.wait(wake.saturating_sub(sim.now));
                }
            }
            prop_assert!(!sim.machine.is_stopping());
            let gave_up = sim.notices.iter().any(|notice| matches!(notice, Notice::GaveUp { .. }));
            prop_assert!(!gave_up);
        }
    }
}
