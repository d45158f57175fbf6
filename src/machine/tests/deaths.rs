//! Crashes of daemons.

use super::*;

#[test]
fn restarts_crashed_daemon_at_once_then_backs_off_then_gives_up() {
    let mut sim = Sim::new(cluster(false));
    sim.ready();
    let mut pauses = vec![];
    while sim.exit.is_none() && !sim.machine.is_stopping() {
        sim.exits(Child::Unit(SLURMCTLD), Exit::Code(1));
        if let Some(Notice::UnitDied { pause, .. }) = sim.notices.last() {
            pauses.push(*pause);
            sim.wait(*pause);
        }
    }
    assert_eq!(pauses[0], Duration::ZERO);
    assert!(pauses.windows(2).skip(1).all(|pair| pair[0] < pair[1]), "{pauses:?}");
    assert_eq!(pauses.len(), 5, "one crash after being ready, then four; the fifth is not retried");
    sim.run_to_exit();
    assert_eq!(sim.exit, Some(exit_code::SLURMCTLD));
    assert!(matches!(sim.notices.last(), Some(Notice::Ended { why: Some(_), .. })), "the last notice has the reason");
}

pub(super) fn configuration_error() -> Event {
    let finding =
        model::inventory::Finding::error(model::inventory::Kind::Other, "slurminit.toml:3", "slurmctld", "correct it");
    Event::Prepare(PrepareEvent::Failed { exit_code: exit_code::CONFIG, finding })
}

#[test]
fn explains_first_crash_at_startup_and_exits_on_config_error() {
    let explanations = |sim: &Sim| sim.spawned.iter().filter(|child| matches!(child, Child::Explain(_))).count();
    for on_give_up in [OnGiveUp::Exit, OnGiveUp::Hold] {
        let supervise = Supervise { on_give_up, ..Supervise::default() };
        let mut sim = Sim::new(Setup { supervise, ..cluster(false) });
        sim.prepared();
        sim.send(Event::ReadinessChecked(MUNGED, true));
        sim.exits(Child::Unit(SLURMCTLD), Exit::Code(1));
        assert_eq!(explanations(&sim), 1);
        sim.exits(Child::Unit(SLURMCTLD), Exit::Code(1));
        assert_eq!(explanations(&sim), 1, "the second crash is not explained again");
        sim.send(configuration_error());
        assert!(sim.notices.iter().any(|notice| matches!(notice, Notice::Refused { .. })));
        assert_eq!(sim.machine.is_stopping(), on_give_up == OnGiveUp::Exit, "hold keeps the container for inspection");
        if on_give_up == OnGiveUp::Exit {
            sim.run_to_exit();
            assert_eq!(sim.exit, Some(exit_code::CONFIG));
        }
    }

    let mut sim = Sim::new(cluster(false));
    sim.ready();
    sim.exits(Child::Unit(SLURMCTLD), Exit::Code(1));
    sim.exits(Child::Unit(MUNGED), Exit::Code(1));
    assert_eq!(explanations(&sim), 0, "slurmctld was ready with these files, and munged reads none");
}

#[test]
fn failures_are_forgotten_after_a_minute() {
    let mut sim = Sim::new(cluster(false));
    sim.ready();
    for _ in 0..20 {
        sim.wait(Duration::from_secs(61));
        sim.exits(Child::Unit(MUNGED), Exit::Signal(libc::SIGKILL));
        assert!(
            matches!(sim.notices.last(), Some(Notice::UnitDied { pause: Duration::ZERO, .. })),
            "{:?}",
            sim.notices.last()
        );
        sim.send(Event::ReadinessChecked(MUNGED, true));
    }
    assert_eq!(sim.machine.snapshot().units[0].restarts, 20);
    assert!(sim.alive.contains(&Child::Unit(SLURMCTLD)), "a crash of munged restarts no other unit");
}
