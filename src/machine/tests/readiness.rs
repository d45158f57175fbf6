//! Readiness commands, and services that need one-shot services.

use super::*;
use model::daemons::ReadinessTest;

const PROBE: Child = Child::Probe(API);

/// A cluster whose service has a readiness command.
fn with_command(ready_timeout: u64) -> Sim {
    let mut setup = cluster(false);
    setup.units[3].readiness = ReadinessTest::Command(vec!["ask".to_owned()]);
    setup.units[3].ready_timeout = Duration::from_secs(ready_timeout);
    let mut sim = Sim::new(setup);
    sim.ready();
    sim
}

/// Waits until the readiness command runs, for at most a minute.
fn wait_for_probe(sim: &mut Sim) {
    let start = sim.now;
    while !sim.alive.contains(&PROBE) {
        assert!(sim.now - start < Duration::from_secs(60), "no readiness check: {:?}", sim.machine);
        let wake = sim.machine.next_wake().unwrap();
        sim.wait(wake - sim.now);
    }
}

#[test]
fn kills_hung_readiness_command_at_deadline_and_retries() {
    let mut sim = with_command(60);
    wait_for_probe(&mut sim);
    let started = sim.now;
    while sim.alive.contains(&PROBE) {
        let wake = sim.machine.next_wake().unwrap();
        sim.wait(wake - sim.now);
    }
    assert_eq!(sim.now - started, Supervise::default().probe_timeout);
    wait_for_probe(&mut sim);
    sim.exits(PROBE, Exit::Code(0));
    assert!(sim.machine.units()[API].is_ready());
    assert_eq!(sim.machine.units()[API].starts(), 1);
}

#[test]
fn failing_readiness_command_backs_off() {
    let mut sim = with_command(60);
    let start = sim.now;
    let mut runs = 0;
    while sim.now - start < Duration::from_secs(10) {
        wait_for_probe(&mut sim);
        sim.exits(PROBE, Exit::Code(1));
        runs += 1;
    }
    assert!((15..25).contains(&runs), "{runs} in 10 s");
}

#[test]
fn readiness_command_ends_with_unit_and_late_success_is_ignored() {
    // The unit dies, is stopped, or exceeds its time to become ready.
    let ends: [fn(&mut Sim); 3] = [
        |sim| sim.exits(Child::Unit(API), Exit::Code(1)),
        |sim| sim.send(Event::Command(Command::Restart(API))),
        |sim| sim.wait(Duration::from_secs(2)),
    ];
    for end in ends {
        let mut sim = with_command(2);
        wait_for_probe(&mut sim);
        end(&mut sim);
        assert!(!sim.alive.contains(&PROBE), "the readiness command outlives its unit");
    }
    let mut sim = with_command(60);
    wait_for_probe(&mut sim);
    sim.exits(Child::Unit(API), Exit::Code(1));
    assert!(sim.alive.contains(&Child::Unit(API)), "started again at once");
    sim.send(Event::Exited(PROBE, Exit::Code(0)));
    assert!(!sim.machine.units()[API].is_ready(), "the success is that of the previous process");
    wait_for_probe(&mut sim);
    sim.exits(PROBE, Exit::Code(0));
    assert!(sim.machine.units()[API].is_ready());
}

/// A cluster with a fifth unit that needs the fourth, a one-shot service.
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

fn failed_needs(sim: &Sim) -> usize {
    sim.notices.iter().filter(|notice| matches!(notice, Notice::DependencyFailed { .. })).count()
}

#[test]
fn service_starts_after_its_one_shot_dependency_succeeds() {
    let mut sim = one_shot();
    assert!(!sim.alive.contains(&Child::Unit(NEXT)), "the one-shot is still running");
    sim.exits(Child::Unit(API), Exit::Code(0));
    assert!(sim.alive.contains(&Child::Unit(NEXT)));
    // The service restarts without another run of the one-shot.
    sim.exits(Child::Unit(NEXT), Exit::Signal(libc::SIGKILL));
    assert!(sim.alive.contains(&Child::Unit(NEXT)));
    // A requested run of the one-shot does not stop the service.
    sim.send(Event::Command(Command::Restart(API)));
    assert!(sim.alive.contains(&Child::Unit(NEXT)) && sim.alive.contains(&Child::Unit(API)));
    sim.exits(Child::Unit(NEXT), Exit::Code(1));
    sim.wait(Duration::from_secs(60));
    assert!(!sim.alive.contains(&Child::Unit(NEXT)), "the one-shot is running");
    sim.exits(Child::Unit(API), Exit::Code(0));
    assert!(sim.alive.contains(&Child::Unit(NEXT)));
    assert_eq!(failed_needs(&sim), 0);
}

#[test]
fn service_waits_until_failed_one_shot_succeeds() {
    for exit in [Exit::Code(1), Exit::Signal(libc::SIGKILL)] {
        let mut sim = one_shot();
        sim.exits(Child::Unit(API), exit);
        sim.wait(Duration::from_secs(600));
        assert!(!sim.alive.contains(&Child::Unit(NEXT)));
        assert_eq!(failed_needs(&sim), 1);
        sim.send(Event::Command(Command::Restart(API)));
        assert!(!sim.alive.contains(&Child::Unit(NEXT)));
        sim.exits(Child::Unit(API), Exit::Code(1));
        assert_eq!(failed_needs(&sim), 2, "it failed again");
        sim.send(Event::Command(Command::Restart(API)));
        sim.exits(Child::Unit(API), Exit::Code(0));
        assert!(sim.alive.contains(&Child::Unit(NEXT)));
    }
}
