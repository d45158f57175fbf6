//! Commands to the state machine, and the startup timeline.

use super::*;
use model::daemons::ReadinessTest;
use model::log::Level;

fn state(sim: &Sim, unit: UnitId) -> String {
    sim.machine.snapshot().units[unit.0].state.to_string()
}

#[test]
fn requested_restarts_affect_one_unit_without_backoff() {
    let mut sim = Sim::new(cluster(false));
    sim.ready();
    let spawned = sim.spawned.len();
    for round in 1..20 {
        sim.send(Event::Command(Command::Restart(SLURMCTLD)));
        assert_eq!(sim.stopped.last(), Some(&Child::Unit(SLURMCTLD)));
        assert_eq!(state(&sim, SLURMCTLD), "stopping");
        sim.exits(Child::Unit(SLURMCTLD), Exit::Signal(libc::SIGTERM));
        assert_eq!(sim.spawned.last(), Some(&Child::Unit(SLURMCTLD)), "no backoff in restart {round}");
        sim.send(Event::ReadinessChecked(SLURMCTLD, true));
        sim.node("idle|none");
    }
    let units = sim.machine.snapshot().units;
    assert_eq!((units[1].restarts, units[1].starts), (19, 20));
    assert_eq!(units[1].last_exit_why.as_ref().unwrap().to_string(), "a restart was requested");
    let others = |child: &&Child| matches!(child, Child::Unit(unit) if *unit != SLURMCTLD);
    assert_eq!(sim.spawned[spawned..].iter().filter(others).count(), 0, "other units keep running");
}

#[test]
fn requested_restart_starts_given_up_unit_and_resets_failures() {
    let hold = Supervise { on_give_up: OnGiveUp::Hold, ..Supervise::default() };
    let mut sim = Sim::new(Setup { supervise: hold, ..cluster(false) });
    sim.ready();
    while state(&sim, SLURMCTLD) != "given up" {
        sim.exits(Child::Unit(SLURMCTLD), Exit::Code(1));
        sim.wait(Duration::from_secs(6));
    }
    sim.send(Event::Command(Command::Restart(SLURMCTLD)));
    assert!(sim.alive.contains(&Child::Unit(SLURMCTLD)));
    sim.exits(Child::Unit(SLURMCTLD), Exit::Code(1));
    assert_eq!(state(&sim, SLURMCTLD), "starting", "counted as a first failure");
    sim.exits(Child::Unit(SLURMCTLD), Exit::Code(1));
    assert_eq!(state(&sim, SLURMCTLD), "backing off");
    sim.send(Event::Command(Command::Restart(SLURMCTLD)));
    assert!(sim.alive.contains(&Child::Unit(SLURMCTLD)), "a requested restart has no backoff");
}

#[test]
fn requested_restart_keeps_order_and_stops_unit_once() {
    let mut sim = Sim::new(cluster(false));
    sim.send(Event::Command(Command::Restart(SLURMD)));
    assert_eq!(sim.spawned, [Child::Prepare], "slurmd waits for its dependencies");
    sim.ready();
    sim.send(Event::Command(Command::Restart(SLURMD)));
    let stops = sim.stopped.len();
    sim.send(Event::Command(Command::Restart(SLURMD)));
    assert_eq!(sim.stopped.len(), stops);
    sim.exits(Child::Unit(SLURMD), Exit::Code(0));
    assert!(sim.alive.contains(&Child::Unit(SLURMD)));
}

#[test]
fn restarts_finished_service_on_request() {
    let mut setup = cluster(false);
    setup.units[3].restart = RestartPolicy::Never;
    setup.units[3].readiness = ReadinessTest::Started;
    let mut sim = Sim::new(setup);
    sim.ready();
    sim.send(Event::Command(Command::Restart(API)));
    sim.exits(Child::Unit(API), Exit::Code(0));
    assert_eq!(state(&sim, API), "ready");
    sim.exits(Child::Unit(API), Exit::Code(0));
    assert_eq!(state(&sim, API), "finished");
    sim.send(Event::Command(Command::Restart(API)));
    assert_eq!(state(&sim, API), "ready");
}

#[test]
fn service_that_never_restarts_is_only_stopped_if_it_does_not_get_ready() {
    let mut setup = cluster(false);
    setup.units[3].restart = RestartPolicy::Never;
    let mut sim = Sim::new(setup);
    sim.ready();
    sim.wait(Duration::from_secs(60));
    assert!(sim.notices.iter().any(|notice| matches!(notice, Notice::NeverReady { restarts: false, .. })));
    sim.exits(Child::Unit(API), Exit::Signal(libc::SIGTERM));
    assert_eq!(state(&sim, API), "finished");
}

#[test]
fn status_states_that_failed_daemon_is_not_restarted() {
    let mut setup = cluster(false);
    (setup.supervise.on_give_up, setup.supervise.give_up_after) = (OnGiveUp::Hold, 1);
    let mut sim = Sim::new(setup);
    sim.prepared();
    sim.exits(Child::Unit(MUNGED), Exit::Code(1));
    assert_eq!(state(&sim, MUNGED), "given up");
    assert_eq!(sim.machine.snapshot().why, "munged failed too often, and is not restarted");
}

#[test]
fn stop_refuses_restart_and_second_stop_kills_processes() {
    let mut sim = Sim::new(cluster(false));
    sim.ready();
    sim.stubborn = sim.alive.clone();
    assert_eq!(sim.machine.refusal(Command::Restart(SLURMCTLD)), None);
    sim.send(Event::Command(Command::Stop));
    assert_eq!(sim.machine.refusal(Command::Restart(SLURMCTLD)), Some("the container is stopping"));
    sim.send(Event::Command(Command::Restart(SLURMCTLD)));
    let start = sim.now;
    sim.send(Event::Command(Command::Stop));
    sim.run_to_exit();
    assert!(sim.now - start < Duration::from_millis(100));
    assert_eq!(sim.exit, Some(0));
}

#[test]
fn timeline_has_each_startup_part_once_and_stays_unchanged() {
    let mut sim = Sim::new(Setup { hooks: vec![hook(Duration::from_secs(5))], ..cluster(true) });
    let after = |sim: &mut Sim, ms: u64, event| {
        sim.now += Duration::from_millis(ms);
        sim.send(event);
    };
    sim.now += 2 * MS;
    sim.exits(Child::Hook(0), Exit::Code(0));
    after(&mut sim, 4, Event::Prepare(PrepareEvent::MungeKeyReady));
    after(&mut sim, 1, Event::Prepare(PrepareEvent::Detected));
    after(&mut sim, 3, Event::Prepare(PrepareEvent::Done(Prepared::default())));
    after(&mut sim, 5, Event::ReadinessChecked(MUNGED, true));
    after(&mut sim, 20, Event::ReadinessChecked(SLURMCTLD, true));
    after(&mut sim, 25, Event::ReadinessChecked(SLURMD, true));
    after(&mut sim, 10, Event::Node(NodeReport::parse("idle|none").unwrap()));
    after(&mut sim, 9, Event::ReadinessChecked(API, true));
    let timeline = sim.machine.snapshot().timeline;
    let spans: Vec<_> =
        timeline.iter().map(|span| (&span.part, span.from_us / 1000, span.until_us.map(|us| us / 1000))).collect();
    let unit = |name: &str| Part::Unit(name.to_owned());
    assert_eq!(
        spans,
        [
            (&Part::Hook(1), 0, Some(2)),
            (&Part::Prepare, 2, Some(10)),
            (&Part::Key, 2, Some(6)),
            (&Part::Detection, 6, Some(7)),
            (&unit("munged"), 6, Some(15)),
            (&Part::Files, 7, Some(10)),
            (&unit("slurmctld"), 15, Some(35)),
            (&unit("slurmd"), 35, Some(60)),
            (&unit("api"), 60, Some(79)),
            (&Part::Node, 60, Some(70)),
            (&Part::Command, 70, Some(70)),
        ]
    );
    sim.exits(Child::Unit(SLURMCTLD), Exit::Code(1));
    after(&mut sim, 9, Event::ReadinessChecked(SLURMCTLD, true));
    assert_eq!(sim.machine.snapshot().timeline, timeline);
}

#[test]
fn reports_daemon_that_ends_unexpectedly_during_stop() {
    let mut sim = Sim::new(cluster(false));
    sim.ready();
    sim.send(Event::Signal(libc::SIGTERM));
    sim.exits(Child::Unit(MUNGED), Exit::Code(0));
    assert_eq!(sim.notices.last().unwrap().record().0, Level::Warn);
    sim.exits(Child::JobsQuiesce, Exit::Code(0));
    sim.exits(Child::Unit(API), Exit::Code(0));
    assert_eq!(sim.notices.last().unwrap().record().0, Level::Debug);
}
