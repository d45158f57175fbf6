//! Random orders of events.

use proptest::prelude::*;

use super::*;
use model::prepared::Apply;

/// A random input of the machine; numbers select among the running children.
#[derive(Clone, Debug)]
enum Input {
    Exits(usize, u8),
    ReadinessChecked(UnitId),
    Key,
    Prepared(Apply),
    Reload,
    Node(&'static str),
    Liveness(UnitId, Liveness),
    FailedExternally(UnitId, ExternalCause),
    SlurmstepdDied,
    Signal(i32),
    Restart(UnitId),
    Wait(u64),
    Wake,
}

fn input() -> impl Strategy<Value = Input> {
    let lines = prop::sample::select(vec![
        "idle|none",
        "idle*|none",
        "drained|slurminit: x",
        "drained|slurminit: test job: x",
        "drained|me",
        "inval|x",
    ]);
    let signals = prop::sample::select(vec![libc::SIGHUP, libc::SIGUSR1, libc::SIGINT, libc::SIGTERM]);
    let codes = prop::sample::select(vec![0, 0, 1, 2, exit_code::TEST_JOB_FAILED]);
    let why = String::new;
    let outcomes = prop::sample::select(vec![
        Liveness::Answers,
        Liveness::Answers,
        Liveness::Silent(why()),
        Liveness::Slow(why()),
        Liveness::Stopped(why()),
        Liveness::Unknown(why()),
    ]);
    let shortages = prop::sample::select(vec![
        ExternalCause::Processes,
        ExternalCause::Memory,
        ExternalCause::Descriptors,
        ExternalCause::Port(6817),
    ]);
    prop_oneof![
        6 => (any::<usize>(), codes).prop_map(|(which, code)| Input::Exits(which, code)),
        6 => (0..4_usize).prop_map(UnitId).prop_map(Input::ReadinessChecked),
        2 => Just(Input::Key),
        3 => prop::sample::select(vec![Apply::Nothing, Apply::Reconfigure, Apply::Restart]).prop_map(Input::Prepared),
        1 => Just(Input::Reload),
        4 => lines.prop_map(Input::Node),
        4 => ((0..4_usize).prop_map(UnitId), outcomes).prop_map(|(unit, liveness)| Input::Liveness(unit, liveness)),
        3 => ((0..4_usize).prop_map(UnitId), shortages)
            .prop_map(|(unit, shortage)| Input::FailedExternally(unit, shortage)),
        2 => Just(Input::SlurmstepdDied),
        1 => signals.prop_map(Input::Signal),
        2 => (0..4_usize).prop_map(UnitId).prop_map(Input::Restart),
        3 => (0..70_000_u64).prop_map(Input::Wait),
        6 => Just(Input::Wake),
    ]
}

/// A child that ignores SIGTERM.
fn stubborn_child() -> impl Strategy<Value = Child> {
    let units = UNITS.map(Child::Unit);
    prop::sample::select([units.as_slice(), &[Child::Cmd, Child::JobsQuiesce]].concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100_000, ..ProptestConfig::default() })]

    /// In any order of events, the invariants of `Sim` hold after every step, and a stop ends.
    #[test]
    fn any_order_of_events_keeps_invariants(
        has_cmd in any::<bool>(),
        is_orderly in any::<bool>(),
        has_associations in any::<bool>(),
        has_own_files in any::<bool>(),
        stubborn in proptest::collection::btree_set(stubborn_child(), 0..3),
        hooks in 0..2_usize,
        inputs in proptest::collection::vec(input(), 0..60),
    ) {
        let mut sim = Sim::new(Setup { hooks: vec![hook(Duration::from_secs(5)); hooks], ..probed(cluster(has_cmd)) });
        (sim.stubborn, sim.reaps_late) = (stubborn, true);
        for input in inputs {
            if sim.exit.is_some() {
                break;
            }
            match input {
                Input::Exits(which, code) if !sim.alive.is_empty() => {
                    let child = *sim.alive.iter().nth(which % sim.alive.len()).unwrap();
                    sim.exits(child, Exit::Code(code));
                }
                Input::Exits(..) => {}
                Input::ReadinessChecked(unit) => sim.send(Event::ReadinessChecked(unit, true)),
                Input::Key => sim.send(Event::Prepare(PrepareEvent::MungeKeyReady)),
                Input::Prepared(apply) => {
                    sim.send(Event::Prepare(PrepareEvent::Done(Prepared { apply, has_associations, ..own_files(has_own_files) })));
                }
                Input::Reload => sim.send(Event::Command(Command::Reload)),
                Input::Node(line) => sim.send(Event::Node(NodeReport::parse(line).unwrap())),
                Input::Liveness(unit, liveness) => sim.send(Event::Liveness(unit, liveness)),
                Input::FailedExternally(unit, shortage) => {
                    if sim.alive.remove(&Child::Unit(unit)) {
                        sim.send(Event::FailedExternally(unit, Exit::Code(1), shortage));
                    }
                }
                Input::SlurmstepdDied => sim.send(Event::SlurmstepdDied),
                Input::Signal(signal) => sim.send(Event::Signal(signal)),
                Input::Restart(unit) => sim.send(Event::Command(Command::Restart(unit))),
                Input::Wait(ms) => sim.wait(Duration::from_millis(ms)),
                Input::Wake => {
                    let wake = sim.machine.next_wake().unwrap_or(sim.now);
                    sim.reap_killed();
                    if sim.exit.is_some() {
                        break;
                    }
                    sim.wait(wake.saturating_sub(sim.now));
                    // Unless the machine has ended, a deadline that has passed must not remain the next one.
                    if sim.exit.is_none() {
                        prop_assert!(sim.machine.next_wake().is_none_or(|at| at > sim.now || wake < sim.now));
                    }
                }
            }
        }
        if sim.exit.is_none() && is_orderly {
            if !sim.machine.is_stopping() {
                sim.send(Event::Signal(libc::SIGTERM));
            }
            if sim.exit.is_none() {
                sim.run_to_exit();
            }
        }
        if sim.exit.is_none() {
            sim.stubborn = sim.alive.iter().copied().filter(|child| matches!(child, Child::Unit(_))).collect();
            sim.send(Event::Signal(libc::SIGTERM));
            if sim.exit.is_none() {
                sim.run_to_exit();
            }
        }
        prop_assert!(sim.exit.is_some());
    }
}
