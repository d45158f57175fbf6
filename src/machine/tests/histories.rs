//! Random orders of events.

use proptest::prelude::*;

use super::*;
use model::prepared::Apply;

/// What can happen next; the numbers select among the living children.
#[derive(Clone, Debug)]
enum Chance {
    Dies(usize, u8),
    ReadinessChecked(UnitId),
    Key,
    Prepared(Apply),
    Reload,
    Node(&'static str),
    Liveness(UnitId, Liveness),
    FailedExternally(UnitId, Shortage),
    Signal(i32),
    Restart(UnitId),
    Wait(u64),
    Wake,
}

fn chance() -> impl Strategy<Value = Chance> {
    let lines =
        prop::sample::select(vec!["idle|none", "idle*|none", "drained|gres/gpu count", "drained|me", "inval|x"]);
    let signals = prop::sample::select(vec![libc::SIGHUP, libc::SIGUSR1, libc::SIGINT, libc::SIGTERM]);
    let why = String::new;
    let outcomes = prop::sample::select(vec![
        Liveness::Answers,
        Liveness::Answers,
        Liveness::Silent(why()),
        Liveness::Slow(why()),
        Liveness::Stopped(why()),
        Liveness::Overloaded(why()),
        Liveness::Unknown(why()),
    ]);
    let shortages =
        prop::sample::select(vec![Shortage::Processes, Shortage::Memory, Shortage::Descriptors, Shortage::Port(6817)]);
    prop_oneof![
        6 => (any::<usize>(), 0..3_u8).prop_map(|(which, code)| Chance::Dies(which, code)),
        6 => (0..4_usize).prop_map(UnitId).prop_map(Chance::ReadinessChecked),
        2 => Just(Chance::Key),
        3 => prop::sample::select(vec![Apply::Nothing, Apply::Reconfigure, Apply::Restart]).prop_map(Chance::Prepared),
        1 => Just(Chance::Reload),
        4 => lines.prop_map(Chance::Node),
        4 => ((0..4_usize).prop_map(UnitId), outcomes).prop_map(|(unit, liveness)| Chance::Liveness(unit, liveness)),
        3 => ((0..4_usize).prop_map(UnitId), shortages).prop_map(|(unit, shortage)| Chance::FailedExternally(unit, shortage)),
        1 => signals.prop_map(Chance::Signal),
        2 => (0..4_usize).prop_map(UnitId).prop_map(Chance::Restart),
        3 => (0..70_000_u64).prop_map(Chance::Wait),
        6 => Just(Chance::Wake),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100_000, ..ProptestConfig::default() })]

    /// In any order of events, the promises in `Sim` hold after every step, and a stop ends.
    #[test]
    fn any_order_of_events_keeps_invariants(
        has_cmd in any::<bool>(),
        hooks in 0..2_usize,
        chances in proptest::collection::vec(chance(), 0..60),
    ) {
        let mut sim = Sim::new(Setup { hooks: vec![hook(Duration::from_secs(5)); hooks], ..probed(cluster(has_cmd)) });
        for chance in chances {
            if sim.exit.is_some() {
                break;
            }
            match chance {
                Chance::Dies(which, code) if !sim.living.is_empty() => {
                    let child = *sim.living.iter().nth(which % sim.living.len()).unwrap();
                    sim.exits(child, Exit::Code(code));
                }
                Chance::Dies(..) => {}
                Chance::ReadinessChecked(unit) => sim.give(Event::ReadinessChecked(unit, true)),
                Chance::Key => sim.give(Event::Prepare(PrepareEvent::MungeKeyReady)),
                Chance::Prepared(apply) => {
                    sim.give(Event::Prepare(PrepareEvent::Done(Prepared { apply, ..Prepared::default() })));
                }
                Chance::Reload => sim.give(Event::Command(Command::Reload)),
                Chance::Node(line) => sim.give(Event::Node(NodeReport::parse(line).unwrap())),
                Chance::Liveness(unit, liveness) => sim.give(Event::Liveness(unit, liveness)),
                Chance::FailedExternally(unit, shortage) => {
                    if sim.living.remove(&Child::Unit(unit)) {
                        sim.give(Event::FailedExternally(unit, Exit::Code(1), shortage));
                    }
                }
                Chance::Signal(signal) => sim.give(Event::Signal(signal)),
                Chance::Restart(unit) => sim.give(Event::Command(Command::Restart(unit))),
                Chance::Wait(ms) => sim.wait(Duration::from_millis(ms)),
                Chance::Wake => {
                    let wake = sim.machine.next_wake().unwrap_or(sim.now);
                    sim.wait(wake.saturating_sub(sim.now));
                    // Unless the machine has ended, a deadline that has passed must not remain the next one.
                    if sim.exit.is_none() {
                        prop_assert!(sim.machine.next_wake().is_none_or(|at| at > sim.now || wake < sim.now));
                    }
                }
            }
        }
        if sim.exit.is_none() {
            sim.stubborn = sim.living.iter().copied().filter(|child| matches!(child, Child::Unit(_))).collect();
            sim.give(Event::Signal(libc::SIGTERM));
            if sim.exit.is_none() {
                sim.let_end();
            }
        }
        prop_assert!(sim.exit.is_some());
    }
}
