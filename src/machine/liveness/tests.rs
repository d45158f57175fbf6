//! Rounds of questions in the simulated world.

use config::{Config, Role};
use plan::target::Target;

use super::super::tests::*;
use super::super::*;
use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn silent() -> Liveness {
    Liveness::Silent("no answer".to_owned())
}

fn slow() -> Liveness {
    Liveness::Slow("no answer".to_owned())
}

/// A cluster that is ready, the service too; the node's state is `node`.
fn up_with(setup: Setup, node: &str) -> Sim {
    let mut sim = Sim::new(setup);
    sim.prepared();
    for unit in UNITS {
        sim.give(Event::ReadinessChecked(unit, true));
    }
    sim.node(node);
    sim
}

fn up(setup: Setup) -> Sim {
    up_with(setup, "idle|none")
}

fn answering() -> Sim {
    up(probed(cluster(false)))
}

/// Waits for the next round, which takes 3 s if a unit does not respond; the others do.
fn round(sim: &mut Sim, outcomes: &[(UnitId, Liveness)]) {
    begin(sim);
    if !outcomes.is_empty() {
        sim.wait(3 * SECOND);
    }
    for unit in sim.machine.asked().to_vec() {
        let liveness = outcomes.iter().find(|(asked, _)| *asked == unit).map(|(_, liveness)| liveness.clone());
        sim.give(Event::Liveness(unit, liveness.unwrap_or(Liveness::Answers)));
    }
    sim.exits(Child::Liveness, Exit::Code(0));
}

fn begin(sim: &mut Sim) {
    while !sim.living.contains(&Child::Liveness) {
        let wake = sim.machine.next_wake().expect("a round is due");
        sim.wait(wake.saturating_sub(sim.now));
    }
}

fn restarts(sim: &Sim) -> Vec<u32> {
    sim.machine.snapshot().units.iter().map(|unit| unit.restarts).collect()
}

#[test]
fn first_round_is_early_and_restarts_missing_watchers() {
    let mut sim = answering();
    let ready = sim.now;
    begin(&mut sim);
    assert!(sim.now - ready <= SECOND, "{:?}", sim.now - ready);
    let started = |sim: &Sim, watcher| sim.spawned.iter().filter(|child| **child == watcher).count();
    assert_eq!([Child::OomScore, Child::JobsFollow].map(|watcher| started(&sim, watcher)), [1, 1]);
    sim.exits(Child::OomScore, Exit::Signal(libc::SIGKILL));
    for _ in 0..2 {
        round(&mut sim, &[]);
    }
    assert_eq!([Child::OomScore, Child::JobsFollow].map(|watcher| started(&sim, watcher)), [2, 1]);
    sim.give(Event::Signal(libc::SIGTERM));
    sim.exits(Child::JobsQuiesce, Exit::Code(0));
    sim.let_end();
}

/// A driver can take seconds, in which munged is asked already and the node's name is not known.
#[test]
fn watches_a_computes_registration_once_its_slurmd_is_ready() {
    let config = Config { role: Role::Compute, ..Config::default() };
    let target = Target::of(&config);
    let mut sim = Sim::new(probed(Setup { units: target.units(&config), jobs: target.jobs, ..cluster(false) }));
    let id = |sim: &Sim, name| sim.machine.units().iter().find(|unit| unit.is(name)).map(|unit| unit.id).unwrap();
    let (munged, slurmd) = (id(&sim, DaemonName::Munged), id(&sim, DaemonName::Slurmd));
    let is_watched = |sim: &Sim| sim.spawned.contains(&Child::JobsReached);
    sim.give(Event::Prepare(PrepareEvent::MungeKeyReady));
    sim.give(Event::ReadinessChecked(munged, true));
    begin(&mut sim);
    sim.exits(Child::Liveness, Exit::Code(0));
    assert!(!is_watched(&sim));
    sim.prepared();
    sim.give(Event::ReadinessChecked(slurmd, true));
    begin(&mut sim);
    assert!(is_watched(&sim));
}

#[test]
fn detects_and_repairs_hang_within_two_intervals() {
    for (unit, code) in [(MUNGED, Exit::Code(0)), (SLURMCTLD, Exit::Code(0)), (SLURMD, Exit::Signal(libc::SIGKILL))] {
        let mut sim = answering();
        let hung = sim.now;
        round(&mut sim, &[(unit, silent())]);
        assert_eq!(sim.stopped, [Child::Unit(unit)]);
        if code == Exit::Code(0) {
            sim.exits(Child::Unit(unit), code);
        } else {
            // It does not obey, and the first KILL comes well before its stop timeout.
            let wake = sim.machine.next_wake().unwrap();
            sim.wait(wake - sim.now);
            while sim.now - hung < 10 * SECOND && sim.spawned.iter().filter(|c| **c == Child::Unit(unit)).count() < 2 {
                let wake = sim.machine.next_wake().unwrap();
                sim.wait(wake - sim.now);
            }
        }
        assert_eq!(sim.spawned.last(), Some(&Child::Unit(unit)), "it runs again, and no other was touched");
        assert!(sim.now - hung < 10 * SECOND, "{:?}", sim.now - hung);
        let status = sim.machine.snapshot().units[unit.0].last_exit_why.clone().unwrap().to_string();
        assert!(status.contains("did not answer"), "{status}");
    }
}

#[test]
fn does_not_blame_unit_whose_dependency_does_not_respond() {
    let mut sim = answering();
    round(&mut sim, &[(MUNGED, silent()), (SLURMCTLD, silent()), (SLURMD, silent())]);
    assert_eq!(sim.stopped, [Child::Unit(MUNGED)], "all questions need munged");
    sim.exits(Child::Unit(MUNGED), Exit::Code(0));
    sim.give(Event::ReadinessChecked(MUNGED, true));
    round(&mut sim, &[]);
    assert_eq!(restarts(&sim), [1, 0, 0, 0]);
}

#[test]
fn unit_that_died_in_round_is_not_judged_and_neither_are_those_that_need_it() {
    let mut sim = answering();
    begin(&mut sim);
    sim.exits(Child::Unit(MUNGED), Exit::Signal(libc::SIGKILL));
    sim.give(Event::ReadinessChecked(MUNGED, true));
    for unit in DAEMONS {
        sim.give(Event::Liveness(unit, silent()));
    }
    sim.exits(Child::Liveness, Exit::Code(0));
    assert_eq!(sim.stopped, []);
}

#[test]
fn slow_unit_has_minute_and_one_that_answers_in_between_has_another() {
    let mut sim = answering();
    for _ in 0..3 {
        for _ in 1..SLOW_ROUNDS {
            round(&mut sim, &[(SLURMCTLD, slow())]);
        }
        round(&mut sim, &[]);
    }
    assert_eq!(sim.stopped, []);
    let count = sim.notices.iter().filter(|notice| matches!(notice, Notice::Slow { .. })).count();
    assert_eq!(count, 3, "one line for each time");
    let begin = sim.now;
    while sim.stopped.is_empty() {
        round(&mut sim, &[(SLURMCTLD, slow())]);
    }
    assert!(sim.now - begin > 50 * SECOND && sim.now - begin < 70 * SECOND, "{:?}", sim.now - begin);
}

#[test]
fn late_tick_and_silent_probe_are_no_evidence() {
    let mut sim = answering();
    for _ in 1..ROUNDS_WITHOUT_RESULT {
        begin(&mut sim);
        // The container was paused: everything stood still, and the clock went on.
        sim.wait(60 * SECOND);
    }
    for exit in [Exit::Signal(libc::SIGKILL), Exit::Code(1)] {
        begin(&mut sim);
        sim.exits(Child::Liveness, exit);
    }
    assert_eq!(sim.stopped, []);
    assert!(
        sim.notices.iter().any(|notice| matches!(notice, Notice::NoVerdict { .. })),
        "but several in a row are reported"
    );
}

#[test]
fn unit_that_never_answered_has_time_of_start() {
    // slurmctld listens, but reports a node that has not responded since.
    let mut sim = up_with(probed(cluster(false)), "unknown*|none");
    sim.give(Event::Node(NodeReport::parse("unknown*|none").unwrap()));
    let begin = sim.now;
    while sim.stopped.is_empty() {
        assert!(sim.now - begin < 75 * SECOND, "it is restarted at some time");
        round(&mut sim, &[(SLURMCTLD, silent())]);
    }
    assert!(sim.now - begin > 60 * SECOND, "not before its ready_timeout: {:?}", sim.now - begin);
}

#[test]
fn reports_failed_query_once() {
    let mut sim = answering();
    for _ in 0..3 {
        round(&mut sim, &[(MUNGED, Liveness::Unknown("no such program".to_owned()))]);
    }
    assert_eq!(sim.notices.iter().filter(|notice| matches!(notice, Notice::NotChecked { .. })).count(), 1);
    assert_eq!(sim.stopped, []);
}

/// The restart of a unit: it ends, and is ready again.
fn cured(sim: &mut Sim, unit: UnitId) {
    sim.exits(Child::Unit(unit), Exit::Code(0));
    assert!(sim.living.contains(&Child::Unit(unit)), "at once");
    sim.give(Event::ReadinessChecked(unit, true));
}

#[test]
fn hangs_are_no_failures_and_restarts_back_off() {
    let mut sim = answering();
    let mut at = vec![];
    while sim.now < 7200 * SECOND {
        // One question is let pass, and the next is not.
        round(&mut sim, &[]);
        while sim.stopped.is_empty() {
            round(&mut sim, &[(SLURMCTLD, silent())]);
        }
        at.push(sim.now);
        sim.stopped.clear();
        cured(&mut sim, SLURMCTLD);
    }
    assert!(!sim.machine.is_stopping() && !sim.notices.iter().any(|notice| matches!(notice, Notice::GaveUp { .. })));
    let pauses: Vec<_> = at.windows(2).map(|pair| (pair[1] - pair[0]).as_secs()).collect();
    assert!(pauses[0] >= 30 && pauses[0] < 45 && pauses[1] >= 60 && pauses[5] >= 600 && pauses[5] < 620, "{pauses:?}");
    let left = sim.notices.iter().filter(|notice| matches!(notice, Notice::StillUnresponsive { .. })).count();
    assert!(left <= at.len(), "one line in between, not one for each question: {left} for {}", at.len());
}

#[test]
fn restarts_at_once_after_long_responsive_period() {
    let mut sim = answering();
    for _ in 0..3 {
        round(&mut sim, &[(SLURMCTLD, silent())]);
        assert_eq!(sim.stopped, [Child::Unit(SLURMCTLD)]);
        sim.stopped.clear();
        cured(&mut sim, SLURMCTLD);
        for _ in 0..15 {
            round(&mut sim, &[]);
        }
    }
}

#[test]
fn reports_overload_once_and_tolerates_it_long() {
    let mut sim = answering();
    let overload = || Liveness::Overloaded("60 connections".to_owned());
    let begin = sim.now;
    while sim.stopped.is_empty() {
        round(&mut sim, &[(SLURMCTLD, overload())]);
    }
    assert!(sim.now - begin > 290 * SECOND && sim.now - begin < 320 * SECOND, "{:?}", sim.now - begin);
    cured(&mut sim, SLURMCTLD);
    // One that answers in between has another five minutes, and the log stays quiet.
    sim.stopped.clear();
    for _ in 0..100 {
        round(&mut sim, &[]);
        round(&mut sim, &[(SLURMCTLD, overload())]);
    }
    assert_eq!(sim.stopped, []);
    assert_eq!(sim.notices.iter().filter(|notice| matches!(notice, Notice::Overloaded { .. })).count(), 1);
}

#[test]
fn stopped_unit_is_no_question_of_time() {
    let mut setup = probed(cluster(false));
    setup.units[3].liveness = setup.units[1].liveness.clone();
    // The service has never answered, and is still within the time of a start.
    let mut sim = up(setup);
    round(&mut sim, &[(API, silent())]);
    assert_eq!(sim.stopped, []);
    round(&mut sim, &[(API, Liveness::Stopped("it was stopped".to_owned()))]);
    assert_eq!(sim.stopped, [Child::Unit(API)]);
}

#[test]
fn restarts_unit_each_time_it_is_stopped() {
    let mut sim = answering();
    for times in 1..=5 {
        round(&mut sim, &[(SLURMCTLD, Liveness::Stopped("it was stopped".to_owned()))]);
        assert_eq!(sim.stopped.len(), times, "an ordinary user cannot cause this stop: {:?}", sim.notices);
        sim.exits(Child::Unit(SLURMCTLD), Exit::Code(0));
        sim.give(Event::ReadinessChecked(SLURMCTLD, true));
    }
}

#[test]
fn zero_disables_probes_and_skips_units_without_restart() {
    let mut setup = probed(cluster(false));
    setup.supervise.probe_interval = Duration::ZERO;
    let sim = up(setup);
    assert_eq!(sim.machine.next_wake(), None);

    let mut setup = probed(cluster(false));
    setup.units[1].restart = RestartPolicy::Never;
    let mut sim = up(setup);
    begin(&mut sim);
    assert_eq!(sim.machine.asked(), [MUNGED, SLURMD]);
}

#[test]
fn stop_during_a_round_ends_the_check_without_a_verdict() {
    let mut sim = answering();
    begin(&mut sim);
    sim.give(Event::Liveness(SLURMCTLD, silent()));
    sim.give(Event::Signal(libc::SIGTERM));
    assert!(!sim.living.contains(&Child::Liveness));
    sim.exits(Child::JobsQuiesce, Exit::Code(0));
    assert!(!sim.stopped.contains(&Child::Unit(SLURMCTLD)), "slurmd is first");
    sim.wait(MS);
    sim.let_end();
    assert_eq!(sim.exit, Some(0));
}
