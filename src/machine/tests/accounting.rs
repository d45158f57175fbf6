//! The accounting database: a cluster needs it to start, but keeps running without it.

use super::*;
use model::daemons::DaemonName;
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
fn slurmctld_waits_for_it_once_and_the_cluster_outlives_it() {
    let mut sim = Sim::new(accounting());
    sim.prepared();
    sim.give(Event::ReadinessChecked(MUNGED, true));
    assert!(!sim.living.contains(&Child::Unit(SLURMCTLD)));
    for unit in [SLURMDBD, SLURMCTLD, SLURMD] {
        sim.give(Event::ReadinessChecked(unit, true));
    }
    sim.node("idle|none");
    assert_eq!(sim.spawned.last(), Some(&Child::Cmd));
    while !sim.notices.iter().any(|notice| matches!(notice, Notice::GaveUp { hold: true, .. })) {
        match sim.living.contains(&Child::Unit(SLURMDBD)) {
            true => sim.exits(Child::Unit(SLURMDBD), Exit::Code(1)),
            false => sim.wait(Duration::from_millis(100)),
        }
    }
    assert!(!sim.machine.is_stopping(), "jobs go on");
    sim.exits(Child::Unit(SLURMCTLD), Exit::Code(1));
    sim.wait(Duration::from_secs(1));
    assert!(sim.living.contains(&Child::Unit(SLURMCTLD)), "it has saved what it must know");
}

#[test]
fn unit_that_never_gets_ready_ends_container() {
    for listens in [false, true] {
        let mut setup = accounting();
        // Its next daemon never gets ready.
        setup.units[1].gate = Gate::Jobs;
        let mut sim = Sim::new(setup);
        sim.prepared();
        sim.give(Event::ReadinessChecked(MUNGED, true));
        while !sim.machine.is_stopping() {
            match sim.living.contains(&Child::Unit(SLURMDBD)) {
                true => {
                    sim.give(Event::ReadinessChecked(SLURMDBD, listens));
                    sim.exits(Child::Unit(SLURMDBD), Exit::Code(1));
                }
                false => sim.wait(Duration::from_millis(100)),
            }
        }
        sim.let_end();
        assert_eq!(sim.exit, Some(exit_code::ACCOUNTING));
    }
}

#[test]
fn command_waits_for_accounts_of_configuration() {
    for exit in [0, 1] {
        let mut sim = Sim::new(Setup { has_associations: true, ..cluster(true) });
        sim.ready();
        assert_eq!(sim.spawned.last(), Some(&Child::Associations));
        assert!(!sim.living.contains(&Child::Cmd));
        sim.exits(Child::Associations, Exit::Code(exit));
        assert!(sim.living.contains(&Child::Cmd));
        let is_reported = sim.notices.iter().any(|notice| matches!(notice, Notice::AssociationsNotMade { .. }));
        assert_eq!(is_reported, exit == 1);
    }
}

/// mariadbd can hang if SIGTERM comes in its first second.
#[test]
fn kills_database_soon_if_it_is_stopped_while_it_starts() {
    for is_ready in [false, true] {
        let mut setup = accounting();
        (setup.units[4].name, setup.units[4].daemon) = ("slurmdbd".to_owned(), Some(DaemonName::Mariadbd));
        let mut sim = Sim::new(setup);
        sim.prepared();
        sim.give(Event::ReadinessChecked(MUNGED, true));
        if is_ready {
            sim.give(Event::ReadinessChecked(SLURMDBD, true));
        }
        sim.stubborn.insert(Child::Unit(SLURMDBD));
        sim.give(Event::Signal(libc::SIGTERM));
        if sim.living.contains(&Child::Unit(SLURMCTLD)) {
            sim.exits(Child::Unit(SLURMCTLD), Exit::Code(0));
        }
        assert!(sim.stopped.contains(&Child::Unit(SLURMDBD)), "{:?}", sim.stopped);
        sim.wait(Duration::from_millis(1500));
        assert_eq!(sim.living.contains(&Child::Unit(SLURMDBD)), is_ready);
    }
}
