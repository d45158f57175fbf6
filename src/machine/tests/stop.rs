//! A stop at any moment.

use std::collections::BTreeSet;

use super::*;
use config::Config;
use model::daemons::DaemonName;
use model::role::Role;
use plan::target::Target;

#[test]
fn stop_takes_reverse_order_and_waits_for_each() {
    let mut sim = Sim::new(cluster(false));
    sim.ready();
    sim.give(Event::Signal(libc::SIGTERM));
    assert_eq!((sim.spawned.last(), sim.stopped.len()), (Some(&Child::JobsQuiesce), 0), "jobs need the daemons");
    sim.exits(Child::JobsQuiesce, Exit::Code(0));
    assert_eq!(sim.stopped, [Child::Unit(API)]);
    sim.exits(Child::Unit(API), Exit::Signal(libc::SIGTERM));
    assert_eq!(sim.stopped.last(), Some(&Child::Unit(SLURMD)));
    sim.exits(Child::Unit(SLURMD), Exit::Code(0));
    sim.exits(Child::Unit(SLURMCTLD), Exit::Code(0));
    sim.exits(Child::Unit(MUNGED), Exit::Code(0));
    sim.let_end();
    assert_eq!(sim.exit, Some(0));
}

#[test]
fn leftover_processes_get_time_to_end() {
    for (code, limit) in [(0, 2_000), (1, 2_000), (exit_code::JOBS_LEFT, 200)] {
        let mut sim = Sim::new(cluster(false));
        sim.ready();
        sim.give(Event::Signal(libc::SIGTERM));
        sim.exits(Child::JobsQuiesce, Exit::Code(code));
        for unit in [API, SLURMD, SLURMCTLD, MUNGED] {
            // This stands for an orphan, which is not a known child: so `NoChildren` is never sent.
            sim.living.insert(Child::Cmd);
            sim.stubborn.insert(Child::Cmd);
            sim.exits(Child::Unit(unit), Exit::Code(0));
        }
        let wake = sim.machine.next_wake().unwrap();
        assert_eq!((wake - sim.now).as_millis(), limit, "after code {code}");
    }
}

/// A container of a cluster of several, that serves.
fn member(role: Role) -> Sim {
    let config = Config { role, ..Config::default() };
    let target = Target::of(&config);
    let mut sim = Sim::new(Setup { units: target.units(&config), jobs: target.jobs, ..cluster(false) });
    sim.prepared();
    let units: Vec<_> = sim.machine.units().iter().map(|unit| unit.id).collect();
    units.into_iter().for_each(|unit| sim.give(Event::ReadinessChecked(unit, true)));
    sim.node("idle|none");
    assert!(!sim.spawned.contains(&Child::JobsAccount) && !sim.spawned.contains(&Child::JobsRecover), "{role:?}");
    sim
}

#[test]
fn compute_gives_its_jobs_notice_and_controller_notes_next_id() {
    for (role, asks) in [(Role::Compute, true), (Role::Controller, true), (Role::Login, false)] {
        let mut sim = member(role);
        sim.give(Event::Signal(libc::SIGTERM));
        assert_eq!(sim.spawned.contains(&Child::JobsQuiesce), asks, "{role:?}");
        sim.let_end();
        assert_eq!(sim.exit, Some(0), "{role:?}");
    }
}

#[test]
fn slurmctld_that_dies_has_no_jobs_accounted_for_that_run_elsewhere() {
    let mut sim = member(Role::Controller);
    let slurmctld = sim.machine.units().iter().find(|unit| unit.is(DaemonName::Slurmctld)).map(|unit| unit.id).unwrap();
    sim.exits(Child::Unit(slurmctld), Exit::Signal(libc::SIGKILL));
    sim.give(Event::ReadinessChecked(slurmctld, true));
    assert!(!sim.spawned.contains(&Child::JobsAccount), "{:?}", sim.spawned);
}

#[test]
fn plain_init_leaves_term_to_its_command() {
    let mut sim = Sim::new(Setup { units: vec![], has_cluster: false, ..cluster(true) });
    assert_eq!(sim.spawned, [Child::Cmd]);
    sim.give(Event::Signal(libc::SIGTERM));
    assert_eq!(sim.stopped, [Child::Cmd]);
    assert_eq!(sim.machine.next_wake(), None, "no deadline");
    sim.exits(Child::Cmd, Exit::Code(3));
    sim.let_end();
    assert_eq!(sim.exit, Some(3));
}

#[test]
fn term_at_any_moment_of_start_ends_in_bounded_time() {
    for steps in 0..5 {
        for stubborn in [false, true] {
            let mut sim = Sim::new(Setup { hooks: vec![hook(Duration::from_secs(300))], ..cluster(false) });
            if steps > 0 {
                sim.exits(Child::Hook(0), Exit::Code(0));
            }
            if steps > 1 {
                sim.prepared();
            }
            for unit in DAEMONS.into_iter().take(steps.max(2) - 2) {
                sim.give(Event::ReadinessChecked(unit, true));
            }
            if stubborn {
                sim.stubborn = sim.living.clone();
            }
            sim.give(Event::Signal(libc::SIGTERM));
            let start = sim.now;
            sim.let_end();
            assert_eq!(sim.exit, Some(0));
            let limit = if stubborn { Duration::from_secs(10) } else { Duration::from_secs(1) };
            assert!(sim.now - start <= limit, "{:?} after {steps} steps", sim.now - start);
        }
    }
}

#[test]
fn second_term_ends_everything_now() {
    let mut sim = Sim::new(cluster(false));
    sim.ready();
    sim.stubborn = sim.living.clone();
    sim.give(Event::Signal(libc::SIGTERM));
    sim.give(Event::Signal(libc::SIGTERM));
    let start = sim.now;
    sim.let_end();
    assert!(sim.now - start < Duration::from_millis(100));
}

#[test]
fn stop_keeps_deadline_of_daemon_that_is_being_stopped_already() {
    let mut sim = Sim::new(cluster(true));
    sim.ready();
    sim.exits(Child::Unit(MUNGED), Exit::Signal(libc::SIGSEGV));
    sim.wait(Duration::from_secs(60));
    assert!(matches!(sim.notices.last(), Some(Notice::NeverReady { .. })), "munged does not come back");
    sim.exits(Child::Cmd, Exit::Code(0));
    assert!(sim.living.contains(&Child::JobsQuiesce), "slurmctld is asked about jobs meanwhile");
    let wake = sim.machine.next_wake().unwrap();
    sim.wait(wake - sim.now);
    assert!(sim.machine.next_wake() > Some(sim.now), "a deadline in the past would keep PID 1 busy");
}

#[test]
fn scan_in_progress_at_stop_starts_nothing() {
    let mut sim = Sim::new(cluster(true));
    sim.prepared();
    sim.give(Event::ReadinessChecked(MUNGED, true));
    sim.give(Event::ReadinessChecked(SLURMCTLD, true));
    // munged is backing off, slurmd is still starting, and the command's deadline has passed.
    sim.exits(Child::Unit(MUNGED), Exit::Code(1));
    sim.exits(Child::Unit(MUNGED), Exit::Code(1));
    sim.stubborn = BTreeSet::from([Child::Unit(SLURMD)]);
    sim.wait(Duration::from_secs(60));
    assert!(sim.machine.is_stopping());
    let before = sim.spawned.len();
    sim.give(Event::ReadinessChecked(SLURMD, true));
    assert_eq!(sim.spawned.len(), before);
}

/// `slurminit jobs join` compares the controller's record until then.
#[test]
fn slurmd_that_died_while_it_joined_has_not_been_ready() {
    let config = Config { role: Role::Compute, ..Config::default() };
    let target = Target::of(&config);
    let mut sim = Sim::new(Setup { units: target.units(&config), jobs: target.jobs, ..cluster(false) });
    sim.prepared();
    let id = |name| sim.machine.units().iter().find(|unit| unit.is(name)).map(|unit| unit.id).unwrap();
    let (munged, slurmd) = (id(DaemonName::Munged), id(DaemonName::Slurmd));
    sim.give(Event::ReadinessChecked(munged, true));
    sim.exits(Child::Unit(slurmd), Exit::Code(1));
    while sim.machine.units()[slurmd].starts() < 2 {
        sim.wait(Duration::from_millis(100));
    }
    assert!(!sim.machine.units()[slurmd].has_been_ready());
    sim.give(Event::ReadinessChecked(slurmd, true));
    assert!(sim.machine.units()[slurmd].has_been_ready());
}
