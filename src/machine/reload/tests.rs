use std::time::Duration;

use nix::libc;

use super::super::Child::Unit;
use super::super::tests::*;
use super::super::{Command, Event};
use super::*;
use crate::liveness_result::Liveness;
use model::exit_code;
use model::inventory::{Finding, Kind};

fn serving() -> Sim {
    serving_with(cluster(false))
}

fn serving_with(setup: model::task::Setup) -> Sim {
    let mut sim = Sim::new(setup);
    sim.ready();
    sim.give(Event::ReadinessChecked(API, true));
    sim.node("idle|none");
    sim.spawned.clear();
    sim
}

fn reload(sim: &mut Sim, apply: Apply) {
    sim.give(Event::Command(Command::Reload));
    prepared(sim, apply);
}

/// The preparation of a reload ends with this result.
fn prepared(sim: &mut Sim, apply: Apply) {
    let news = if apply == Apply::Nothing { vec![] } else { vec!["the nodes".to_owned()] };
    let changed = news.iter().map(|_| "/etc/slurm/slurm.conf".into()).collect();
    sim.give(Event::Prepare(PrepareEvent::Done(Prepared { apply, news, changed, ..Prepared::default() })));
    sim.exits(Child::Reload, Exit::Code(0));
}

/// Both daemons are requested to stop, and end one after the other.
fn daemons_end(sim: &mut Sim) {
    assert_eq!(sim.stopped.last(), Some(&Unit(SLURMD)));
    sim.exits(Unit(SLURMD), Exit::Code(0));
    assert_eq!(sim.stopped.last(), Some(&Unit(SLURMCTLD)), "slurmctld outlives slurmd");
    assert!(!sim.living.contains(&Unit(SLURMD)), "and slurmd waits for the new one");
    sim.exits(Unit(SLURMCTLD), Exit::Code(0));
}

fn daemons_start(sim: &mut Sim) {
    sim.give(Event::ReadinessChecked(SLURMCTLD, true));
    while sim.living.contains(&Child::JobsAccount) {
        sim.exits(Child::JobsAccount, Exit::Code(0));
    }
    sim.give(Event::ReadinessChecked(SLURMD, true));
    sim.node("idle|none");
}

fn last(sim: &Sim) -> (Outcome, String) {
    let last = sim.machine.snapshot().reload.last.unwrap();
    (last.outcome, last.text)
}

#[test]
fn unchanged_configuration_touches_nothing() {
    let mut sim = serving();
    sim.give(Event::Signal(libc::SIGHUP));
    assert_eq!(sim.spawned, [Child::Reload]);
    prepared(&mut sim, Apply::Nothing);
    assert_eq!(last(&sim), (Outcome::Unchanged, "nothing changed".to_owned()));
    assert_eq!((sim.spawned.len(), sim.stopped.len()), (1, 0));
    assert_eq!(sim.machine.next_wake(), None);
    assert!(sim.machine.snapshot().ready);
}

#[test]
fn refusal_changes_nothing_and_is_reported() {
    let mut sim = serving();
    sim.give(Event::Command(Command::Reload));
    let finding = Finding::error(Kind::Other, "slurminit.toml:3:1: no", "c", "r");
    sim.give(Event::Prepare(PrepareEvent::Failed { exit_code: exit_code::CONFIG, finding }));
    sim.exits(Child::Reload, Exit::Code(78));
    let (outcome, text) = last(&sim);
    assert_eq!(outcome, Outcome::Refused);
    assert!(text.starts_with("slurminit.toml:3:1"), "{text}");
    assert_eq!((sim.spawned.len(), sim.stopped.len()), (1, 0));
    assert!(sim.machine.snapshot().ready);
}

#[test]
fn preparation_that_dies_or_hangs_is_refusal() {
    let mut sim = serving();
    sim.give(Event::Command(Command::Reload));
    sim.exits(Child::Reload, Exit::Signal(libc::SIGSEGV));
    assert_eq!(last(&sim).0, Outcome::Refused);
    sim.give(Event::Command(Command::Reload));
    sim.wait(Duration::from_secs(30));
    assert_eq!(last(&sim).0, Outcome::Refused);
    assert!(!sim.living.contains(&Child::Reload), "it is killed");
    assert!(sim.machine.snapshot().ready);
}

#[test]
fn scontrol_reconfigure_is_enough_where_it_is() {
    let mut sim = serving();
    reload(&mut sim, Apply::Reconfigure);
    assert_eq!(sim.spawned.last(), Some(&Child::Reconfigure));
    sim.exits(Child::Reconfigure, Exit::Code(0));
    assert!(sim.machine.snapshot().reload.running, "the node is asked whether it lived through it");
    sim.node("idle|none");
    assert_eq!(last(&sim), (Outcome::Applied, "new: the nodes; slurmctld and slurmd were reconfigured".to_owned()));
    assert_eq!(sim.stopped, [], "same processes");
}

#[test]
fn failing_reconfigure_becomes_restart() {
    for hangs in [false, true] {
        let mut sim = serving();
        sim.give(Event::Command(Command::Reload));
        prepared(&mut sim, Apply::Reconfigure);
        match hangs {
            true => sim.wait(Duration::from_secs(15)),
            false => sim.exits(Child::Reconfigure, Exit::Code(1)),
        }
        daemons_end(&mut sim);
        daemons_start(&mut sim);
        assert_eq!(last(&sim), (Outcome::Applied, "new: the nodes; slurmctld and slurmd were restarted".to_owned()));
        let warned = sim.notices.iter().filter(|notice| notice.level() == model::log::Level::Warn).count();
        assert_eq!(warned, 1, "and the reason is reported: {:?}", sim.notices);
    }
}

#[test]
fn restart_takes_slurmd_and_slurmctld_in_order_and_nothing_else() {
    let mut sim = serving();
    reload(&mut sim, Apply::Restart);
    daemons_end(&mut sim);
    assert!(!sim.machine.snapshot().ready);
    assert_eq!(sim.spawned.last(), Some(&Unit(SLURMCTLD)));
    daemons_start(&mut sim);
    assert_eq!(last(&sim).0, Outcome::Applied);
    assert!(sim.machine.snapshot().ready);
    assert_eq!(sim.stopped, [Unit(SLURMD), Unit(SLURMCTLD)], "munged and the service stay");
    assert!(!sim.spawned.contains(&Child::JobsRecover), "jobs that run are no ghosts");
    let units = sim.machine.snapshot().units;
    assert_eq!((units[0].restarts, units[1].restarts, units[2].restarts), (0, 1, 1));
}

#[test]
fn restores_previous_files_after_second_death() {
    let mut sim = serving();
    reload(&mut sim, Apply::Restart);
    daemons_end(&mut sim);
    sim.exits(Unit(SLURMCTLD), Exit::Code(1));
    assert_eq!(sim.spawned.last(), Some(&Unit(SLURMCTLD)), "one death may have any cause");
    sim.exits(Unit(SLURMCTLD), Exit::Code(1));
    assert_eq!(sim.spawned.last(), Some(&Child::Restore));
    assert_eq!(sim.machine.to_restore().0, ["slurm.conf"]);
    sim.wait(Duration::from_secs(1));
    assert!(!sim.living.contains(&Unit(SLURMCTLD)), "nothing starts with files that are being replaced");
    let finding = Finding::error(Kind::Other, "slurminit.toml:3: sched/bakfill", String::new(), "correct it");
    assert_eq!(sim.machine.to_restore().1, Some(SLURMCTLD));
    sim.give(Event::Prepare(PrepareEvent::Failed { exit_code: exit_code::CONFIG, finding }));
    sim.exits(Child::Restore, Exit::Code(0));
    daemons_start(&mut sim);
    let (outcome, text) = last(&sim);
    assert_eq!(outcome, Outcome::RolledBack);
    assert!(text.contains("slurminit.toml:3: sched/bakfill; repair: correct it"), "it has the cause: {text}");
    assert!(text.contains("slurmctld fails with the new files"), "{text}");
    assert!(sim.machine.snapshot().ready);
}

#[test]
fn slurmctld_that_gets_ready_while_it_is_to_end_loses_no_job() {
    let mut sim = serving();
    sim.give(Event::Command(Command::Reload));
    let saved = Prepared { apply: Apply::Reconfigure, saved_jobs: true, ..Prepared::default() };
    sim.give(Event::Prepare(PrepareEvent::Done(saved)));
    sim.exits(Unit(SLURMCTLD), Exit::Code(1));
    sim.exits(Child::Reconfigure, Exit::Code(1));
    sim.give(Event::ReadinessChecked(SLURMCTLD, true));
    assert!(!sim.spawned.contains(&Child::JobsRecover), "they run, and are no ghosts");
}

#[test]
fn bad_files_in_row_are_no_reason_to_give_daemon_up() {
    let mut sim = serving();
    for _ in 0..10 {
        sim.give(Event::Command(Command::Reload));
        prepared(&mut sim, Apply::Restart);
        daemons_end(&mut sim);
        sim.exits(Unit(SLURMCTLD), Exit::Code(1));
        sim.exits(Unit(SLURMCTLD), Exit::Code(1));
        sim.exits(Child::Restore, Exit::Code(0));
        daemons_start(&mut sim);
        assert_eq!(last(&sim).0, Outcome::RolledBack);
    }
    assert!(!sim.machine.is_stopping());
}

#[test]
fn restores_previous_files_after_death_following_reconfigure() {
    let mut sim = serving();
    reload(&mut sim, Apply::Reconfigure);
    sim.exits(Child::Reconfigure, Exit::Code(0));
    sim.node("idle|none");
    assert_eq!(last(&sim).0, Outcome::Applied);
    sim.exits(Unit(SLURMD), Exit::Code(1));
    sim.exits(Unit(SLURMD), Exit::Code(1));
    sim.exits(Child::Restore, Exit::Code(0));
    sim.exits(Unit(SLURMCTLD), Exit::Code(0));
    daemons_start(&mut sim);
    assert_eq!(last(&sim).0, Outcome::RolledBack);
}

#[test]
fn restores_previous_files_if_node_does_not_return() {
    let mut sim = serving();
    reload(&mut sim, Apply::Restart);
    daemons_end(&mut sim);
    sim.give(Event::ReadinessChecked(SLURMCTLD, true));
    sim.give(Event::ReadinessChecked(SLURMD, true));
    sim.node("inval|Low RealMemory");
    sim.wait(Duration::from_secs(60));
    assert!(sim.spawned.contains(&Child::Restore));
}

#[test]
fn requests_during_a_reload_are_one_that_follows_it() {
    let mut sim = serving();
    for _ in 0..5 {
        sim.give(Event::Command(Command::Reload));
    }
    prepared(&mut sim, Apply::Nothing);
    assert_eq!(sim.spawned, [Child::Reload; 2], "what was written meanwhile was not seen");
    prepared(&mut sim, Apply::Nothing);
    assert_eq!(sim.spawned.len(), 2);
    let reload = sim.machine.snapshot().reload;
    assert_eq!((reload.asked, reload.running, reload.last.unwrap().serves), (5, false, 5));
}

#[test]
fn slow_daemon_during_reconfigure_does_not_count_as_hung() {
    let mut sim = serving_with(probed(cluster(false)));
    sim.wait(Duration::from_secs(5));
    for unit in DAEMONS {
        sim.give(Event::Liveness(unit, Liveness::Answers));
    }
    sim.exits(Child::Liveness, Exit::Code(0));
    sim.give(Event::Command(Command::Reload));
    sim.give(Event::Prepare(PrepareEvent::Done(Prepared { apply: Apply::Reconfigure, ..Prepared::default() })));
    assert!(sim.living.contains(&Child::Reconfigure));
    sim.wait(Duration::from_secs(5));
    sim.give(Event::Liveness(MUNGED, Liveness::Answers));
    sim.give(Event::Liveness(SLURMCTLD, Liveness::Silent("no answer".to_owned())));
    sim.exits(Child::Liveness, Exit::Code(0));
    assert!(sim.stopped.is_empty(), "{:?}", sim.stopped);
}

#[test]
fn munged_that_hangs_during_reload_is_restarted() {
    let mut sim = serving_with(probed(cluster(false)));
    reload(&mut sim, Apply::Reconfigure);
    sim.wait(Duration::from_secs(5));
    for unit in DAEMONS {
        sim.give(Event::Liveness(unit, Liveness::Silent("no answer".to_owned())));
    }
    sim.exits(Child::Liveness, Exit::Code(0));
    assert_eq!(sim.stopped, [Unit(MUNGED)], "what waits for it is not blamed");
}

#[test]
fn daemon_that_hangs_before_node_is_back_is_restarted() {
    let mut sim = serving_with(probed(cluster(false)));
    reload(&mut sim, Apply::Reconfigure);
    sim.exits(Child::Reconfigure, Exit::Code(0));
    sim.wait(Duration::from_secs(5));
    for (unit, liveness) in [(MUNGED, Liveness::Answers), (SLURMCTLD, Liveness::Silent("no answer".to_owned()))] {
        sim.give(Event::Liveness(unit, liveness));
    }
    sim.exits(Child::Liveness, Exit::Code(0));
    assert_eq!(sim.stopped, [Unit(SLURMCTLD)]);
    assert!(sim.machine.snapshot().reload.running, "one hang is no reason to go back");
}

#[test]
fn restores_previous_files_if_daemon_never_gets_ready() {
    let mut setup = cluster(false);
    setup.units[1].ready_timeout = Duration::from_secs(2);
    let mut sim = Sim::new(setup);
    sim.ready();
    sim.give(Event::ReadinessChecked(API, true));
    reload(&mut sim, Apply::Restart);
    daemons_end(&mut sim);
    for _ in 0..2 {
        sim.wait(Duration::from_secs(2));
        sim.exits(Unit(SLURMCTLD), Exit::Code(0));
    }
    sim.exits(Child::Restore, Exit::Code(0));
    daemons_start(&mut sim);
    assert_eq!(last(&sim).0, Outcome::RolledBack);
}

#[test]
fn changes_settle_for_a_second_and_are_one_reload() {
    let mut sim = serving();
    for _ in 0..10 {
        sim.give(Event::ConfigurationChanged);
        sim.wait(Duration::from_millis(900));
    }
    assert_eq!(sim.spawned, []);
    sim.wait(Duration::from_millis(100));
    assert_eq!(sim.spawned, [Child::Reload]);
}

#[test]
fn reload_waits_for_start_to_be_over() {
    let mut sim = Sim::new(cluster(false));
    sim.give(Event::Signal(libc::SIGHUP));
    sim.prepared();
    assert!(!sim.spawned.contains(&Child::Reload));
    for unit in DAEMONS {
        sim.give(Event::ReadinessChecked(unit, true));
    }
    sim.node("idle|none");
    assert_eq!(sim.spawned.last(), Some(&Child::Reload));
}

#[test]
fn reload_repairs_an_overdue_start() {
    let mut sim = Sim::new(cluster(false));
    sim.prepared();
    for unit in DAEMONS {
        sim.give(Event::ReadinessChecked(unit, true));
    }
    sim.node("inval|gres/gpu count");
    sim.wait(Duration::from_secs(61));
    sim.give(Event::Command(Command::Reload));
    sim.exits(Child::NodeCheck, Exit::Code(0));
    prepared(&mut sim, Apply::Restart);
    daemons_end(&mut sim);
    daemons_start(&mut sim);
    assert_eq!(last(&sim).0, Outcome::Applied);
    assert!(sim.machine.snapshot().ready);
}

#[test]
fn stop_wins_over_reload_at_any_moment_of_it() {
    for moment in 0..5 {
        let mut sim = serving();
        sim.give(Event::Command(Command::Reload));
        if moment > 0 {
            prepared(&mut sim, if moment == 1 { Apply::Reconfigure } else { Apply::Restart });
        }
        if moment > 2 {
            daemons_end(&mut sim);
        }
        if moment > 3 {
            sim.exits(Unit(SLURMCTLD), Exit::Code(1));
            sim.exits(Unit(SLURMCTLD), Exit::Code(1));
        }
        sim.give(Event::Signal(libc::SIGTERM));
        let start = sim.now;
        if sim.living.contains(&Child::JobsQuiesce) {
            sim.exits(Child::JobsQuiesce, Exit::Code(0));
        }
        sim.let_end();
        assert_eq!(sim.exit, Some(0), "moment {moment}");
        assert!(sim.now - start < Duration::from_secs(2), "moment {moment}: {:?}", sim.now - start);
    }
}

#[test]
fn with_command_hangup_is_commands_and_verb_still_reloads() {
    let mut sim = Sim::new(cluster(true));
    sim.ready();
    sim.give(Event::Signal(libc::SIGHUP));
    assert!(!sim.spawned.contains(&Child::Reload));
    sim.give(Event::Command(Command::Reload));
    assert_eq!(sim.spawned.last(), Some(&Child::Reload));
}
