//! Liveness rounds in the simulation.

use config::{Config, Role};
use plan::target::Target;

use super::super::tests::*;
use super::super::*;
use super::*;
use model::exit_code;

const SECOND: Duration = Duration::from_secs(1);

fn silent() -> Liveness {
    Liveness::Silent("no answer".to_owned())
}

fn slow() -> Liveness {
    Liveness::Slow("no answer".to_owned())
}

/// A cluster whose daemons and service are ready; `node` is the node's state.
fn up_with(setup: Setup, node: &str) -> Sim {
    let mut sim = Sim::new(setup);
    sim.prepared();
    for unit in UNITS {
        sim.send(Event::ReadinessChecked(unit, true));
    }
    sim.node(node);
    sim
}

fn up(setup: Setup) -> Sim {
    up_with(setup, "idle|none")
}

fn responsive() -> Sim {
    up(probed(cluster(false)))
}

/// Runs the next round, which takes 3 s if there are `outcomes`. Units without an outcome respond.
fn round(sim: &mut Sim, outcomes: &[(UnitId, Liveness)]) {
    begin(sim);
    if !outcomes.is_empty() {
        sim.wait(3 * SECOND);
    }
    for unit in sim.machine.units_being_checked().to_vec() {
        let liveness = outcomes.iter().find(|(other, _)| *other == unit).map(|(_, liveness)| liveness.clone());
        sim.send(Event::Liveness(unit, liveness.unwrap_or(Liveness::Answers)));
    }
    sim.exits(Child::Liveness, Exit::Code(0));
}

fn begin(sim: &mut Sim) {
    while !sim.alive.contains(&Child::Liveness) {
        let wake = sim.machine.next_wake().expect("a round is due");
        sim.wait(wake.saturating_sub(sim.now));
    }
}

fn restarts(sim: &Sim) -> Vec<u32> {
    sim.machine.snapshot().units.iter().map(|unit| unit.restarts).collect()
}

#[test]
fn first_round_is_early_and_restarts_missing_watchers() {
    let mut sim = responsive();
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
    sim.send(Event::Signal(libc::SIGTERM));
    sim.exits(Child::JobsQuiesce, Exit::Code(0));
    sim.run_to_exit();
}

/// GPU detection can take seconds, during which munged is probed but the node's name is unknown.
#[test]
fn watches_registration_of_compute_after_slurmd_is_ready() {
    let config = Config { role: Role::Compute, ..Config::default() };
    let target = Target::of(&config);
    let mut sim = Sim::new(probed(Setup { units: target.units(&config), jobs: target.jobs, ..cluster(false) }));
    let id = |sim: &Sim, name| sim.machine.units().iter().find(|unit| unit.is(name)).map(|unit| unit.id).unwrap();
    let (munged, slurmd) = (id(&sim, DaemonName::Munged), id(&sim, DaemonName::Slurmd));
    let is_watched = |sim: &Sim| sim.spawned.contains(&Child::JobsReached);
    sim.send(Event::Prepare(PrepareEvent::MungeKeyReady));
    sim.send(Event::ReadinessChecked(munged, true));
    begin(&mut sim);
    sim.exits(Child::Liveness, Exit::Code(0));
    assert!(!is_watched(&sim));
    sim.prepared();
    sim.send(Event::ReadinessChecked(slurmd, true));
    begin(&mut sim);
    assert!(is_watched(&sim));
}

#[test]
fn detects_and_fixes_hang_within_two_intervals() {
    for (unit, code) in [(MUNGED, Exit::Code(0)), (SLURMCTLD, Exit::Code(0)), (SLURMD, Exit::Signal(libc::SIGKILL))] {
        let mut sim = responsive();
        let hung = sim.now;
        round(&mut sim, &[(unit, silent())]);
        assert_eq!(sim.stopped, [Child::Unit(unit)]);
        if code == Exit::Code(0) {
            sim.exits(Child::Unit(unit), code);
        } else {
            // slurmd ignores SIGTERM; the first SIGKILL comes well before its stop timeout.
            let wake = sim.machine.next_wake().unwrap();
            sim.wait(wake - sim.now);
            while sim.now - hung < 10 * SECOND && sim.spawned.iter().filter(|c| **c == Child::Unit(unit)).count() < 2 {
                let wake = sim.machine.next_wake().unwrap();
                sim.wait(wake - sim.now);
            }
        }
        assert_eq!(sim.spawned.last(), Some(&Child::Unit(unit)), "only the hung unit is restarted");
        assert!(sim.now - hung < 10 * SECOND, "{:?}", sim.now - hung);
        let status = sim.machine.snapshot().units[unit.0].last_exit_why.clone().unwrap().to_string();
        assert!(status.contains("did not answer"), "{status}");
    }
}

#[test]
fn does_not_blame_unit_whose_dependency_does_not_respond() {
    let mut sim = responsive();
    round(&mut sim, &[(MUNGED, silent()), (SLURMCTLD, silent()), (SLURMD, silent())]);
    assert_eq!(sim.stopped, [Child::Unit(MUNGED)], "all probes need munged");
    sim.exits(Child::Unit(MUNGED), Exit::Code(0));
    sim.send(Event::ReadinessChecked(MUNGED, true));
    round(&mut sim, &[]);
    assert_eq!(restarts(&sim), [1, 0, 0, 0]);
}

#[test]
fn unit_restarted_in_round_and_its_dependents_have_no_verdict() {
    let mut sim = responsive();
    begin(&mut sim);
    sim.exits(Child::Unit(MUNGED), Exit::Signal(libc::SIGKILL));
    sim.send(Event::ReadinessChecked(MUNGED, true));
    for unit in DAEMONS {
        sim.send(Event::Liveness(unit, silent()));
    }
    sim.exits(Child::Liveness, Exit::Code(0));
    assert_eq!(sim.stopped, []);
}

#[test]
fn restarts_slow_unit_after_minute_without_response() {
    let mut sim = responsive();
    for _ in 0..3 {
        for _ in 1..SLOW_ROUNDS {
            round(&mut sim, &[(SLURMCTLD, slow())]);
        }
        round(&mut sim, &[]);
    }
    assert_eq!(sim.stopped, []);
    let count = sim
        .notices
        .iter()
        .filter(|notice| matches!(notice, Notice::Slow { limit, .. } if *limit == 60 * SECOND))
        .count();
    assert_eq!(count, 3, "one line per slow period");
    let begin = sim.now;
    while sim.stopped.is_empty() {
        round(&mut sim, &[(SLURMCTLD, slow())]);
    }
    assert!(sim.now - begin > 50 * SECOND && sim.now - begin < 70 * SECOND, "{:?}", sim.now - begin);
}

#[test]
fn late_tick_or_failed_probe_restarts_nothing() {
    let mut sim = responsive();
    for _ in 1..ROUNDS_WITHOUT_RESULT {
        begin(&mut sim);
        // The container was paused while the clock advanced.
        sim.wait(60 * SECOND);
    }
    for exit in [Exit::Signal(libc::SIGKILL), Exit::Code(1)] {
        begin(&mut sim);
        sim.exits(Child::Liveness, exit);
    }
    assert_eq!(sim.stopped, []);
    assert!(
        sim.notices.iter().any(|notice| matches!(notice, Notice::NoVerdict { .. })),
        "several in a row are reported"
    );
}

#[test]
fn unit_that_never_responded_has_its_ready_timeout() {
    // slurmctld listens, but no node has responded to it yet.
    let mut sim = up_with(probed(cluster(false)), "unknown*|none");
    sim.send(Event::Node(NodeReport::parse("unknown*|none").unwrap()));
    let begin = sim.now;
    while sim.stopped.is_empty() {
        assert!(sim.now - begin < 75 * SECOND, "no restart within 75 s");
        round(&mut sim, &[(SLURMCTLD, silent())]);
    }
    assert!(sim.now - begin > 60 * SECOND, "not before its ready_timeout: {:?}", sim.now - begin);
}

#[test]
fn reports_probe_that_cannot_run_once() {
    let mut sim = responsive();
    for _ in 0..3 {
        round(&mut sim, &[(MUNGED, Liveness::Unknown("no such program".to_owned()))]);
    }
    assert_eq!(sim.notices.iter().filter(|notice| matches!(notice, Notice::NotChecked { .. })).count(), 1);
    assert_eq!(sim.stopped, []);
}

/// Completes a restart: the unit exits and becomes ready again.
fn complete_restart(sim: &mut Sim, unit: UnitId) {
    sim.exits(Child::Unit(unit), Exit::Code(0));
    assert!(sim.alive.contains(&Child::Unit(unit)), "restarted without delay");
    sim.send(Event::ReadinessChecked(unit, true));
}

#[test]
fn restarts_after_hangs_back_off_without_giving_up() {
    let mut sim = responsive();
    let mut times = vec![];
    while sim.now < 7200 * SECOND {
        // The unit responds in one round and hangs in the next ones.
        round(&mut sim, &[]);
        while sim.stopped.is_empty() {
            round(&mut sim, &[(SLURMCTLD, silent())]);
        }
        times.push(sim.now);
        sim.stopped.clear();
        complete_restart(&mut sim, SLURMCTLD);
    }
    assert!(!sim.machine.is_stopping() && !sim.notices.iter().any(|notice| matches!(notice, Notice::GaveUp { .. })));
    let pauses: Vec<_> = times.windows(2).map(|pair| (pair[1] - pair[0]).as_secs()).collect();
    assert!(pauses[0] >= 30 && pauses[0] < 45 && pauses[1] >= 60 && pauses[5] >= 600 && pauses[5] < 620, "{pauses:?}");
    let reports = sim.notices.iter().filter(|notice| matches!(notice, Notice::StillUnresponsive { .. })).count();
    assert!(reports <= times.len(), "at most one line per restart: {reports} for {}", times.len());
}

#[test]
fn restarts_at_once_after_long_responsive_period() {
    let mut sim = responsive();
    for _ in 0..3 {
        round(&mut sim, &[(SLURMCTLD, silent())]);
        assert_eq!(sim.stopped, [Child::Unit(SLURMCTLD)]);
        sim.stopped.clear();
        complete_restart(&mut sim, SLURMCTLD);
        for _ in 0..15 {
            round(&mut sim, &[]);
        }
    }
}

#[test]
fn ends_container_when_files_fill_its_memory() {
    let mut sim = responsive();
    begin(&mut sim);
    assert!(sim.alive.contains(&Child::OomScore));
    sim.exits(Child::OomScore, Exit::Code(exit_code::MEMORY_FULL));
    sim.run_to_exit();
    assert_eq!(sim.exit, Some(exit_code::MEMORY_FULL));
}

#[test]
fn restarts_suspended_unit_despite_ready_timeout() {
    let mut setup = probed(cluster(false));
    setup.units[3].liveness = setup.units[1].liveness.clone();
    // The service has never responded, and its ready_timeout has not passed.
    let mut sim = up(setup);
    round(&mut sim, &[(API, silent())]);
    assert_eq!(sim.stopped, []);
    round(&mut sim, &[(API, Liveness::Stopped("it was stopped".to_owned()))]);
    assert_eq!(sim.stopped, [Child::Unit(API)]);
}

#[test]
fn restarts_suspended_unit_every_time() {
    let mut sim = responsive();
    for times in 1..=5 {
        round(&mut sim, &[(SLURMCTLD, Liveness::Stopped("it was stopped".to_owned()))]);
        assert_eq!(sim.stopped.len(), times, "an ordinary user cannot cause this stop: {:?}", sim.notices);
        sim.exits(Child::Unit(SLURMCTLD), Exit::Code(0));
        sim.send(Event::ReadinessChecked(SLURMCTLD, true));
    }
}

#[test]
fn zero_interval_or_restart_never_disables_probes() {
    let mut setup = probed(cluster(false));
    setup.supervise.probe_interval = Duration::ZERO;
    let sim = up(setup);
    assert_eq!(sim.machine.next_wake(), None);

    let mut setup = probed(cluster(false));
    setup.units[1].restart = RestartPolicy::Never;
    let mut sim = up(setup);
    begin(&mut sim);
    assert_eq!(sim.machine.units_being_checked(), [MUNGED, SLURMD]);
}

#[test]
fn stop_during_a_round_ends_the_check_without_a_verdict() {
    let mut sim = responsive();
    begin(&mut sim);
    sim.send(Event::Liveness(SLURMCTLD, silent()));
    sim.send(Event::Signal(libc::SIGTERM));
    assert!(!sim.alive.contains(&Child::Liveness));
    sim.exits(Child::JobsQuiesce, Exit::Code(0));
    assert!(!sim.stopped.contains(&Child::Unit(SLURMCTLD)), "slurmd stops first");
    sim.wait(MS);
    sim.run_to_exit();
    assert_eq!(sim.exit, Some(0));
}

#[test]
fn answer_may_take_the_units_own_time_but_no_longer_than_the_interval() {
    let timeout = |own: Option<u64>, interval: u64| {
        let mut setup = probed(cluster(false));
        (setup.supervise.probe_interval, setup.supervise.probe_timeout) = (Duration::from_secs(interval), 3 * SECOND);
        setup.units[1].liveness.as_mut().unwrap().timeout = own.map(Duration::from_secs);
        Sim::new(setup).machine.probe_timeout(SLURMCTLD)
    };
    assert_eq!((timeout(None, 5), timeout(Some(4), 5)), (3 * SECOND, 4 * SECOND));
    assert_eq!((timeout(None, 2), timeout(Some(9), 5)), (2 * SECOND, 5 * SECOND));
}
