//! Daemons that die.

use super::*;

#[test]
fn daemon_that_dies_starts_again_at_once_then_ever_later_and_then_is_given_up() {
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
    assert_eq!(pauses.len(), 5, "the first had served; of the others, the fifth is one too many");
    sim.let_end();
    assert_eq!(sim.exit, Some(exit_code::SLURMCTLD));
    assert!(matches!(sim.notices.last(), Some(Notice::Ended { why: Some(_), .. })), "the last words say why");
}

fn refused() -> Event {
    let finding =
        model::inventory::Finding::error(model::inventory::Kind::Other, "slurminit.toml:3", "slurmctld", "correct it");
    Event::Prepare(PrepareEvent::Failed { exit_code: exit_code::CONFIG, finding })
}

#[test]
fn first_death_at_start_is_explained_once_and_what_configuration_is_to_blame_for_ends_it() {
    let explained = |sim: &Sim| sim.spawned.iter().filter(|child| matches!(child, Child::Explain(_))).count();
    for on_give_up in [OnGiveUp::Exit, OnGiveUp::Hold] {
        let supervise = Supervise { on_give_up, ..Supervise::default() };
        let mut sim = Sim::new(Setup { supervise, ..cluster(false) });
        sim.prepared();
        sim.give(Event::ReadinessChecked(MUNGED, true));
        sim.exits(Child::Unit(SLURMCTLD), Exit::Code(1));
        assert_eq!(explained(&sim), 1);
        sim.exits(Child::Unit(SLURMCTLD), Exit::Code(1));
        assert_eq!(explained(&sim), 1, "a second death has the same cause");
        sim.give(refused());
        assert!(sim.notices.iter().any(|notice| matches!(notice, Notice::Refused(_))));
        assert_eq!(sim.machine.is_stopping(), on_give_up == OnGiveUp::Exit, "hold keeps it for a look inside");
        if on_give_up == OnGiveUp::Exit {
            sim.let_end();
            assert_eq!(sim.exit, Some(exit_code::CONFIG));
        }
    }

    let mut sim = Sim::new(cluster(false));
    sim.ready();
    sim.exits(Child::Unit(SLURMCTLD), Exit::Code(1));
    sim.exits(Child::Unit(MUNGED), Exit::Code(1));
    assert_eq!(explained(&sim), 0, "what ran with its files did not die of them, and munged reads none");
}

#[test]
fn failures_long_ago_are_forgotten() {
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
        sim.give(Event::ReadinessChecked(MUNGED, true));
    }
    assert_eq!(sim.machine.snapshot().units[0].restarts, 20);
    assert!(sim.living.contains(&Child::Unit(SLURMCTLD)), "munged's death restarts nothing else");
}
