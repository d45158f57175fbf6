//! What its surroundings do to a unit, in the simulated world.

use proptest::prelude::*;

use super::super::super::liveness::Verdict;
use super::super::tests::{Sim, cluster, probed};
use super::super::*;
use super::*;
use crate::exit_code;

const SECOND: Duration = Duration::from_secs(1);

fn refused(fault: Fault) -> Exit {
    Exit::NotStarted(SpawnFailure { code: exit_code::FAILURE, message: String::new(), fault: Some(fault) })
}

fn strike(sim: &mut Sim, unit: usize, exit: Exit, fault: Fault) {
    assert!(sim.living.remove(&Child::Unit(unit)), "unit {unit} does not live");
    sim.give(Event::Struck(unit, exit, fault));
}

fn wait_for(sim: &mut Sim, child: Child) {
    while !sim.living.contains(&child) {
        let wake = sim.machine.next_wake().expect("it is started again");
        sim.wait(wake.saturating_sub(sim.now));
    }
}

#[test]
fn who_cannot_be_started_for_want_of_processes_is_tried_again_for_ever_and_soon_after_the_end() {
    let mut sim = Sim::new(cluster(false));
    sim.ready();
    sim.exits(Child::Unit(1), Exit::Signal(libc::SIGKILL));
    for _ in 0..1000 {
        let before = sim.now;
        wait_for(&mut sim, Child::Unit(1));
        assert!(sim.now - before <= 4 * SECOND, "{:?}", sim.now - before);
        sim.exits(Child::Unit(1), refused(Fault::Processes));
    }
    let told = sim.said.iter().filter(|said| matches!(said, Notice::Struck { .. })).count();
    assert_eq!(told, 10, "a line for the first, the second, the fourth, ...");
    wait_for(&mut sim, Child::Unit(1));
    sim.give(Event::Looked(1, true));
    assert_eq!(sim.exit, None);
}

#[test]
fn who_dies_of_requests_is_started_again_for_ever_and_soon_after_the_last() {
    let mut sim = Sim::new(cluster(false));
    sim.ready();
    for _ in 0..100 {
        let before = sim.now;
        wait_for(&mut sim, Child::Unit(1));
        assert!(sim.now - before <= 4 * SECOND, "{:?}", sim.now - before);
        sim.give(Event::Looked(1, true));
        sim.exits(Child::Unit(1), Exit::Code(1));
    }
    assert!(!sim.machine.is_stopping());
    let told = sim.said.iter().filter(|said| matches!(said, Notice::DiesInService { .. })).count();
    assert_eq!(told, 1, "that it is none of its configuration is said once");
}

#[test]
fn who_dies_before_it_has_ever_answered_dies_of_its_configuration() {
    let mut sim = Sim::new(cluster(false));
    sim.prepared();
    sim.give(Event::Looked(0, true));
    for _ in 0..5 {
        wait_for(&mut sim, Child::Unit(1));
        sim.give(Event::Looked(1, true));
        sim.exits(Child::Unit(1), Exit::Code(1));
    }
    sim.let_end();
    assert_eq!(sim.exit, Some(exit_code::SLURMCTLD), "it listened, and read its saved state only then");
}

#[test]
fn a_port_that_was_taken_from_a_unit_is_got_back_and_counts_nothing() {
    let mut sim = Sim::new(cluster(false));
    sim.ready();
    for code in [0, 1] {
        for _ in 0..20 {
            sim.exits(Child::Unit(1), if code == 0 { Exit::Code(0) } else { Exit::Code(1) });
            if sim.living.contains(&Child::Unit(1)) {
                strike(&mut sim, 1, Exit::Code(1), Fault::Port(6817));
            } else {
                wait_for(&mut sim, Child::Unit(1));
                strike(&mut sim, 1, Exit::Code(1), Fault::Port(6817));
            }
            sim.exits(Child::FreePort(1), Exit::Code(code));
            wait_for(&mut sim, Child::Unit(1));
            sim.give(Event::Looked(1, true));
            sim.wait(61 * SECOND);
        }
    }
    assert!(!sim.machine.is_stopping());
}

#[test]
fn a_port_that_is_taken_from_the_start_by_whom_nobody_may_end_is_a_mistake_of_the_setup() {
    for (code, gives_up) in [(0, false), (1, true)] {
        let mut sim = Sim::new(cluster(false));
        sim.prepared();
        sim.give(Event::Looked(0, true));
        for _ in 0..5 {
            wait_for(&mut sim, Child::Unit(1));
            sim.exits(Child::Unit(1), refused(Fault::Port(6817)));
            sim.exits(Child::FreePort(1), Exit::Code(code));
        }
        assert_eq!(sim.machine.is_stopping(), gives_up, "{code}");
        if gives_up {
            sim.let_end();
            assert_eq!(sim.exit, Some(exit_code::SLURMCTLD));
        }
    }
}

#[test]
fn a_long_run_makes_up_for_setbacks() {
    let mut sim = Sim::new(cluster(false));
    sim.ready();
    for _ in 0..6 {
        strike(&mut sim, 2, Exit::Signal(libc::SIGKILL), Fault::Memory);
        wait_for(&mut sim, Child::Unit(2));
        sim.give(Event::Looked(2, true));
    }
    assert_eq!(sim.machine.setbacks(2), 6);
    sim.wait(61 * SECOND);
    strike(&mut sim, 2, Exit::Signal(libc::SIGKILL), Fault::Memory);
    assert_eq!(sim.machine.setbacks(2), 1);
}

/// What others can do to a cluster that serves.
#[derive(Clone, Debug)]
enum Attack {
    Round(usize, Verdict),
    Strike(usize, Fault),
    /// A request that is fatal to it; only one that takes requests can die of one.
    Kills(usize),
    Looks(usize),
    Frees(u8),
    Ends,
    Wait(u64),
    Wake,
}

fn attack() -> impl Strategy<Value = Attack> {
    let why = String::new;
    let verdicts = prop::sample::select(vec![
        Verdict::Answers,
        Verdict::Silent(why()),
        Verdict::Stopped(why()),
        Verdict::Overloaded(why()),
        Verdict::Slow(why()),
        Verdict::Unknown(why()),
    ]);
    let faults = prop::sample::select(vec![Fault::Processes, Fault::Memory, Fault::Descriptors, Fault::Port(6817)]);
    prop_oneof![
        6 => (0..3_usize, verdicts).prop_map(|(unit, verdict)| Attack::Round(unit, verdict)),
        4 => (0..3_usize, faults).prop_map(|(unit, fault)| Attack::Strike(unit, fault)),
        4 => (0..3_usize).prop_map(Attack::Kills),
        6 => (0..3_usize).prop_map(Attack::Looks),
        4 => (0..2_u8).prop_map(Attack::Frees),
        4 => Just(Attack::Ends),
        2 => (0..400_000_u64).prop_map(Attack::Wait),
        6 => Just(Attack::Wake),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30_000, ..ProptestConfig::default() })]

    /// No history of silences, overloads, fatal requests, taken ports and exhausted limits ends a cluster that has served.
    #[test]
    fn nothing_that_others_do_is_ever_given_up_on(attacks in proptest::collection::vec(attack(), 0..80)) {
        let mut sim = Sim::new(probed(cluster(false)));
        sim.ready();
        for attack in attacks {
            match attack {
                Attack::Round(unit, verdict) => {
                    let asked = sim.machine.asked().to_vec();
                    for other in asked {
                        let said = if other == unit { verdict.clone() } else { Verdict::Answers };
                        sim.give(Event::Liveness(other, said));
                    }
                    if sim.living.contains(&Child::Liveness) {
                        sim.exits(Child::Liveness, Exit::Code(0));
                    }
                }
                Attack::Strike(unit, fault) => {
                    if sim.living.contains(&Child::Unit(unit)) {
                        strike(&mut sim, unit, Exit::Code(1), fault);
                    }
                }
                Attack::Kills(unit) => {
                    if sim.machine.units[unit].is_ready() {
                        sim.exits(Child::Unit(unit), Exit::Code(1));
                    }
                }
                Attack::Looks(unit) => sim.give(Event::Looked(unit, true)),
                Attack::Frees(code) => {
                    for unit in 0..3 {
                        if sim.living.contains(&Child::FreePort(unit)) {
                            sim.exits(Child::FreePort(unit), Exit::Code(code));
                        }
                    }
                }
                Attack::Ends => {
                    // Who was told to end for its silence does so.
                    let stopping: Vec<_> = sim.living.iter().copied().filter(|child| sim.stopped.contains(child)).collect();
                    for child in stopping {
                        if let Child::Unit(unit) = child {
                            if matches!(sim.machine.units[unit].state, State::Stopping { .. }) {
                                sim.exits(child, Exit::Signal(libc::SIGTERM));
                            }
                        }
                    }
                }
                Attack::Wait(ms) => {
                    // A start that takes longer than it may is a failure, and not looked at here.
                    for unit in 0..3 {
                        sim.give(Event::Looked(unit, true));
                    }
                    sim.wait(Duration::from_millis(ms));
                }
                Attack::Wake => {
                    let wake = sim.machine.next_wake().unwrap_or(sim.now).min(sim.now + 5 * SECOND);
                    sim.wait(wake.saturating_sub(sim.now));
                }
            }
            prop_assert!(!sim.machine.is_stopping());
            let gave_up = sim.said.iter().any(|said| matches!(said, Notice::GaveUp { .. }));
            prop_assert!(!gave_up);
        }
    }
}
