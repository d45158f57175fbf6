//! Job accounting, also if its child process fails.

use super::*;
use model::unit::Gate;

fn no_process() -> Exit {
    let message = "cannot start `/usr/bin/slurminit`: Try again".to_owned();
    Exit::NotStarted(SpawnFailure { code: exit_code::FAILURE, message, shortage: None })
}

#[test]
fn reports_jobs_not_notified_of_stop_and_continues_stop() {
    for exit in [no_process(), Exit::Code(exit_code::FAILURE), Exit::Signal(libc::SIGKILL)] {
        let mut sim = Sim::new(cluster(false));
        sim.ready();
        sim.send(Event::Signal(libc::SIGTERM));
        sim.exits(Child::JobsQuiesce, exit.clone());
        let notice = Notice::JobsNotNotified { exit: exit.clone() };
        assert_eq!(sim.notices.iter().filter(|logged| **logged == notice).count(), 1, "{exit:?}: {:?}", sim.notices);
        assert_eq!(sim.stopped, [Child::Unit(API)], "no wait for a unit that cannot become ready");
        sim.run_to_exit();
        assert_eq!(sim.exit, Some(0));
    }
}

#[test]
fn reports_timeout_of_job_notification_once() {
    for code in [0, exit_code::JOBS_LEFT] {
        let mut sim = Sim::new(cluster(false));
        sim.ready();
        sim.send(Event::Signal(libc::SIGTERM));
        sim.exits(Child::JobsQuiesce, Exit::Code(code));
        assert!(!sim.notices.iter().any(|notice| notice.record().0 == model::log::Level::Warn), "{:?}", sim.notices);
    }
    let mut sim = Sim::new(cluster(false));
    sim.ready();
    sim.send(Event::Signal(libc::SIGTERM));
    sim.wait(Duration::from_millis(6_500));
    let about_jobs =
        |notice: &&Notice| matches!(notice, Notice::JobsNotAccountedAtStop | Notice::JobsNotNotified { .. });
    assert_eq!(sim.notices.iter().filter(about_jobs).count(), 1, "one notice per fault: {:?}", sim.notices);
}

/// A cluster at the moment when slurmctld becomes ready.
fn with_ready_slurmctld(saved_jobs: bool) -> Sim {
    let mut setup = cluster(false);
    setup.units[2].gate = Gate::Jobs;
    let mut sim = Sim::new(setup);
    sim.send(Event::Prepare(PrepareEvent::MungeKeyReady));
    sim.send(Event::Prepare(PrepareEvent::Done(Prepared { saved_jobs, ..Prepared::default() })));
    sim.exits(Child::Prepare, Exit::Code(0));
    sim.send(Event::ReadinessChecked(MUNGED, true));
    sim.send(Event::ReadinessChecked(SLURMCTLD, true));
    sim
}

#[test]
fn reports_failed_accounting_for_jobs_of_previous_start_and_starts_slurmd() {
    let mut sim = with_ready_slurmctld(true);
    assert!(!sim.alive.contains(&Child::Unit(SLURMD)), "slurmd waits for the recovery");
    sim.exits(Child::JobsRecover, no_process());
    assert_eq!(sim.notices.last(), Some(&Notice::JobsNotRecovered { exit: no_process() }));
    assert!(sim.alive.contains(&Child::Unit(SLURMD)));

    let mut sim = with_ready_slurmctld(true);
    sim.wait(Duration::from_secs(15));
    assert!(!sim.alive.contains(&Child::JobsRecover), "a hung recovery is killed at its deadline");
    assert!(matches!(sim.notices.last(), Some(Notice::JobsNotRecovered { .. })), "{:?}", sim.notices);
    assert!(sim.alive.contains(&Child::Unit(SLURMD)));
}

#[test]
fn each_restarted_slurmctld_is_scanned_for_stale_allocations() {
    let mut sim = with_ready_slurmctld(false);
    let scans = |sim: &Sim| sim.spawned.iter().filter(|child| **child == Child::JobsReclaim).count();
    sim.send(Event::ReadinessChecked(SLURMD, true));
    sim.node("idle|none");
    sim.send(Event::ReadinessChecked(API, true));
    assert_eq!(scans(&sim), 0, "the first start has no stale allocations");
    for round in 1..4 {
        sim.wait(Duration::from_secs(61));
        sim.exits(Child::Unit(SLURMCTLD), Exit::Signal(libc::SIGKILL));
        sim.send(Event::ReadinessChecked(SLURMCTLD, true));
        sim.exits(Child::JobsAccount, Exit::Code(0));
        assert_eq!(scans(&sim), round);
        sim.exits(Child::JobsReclaim, Exit::Code(0));
        sim.node("idle|none");
    }
    assert_eq!(sim.machine.next_wake(), None, "one scan per restart");
}

#[test]
fn limits_and_reports_allocation_scan_that_hangs_or_fails() {
    for exit in [None, Some(no_process()), Some(Exit::Code(1))] {
        let mut sim = with_ready_slurmctld(false);
        sim.exits(Child::Unit(SLURMCTLD), Exit::Code(1));
        sim.send(Event::ReadinessChecked(SLURMCTLD, true));
        sim.exits(Child::JobsAccount, Exit::Code(0));
        match &exit {
            None => sim.wait(Duration::from_secs(60)),
            Some(exit) => sim.exits(Child::JobsReclaim, exit.clone()),
        }
        let exit = exit.unwrap_or(Exit::Signal(libc::SIGKILL));
        assert!(sim.notices.contains(&Notice::JobsNotReclaimed { exit }), "{:?}", sim.notices);
        // A stop kills the child without a message, because it is no longer needed.
        sim.exits(Child::Unit(SLURMCTLD), Exit::Code(1));
        sim.wait(Duration::from_secs(2));
        sim.send(Event::ReadinessChecked(SLURMCTLD, true));
        sim.exits(Child::JobsAccount, Exit::Code(0));
        assert!(sim.alive.contains(&Child::JobsReclaim));
        let before = sim.notices.len();
        sim.send(Event::Signal(libc::SIGTERM));
        assert!(!sim.alive.contains(&Child::JobsReclaim));
        assert!(!sim.notices[before..].iter().any(|notice| matches!(notice, Notice::JobsNotReclaimed { .. })));
    }
}

#[test]
fn accounts_again_for_slurmctld_started_during_accounting() {
    for (saved_jobs, times_out) in [(false, false), (true, false), (true, true)] {
        let mut sim = with_ready_slurmctld(saved_jobs);
        if !saved_jobs {
            sim.exits(Child::Unit(SLURMCTLD), Exit::Code(1));
            sim.send(Event::ReadinessChecked(SLURMCTLD, true));
        }
        let first = if saved_jobs { Child::JobsRecover } else { Child::JobsAccount };
        assert_eq!(sim.spawned.iter().filter(|child| **child == first).count(), 1);
        // slurmctld dies again, so the answer to the child is stale.
        sim.exits(Child::Unit(SLURMCTLD), Exit::Code(1));
        sim.wait(Duration::from_secs(2));
        sim.send(Event::ReadinessChecked(SLURMCTLD, true));
        let spawned = sim.spawned.len();
        match times_out {
            true => sim.wait(Duration::from_secs(13)),
            false => sim.exits(first, Exit::Code(1)),
        }
        assert!(sim.spawned[spawned..].contains(&Child::JobsAccount), "{:?}", sim.spawned);
        sim.exits(Child::JobsAccount, Exit::Code(0));
        // The answer to the search for lost jobs is stale, too, and the start does not wait for it.
        sim.exits(Child::Unit(SLURMCTLD), Exit::Code(1));
        sim.wait(Duration::from_secs(2));
        let before = sim.notices.len();
        sim.send(Event::ReadinessChecked(SLURMCTLD, true));
        assert!(!sim.alive.contains(&Child::JobsReclaim) && sim.alive.contains(&Child::JobsAccount));
        assert!(!sim.notices[before..].iter().any(|notice| matches!(notice, Notice::JobsNotReclaimed { .. })));
        // While slurmctld is down, no query runs.
        sim.exits(Child::Unit(SLURMCTLD), Exit::Code(1));
        sim.exits(Child::JobsAccount, Exit::Code(1));
        assert!(!sim.alive.contains(&Child::JobsAccount));
    }
}

#[test]
fn each_restarted_slurmd_is_checked_for_unlaunched_batch_jobs() {
    for saved_jobs in [false, true] {
        let mut sim = with_ready_slurmctld(saved_jobs);
        let scans = |sim: &Sim| sim.spawned.iter().filter(|child| **child == Child::JobsAccount).count();
        if saved_jobs {
            sim.exits(Child::JobsRecover, Exit::Code(0));
        }
        sim.send(Event::ReadinessChecked(SLURMD, true));
        sim.node("idle|none");
        assert_eq!(scans(&sim), 0, "the first slurmd has launched no jobs");
        sim.wait(Duration::from_secs(61));
        sim.exits(Child::Unit(SLURMD), Exit::Signal(libc::SIGKILL));
        sim.send(Event::ReadinessChecked(SLURMD, true));
        assert_eq!(scans(&sim), 1);
        // slurmd restarts once more during the first search.
        sim.exits(Child::Unit(SLURMD), Exit::Signal(libc::SIGKILL));
        sim.wait(Duration::from_secs(2));
        sim.send(Event::ReadinessChecked(SLURMD, true));
        assert_eq!(scans(&sim), 1);
        sim.exits(Child::JobsAccount, Exit::Code(0));
        assert_eq!(scans(&sim), 2);
    }
}

/// A cluster that has been ready for a minute.
fn serving() -> Sim {
    let mut sim = with_ready_slurmctld(false);
    sim.send(Event::ReadinessChecked(SLURMD, true));
    sim.node("idle|none");
    sim.wait(Duration::from_secs(61));
    sim
}

#[test]
fn suspends_slurmd_after_slurmctld_crash_until_jobs_accounted() {
    for exit in [Exit::Code(0), Exit::Code(1), no_process()] {
        let mut sim = serving();
        sim.exits(Child::Unit(SLURMCTLD), Exit::Signal(libc::SIGKILL));
        assert!(sim.suspended.contains(&Child::Unit(SLURMD)) && sim.alive.contains(&Child::Unit(SLURMCTLD)));
        sim.send(Event::ReadinessChecked(SLURMCTLD, true));
        assert!(sim.suspended.contains(&Child::Unit(SLURMD)));
        sim.exits(Child::JobsAccount, exit);
        assert!(sim.suspended.is_empty() && sim.alive.contains(&Child::JobsReclaim));
    }
    let mut sim = serving();
    sim.exits(Child::Unit(SLURMCTLD), Exit::Code(0));
    assert!(sim.suspended.is_empty(), "an orderly exit loses no state");
}

#[test]
fn slurmd_is_suspended_only_while_jobs_are_accounted_for() {
    // The accounting child hangs.
    let mut sim = serving();
    sim.exits(Child::Unit(SLURMCTLD), Exit::Signal(libc::SIGKILL));
    sim.send(Event::ReadinessChecked(SLURMCTLD, true));
    sim.wait(Duration::from_secs(15));
    assert!(sim.suspended.is_empty(), "{:?}", sim.notices);
    assert!(sim.notices.iter().any(|notice| matches!(notice, Notice::JobsNotAccounted { .. })), "{:?}", sim.notices);
    // slurmctld dies again and backs off.
    let mut sim = serving();
    sim.exits(Child::Unit(SLURMCTLD), Exit::Signal(libc::SIGKILL));
    sim.exits(Child::Unit(SLURMCTLD), Exit::Code(1));
    assert!(sim.suspended.is_empty() && !sim.alive.contains(&Child::Unit(SLURMCTLD)));
    // slurmd dies meanwhile, and its restart waits for the accounting.
    let mut sim = serving();
    sim.exits(Child::Unit(SLURMCTLD), Exit::Signal(libc::SIGKILL));
    sim.send(Event::ReadinessChecked(SLURMCTLD, true));
    sim.exits(Child::Unit(SLURMD), Exit::Signal(libc::SIGKILL));
    assert!(!sim.alive.contains(&Child::Unit(SLURMD)));
    sim.exits(Child::JobsAccount, Exit::Code(0));
    assert!(sim.alive.contains(&Child::Unit(SLURMD)));
    // The container is stopped: a working slurmd notifies its jobs.
    let mut sim = serving();
    sim.exits(Child::Unit(SLURMCTLD), Exit::Signal(libc::SIGKILL));
    sim.send(Event::Signal(libc::SIGTERM));
    assert!(sim.suspended.is_empty());
}

#[test]
fn suspended_slurmd_does_not_count_as_silent() {
    let mut setup = probed(cluster(false));
    setup.units[2].gate = Gate::Jobs;
    let mut sim = Sim::new(setup);
    sim.prepared();
    for unit in DAEMONS {
        sim.send(Event::ReadinessChecked(unit, true));
    }
    sim.node("idle|none");
    sim.exits(Child::Unit(SLURMCTLD), Exit::Signal(libc::SIGKILL));
    sim.send(Event::ReadinessChecked(SLURMCTLD, true));
    sim.wait(Duration::from_secs(5));
    assert!(sim.alive.contains(&Child::Liveness) && sim.suspended.contains(&Child::Unit(SLURMD)));
    assert!(sim.machine.holds_launches());
    for unit in [MUNGED, SLURMCTLD] {
        sim.send(Event::Liveness(unit, Liveness::Answers));
    }
    sim.send(Event::Liveness(SLURMD, Liveness::Stopped("it is stopped".to_owned())));
    sim.exits(Child::JobsAccount, Exit::Code(0));
    assert!(!sim.machine.holds_launches());
    sim.exits(Child::Liveness, Exit::Code(0));
    assert!(!sim.stopped.contains(&Child::Unit(SLURMD)), "{:?}", sim.notices);
}

#[test]
fn waits_for_commands_jobs_if_requested() {
    let waiting = || {
        let mut sim = Sim::new(Setup { wait_jobs: true, ..cluster(true) });
        sim.ready();
        sim.exits(Child::Cmd, Exit::Code(7));
        assert_eq!((sim.spawned.last(), sim.stopped.len()), (Some(&Child::JobsWait), 0));
        sim
    };
    for exit in [Exit::Code(0), Exit::Code(1), no_process()] {
        let mut sim = waiting();
        sim.exits(Child::JobsWait, exit.clone());
        assert!(sim.alive.contains(&Child::JobsQuiesce) && sim.machine.stops_with_its_command());
        assert_eq!(sim.notices.contains(&Notice::JobsNotAwaited { exit: exit.clone() }), exit != Exit::Code(0));
        sim.exits(Child::JobsQuiesce, Exit::Code(0));
        sim.run_to_exit();
        assert_eq!(sim.exit, Some(7), "the code is the command's");
    }
    let mut sim = waiting();
    sim.send(Event::Signal(libc::SIGTERM));
    assert!(!sim.alive.contains(&Child::JobsWait) && !sim.machine.stops_with_its_command());
    sim.exits(Child::JobsQuiesce, Exit::Code(0));
    sim.run_to_exit();
    assert_eq!(sim.exit, Some(143), "an interrupted wait does not count as a success");

    let mut sim = Sim::new(Setup { wait_jobs: true, ..cluster(true) });
    sim.ready();
    sim.exits(Child::Cmd, no_process());
    assert!(!sim.spawned.contains(&Child::JobsWait), "a command that never ran has no jobs");
}

#[test]
fn only_first_slurmctld_finds_no_state() {
    let has_empty_state = |sim: &Sim| sim.machine.units()[SLURMCTLD].has_empty_state(sim.machine.prepared());
    for new_state in [false, true] {
        let mut sim = Sim::new(cluster(false));
        sim.send(Event::Prepare(PrepareEvent::MungeKeyReady));
        sim.send(Event::Prepare(PrepareEvent::Done(Prepared { new_state, ..Prepared::default() })));
        sim.exits(Child::Prepare, Exit::Code(0));
        sim.send(Event::ReadinessChecked(MUNGED, true));
        assert_eq!(has_empty_state(&sim), new_state);
        sim.send(Event::ReadinessChecked(SLURMCTLD, true));
        sim.exits(Child::Unit(SLURMCTLD), Exit::Signal(libc::SIGKILL));
        assert!(!has_empty_state(&sim), "missing state is expected only at the first start");
    }
}

/// Such a slurmctld has accepted no jobs, so its successor can only launch jobs that a previous start saved.
#[test]
fn slurmctld_that_was_never_ready_leaves_only_saved_jobs() {
    let inherited = |sim: &Sim| sim.machine.units()[SLURMCTLD].inherited_state(sim.machine.prepared());
    for saved_jobs in [false, true] {
        let mut sim = Sim::new(cluster(false));
        sim.send(Event::Prepare(PrepareEvent::MungeKeyReady));
        sim.send(Event::ReadinessChecked(MUNGED, true));
        sim.send(Event::Prepare(PrepareEvent::Done(Prepared { saved_jobs, ..Prepared::default() })));
        sim.exits(Child::Unit(SLURMCTLD), Exit::Code(1));
        assert_eq!(inherited(&sim), saved_jobs.then_some(InheritedState::Unknown));
    }
    let mut sim = Sim::new(cluster(false));
    sim.ready();
    sim.exits(Child::Unit(SLURMCTLD), Exit::Code(1));
    assert_eq!(inherited(&sim), Some(InheritedState::Unknown));
}

fn searches(sim: &Sim) -> usize {
    sim.spawned.iter().filter(|child| **child == Child::JobsReclaimDeadSteps).count()
}

#[test]
fn death_of_slurmstepd_starts_one_search_at_a_time() {
    for jobs in [JobCare::Cluster, JobCare::Node] {
        let mut sim = Sim::new(Setup { jobs, ..cluster(false) });
        sim.ready();
        sim.send(Event::SlurmstepdDied);
        assert_eq!(searches(&sim), 1);
        sim.send(Event::SlurmstepdDied);
        assert_eq!(searches(&sim), 1);
        sim.exits(Child::JobsReclaimDeadSteps, Exit::Code(0));
        assert_eq!(searches(&sim), 2, "one died after the search had begun");
        sim.exits(Child::JobsReclaimDeadSteps, Exit::Code(0));
        assert_eq!(searches(&sim), 2);
        assert!(sim.notices.iter().all(|notice| !matches!(notice, Notice::JobsNotReclaimed { .. })));
    }
}

#[test]
fn failed_search_after_death_of_slurmstepd_is_repeated_and_reported_once() {
    let mut sim = Sim::new(cluster(false));
    sim.ready();
    sim.send(Event::SlurmstepdDied);
    for round in 1..4 {
        assert_eq!(searches(&sim), round);
        sim.exits(Child::JobsReclaimDeadSteps, no_process());
        sim.send(Event::SlurmstepdDied);
        assert_eq!(searches(&sim), round, "not at once: there may be no process for it");
        sim.wait(Duration::from_secs(10));
    }
    sim.exits(Child::JobsReclaimDeadSteps, Exit::Code(0));
    let failures = sim.notices.iter().filter(|notice| matches!(notice, Notice::JobsNotReclaimed { .. }));
    assert_eq!(failures.count(), 1, "{:?}", sim.notices);
    sim.wait(Duration::from_secs(60));
    assert_eq!(searches(&sim), 4);
}

#[test]
fn search_after_death_of_slurmstepd_leaves_new_slurmctld_to_full_accounting() {
    let mut sim = with_ready_slurmctld(false);
    sim.send(Event::ReadinessChecked(SLURMD, true));
    sim.node("idle|none");
    sim.send(Event::SlurmstepdDied);
    sim.exits(Child::Unit(SLURMCTLD), Exit::Signal(libc::SIGKILL));
    assert!(sim.suspended.contains(&Child::Unit(SLURMD)));
    sim.exits(Child::JobsReclaimDeadSteps, Exit::Code(1));
    assert!(sim.suspended.contains(&Child::Unit(SLURMD)), "only the accounting releases slurmd");
    sim.send(Event::ReadinessChecked(SLURMCTLD, true));
    sim.exits(Child::JobsAccount, Exit::Code(0));
    assert!(sim.suspended.is_empty() && sim.alive.contains(&Child::JobsReclaim));
}

/// Events during the accounting are not lost when its child is killed.
#[test]
fn accounting_that_is_killed_at_its_deadline_is_repeated_for_a_later_slurmctld() {
    let mut sim = with_ready_slurmctld(false);
    sim.send(Event::ReadinessChecked(SLURMD, true));
    sim.node("idle|none");
    let restart_slurmctld = |sim: &mut Sim| {
        sim.exits(Child::Unit(SLURMCTLD), Exit::Signal(libc::SIGKILL));
        sim.wait(Duration::from_secs(2));
        sim.send(Event::ReadinessChecked(SLURMCTLD, true));
    };
    let accounts = |sim: &Sim| sim.spawned.iter().filter(|child| **child == Child::JobsAccount).count();
    restart_slurmctld(&mut sim);
    assert_eq!(accounts(&sim), 1);
    restart_slurmctld(&mut sim);
    assert_eq!(accounts(&sim), 1, "one at a time");
    sim.wait(Duration::from_secs(15));
    assert_eq!(accounts(&sim), 2, "{:?}", sim.notices);
    sim.exits(Child::JobsAccount, Exit::Code(0));
    assert!(sim.suspended.is_empty());
}
