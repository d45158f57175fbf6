//! The accounting database: a cluster needs it to start, but keeps running without it.

use super::*;
use model::daemons::DaemonName;
use model::prepared::Apply;
use model::unit::Gate;

const SLURMDBD: UnitId = UnitId(4);

fn accounting() -> Setup {
    let mut setup = cluster(true);
    let mut slurmdbd = setup.units[1].clone();
    (slurmdbd.name, slurmdbd.daemon) = ("slurmdbd".to_owned(), Some(DaemonName::Slurmdbd));
    slurmdbd.essential = Some(exit_code::ACCOUNTING);
    setup.units.push(slurmdbd);
    setup.units[1].after.push("slurmdbd".to_owned());
    setup
}

#[test]
fn slurmctld_needs_slurmdbd_only_for_first_start() {
    let mut sim = Sim::new(accounting());
    sim.prepared();
    sim.send(Event::ReadinessChecked(MUNGED, true));
    assert!(!sim.alive.contains(&Child::Unit(SLURMCTLD)));
    for unit in [SLURMDBD, SLURMCTLD, SLURMD] {
        sim.send(Event::ReadinessChecked(unit, true));
    }
    sim.node("idle|none");
    assert_eq!(sim.spawned.last(), Some(&Child::Cmd));
    while !sim.notices.iter().any(|notice| matches!(notice, Notice::GaveUp { hold: true, .. })) {
        match sim.alive.contains(&Child::Unit(SLURMDBD)) {
            true => sim.exits(Child::Unit(SLURMDBD), Exit::Code(1)),
            false => sim.wait(Duration::from_millis(100)),
        }
    }
    assert!(!sim.machine.is_stopping(), "jobs keep running");
    sim.exits(Child::Unit(SLURMCTLD), Exit::Code(1));
    sim.wait(Duration::from_secs(1));
    assert!(sim.alive.contains(&Child::Unit(SLURMCTLD)), "slurmctld restarts without slurmdbd");
}

#[test]
fn container_ends_if_slurmdbd_keeps_failing_at_startup() {
    for listens in [false, true] {
        let mut setup = accounting();
        // Keeps slurmctld from starting.
        setup.units[1].gate = Gate::Jobs;
        let mut sim = Sim::new(setup);
        sim.prepared();
        sim.send(Event::ReadinessChecked(MUNGED, true));
        while !sim.machine.is_stopping() {
            match sim.alive.contains(&Child::Unit(SLURMDBD)) {
                true => {
                    sim.send(Event::ReadinessChecked(SLURMDBD, listens));
                    sim.exits(Child::Unit(SLURMDBD), Exit::Code(1));
                }
                false => sim.wait(Duration::from_millis(100)),
            }
        }
        sim.run_to_exit();
        assert_eq!(sim.exit, Some(exit_code::ACCOUNTING));
    }
}

#[test]
fn command_waits_for_configured_associations() {
    for exit in [0, 1] {
        let mut sim = Sim::new(cluster(true));
        sim.ready_with(with_accounts());
        assert_eq!(sim.spawned.last(), Some(&Child::Associations));
        assert!(!sim.alive.contains(&Child::Cmd));
        let snapshot = sim.machine.snapshot();
        assert!(!snapshot.ready && snapshot.why.contains("accounts of slurminit.toml"), "{}", snapshot.why);
        sim.exits(Child::Associations, Exit::Code(exit));
        assert!(sim.alive.contains(&Child::Cmd));
        let is_reported = sim.notices.iter().any(|notice| matches!(notice, Notice::AssociationsNotMade { .. }));
        assert_eq!(is_reported, exit == 1);
    }
}

fn with_accounts() -> Prepared {
    Prepared { has_associations: true, ..Prepared::default() }
}

/// A database with many users is slow, and must not make a container with a command fail.
#[test]
fn accounts_have_their_own_deadline_at_a_start() {
    let mut setup = cluster(true);
    setup.supervise.ready_timeout = Duration::from_secs(5);
    let mut sim = Sim::new(setup);
    sim.ready_with(with_accounts());
    sim.wait(ASSOCIATIONS_TIMEOUT.saturating_sub(Duration::from_secs(1)));
    assert!(sim.alive.contains(&Child::Associations) && !sim.alive.contains(&Child::Cmd));
    sim.wait(Duration::from_secs(1));
    assert!(sim.alive.contains(&Child::Cmd));
    sim.reap_killed();
    assert!(!sim.alive.contains(&Child::Associations));
    assert_eq!(sim.exit, None);
}

/// The files of a reload are in effect before the accounts are created, so slow accounts undo nothing.
#[test]
fn reload_creates_accounts_after_it_has_applied_the_files() {
    for (apply, is_slow) in [(Apply::Nothing, false), (Apply::Nothing, true), (Apply::Reconfigure, true)] {
        let mut sim = Sim::new(cluster(false));
        sim.ready();
        sim.send(Event::Command(Command::Reload));
        sim.send(Event::Prepare(PrepareEvent::Done(Prepared { apply, ..with_accounts() })));
        sim.exits(Child::Reload, Exit::Code(0));
        if apply == Apply::Reconfigure {
            assert!(!sim.alive.contains(&Child::Associations));
            sim.exits(Child::Reconfigure, Exit::Code(0));
            sim.node("idle|none");
        }
        assert!(sim.alive.contains(&Child::Associations));
        assert!(sim.machine.snapshot().reload.last.is_none(), "the reload still runs");
        match is_slow {
            true => sim.wait(ASSOCIATIONS_TIMEOUT),
            false => sim.exits(Child::Associations, Exit::Code(1)),
        }
        let expected = if apply == Apply::Nothing { Outcome::Unchanged } else { Outcome::Applied };
        assert_eq!(sim.machine.snapshot().reload.last.map(|last| last.outcome), Some(expected));
        let is_reported = |notice: &Notice| match notice {
            Notice::AssociationsTooSlow { .. } => is_slow,
            Notice::AssociationsNotMade { .. } => !is_slow,
            _ => false,
        };
        assert!(sim.notices.iter().any(is_reported));
    }
}

/// Crashes after a reload that changed no file have another cause.
#[test]
fn crashes_during_accounts_restore_only_changed_files() {
    for apply in [Apply::Nothing, Apply::Reconfigure] {
        let mut sim = Sim::new(cluster(false));
        sim.ready();
        sim.send(Event::Command(Command::Reload));
        sim.send(Event::Prepare(PrepareEvent::Done(Prepared { apply, ..with_accounts() })));
        sim.exits(Child::Reload, Exit::Code(0));
        if apply == Apply::Reconfigure {
            sim.exits(Child::Reconfigure, Exit::Code(0));
            sim.node("idle|none");
        }
        for _ in 0..2 {
            assert!(sim.alive.contains(&Child::Associations));
            sim.exits(Child::Unit(SLURMCTLD), Exit::Code(1));
            sim.wait(Duration::from_secs(2));
        }
        assert_eq!(sim.spawned.contains(&Child::Restore), apply == Apply::Reconfigure, "{apply:?}");
    }
}

/// mariadbd can hang if SIGTERM comes in its first second.
#[test]
fn kills_database_soon_if_stopped_during_its_start() {
    for is_ready in [false, true] {
        let mut setup = accounting();
        (setup.units[4].name, setup.units[4].daemon) = ("slurmdbd".to_owned(), Some(DaemonName::Mariadbd));
        let mut sim = Sim::new(setup);
        sim.prepared();
        sim.send(Event::ReadinessChecked(MUNGED, true));
        if is_ready {
            sim.send(Event::ReadinessChecked(SLURMDBD, true));
        }
        sim.stubborn.insert(Child::Unit(SLURMDBD));
        sim.send(Event::Signal(libc::SIGTERM));
        if sim.alive.contains(&Child::Unit(SLURMCTLD)) {
            sim.exits(Child::Unit(SLURMCTLD), Exit::Code(0));
        }
        assert!(sim.stopped.contains(&Child::Unit(SLURMDBD)), "{:?}", sim.stopped);
        sim.wait(Duration::from_millis(1500));
        assert_eq!(sim.alive.contains(&Child::Unit(SLURMDBD)), is_ready);
    }
}
