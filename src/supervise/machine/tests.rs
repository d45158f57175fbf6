//! The machine in a simulated world: time is a number, a child is an entry in a set.

mod commands;
mod jobs;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::config::{DaemonName, OnGiveUp, ReadinessTest, RestartPolicy};
use crate::exit_code;
use crate::report::Apply;
use crate::supervise::daemon::{Liveness, LivenessTest};

pub(super) const MS: Duration = Duration::from_millis(1);

fn spec(name: &str, after: &[usize], gate: Gate, daemon: Option<DaemonName>, essential: Option<u8>) -> Spec {
    Spec {
        name: name.to_owned(),
        command: vec![name.to_owned()],
        user: None,
        env: BTreeMap::new(),
        default_env: &[],
        after: after.to_vec(),
        gate,
        readiness: ReadinessTest::Port(1),
        ready_timeout: Duration::from_secs(60),
        liveness: None,
        restart: RestartPolicy::Always,
        essential,
        stop_timeout: Duration::from_secs(8),
        daemon,
    }
}

pub(super) fn cluster(has_cmd: bool) -> Setup {
    Setup {
        units: vec![
            spec("munged", &[], Gate::MungeKey, Some(DaemonName::Munged), Some(exit_code::MUNGED)),
            spec("slurmctld", &[0], Gate::Files, Some(DaemonName::Slurmctld), Some(exit_code::SLURMCTLD)),
            spec("slurmd", &[1], Gate::Files, Some(DaemonName::Slurmd), Some(exit_code::SLURMD)),
            spec("api", &[2], Gate::Hooks, None, None),
        ],
        hooks: vec![],
        has_cmd,
        only_cmd: false,
        supervise: Supervise::default(),
        jobs_grace: Duration::from_secs(3),
        seed: 7,
    }
}

/// The same, with units that are asked whether they still answer.
pub(super) fn probed(mut setup: Setup) -> Setup {
    for unit in setup.units.iter_mut().filter(|unit| unit.daemon.is_some()) {
        unit.liveness = unit.daemon.map(|name| Liveness { test: LivenessTest::Daemon(name), timeout: None });
    }
    setup
}

/// The world as the machine's effects shape it. Each promise that holds after every single step is asserted here.
pub(super) struct Sim {
    pub(super) machine: Machine,
    pub(super) now: Moment,
    pub(super) living: BTreeSet<Child>,
    pub(super) spawned: Vec<Child>,
    pub(super) stopped: Vec<Child>,
    pub(super) said: Vec<Notice>,
    stubborn: BTreeSet<Child>,
    pub(super) exit: Option<u8>,
}

impl Sim {
    pub(super) fn new(setup: Setup) -> Self {
        let mut sim = Self {
            machine: Machine::new(setup),
            now: Duration::ZERO,
            living: BTreeSet::new(),
            spawned: vec![],
            stopped: vec![],
            said: vec![],
            stubborn: BTreeSet::new(),
            exit: None,
        };
        sim.give(Event::Tick);
        sim
    }

    pub(super) fn give(&mut self, event: Event) {
        assert_eq!(self.exit, None, "nothing is asked of a machine that has ended");
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            for effect in self.machine.step(self.now, event) {
                assert_eq!(self.exit, None, "no effect follows the exit");
                match effect {
                    Effect::Spawn(child) => {
                        assert!(self.living.insert(child), "a second {child:?} while the first lives");
                        self.check_order(child);
                        self.spawned.push(child);
                    }
                    Effect::Signal(child, signal) => {
                        assert!(self.living.contains(&child), "signal {signal} to {child:?}, which is gone");
                        if signal == libc::SIGTERM {
                            self.stopped.push(child);
                        }
                    }
                    Effect::Kill(child) => {
                        assert!(self.living.contains(&child), "KILL to {child:?}, which is gone");
                        self.living.remove(&child);
                        events.push(Event::Exited(child, Exit::Signal(libc::SIGKILL)));
                    }
                    Effect::SignalAll(signal) => {
                        let dying: Vec<_> = self.living.iter().copied().collect();
                        for child in dying.into_iter().filter(|c| signal == libc::SIGKILL || !self.stubborn.contains(c))
                        {
                            self.living.remove(&child);
                            events.push(Event::Exited(child, Exit::Signal(signal)));
                        }
                        if self.living.is_empty() {
                            events.insert(0, Event::NoChildren);
                        }
                    }
                    Effect::Look(_) => {}
                    Effect::Say(notice) => self.said.push(notice),
                    Effect::Exit(code) => self.exit = Some(code),
                }
            }
            if self.exit.is_some() {
                return;
            }
        }
    }

    /// A unit starts only when those that it needs are ready, and the preparation let it.
    fn check_order(&self, child: Child) {
        if let Child::Unit(unit) = child {
            let spec = &self.machine.units()[unit];
            for other in &spec.after {
                assert!(self.machine.units[*other].is_ready(), "{} before {other} is ready", spec.name);
            }
            assert!(self.machine.open.contains(&spec.gate));
            assert!(!self.machine.is_stopping(), "{} started during the stop", spec.name);
        }
    }

    pub(super) fn exits(&mut self, child: Child, exit: Exit) {
        assert!(self.living.remove(&child), "{child:?} does not live");
        self.give(Event::Exited(child, exit));
    }

    pub(super) fn wait(&mut self, time: Duration) {
        self.now += time;
        self.give(Event::Tick);
    }

    pub(super) fn prepared(&mut self) {
        self.give(Event::Prepare(PrepareEvent::MungeKeyReady));
        self.give(Event::Prepare(PrepareEvent::Done(Prepared::default())));
        self.exits(Child::Prepare, Exit::Code(0));
    }

    pub(super) fn ready(&mut self) {
        self.prepared();
        for unit in 0..3 {
            self.give(Event::Looked(unit, true));
        }
        self.node("idle|none");
    }

    pub(super) fn node(&mut self, line: &str) {
        self.give(Event::Node(NodeReport::parse(line).unwrap()));
        self.exits(Child::NodeCheck, Exit::Code(0));
    }

    /// Lets everything that was told to end do so, in time order, until the machine leaves.
    pub(super) fn let_end(&mut self) {
        let start = self.now;
        while self.exit.is_none() {
            assert!(self.now - start < Duration::from_secs(30), "the stop does not end: {:?}", self.machine);
            let willing = self.living.iter().copied().find(|c| self.stopped.contains(c) && !self.stubborn.contains(c));
            match willing {
                Some(child) => self.exits(child, Exit::Code(0)),
                None => match self.machine.next_wake() {
                    Some(at) => self.wait(at.saturating_sub(self.now).max(MS)),
                    None if self.living.is_empty() => self.give(Event::NoChildren),
                    None => panic!("nobody will wake the machine: {:?}", self.machine),
                },
            }
        }
    }
}

#[test]
fn the_daemons_start_one_after_the_other_each_when_the_one_before_is_ready() {
    let mut sim = Sim::new(cluster(true));
    assert_eq!(sim.spawned, [Child::Prepare], "munged waits for its key");
    sim.give(Event::Prepare(PrepareEvent::MungeKeyReady));
    assert_eq!(sim.spawned.last(), Some(&Child::Unit(0)), "and for nothing else");
    sim.give(Event::Looked(0, true));
    assert_eq!(sim.spawned.len(), 2, "slurmctld waits for its files");
    sim.give(Event::Prepare(PrepareEvent::Done(Prepared::default())));
    sim.give(Event::Looked(1, true));
    sim.give(Event::Looked(2, true));
    sim.node("idle*|none");
    assert!(!sim.spawned.contains(&Child::Cmd), "the node does not respond yet");
    sim.wait(10 * MS);
    sim.node("idle|none");
    assert_eq!(sim.spawned.last(), Some(&Child::Cmd));
}

#[test]
fn the_stop_takes_the_reverse_order_and_waits_for_each() {
    let mut sim = Sim::new(cluster(false));
    sim.ready();
    sim.give(Event::Signal(libc::SIGTERM));
    assert_eq!((sim.spawned.last(), sim.stopped.len()), (Some(&Child::JobsQuiesce), 0), "jobs need the daemons");
    sim.exits(Child::JobsQuiesce, Exit::Code(0));
    assert_eq!(sim.stopped, [Child::Unit(3)]);
    sim.exits(Child::Unit(3), Exit::Signal(libc::SIGTERM));
    assert_eq!(sim.stopped.last(), Some(&Child::Unit(2)));
    sim.exits(Child::Unit(2), Exit::Code(0));
    sim.exits(Child::Unit(1), Exit::Code(0));
    sim.exits(Child::Unit(0), Exit::Code(0));
    sim.let_end();
    assert_eq!(sim.exit, Some(0));
}

#[test]
fn what_is_left_has_time_to_end_and_less_after_jobs_that_had_theirs() {
    for (code, limit) in [(0, 2_000), (1, 2_000), (exit_code::JOBS_LEFT, 200)] {
        let mut sim = Sim::new(cluster(false));
        sim.ready();
        sim.give(Event::Signal(libc::SIGTERM));
        sim.exits(Child::JobsQuiesce, Exit::Code(code));
        for unit in [3, 2, 1, 0] {
            // An orphan is no child of a kind, and lives on unseen: so nothing says that no child is left.
            sim.living.insert(Child::Cmd);
            sim.stubborn.insert(Child::Cmd);
            sim.exits(Child::Unit(unit), Exit::Code(0));
        }
        let wake = sim.machine.next_wake().unwrap();
        assert_eq!((wake - sim.now).as_millis(), limit, "after code {code}");
    }
}

#[test]
fn a_commands_code_is_the_containers_and_a_command_that_never_ran_is_no_success() {
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
fn a_plain_init_leaves_term_to_its_command() {
    let mut sim = Sim::new(Setup { units: vec![], only_cmd: true, ..cluster(true) });
    assert_eq!(sim.spawned, [Child::Cmd]);
    sim.give(Event::Signal(libc::SIGTERM));
    assert_eq!(sim.stopped, [Child::Cmd]);
    assert_eq!(sim.machine.next_wake(), None, "no deadline of ours");
    sim.exits(Child::Cmd, Exit::Code(3));
    sim.let_end();
    assert_eq!(sim.exit, Some(3));
}

#[test]
fn a_daemon_that_dies_starts_again_at_once_then_ever_later_and_then_is_given_up() {
    let mut sim = Sim::new(cluster(false));
    sim.ready();
    let mut pauses = vec![];
    while sim.exit.is_none() && !sim.machine.is_stopping() {
        sim.exits(Child::Unit(1), Exit::Code(1));
        if let Some(Notice::UnitDied { pause, .. }) = sim.said.last() {
            pauses.push(*pause);
            sim.wait(*pause);
        }
    }
    assert_eq!(pauses[0], Duration::ZERO);
    assert!(pauses.windows(2).skip(1).all(|pair| pair[0] < pair[1]), "{pauses:?}");
    assert_eq!(pauses.len(), 5, "the first had served; of the others, the fifth is one too many");
    sim.let_end();
    assert_eq!(sim.exit, Some(exit_code::SLURMCTLD));
    assert!(matches!(sim.said.last(), Some(Notice::Ended { why: Some(_), .. })), "the last words say why");
}

fn refused() -> Event {
    let finding = crate::inventory::Finding {
        severity: crate::inventory::Severity::Error,
        what: "slurminit.toml:3".to_owned(),
        cause: "slurmctld".to_owned(),
        repair: "correct it".to_owned(),
    };
    Event::Prepare(PrepareEvent::Failed { exit_code: exit_code::CONFIG, finding })
}

#[test]
fn a_first_death_at_the_start_is_explained_once_and_what_the_configuration_is_to_blame_for_ends_it() {
    let explained = |sim: &Sim| sim.spawned.iter().filter(|child| matches!(child, Child::Explain(_))).count();
    for on_give_up in [OnGiveUp::Exit, OnGiveUp::Hold] {
        let supervise = Supervise { on_give_up, ..Supervise::default() };
        let mut sim = Sim::new(Setup { supervise, ..cluster(false) });
        sim.prepared();
        sim.give(Event::Looked(0, true));
        sim.exits(Child::Unit(1), Exit::Code(1));
        assert_eq!(explained(&sim), 1);
        sim.exits(Child::Unit(1), Exit::Code(1));
        assert_eq!(explained(&sim), 1, "a second death says the same");
        sim.give(refused());
        assert!(sim.said.iter().any(|notice| matches!(notice, Notice::Refused(_))));
        assert_eq!(sim.machine.is_stopping(), on_give_up == OnGiveUp::Exit, "hold keeps it for a look inside");
        if on_give_up == OnGiveUp::Exit {
            sim.let_end();
            assert_eq!(sim.exit, Some(exit_code::CONFIG));
        }
    }

    let mut sim = Sim::new(cluster(false));
    sim.ready();
    sim.exits(Child::Unit(1), Exit::Code(1));
    sim.exits(Child::Unit(0), Exit::Code(1));
    assert_eq!(explained(&sim), 0, "what ran with its files did not die of them, and munged reads none");
}

#[test]
fn failures_long_ago_are_forgotten() {
    let mut sim = Sim::new(cluster(false));
    sim.ready();
    for _ in 0..20 {
        sim.wait(Duration::from_secs(61));
        sim.exits(Child::Unit(0), Exit::Signal(libc::SIGKILL));
        assert!(
            matches!(sim.said.last(), Some(Notice::UnitDied { pause: Duration::ZERO, .. })),
            "{:?}",
            sim.said.last()
        );
        sim.give(Event::Looked(0, true));
    }
    assert_eq!(sim.machine.snapshot().units[0].restarts, 20);
    assert!(sim.living.contains(&Child::Unit(1)), "munged's death restarts nothing else");
}

#[test]
fn a_drain_that_this_start_repaired_is_taken_back_once() {
    let mut sim = Sim::new(cluster(true));
    sim.prepared();
    for unit in 0..3 {
        sim.give(Event::Looked(unit, true));
    }
    sim.node("drained|gres/gpu count reported lower than configured (0 < 1)");
    assert_eq!(sim.spawned.last(), Some(&Child::NodeResume));
    sim.exits(Child::NodeResume, Exit::Code(0));
    sim.node("drained|gres/gpu count reported lower than configured (0 < 1)");
    assert_ne!(sim.spawned.last(), Some(&Child::NodeResume), "its cause is still there");
    sim.wait(Duration::from_secs(61));
    sim.let_end();
    assert_eq!(sim.exit, Some(exit_code::NOT_READY));
}

/// slurmctld saves a change five seconds late: one that is killed has its successor drain the node once more.
#[test]
fn a_drain_that_another_slurmctld_remembers_is_taken_back_again() {
    let mut sim = Sim::new(cluster(true));
    sim.prepared();
    for unit in 0..3 {
        sim.give(Event::Looked(unit, true));
    }
    let drained = "drained|slurminit: the jobs of the former start are gone";
    sim.node(drained);
    sim.exits(Child::NodeResume, Exit::Code(0));
    sim.node("idle|none");
    sim.exits(Child::Unit(1), Exit::Signal(libc::SIGKILL));
    sim.give(Event::Looked(1, true));
    sim.exits(Child::JobsReclaim, Exit::Code(0));
    sim.node(drained);
    assert_eq!(sim.spawned.last(), Some(&Child::NodeResume));
}

#[test]
fn a_drain_for_an_epilog_that_ended_with_slurmd_is_taken_back_if_it_is_our_own() {
    for own_epilog in [true, false] {
        let mut sim = Sim::new(cluster(false));
        sim.give(Event::Prepare(PrepareEvent::MungeKeyReady));
        sim.give(Event::Prepare(PrepareEvent::Done(Prepared { own_epilog, ..Prepared::default() })));
        sim.exits(Child::Prepare, Exit::Code(0));
        for unit in 0..3 {
            sim.give(Event::Looked(unit, true));
        }
        sim.node("idle|none");
        sim.exits(Child::Unit(2), Exit::Code(1));
        sim.give(Event::Looked(2, true));
        sim.node("drained|Epilog error");
        assert_eq!(sim.spawned.contains(&Child::NodeResume), own_epilog);
    }
}

#[test]
fn a_drain_by_an_administrator_stays_and_the_container_serves() {
    let mut sim = Sim::new(cluster(false));
    sim.prepared();
    for unit in 0..3 {
        sim.give(Event::Looked(unit, true));
    }
    sim.give(Event::Looked(3, true));
    sim.node("drained|fan broken");
    assert!(!sim.spawned.contains(&Child::NodeResume));
    assert!(sim.machine.snapshot().ready);
    assert_eq!(sim.machine.next_wake(), None, "an idle container has nothing to wake for");
}

#[test]
fn term_at_any_moment_of_the_start_ends_in_bounded_time() {
    for steps in 0..5 {
        for stubborn in [false, true] {
            let mut sim = Sim::new(Setup { hooks: vec![Duration::from_secs(300)], ..cluster(false) });
            if steps > 0 {
                sim.exits(Child::Hook(0), Exit::Code(0));
            }
            if steps > 1 {
                sim.prepared();
            }
            for unit in 0..(steps.max(2) - 2) {
                sim.give(Event::Looked(unit, true));
            }
            if stubborn {
                sim.stubborn = sim.living.clone();
            }
            sim.give(Event::Signal(libc::SIGTERM));
            let start = sim.now;
            sim.let_end();
            assert_eq!(sim.exit, Some(0));
            let limit = if stubborn { Duration::from_secs(10) } else { Duration::from_secs(1) };
            assert!(sim.now - start <= limit, "{:?} after {steps} steps", sim.now - start);
        }
    }
}

#[test]
fn a_second_term_ends_everything_now() {
    let mut sim = Sim::new(cluster(false));
    sim.ready();
    sim.stubborn = sim.living.clone();
    sim.give(Event::Signal(libc::SIGTERM));
    sim.give(Event::Signal(libc::SIGTERM));
    let start = sim.now;
    sim.let_end();
    assert!(sim.now - start < Duration::from_millis(100));
}

#[test]
fn a_preparation_that_fails_or_hangs_ends_the_container_with_its_code() {
    let mut sim = Sim::new(cluster(false));
    sim.wait(Duration::from_secs(1));
    assert!(matches!(sim.said.last(), Some(Notice::PrepareSlow)), "a wait of a second is worth a word");
    sim.wait(Duration::from_secs(30));
    sim.let_end();
    assert_eq!(sim.exit, Some(exit_code::PREPARE));

    let mut sim = Sim::new(cluster(false));
    sim.exits(Child::Prepare, Exit::Signal(libc::SIGSEGV));
    sim.let_end();
    assert_eq!(sim.exit, Some(exit_code::PREPARE));
}

#[test]
fn a_stop_keeps_the_deadline_of_a_daemon_that_is_being_stopped_already() {
    let mut sim = Sim::new(cluster(true));
    sim.ready();
    sim.exits(Child::Unit(0), Exit::Signal(libc::SIGSEGV));
    sim.wait(Duration::from_secs(60));
    assert!(matches!(sim.said.last(), Some(Notice::NeverReady { .. })), "munged does not come back");
    sim.exits(Child::Cmd, Exit::Code(0));
    assert!(sim.living.contains(&Child::JobsQuiesce), "slurmctld is asked about jobs meanwhile");
    let wake = sim.machine.next_wake().unwrap();
    sim.wait(wake - sim.now);
    assert!(sim.machine.next_wake() > Some(sim.now), "a deadline in the past would keep PID 1 busy");
}

#[test]
fn a_look_that_was_under_way_when_the_stop_began_starts_nothing() {
    let mut sim = Sim::new(cluster(true));
    sim.prepared();
    sim.give(Event::Looked(0, true));
    sim.give(Event::Looked(1, true));
    // munged is in its back-off, slurmd still starts, and the command's patience is over.
    sim.exits(Child::Unit(0), Exit::Code(1));
    sim.exits(Child::Unit(0), Exit::Code(1));
    sim.stubborn = BTreeSet::from([Child::Unit(2)]);
    sim.wait(Duration::from_secs(60));
    assert!(sim.machine.is_stopping());
    let before = sim.spawned.len();
    sim.give(Event::Looked(2, true));
    assert_eq!(sim.spawned.len(), before);
}

/// What can happen next; the numbers choose among what lives.
#[derive(Clone, Debug)]
enum Chance {
    Dies(usize, u8),
    Looked(usize),
    Key,
    Prepared(Apply),
    Reload,
    Node(&'static str),
    Liveness(usize, Verdict),
    Struck(usize, Fault),
    Signal(i32),
    Restart(usize),
    Wait(u64),
    Wake,
}

fn chance() -> impl Strategy<Value = Chance> {
    let lines =
        prop::sample::select(vec!["idle|none", "idle*|none", "drained|gres/gpu count", "drained|me", "inval|x"]);
    let signals = prop::sample::select(vec![libc::SIGHUP, libc::SIGUSR1, libc::SIGINT, libc::SIGTERM]);
    let why = String::new;
    let verdicts = prop::sample::select(vec![
        Verdict::Answers,
        Verdict::Answers,
        Verdict::Silent(why()),
        Verdict::Slow(why()),
        Verdict::Stopped(why()),
        Verdict::Overloaded(why()),
        Verdict::Unknown(why()),
    ]);
    let faults = prop::sample::select(vec![Fault::Processes, Fault::Memory, Fault::Descriptors, Fault::Port(6817)]);
    prop_oneof![
        6 => (any::<usize>(), 0..3_u8).prop_map(|(which, code)| Chance::Dies(which, code)),
        6 => (0..4_usize).prop_map(Chance::Looked),
        2 => Just(Chance::Key),
        3 => prop::sample::select(vec![Apply::Nothing, Apply::Reconfigure, Apply::Restart]).prop_map(Chance::Prepared),
        1 => Just(Chance::Reload),
        4 => lines.prop_map(Chance::Node),
        4 => (0..4_usize, verdicts).prop_map(|(unit, verdict)| Chance::Liveness(unit, verdict)),
        3 => (0..4_usize, faults).prop_map(|(unit, fault)| Chance::Struck(unit, fault)),
        1 => signals.prop_map(Chance::Signal),
        2 => (0..4_usize).prop_map(Chance::Restart),
        3 => (0..70_000_u64).prop_map(Chance::Wait),
        6 => Just(Chance::Wake),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100_000, ..ProptestConfig::default() })]

    /// Whatever happens in whatever order: the promises in `Sim` hold after every step, and a stop ends.
    #[test]
    fn no_order_of_events_breaks_a_promise(
        has_cmd in any::<bool>(),
        hooks in 0..2_usize,
        chances in proptest::collection::vec(chance(), 0..60),
    ) {
        let mut sim = Sim::new(Setup { hooks: vec![Duration::from_secs(5); hooks], ..probed(cluster(has_cmd)) });
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
                Chance::Looked(unit) => sim.give(Event::Looked(unit, true)),
                Chance::Key => sim.give(Event::Prepare(PrepareEvent::MungeKeyReady)),
                Chance::Prepared(apply) => {
                    sim.give(Event::Prepare(PrepareEvent::Done(Prepared { apply, ..Prepared::default() })));
                }
                Chance::Reload => sim.give(Event::Command(Command::Reload)),
                Chance::Node(line) => sim.give(Event::Node(NodeReport::parse(line).unwrap())),
                Chance::Liveness(unit, verdict) => sim.give(Event::Liveness(unit, verdict)),
                Chance::Struck(unit, fault) => {
                    if sim.living.remove(&Child::Unit(unit)) {
                        sim.give(Event::Struck(unit, Exit::Code(1), fault));
                    }
                }
                Chance::Signal(signal) => sim.give(Event::Signal(signal)),
                Chance::Restart(unit) => sim.give(Event::Command(Command::Restart(unit))),
                Chance::Wait(ms) => sim.wait(Duration::from_millis(ms)),
                Chance::Wake => {
                    let wake = sim.machine.next_wake().unwrap_or(sim.now);
                    sim.wait(wake.saturating_sub(sim.now));
                    // An end may have come; else a deadline that has passed must not stay the next one.
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
