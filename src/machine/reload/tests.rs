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
    sim.send(Event::ReadinessChecked(API, true));
    sim.spawned.clear();
    sim
}

fn reload(sim: &mut Sim, apply: Apply) {
    sim.send(Event::Command(Command::Reload));
    finish_prepare(sim, apply);
}

/// Ends the preparation of a reload with this result.
fn finish_prepare(sim: &mut Sim, apply: Apply) {
    let news = if apply == Apply::Nothing { vec![] } else { vec!["the nodes".to_owned()] };
    let changed = news.iter().map(|_| "/etc/slurm/slurm.conf".into()).collect();
    sim.send(Event::Prepare(PrepareEvent::Done(Prepared { apply, news, changed, ..Prepared::default() })));
    sim.exits(Child::Reload, Exit::Code(0));
}

/// Ends slurmd and then slurmctld, after both were requested to stop.
fn end_daemons(sim: &mut Sim) {
    assert_eq!(sim.stopped.last(), Some(&Unit(SLURMD)));
    sim.exits(Unit(SLURMD), Exit::Code(0));
    assert_eq!(sim.stopped.last(), Some(&Unit(SLURMCTLD)), "slurmctld outlives slurmd");
    assert!(!sim.alive.contains(&Unit(SLURMD)), "slurmd waits for the new slurmctld");
    sim.exits(Unit(SLURMCTLD), Exit::Code(0));
}

fn start_daemons(sim: &mut Sim) {
    sim.send(Event::ReadinessChecked(SLURMCTLD, true));
    while sim.alive.contains(&Child::JobsAccount) {
        sim.exits(Child::JobsAccount, Exit::Code(0));
    }
    sim.send(Event::ReadinessChecked(SLURMD, true));
    sim.node("idle|none");
}

fn last_reload(sim: &Sim) -> (Outcome, String) {
    let last = sim.machine.snapshot().reload.last.unwrap();
    (last.outcome, last.text)
}

#[test]
fn unchanged_configuration_restarts_nothing() {
    let mut sim = serving();
    sim.send(Event::Signal(libc::SIGHUP));
    assert_eq!(sim.spawned, [Child::Reload]);
    finish_prepare(&mut sim, Apply::Nothing);
    assert_eq!(last_reload(&sim), (Outcome::Unchanged, "nothing changed".to_owned()));
    assert_eq!((sim.spawned.len(), sim.stopped.len()), (1, 0));
    assert_eq!(sim.machine.next_wake(), None);
    assert!(sim.machine.snapshot().ready);
}

#[test]
fn rejected_configuration_is_reported_and_changes_nothing() {
    let mut sim = serving();
    sim.send(Event::Command(Command::Reload));
    let finding = Finding::error(Kind::Other, "slurminit.toml:3:1: no", "c", "r");
    sim.send(Event::Prepare(PrepareEvent::Failed { exit_code: exit_code::CONFIG, finding }));
    sim.exits(Child::Reload, Exit::Code(78));
    let (outcome, text) = last_reload(&sim);
    assert_eq!(outcome, Outcome::Refused);
    assert!(text.starts_with("slurminit.toml:3:1"), "{text}");
    assert_eq!((sim.spawned.len(), sim.stopped.len()), (1, 0));
    assert!(sim.machine.snapshot().ready);
}

#[test]
fn reload_is_refused_if_preparation_dies_or_hangs() {
    let mut sim = serving();
    sim.send(Event::Command(Command::Reload));
    sim.exits(Child::Reload, Exit::Signal(libc::SIGSEGV));
    assert_eq!(last_reload(&sim).0, Outcome::Refused);
    sim.send(Event::Command(Command::Reload));
    sim.wait(Duration::from_secs(30));
    assert_eq!(last_reload(&sim).0, Outcome::Refused);
    assert!(!sim.alive.contains(&Child::Reload), "a hung preparation is killed");
    assert!(sim.machine.snapshot().ready);
}

#[test]
fn reconfigure_keeps_daemon_processes() {
    let mut sim = serving();
    reload(&mut sim, Apply::Reconfigure);
    assert_eq!(sim.spawned.last(), Some(&Child::Reconfigure));
    sim.exits(Child::Reconfigure, Exit::Code(0));
    assert!(sim.machine.snapshot().reload.running, "the reload is complete only after a node check");
    sim.node("idle|none");
    let (outcome, text) = last_reload(&sim);
    assert_eq!((outcome, text.as_str()), (Outcome::Applied, "new: the nodes; slurmctld and slurmd were reconfigured"));
    assert_eq!(sim.stopped, [], "same processes");
}

/// A cluster of several containers runs `scontrol reconfigure` once, not once for each of them.
#[test]
fn only_controller_reconfigures_cluster() {
    let lacks = |daemons: &[UnitId]| {
        let mut setup = cluster(false);
        daemons.iter().for_each(|id| setup.units[id.0].daemon = None);
        let mut sim = serving_with(setup);
        reload(&mut sim, Apply::Reconfigure);
        sim
    };
    let controller = lacks(&[SLURMD]);
    assert_eq!((controller.spawned.last(), controller.hung_up.len()), (Some(&Child::Reconfigure), 0));

    let compute = lacks(&[SLURMCTLD]);
    assert_eq!((compute.spawned.as_slice(), compute.hung_up.as_slice()), (&[Child::Reload][..], &[Unit(SLURMD)][..]));
    assert_eq!(last_reload(&compute), (Outcome::Applied, "new: the nodes; slurmd was reconfigured".to_owned()));

    let login = lacks(&[SLURMCTLD, SLURMD]);
    assert_eq!((login.spawned.as_slice(), login.hung_up.len()), (&[Child::Reload][..], 0));
    assert_eq!(last_reload(&login), (Outcome::Unchanged, "new: the nodes; no daemon is affected".to_owned()));
    for sim in [compute, login] {
        assert_eq!(sim.stopped, []);
        assert!(sim.machine.snapshot().ready);
    }
}

/// A starting slurmd may not have read its files yet, and does not handle SIGHUP yet.
#[test]
fn compute_whose_slurmd_is_starting_restarts_it() {
    let mut setup = cluster(false);
    setup.units[SLURMCTLD.0].daemon = None;
    let mut sim = serving_with(setup);
    sim.exits(Unit(SLURMD), Exit::Code(1));
    sim.wait(Duration::from_secs(5));
    assert!(sim.alive.contains(&Unit(SLURMD)));
    reload(&mut sim, Apply::Reconfigure);
    assert_eq!((sim.hung_up.as_slice(), sim.stopped.last()), (&[][..], Some(&Unit(SLURMD))));
}

#[test]
fn failed_reconfigure_falls_back_to_restart() {
    for hangs in [false, true] {
        let mut sim = serving();
        sim.send(Event::Command(Command::Reload));
        finish_prepare(&mut sim, Apply::Reconfigure);
        match hangs {
            true => sim.wait(Duration::from_secs(15)),
            false => sim.exits(Child::Reconfigure, Exit::Code(1)),
        }
        end_daemons(&mut sim);
        start_daemons(&mut sim);
        let (outcome, text) = last_reload(&sim);
        assert_eq!((outcome, text.as_str()), (Outcome::Applied, "new: the nodes; slurmctld and slurmd were restarted"));
        let warned = sim.notices.iter().filter(|notice| notice.record().0 == model::log::Level::Warn).count();
        assert_eq!(warned, 1, "the reason is reported once: {:?}", sim.notices);
    }
}

#[test]
fn restarts_only_slurmd_and_slurmctld_in_order() {
    let mut sim = serving();
    reload(&mut sim, Apply::Restart);
    end_daemons(&mut sim);
    assert!(!sim.machine.snapshot().ready);
    assert_eq!(sim.spawned.last(), Some(&Unit(SLURMCTLD)));
    start_daemons(&mut sim);
    assert_eq!(last_reload(&sim).0, Outcome::Applied);
    assert!(sim.machine.snapshot().ready);
    assert_eq!(sim.stopped, [Unit(SLURMD), Unit(SLURMCTLD)], "munged and the service stay");
    assert!(!sim.spawned.contains(&Child::JobsRecover), "running jobs are not recovered");
    let units = sim.machine.snapshot().units;
    assert_eq!((units[0].restarts, units[1].restarts, units[2].restarts), (0, 1, 1));
}

#[test]
fn restores_previous_files_after_second_crash() {
    let mut sim = serving();
    reload(&mut sim, Apply::Restart);
    end_daemons(&mut sim);
    sim.exits(Unit(SLURMCTLD), Exit::Code(1));
    assert_eq!(sim.spawned.last(), Some(&Unit(SLURMCTLD)), "one crash can have any cause");
    sim.exits(Unit(SLURMCTLD), Exit::Code(1));
    assert_eq!(sim.spawned.last(), Some(&Child::Restore));
    assert_eq!(sim.machine.rollback_files_and_cause().0, ["slurm.conf"]);
    sim.wait(Duration::from_secs(1));
    assert!(!sim.alive.contains(&Unit(SLURMCTLD)), "nothing starts with files that are being replaced");
    let finding = Finding::error(Kind::Other, "slurminit.toml:3: sched/bakfill", String::new(), "correct it");
    assert_eq!(sim.machine.rollback_files_and_cause().1, Some(SLURMCTLD));
    sim.send(Event::Prepare(PrepareEvent::Failed { exit_code: exit_code::CONFIG, finding }));
    sim.exits(Child::Restore, Exit::Code(0));
    start_daemons(&mut sim);
    let (outcome, text) = last_reload(&sim);
    assert_eq!(outcome, Outcome::RolledBack);
    assert!(text.contains("slurminit.toml:3: sched/bakfill; fix: correct it"), "the cause is missing: {text}");
    assert!(text.contains("slurmctld fails with the new files"), "{text}");
    assert!(sim.machine.snapshot().ready);
}

#[test]
fn reload_fails_if_previous_files_cannot_be_restored() {
    let mut sim = serving();
    reload(&mut sim, Apply::Restart);
    end_daemons(&mut sim);
    sim.exits(Unit(SLURMCTLD), Exit::Code(1));
    sim.exits(Unit(SLURMCTLD), Exit::Code(1));
    sim.exits(Child::Restore, Exit::Code(1));
    start_daemons(&mut sim);
    assert_eq!(last_reload(&sim).0, Outcome::Failed);
}

#[test]
fn slurmctld_ready_during_its_stop_recovers_no_jobs() {
    let mut sim = serving();
    sim.send(Event::Command(Command::Reload));
    let saved = Prepared { apply: Apply::Reconfigure, saved_jobs: true, ..Prepared::default() };
    sim.send(Event::Prepare(PrepareEvent::Done(saved)));
    sim.exits(Unit(SLURMCTLD), Exit::Code(1));
    sim.exits(Child::Reconfigure, Exit::Code(1));
    sim.send(Event::ReadinessChecked(SLURMCTLD, true));
    assert!(!sim.spawned.contains(&Child::JobsRecover), "the jobs are still running");
}

#[test]
fn repeated_rollbacks_do_not_give_up_daemon() {
    let mut sim = serving();
    for _ in 0..10 {
        sim.send(Event::Command(Command::Reload));
        finish_prepare(&mut sim, Apply::Restart);
        end_daemons(&mut sim);
        sim.exits(Unit(SLURMCTLD), Exit::Code(1));
        sim.exits(Unit(SLURMCTLD), Exit::Code(1));
        sim.exits(Child::Restore, Exit::Code(0));
        start_daemons(&mut sim);
        assert_eq!(last_reload(&sim).0, Outcome::RolledBack);
    }
    assert!(!sim.machine.is_stopping());
}

#[test]
fn restores_previous_files_after_crashes_following_reconfigure() {
    let mut sim = serving();
    reload(&mut sim, Apply::Reconfigure);
    sim.exits(Child::Reconfigure, Exit::Code(0));
    sim.node("idle|none");
    assert_eq!(last_reload(&sim).0, Outcome::Applied);
    sim.exits(Unit(SLURMD), Exit::Code(1));
    sim.exits(Unit(SLURMD), Exit::Code(1));
    sim.exits(Child::Restore, Exit::Code(0));
    sim.exits(Unit(SLURMCTLD), Exit::Code(0));
    start_daemons(&mut sim);
    assert_eq!(last_reload(&sim).0, Outcome::RolledBack);
}

#[test]
fn restores_previous_files_if_node_does_not_return() {
    let mut sim = serving();
    reload(&mut sim, Apply::Restart);
    end_daemons(&mut sim);
    sim.send(Event::ReadinessChecked(SLURMCTLD, true));
    sim.send(Event::ReadinessChecked(SLURMD, true));
    sim.node("inval|Low RealMemory");
    sim.wait(Duration::from_secs(60));
    assert!(sim.spawned.contains(&Child::Restore));
}

#[test]
fn requests_during_reload_cause_one_more_reload() {
    let mut sim = serving();
    for _ in 0..5 {
        sim.send(Event::Command(Command::Reload));
    }
    finish_prepare(&mut sim, Apply::Nothing);
    assert_eq!(sim.spawned, [Child::Reload; 2], "later changes need another reload");
    finish_prepare(&mut sim, Apply::Nothing);
    assert_eq!(sim.spawned.len(), 2);
    let reload = sim.machine.snapshot().reload;
    assert_eq!((reload.asked, reload.running, reload.last.unwrap().serves), (5, false, 5));
}

#[test]
fn slow_daemon_during_reconfigure_does_not_count_as_hung() {
    let mut sim = serving_with(probed(cluster(false)));
    sim.wait(Duration::from_secs(5));
    for unit in DAEMONS {
        sim.send(Event::Liveness(unit, Liveness::Answers));
    }
    sim.exits(Child::Liveness, Exit::Code(0));
    sim.send(Event::Command(Command::Reload));
    sim.send(Event::Prepare(PrepareEvent::Done(Prepared { apply: Apply::Reconfigure, ..Prepared::default() })));
    assert!(sim.alive.contains(&Child::Reconfigure));
    sim.wait(Duration::from_secs(5));
    sim.send(Event::Liveness(MUNGED, Liveness::Answers));
    sim.send(Event::Liveness(SLURMCTLD, Liveness::Silent("no answer".to_owned())));
    sim.exits(Child::Liveness, Exit::Code(0));
    assert!(sim.stopped.is_empty(), "{:?}", sim.stopped);
}

#[test]
fn restarts_munged_that_hangs_during_reload() {
    let mut sim = serving_with(probed(cluster(false)));
    reload(&mut sim, Apply::Reconfigure);
    sim.wait(Duration::from_secs(5));
    for unit in DAEMONS {
        sim.send(Event::Liveness(unit, Liveness::Silent("no answer".to_owned())));
    }
    sim.exits(Child::Liveness, Exit::Code(0));
    assert_eq!(sim.stopped, [Unit(MUNGED)], "units that need munged are not restarted");
}

#[test]
fn restarts_daemon_that_hangs_before_node_returns() {
    let mut sim = serving_with(probed(cluster(false)));
    reload(&mut sim, Apply::Reconfigure);
    sim.exits(Child::Reconfigure, Exit::Code(0));
    sim.wait(Duration::from_secs(5));
    for (unit, liveness) in [(MUNGED, Liveness::Answers), (SLURMCTLD, Liveness::Silent("no answer".to_owned()))] {
        sim.send(Event::Liveness(unit, liveness));
    }
    sim.exits(Child::Liveness, Exit::Code(0));
    assert_eq!(sim.stopped, [Unit(SLURMCTLD)]);
    assert!(sim.machine.snapshot().reload.running, "one hang causes no rollback");
}

#[test]
fn restores_previous_files_if_daemon_never_gets_ready() {
    let mut setup = cluster(false);
    setup.units[1].ready_timeout = Duration::from_secs(2);
    let mut sim = Sim::new(setup);
    sim.ready();
    sim.send(Event::ReadinessChecked(API, true));
    reload(&mut sim, Apply::Restart);
    end_daemons(&mut sim);
    for _ in 0..2 {
        sim.wait(Duration::from_secs(2));
        sim.exits(Unit(SLURMCTLD), Exit::Code(0));
    }
    sim.exits(Child::Restore, Exit::Code(0));
    start_daemons(&mut sim);
    assert_eq!(last_reload(&sim).0, Outcome::RolledBack);
}

#[test]
fn reloads_once_after_one_second_without_changes() {
    let mut sim = serving();
    for _ in 0..10 {
        sim.send(Event::ConfigurationChanged);
        sim.wait(Duration::from_millis(900));
    }
    assert_eq!(sim.spawned, []);
    sim.wait(Duration::from_millis(100));
    assert_eq!(sim.spawned, [Child::Reload]);
}

#[test]
fn reload_waits_for_end_of_startup() {
    let mut sim = Sim::new(cluster(false));
    sim.send(Event::Signal(libc::SIGHUP));
    sim.prepared();
    assert!(!sim.spawned.contains(&Child::Reload));
    for unit in DAEMONS {
        sim.send(Event::ReadinessChecked(unit, true));
    }
    sim.node("idle|none");
    assert_eq!(sim.spawned.last(), Some(&Child::Reload));
}

#[test]
fn reload_completes_overdue_startup() {
    let mut sim = Sim::new(cluster(false));
    sim.prepared();
    for unit in DAEMONS {
        sim.send(Event::ReadinessChecked(unit, true));
    }
    sim.node("inval|gres/gpu count");
    sim.wait(Duration::from_secs(61));
    sim.send(Event::Command(Command::Reload));
    sim.exits(Child::NodeCheck, Exit::Code(0));
    finish_prepare(&mut sim, Apply::Restart);
    end_daemons(&mut sim);
    start_daemons(&mut sim);
    assert_eq!(last_reload(&sim).0, Outcome::Applied);
    assert!(sim.machine.snapshot().ready);
}

#[test]
fn stop_interrupts_reload_at_any_moment() {
    for moment in 0..5 {
        let mut sim = serving();
        sim.send(Event::Command(Command::Reload));
        if moment > 0 {
            finish_prepare(&mut sim, if moment == 1 { Apply::Reconfigure } else { Apply::Restart });
        }
        if moment > 2 {
            end_daemons(&mut sim);
        }
        if moment > 3 {
            sim.exits(Unit(SLURMCTLD), Exit::Code(1));
            sim.exits(Unit(SLURMCTLD), Exit::Code(1));
        }
        sim.send(Event::Signal(libc::SIGTERM));
        let start = sim.now;
        if sim.alive.contains(&Child::JobsQuiesce) {
            sim.exits(Child::JobsQuiesce, Exit::Code(0));
        }
        sim.run_to_exit();
        assert_eq!(sim.exit, Some(0), "moment {moment}");
        assert!(sim.now - start < Duration::from_secs(2), "moment {moment}: {:?}", sim.now - start);
    }
}

#[test]
fn with_command_sighup_does_not_reload_but_request_does() {
    let mut sim = Sim::new(cluster(true));
    sim.ready();
    sim.send(Event::Signal(libc::SIGHUP));
    assert!(!sim.spawned.contains(&Child::Reload));
    sim.send(Event::Command(Command::Reload));
    assert_eq!(sim.spawned.last(), Some(&Child::Reload));
}
