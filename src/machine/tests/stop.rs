//! A stop at any moment.

use std::collections::BTreeSet;

use super::*;
use config::Config;
use model::daemons::DaemonName;
use model::role::Role;
use plan::target::Target;

#[test]
fn stops_units_in_reverse_order_one_at_a_time() {
    let mut sim = Sim::new(cluster(false));
    sim.ready();
    sim.send(Event::Signal(libc::SIGTERM));
    assert_eq!((sim.spawned.last(), sim.stopped.len()), (Some(&Child::JobsQuiesce), 0), "jobs need the daemons");
    sim.exits(Child::JobsQuiesce, Exit::Code(0));
    assert_eq!(sim.stopped, [Child::Unit(API)]);
    sim.exits(Child::Unit(API), Exit::Signal(libc::SIGTERM));
    assert_eq!(sim.stopped.last(), Some(&Child::Unit(SLURMD)));
    sim.exits(Child::Unit(SLURMD), Exit::Code(0));
    sim.exits(Child::Unit(SLURMCTLD), Exit::Code(0));
    sim.exits(Child::Unit(MUNGED), Exit::Code(0));
    sim.run_to_exit();
    assert_eq!(sim.exit, Some(0));
}

#[test]
fn leftover_processes_have_time_to_exit() {
    for (code, limit) in [(0, 2_000), (1, 2_000), (exit_code::JOBS_LEFT, 200)] {
        let mut sim = Sim::new(cluster(false));
        sim.ready();
        sim.send(Event::Signal(libc::SIGTERM));
        sim.exits(Child::JobsQuiesce, Exit::Code(code));
        for unit in [API, SLURMD, SLURMCTLD, MUNGED] {
            // This stands for an orphan, which is not a known child: so `NoChildren` is never sent.
            sim.alive.insert(Child::Cmd);
            sim.stubborn.insert(Child::Cmd);
            sim.exits(Child::Unit(unit), Exit::Code(0));
        }
        let wake = sim.machine.next_wake().unwrap();
        assert_eq!((wake - sim.now).as_millis(), limit, "after code {code}");
        sim.wait(wake - sim.now);
        assert!(!sim.alive.contains(&Child::Cmd), "killed");
    }
}

/// A command and a job that ignore SIGTERM, and a service that slurmd's stop waits for, use up their parts of the stop.
#[test]
fn slurmctld_has_time_to_save_whatever_the_others_use() {
    let mut sim = Sim::new(cluster(true));
    sim.ready();
    sim.stubborn = BTreeSet::from([Child::Cmd, Child::JobsQuiesce, Child::Unit(API)]);
    sim.send(Event::Signal(libc::SIGTERM));
    assert_eq!((sim.stopped.as_slice(), sim.alive.contains(&Child::JobsQuiesce)), (&[Child::Cmd][..], false));
    sim.wait(Duration::from_millis(1_500));
    assert!(sim.alive.contains(&Child::JobsQuiesce), "the jobs have 5 of the 6.5 s before the daemons' part");
    sim.wait(Duration::from_millis(3_500));
    assert!(!sim.notices.contains(&Notice::JobsNotAccountedAtStop));
    sim.run_to_exit();
    assert!(sim.notices.contains(&Notice::JobsNotAccountedAtStop));
    assert!(!sim.notices.contains(&Notice::Killing { name: "slurmctld".to_owned() }), "{:?}", sim.notices);
    assert_eq!(sim.now, Duration::from_secs(8));
}

#[test]
fn second_stop_signal_is_the_only_reason_for_unaccounted_jobs() {
    let mut sim = Sim::new(cluster(false));
    sim.ready();
    sim.send(Event::Signal(libc::SIGTERM));
    sim.send(Event::Signal(libc::SIGTERM));
    sim.run_to_exit();
    assert!(sim.notices.contains(&Notice::SecondStopSignal) && !sim.notices.contains(&Notice::JobsNotAccountedAtStop));
}

/// A ready container of a cluster of several containers.
fn member(role: Role) -> Sim {
    let config = Config { role, ..Config::default() };
    let target = Target::of(&config);
    let mut sim = Sim::new(Setup { units: target.units(&config), jobs: target.jobs, ..cluster(false) });
    sim.prepared();
    let units: Vec<_> = sim.machine.units().iter().map(|unit| unit.id).collect();
    units.into_iter().for_each(|unit| sim.send(Event::ReadinessChecked(unit, true)));
    sim.node("idle|none");
    assert!(!sim.spawned.contains(&Child::JobsAccount) && !sim.spawned.contains(&Child::JobsRecover), "{role:?}");
    sim
}

#[test]
fn compute_and_controller_quiesce_jobs_at_stop_but_not_login() {
    for (role, quiesces) in [(Role::Compute, true), (Role::Controller, true), (Role::Login, false)] {
        let mut sim = member(role);
        sim.send(Event::Signal(libc::SIGTERM));
        assert_eq!(sim.spawned.contains(&Child::JobsQuiesce), quiesces, "{role:?}");
        sim.run_to_exit();
        assert_eq!(sim.exit, Some(0), "{role:?}");
    }
}

#[test]
fn controller_crash_starts_no_accounting_of_remote_jobs() {
    let mut sim = member(Role::Controller);
    let slurmctld = sim.machine.units().iter().find(|unit| unit.is(DaemonName::Slurmctld)).map(|unit| unit.id).unwrap();
    sim.exits(Child::Unit(slurmctld), Exit::Signal(libc::SIGKILL));
    sim.send(Event::ReadinessChecked(slurmctld, true));
    assert!(!sim.spawned.contains(&Child::JobsAccount), "{:?}", sim.spawned);
}

#[test]
fn without_cluster_sigterm_stops_command_without_deadline() {
    let mut sim = Sim::new(Setup { units: vec![], has_cluster: false, ..cluster(true) });
    assert_eq!(sim.spawned, [Child::Cmd]);
    sim.send(Event::Signal(libc::SIGTERM));
    assert_eq!(sim.stopped, [Child::Cmd]);
    assert_eq!(sim.machine.next_wake(), None, "no deadline");
    sim.exits(Child::Cmd, Exit::Code(3));
    sim.run_to_exit();
    assert_eq!(sim.exit, Some(3));
}

#[test]
fn sigterm_at_any_moment_of_startup_exits_in_bounded_time() {
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
                sim.send(Event::ReadinessChecked(unit, true));
            }
            if stubborn {
                sim.stubborn = sim.alive.clone();
            }
            sim.send(Event::Signal(libc::SIGTERM));
            let start = sim.now;
            sim.run_to_exit();
            assert_eq!(sim.exit, Some(0));
            let limit = if stubborn { Duration::from_secs(10) } else { Duration::from_secs(1) };
            assert!(sim.now - start <= limit, "{:?} after {steps} steps", sim.now - start);
        }
    }
}

#[test]
fn second_sigterm_kills_all_processes() {
    let mut sim = Sim::new(cluster(false));
    sim.ready();
    sim.stubborn = sim.alive.clone();
    sim.send(Event::Signal(libc::SIGTERM));
    sim.send(Event::Signal(libc::SIGTERM));
    let start = sim.now;
    sim.run_to_exit();
    assert!(sim.now - start < Duration::from_millis(100));
}

#[test]
fn stop_keeps_deadline_of_daemon_already_stopping() {
    let mut sim = Sim::new(cluster(true));
    sim.ready();
    sim.exits(Child::Unit(MUNGED), Exit::Signal(libc::SIGSEGV));
    sim.wait(Duration::from_secs(60));
    assert!(matches!(sim.notices.last(), Some(Notice::NeverReady { .. })), "munged does not become ready again");
    sim.exits(Child::Cmd, Exit::Code(0));
    assert!(sim.alive.contains(&Child::JobsQuiesce), "jobs are being quiesced meanwhile");
    let wake = sim.machine.next_wake().unwrap();
    sim.wait(wake - sim.now);
    assert!(sim.machine.next_wake() > Some(sim.now), "a deadline in the past would keep PID 1 busy");
}

#[test]
fn readiness_result_during_stop_starts_nothing() {
    let mut sim = Sim::new(cluster(true));
    sim.prepared();
    sim.send(Event::ReadinessChecked(MUNGED, true));
    sim.send(Event::ReadinessChecked(SLURMCTLD, true));
    // munged is backing off, slurmd is still starting, and the command's deadline has passed.
    sim.exits(Child::Unit(MUNGED), Exit::Code(1));
    sim.exits(Child::Unit(MUNGED), Exit::Code(1));
    sim.stubborn = BTreeSet::from([Child::Unit(SLURMD)]);
    sim.wait(Duration::from_secs(60));
    assert!(sim.machine.is_stopping());
    let before = sim.spawned.len();
    sim.send(Event::ReadinessChecked(SLURMD, true));
    assert_eq!(sim.spawned.len(), before);
}

/// A slurmd that joins is not ready until `slurminit jobs join` has compared the controller's record.
#[test]
fn slurmd_that_died_while_joining_was_never_ready() {
    let config = Config { role: Role::Compute, ..Config::default() };
    let target = Target::of(&config);
    let mut sim = Sim::new(Setup { units: target.units(&config), jobs: target.jobs, ..cluster(false) });
    sim.prepared();
    let id = |name| sim.machine.units().iter().find(|unit| unit.is(name)).map(|unit| unit.id).unwrap();
    let (munged, slurmd) = (id(DaemonName::Munged), id(DaemonName::Slurmd));
    sim.send(Event::ReadinessChecked(munged, true));
    sim.exits(Child::Unit(slurmd), Exit::Code(1));
    while sim.machine.units()[slurmd].starts() < 2 {
        sim.wait(Duration::from_millis(100));
    }
    assert!(!sim.machine.units()[slurmd].has_been_ready());
    sim.send(Event::ReadinessChecked(slurmd, true));
    assert!(sim.machine.units()[slurmd].has_been_ready());
}

#[test]
fn signal_after_the_exit_has_no_effect() {
    let mut sim = Sim::new(cluster(false));
    sim.ready();
    sim.send(Event::Signal(libc::SIGTERM));
    sim.run_to_exit();
    assert_eq!(sim.machine.step(sim.now, Event::Signal(libc::SIGTERM)), []);
}

#[test]
fn panic_loses_no_effect_that_came_before_it() {
    let mut sim = Sim::new(cluster(false));
    sim.machine.cluster.step.push(Effect::SignalAll(libc::SIGTERM));
    assert_eq!(sim.machine.effects_of_panic(), [Effect::SignalAll(libc::SIGTERM)]);
    assert_eq!(sim.machine.effects_of_panic(), []);
}
