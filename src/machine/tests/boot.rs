//! Startup, from preparation to the command.

use super::*;
use model::daemons::ReadinessTest;
use model::prepared::Apply;
use model::unit::Gate;

#[test]
fn each_daemon_starts_when_previous_one_is_ready() {
    let mut sim = Sim::new(cluster(true));
    assert_eq!(sim.spawned, [Child::Prepare], "munged waits for its key");
    sim.send(Event::Prepare(PrepareEvent::MungeKeyReady));
    assert_eq!(sim.spawned.last(), Some(&Child::Unit(MUNGED)), "munged needs only its key");
    sim.send(Event::ReadinessChecked(MUNGED, true));
    assert_eq!(sim.spawned.len(), 2, "slurmctld waits for its files");
    sim.send(Event::Prepare(PrepareEvent::Done(Prepared::default())));
    sim.send(Event::ReadinessChecked(SLURMCTLD, true));
    sim.send(Event::ReadinessChecked(SLURMD, true));
    sim.node("idle*|none");
    assert!(!sim.spawned.contains(&Child::Cmd), "the node does not respond yet");
    sim.wait(10 * MS);
    sim.node("idle|none");
    assert_eq!(sim.spawned.last(), Some(&Child::Cmd));
}

#[test]
fn slurmctld_runs_as_user_from_preparation() {
    for (slurm_user, expected) in [(None, None), (Some("root"), Some("root"))] {
        let mut sim = Sim::new(cluster(true));
        let default = sim.machine.units()[SLURMCTLD].spec.user.clone();
        let slurm_user = slurm_user.map(str::to_owned);
        sim.send(Event::Prepare(PrepareEvent::Done(Prepared { slurm_user, ..Prepared::default() })));
        let expected = expected.map(str::to_owned).or(default);
        assert_eq!(sim.machine.units()[SLURMCTLD].spec.user, expected);
    }
}

#[test]
fn optional_units_start_after_command_or_when_node_is_overdue() {
    let setup = |has_cmd| {
        let mut setup = cluster(has_cmd);
        (setup.units[3].gate, setup.units[3].readiness) = (Gate::Served, ReadinessTest::Started);
        setup
    };
    let mut sim = Sim::new(setup(true));
    sim.ready();
    assert_eq!(sim.spawned[sim.spawned.len() - 2..], [Child::Cmd, Child::Unit(API)]);
    sim.wait(MS);
    assert_eq!(sim.spawned.last(), Some(&Child::Unit(API)), "no second node check");

    let mut sim = Sim::new(setup(false));
    sim.prepared();
    for unit in DAEMONS {
        sim.send(Event::ReadinessChecked(unit, true));
    }
    sim.node("inval|Low RealMemory");
    assert!(!sim.spawned.contains(&Child::Unit(API)));
    sim.wait(Duration::from_secs(60));
    assert!(sim.spawned.contains(&Child::Unit(API)));
}

#[test]
fn exit_code_is_commands_or_143_if_it_never_ran() {
    let mut sim = Sim::new(cluster(true));
    sim.ready();
    sim.exits(Child::Cmd, Exit::Code(42));
    sim.run_to_exit();
    assert_eq!(sim.exit, Some(42));

    let mut sim = Sim::new(cluster(true));
    sim.send(Event::Signal(libc::SIGTERM));
    sim.run_to_exit();
    assert_eq!(sim.exit, Some(143));
}

#[test]
fn failed_or_hung_preparation_ends_container_with_its_code() {
    let mut sim = Sim::new(cluster(false));
    sim.wait(Duration::from_secs(1));
    assert!(matches!(sim.notices.last(), Some(Notice::PrepareSlow)), "a slow preparation is reported after a second");
    sim.wait(Duration::from_secs(30));
    sim.run_to_exit();
    assert_eq!(sim.exit, Some(exit_code::PREPARE));

    let mut sim = Sim::new(cluster(false));
    sim.exits(Child::Prepare, Exit::Signal(libc::SIGSEGV));
    sim.run_to_exit();
    assert_eq!(sim.exit, Some(exit_code::PREPARE));
}

#[test]
fn service_waits_for_dependency_defined_after_it() {
    let mut setup = cluster(false);
    let mut later = setup.units[3].clone();
    later.name = "cache".to_owned();
    setup.units[3].after = vec!["cache".to_owned()];
    setup.units[3].readiness = ReadinessTest::Started;
    setup.units.push(later);
    let mut sim = Sim::new(setup);
    sim.ready();
    let cache = sim.machine.units().named("cache").unwrap().id;
    assert!(sim.alive.contains(&Child::Unit(cache)) && !sim.alive.contains(&Child::Unit(API)));
    sim.send(Event::ReadinessChecked(cache, true));
    assert!(sim.alive.contains(&Child::Unit(API)));
}

/// After a failed test job, a container with a command exits. A server waits until an administrator resumes the node, then tests again.
#[test]
fn is_ready_once_test_job_has_run() {
    let failed = Exit::Code(exit_code::TEST_JOB_FAILED);
    for (exit, runs) in [(Exit::Code(0), true), (Exit::Code(1), true), (failed.clone(), false)] {
        let mut sim = Sim::new(cluster(true));
        sim.ready_with(own_files(true));
        assert!(sim.alive.contains(&Child::TestJob) && !sim.alive.contains(&Child::Cmd));
        assert_eq!(sim.machine.snapshot().why, "a test job is running");
        sim.exits(Child::TestJob, exit);
        if !runs {
            // The stop kills the query.
            sim.send(Event::Node(NodeReport::parse("drained|slurminit: test job: Prolog error").unwrap()));
        }
        assert_eq!(sim.alive.contains(&Child::Cmd), runs);
        assert_eq!(sim.machine.is_stopping(), !runs);
    }
    let mut sim = Sim::new(cluster(false));
    sim.ready_with(own_files(true));
    sim.exits(Child::TestJob, failed);
    for _ in 0..3 {
        sim.node("drained|slurminit: test job: Prolog error");
        assert!(!sim.machine.snapshot().ready && !sim.spawned.contains(&Child::NodeResume));
        sim.wait(Duration::from_secs(5));
    }
    let notices = sim.notices.iter().filter(|notice| matches!(notice, Notice::NoJobRuns { .. })).count();
    assert_eq!(notices, 1);
    assert!(sim.machine.snapshot().why.contains("Prolog error"), "{}", sim.machine.snapshot().why);
    sim.node("idle|none");
    sim.exits(Child::TestJob, Exit::Code(0));
    assert!(sim.machine.snapshot().ready);
}

#[test]
fn start_resumes_node_that_former_test_job_drained() {
    let mut sim = Sim::new(cluster(false));
    sim.prepared_with(own_files(true));
    for unit in DAEMONS {
        sim.send(Event::ReadinessChecked(unit, true));
    }
    sim.node("drained|slurminit: test job: Prolog error");
    sim.exits(Child::NodeResume, Exit::Code(0));
    sim.node("idle|none");
    assert!(sim.alive.contains(&Child::TestJob));
}

#[test]
fn test_job_needs_own_file_and_usable_node() {
    for (prepared, node) in [(own_files(false), "idle|none"), (own_files(true), "drained|fan")] {
        let mut sim = Sim::new(cluster(true));
        sim.prepared_with(prepared);
        for unit in DAEMONS {
            sim.send(Event::ReadinessChecked(unit, true));
        }
        sim.node(node);
        assert!(sim.alive.contains(&Child::Cmd) && !sim.spawned.contains(&Child::TestJob), "{node}");
    }
    let mut setup = cluster(true);
    setup.supervise.test_job = false;
    let mut sim = Sim::new(setup);
    sim.ready_with(own_files(true));
    assert!(sim.alive.contains(&Child::Cmd) && !sim.spawned.contains(&Child::TestJob));
}

#[test]
fn hung_test_job_does_not_block_start() {
    let mut sim = Sim::new(cluster(true));
    sim.ready_with(own_files(true));
    sim.wait(Duration::from_secs(89));
    assert!(!sim.alive.contains(&Child::Cmd));
    sim.wait(Duration::from_secs(1));
    assert!(sim.alive.contains(&Child::Cmd));
}

/// The previous files are restored if jobs ran with them. Otherwise the new files stay, because the next change may complete them.
#[test]
fn reload_after_which_no_job_runs_is_rolled_back() {
    let reload = |sim: &mut Sim, apply| {
        sim.send(Event::Command(Command::Reload));
        sim.send(Event::Prepare(PrepareEvent::Done(Prepared { apply, ..own_files(true) })));
        sim.exits(Child::Reload, Exit::Code(0));
    };
    let mut sim = Sim::new(cluster(false));
    sim.ready();
    reload(&mut sim, Apply::Nothing);
    assert!(!sim.spawned.contains(&Child::TestJob), "no file has changed");
    reload(&mut sim, Apply::Reconfigure);
    sim.exits(Child::Reconfigure, Exit::Code(0));
    sim.node("idle|none");
    sim.exits(Child::TestJob, Exit::Code(exit_code::TEST_JOB_FAILED));
    assert!(sim.alive.contains(&Child::Restore));

    let mut sim = Sim::new(cluster(false));
    sim.ready_with(own_files(true));
    sim.exits(Child::TestJob, Exit::Code(exit_code::TEST_JOB_FAILED));
    sim.node("drained|slurminit: test job: Prolog error");
    reload(&mut sim, Apply::Restart);
    for unit in [SLURMD, SLURMCTLD] {
        sim.exits(Child::Unit(unit), Exit::Code(0));
    }
    for unit in [SLURMCTLD, SLURMD] {
        if sim.alive.remove(&Child::JobsAccount) {
            sim.send(Event::Exited(Child::JobsAccount, Exit::Code(0)));
        }
        sim.send(Event::ReadinessChecked(unit, true));
    }
    sim.node("drained|slurminit: test job: Prolog error");
    sim.exits(Child::NodeResume, Exit::Code(0));
    sim.node("idle|none");
    sim.exits(Child::TestJob, Exit::Code(0));
    let snapshot = sim.machine.snapshot();
    assert!(snapshot.ready, "{}", snapshot.why);
    assert_eq!(snapshot.reload.last.map(|last| last.outcome), Some(Outcome::Applied));
}

#[test]
fn hung_hook_ends_container_at_its_own_deadline() {
    let second = Duration::from_secs(1);
    let mut sim = Sim::new(Setup { hooks: vec![hook(5 * second)], ..cluster(false) });
    sim.wait(5 * second - MS);
    assert!(!sim.machine.is_stopping());
    sim.wait(MS);
    assert!(sim.notices.iter().any(|notice| matches!(notice, Notice::HookTooSlow { index: 0, .. })));
    sim.run_to_exit();
    assert_eq!(sim.exit, Some(exit_code::HOOK));
}

#[test]
fn refused_configuration_ends_container_before_daemons_start() {
    let mut sim = Sim::new(cluster(false));
    sim.send(super::deaths::configuration_error());
    sim.run_to_exit();
    assert_eq!(sim.exit, Some(exit_code::CONFIG));
    assert!(!DAEMONS.iter().any(|unit| sim.spawned.contains(&Child::Unit(*unit))), "{:?}", sim.spawned);
}

#[test]
fn login_environments_follow_accounts_once_they_are_prepared() {
    let mut sim = Sim::new(cluster(false));
    sim.send(Event::AccountsChanged);
    assert!(!sim.spawned.contains(&Child::Environments), "the preparation reads the accounts");
    sim.ready();
    // A change during the run requires another one.
    sim.send(Event::AccountsChanged);
    sim.send(Event::AccountsChanged);
    sim.exits(Child::Environments, Exit::Code(0));
    sim.exits(Child::Environments, Exit::Code(1));
    assert!(!sim.alive.contains(&Child::Environments));
    let failed = |notice: &&Notice| matches!(notice, Notice::EnvironmentsNotWritten { .. });
    assert_eq!(sim.notices.iter().filter(failed).count(), 1);
    sim.send(Event::Signal(libc::SIGTERM));
    sim.send(Event::AccountsChanged);
    assert!(!sim.alive.contains(&Child::Environments));
}
