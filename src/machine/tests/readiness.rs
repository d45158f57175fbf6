//! Readiness commands, and services that need others that run once.

use super::*;
use model::daemons::ReadinessTest;

const PROBE: Child = Child::Probe(API);

/// The service runs a command to find out whether it is ready.
fn with_command(ready_timeout: u64) -> Sim {
    let mut setup = cluster(false);
    setup.units[3].readiness = ReadinessTest::Command(vec!["ask".to_owned()]);
    setup.units[3].ready_timeout = Duration::from_secs(ready_timeout);
    let mut sim = Sim::new(setup);
    sim.ready();
    sim
}

/// Lets the time pass until the probe runs, or a minute.
fn until_asked(sim: &mut Sim) {
    let start = sim.now;
    while !sim.living.contains(&PROBE) {
        assert!(sim.now - start < Duration::from_secs(60), "no readiness check: {:?}", sim.machine);
        let wake = sim.machine.next_wake().unwrap();
        sim.wait(wake - sim.now);
    }
}

#[test]
fn readiness_command_that_hangs_is_killed_at_its_deadline_and_run_again() {
    let mut sim = with_command(60);
    until_asked(&mut sim);
    let asked = sim.now;
    while sim.living.contains(&PROBE) {
        let wake = sim.machine.next_wake().unwrap();
        sim.wait(wake - sim.now);
    }
    assert_eq!(sim.now - asked, Supervise::default().probe_timeout);
    until_asked(&mut sim);
    sim.exits(PROBE, Exit::Code(0));
    assert!(sim.machine.units()[API].is_ready());
    assert_eq!(sim.machine.units()[API].starts(), 1);
}

#[test]
fn readiness_command_that_fails_is_run_ever_more_rarely() {
    let mut sim = with_command(60);
    let start = sim.now;
    let mut runs = 0;
    while sim.now - start < Duration::from_secs(10) {
        until_asked(&mut sim);
        sim.exits(PROBE, Exit::Code(1));
        runs += 1;
    }
    assert!((15..25).contains(&runs), "{runs} in 10 s");
}

#[test]
fn readiness_command_ends_with_its_unit_and_its_late_success_does_not_count_for_next_start() {
    // The unit dies, is stopped, or exceeds its time to become ready.
    let ends: [fn(&mut Sim); 3] = [
        |sim| sim.exits(Child::Unit(API), Exit::Code(1)),
        |sim| sim.give(Event::Command(Command::Restart(API))),
        |sim| sim.wait(Duration::from_secs(2)),
    ];
    for end in ends {
        let mut sim = with_command(2);
        until_asked(&mut sim);
        end(&mut sim);
        assert!(!sim.living.contains(&PROBE), "it outlives its unit");
    }
    let mut sim = with_command(60);
    until_asked(&mut sim);
    sim.exits(Child::Unit(API), Exit::Code(1));
    assert!(sim.living.contains(&Child::Unit(API)), "started again at once");
    sim.give(Event::Exited(PROBE, Exit::Code(0)));
    assert!(!sim.machine.units()[API].is_ready(), "that was another process");
    until_asked(&mut sim);
    sim.exits(PROBE, Exit::Code(0));
    assert!(sim.machine.units()[API].is_ready());
}

/// A fifth unit, which needs the fourth, which runs once.
fn one_shot() -> Sim {
    let mut setup = cluster(false);
    setup.units[3] = Spec {
        restart: RestartPolicy::Never,
        readiness: ReadinessTest::Started,
        after: vec![],
        ..setup.units[3].clone()
    };
    let next = Spec {
        name: "next".to_owned(),
        after: vec!["api".to_owned()],
        restart: RestartPolicy::Always,
        ..setup.units[3].clone()
    };
    setup.units.push(next);
    let mut sim = Sim::new(setup);
    sim.ready();
    sim
}

const NEXT: UnitId = UnitId(4);

fn reported_reasons(sim: &Sim) -> usize {
    sim.notices.iter().filter(|notice| matches!(notice, Notice::NeedFailed { .. })).count()
}

#[test]
fn service_starts_when_one_shot_that_it_needs_has_succeeded() {
    let mut sim = one_shot();
    assert!(!sim.living.contains(&Child::Unit(NEXT)), "it has only begun");
    sim.exits(Child::Unit(API), Exit::Code(0));
    assert!(sim.living.contains(&Child::Unit(NEXT)));
    // It comes back without the one-shot's running again.
    sim.exits(Child::Unit(NEXT), Exit::Signal(libc::SIGKILL));
    assert!(sim.living.contains(&Child::Unit(NEXT)));
    // A run that an operator requests leaves it alone.
    sim.give(Event::Command(Command::Restart(API)));
    assert!(sim.living.contains(&Child::Unit(NEXT)) && sim.living.contains(&Child::Unit(API)));
    sim.exits(Child::Unit(NEXT), Exit::Code(1));
    sim.wait(Duration::from_secs(60));
    assert!(!sim.living.contains(&Child::Unit(NEXT)), "the one-shot runs");
    sim.exits(Child::Unit(API), Exit::Code(0));
    assert!(sim.living.contains(&Child::Unit(NEXT)));
    assert_eq!(reported_reasons(&sim), 0);
}

#[test]
fn service_does_not_start_after_one_shot_that_failed_until_that_has_succeeded() {
    for exit in [Exit::Code(1), Exit::Signal(libc::SIGKILL)] {
        let mut sim = one_shot();
        sim.exits(Child::Unit(API), exit);
        sim.wait(Duration::from_secs(600));
        assert!(!sim.living.contains(&Child::Unit(NEXT)));
        assert_eq!(reported_reasons(&sim), 1);
        sim.give(Event::Command(Command::Restart(API)));
        assert!(!sim.living.contains(&Child::Unit(NEXT)));
        sim.exits(Child::Unit(API), Exit::Code(1));
        assert_eq!(reported_reasons(&sim), 2, "it failed again");
        sim.give(Event::Command(Command::Restart(API)));
        sim.exits(Child::Unit(API), Exit::Code(0));
        assert!(sim.living.contains(&Child::Unit(NEXT)));
    }
}
