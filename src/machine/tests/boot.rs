//! A start, from the preparation to the command.

use super::*;
use model::daemons::ReadinessTest;
use model::unit::Gate;

#[test]
fn daemons_start_one_after_other_each_when_one_before_is_ready() {
    let mut sim = Sim::new(cluster(true));
    assert_eq!(sim.spawned, [Child::Prepare], "munged waits for its key");
    sim.give(Event::Prepare(PrepareEvent::MungeKeyReady));
    assert_eq!(sim.spawned.last(), Some(&Child::Unit(MUNGED)), "and for nothing else");
    sim.give(Event::ReadinessChecked(MUNGED, true));
    assert_eq!(sim.spawned.len(), 2, "slurmctld waits for its files");
    sim.give(Event::Prepare(PrepareEvent::Done(Prepared::default())));
    sim.give(Event::ReadinessChecked(SLURMCTLD, true));
    sim.give(Event::ReadinessChecked(SLURMD, true));
    sim.node("idle*|none");
    assert!(!sim.spawned.contains(&Child::Cmd), "the node does not respond yet");
    sim.wait(10 * MS);
    sim.node("idle|none");
    assert_eq!(sim.spawned.last(), Some(&Child::Cmd));
}

#[test]
fn slurmctld_runs_as_the_user_that_the_preparation_names() {
    for (slurm_user, expected) in [(None, None), (Some("root"), Some("root"))] {
        let mut sim = Sim::new(cluster(true));
        let usual = sim.machine.units()[SLURMCTLD].spec.user.clone();
        let slurm_user = slurm_user.map(str::to_owned);
        sim.give(Event::Prepare(PrepareEvent::Done(Prepared { slurm_user, ..Prepared::default() })));
        let expected = expected.map(str::to_owned).or(usual);
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
    assert_eq!(sim.spawned.last(), Some(&Child::Unit(API)), "the node is not asked again for it");

    let mut sim = Sim::new(setup(false));
    sim.prepared();
    for unit in DAEMONS {
        sim.give(Event::ReadinessChecked(unit, true));
    }
    sim.node("inval|Low RealMemory");
    assert!(!sim.spawned.contains(&Child::Unit(API)));
    sim.wait(Duration::from_secs(60));
    assert!(sim.spawned.contains(&Child::Unit(API)));
}

#[test]
fn commands_code_is_containers_and_command_that_never_ran_is_no_success() {
    let mut sim = Sim::new(cluster(true));
    sim.ready();
    sim.exits(Child::Cmd, Exit::Code(42));
    sim.let_end();
    assert_eq!(sim.exit, Some(42));

    let mut sim = Sim::new(cluster(true));
    sim.give(Event::Signal(libc::SIGTERM));
    sim.let_end();
    assert_eq!(sim.exit, Some(143));
}

#[test]
fn preparation_that_fails_or_hangs_ends_container_with_its_code() {
    let mut sim = Sim::new(cluster(false));
    sim.wait(Duration::from_secs(1));
    assert!(matches!(sim.notices.last(), Some(Notice::PrepareSlow)), "a wait of a second is worth a word");
    sim.wait(Duration::from_secs(30));
    sim.let_end();
    assert_eq!(sim.exit, Some(exit_code::PREPARE));

    let mut sim = Sim::new(cluster(false));
    sim.exits(Child::Prepare, Exit::Signal(libc::SIGSEGV));
    sim.let_end();
    assert_eq!(sim.exit, Some(exit_code::PREPARE));
}

#[test]
fn service_waits_for_later_entry_of_file() {
    let mut setup = cluster(false);
    let mut later = setup.units[3].clone();
    later.name = "cache".to_owned();
    setup.units[3].after = vec!["cache".to_owned()];
    setup.units[3].readiness = ReadinessTest::Started;
    setup.units.push(later);
    let mut sim = Sim::new(setup);
    sim.ready();
    let cache = sim.machine.units().named("cache").unwrap().id;
    assert!(sim.living.contains(&Child::Unit(cache)) && !sim.living.contains(&Child::Unit(API)));
    sim.give(Event::ReadinessChecked(cache, true));
    assert!(sim.living.contains(&Child::Unit(API)));
}
