//! A day of the state machine, in which each hour a daemon dies, one hangs, and the files change: it keeps nothing of them.
//! A process of its own, so that its memory is the machine's.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::VecDeque;
use std::time::Duration;

use config::Config;
use machine::UnitId;
use machine::liveness_result::Liveness;
use machine::node_report::NodeReport;
use machine::{Child, Command, Effect, Event, Exit, Machine};
use model::prepared::{Apply, PrepareEvent, Prepared};
use model::task::Setup;
use model::unit::JobCare;
use plan::target::Target;

const HOUR: Duration = Duration::from_secs(3600);
const DAEMONS: usize = 3;

/// Daemons that do what they are told, and commands that end well.
struct World {
    machine: Machine,
    now: Duration,
    events: VecDeque<Event>,
    silent: Option<UnitId>,
    starts: u32,
    rounds: u32,
    wakes: u32,
}

impl World {
    fn new() -> Self {
        let config = Config::default();
        let machine = Machine::new(Setup {
            has_associations: false,
            has_cluster: true,
            jobs: JobCare::Cluster,
            units: Target::of(&config).units(&config),
            hooks: Vec::new(),
            has_cmd: false,
            supervise: config.supervise,
            jobs_grace: config.jobs.grace,
            wait_jobs: config.jobs.wait,
            seed: 7,
        });
        Self { machine, now: Duration::ZERO, events: VecDeque::new(), silent: None, starts: 0, rounds: 0, wakes: 0 }
    }

    fn give(&mut self, event: Event) {
        self.events.push_back(event);
        while let Some(event) = self.events.pop_front() {
            for effect in self.machine.step(self.now, event) {
                self.answer(effect);
            }
            // As PID 1 does after each.
            assert!(!self.machine.snapshot().units.is_empty());
        }
    }

    fn answer(&mut self, effect: Effect) {
        match effect {
            Effect::Spawn(Child::Unit(_)) => self.starts += 1,
            Effect::Spawn(child) => {
                self.said_by(child);
                self.events.push_back(Event::Exited(child, Exit::Code(0)));
            }
            Effect::CheckReadiness(unit) => self.events.push_back(Event::ReadinessChecked(unit, true)),
            Effect::Signal(child, _) => self.events.push_back(Event::Exited(child, Exit::Code(0))),
            Effect::Kill(child) => self.events.push_back(Event::Exited(child, Exit::Signal(9))),
            Effect::Report(notice) => assert!(!notice.to_string().is_empty()),
            Effect::Continue(_) => {}
            Effect::SignalAll(_) | Effect::Exit(_) => panic!("nobody asked for the end: {effect:?}"),
        }
    }

    fn said_by(&mut self, child: Child) {
        match child {
            Child::Prepare => {
                self.events.push_back(Event::Prepare(PrepareEvent::MungeKeyReady));
                self.events.push_back(Event::Prepare(PrepareEvent::Done(Prepared::default())));
            }
            Child::Reload => {
                let apply = if self.starts % 2 == 0 { Apply::Restart } else { Apply::Reconfigure };
                let news = vec!["the nodes".to_owned()];
                self.events.push_back(Event::Prepare(PrepareEvent::Done(Prepared {
                    apply,
                    news,
                    ..Prepared::default()
                })));
            }
            Child::NodeCheck => self.events.extend(NodeReport::parse("idle|none").map(Event::Node)),
            Child::Liveness => {
                self.rounds += 1;
                for unit in self.machine.asked() {
                    let is_silent = self.silent.take_if(|silent| silent == unit).is_some();
                    let liveness = if is_silent { Liveness::Silent("no answer".to_owned()) } else { Liveness::Answers };
                    self.events.push_back(Event::Liveness(*unit, liveness));
                }
            }
            _ => {}
        }
    }

    /// Goes from deadline to deadline, as PID 1 sleeps.
    fn rest(&mut self, until: Duration) {
        while let Some(wake) = self.machine.next_wake().filter(|wake| *wake <= until) {
            self.now = wake.max(self.now);
            self.wakes += 1;
            self.give(Event::Tick);
        }
        self.now = until;
    }
}

/// Of this process, in KiB.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn day_costs_no_memory_and_no_wake_up_but_for_questions() {
    let mut world = World::new();
    world.give(Event::Tick);
    let mut after_two_hours = 0;
    for hour in 0..24 {
        let begin = HOUR * hour;
        let unit = world.machine.units().ids().nth(hour as usize % DAEMONS).unwrap();
        world.rest(begin + HOUR / 4);
        assert!(world.machine.snapshot().ready, "in hour {hour}");
        world.give(Event::Exited(Child::Unit(unit), Exit::Signal(9)));
        world.rest(begin + HOUR / 2);
        world.silent = Some(unit);
        world.rest(begin + HOUR * 3 / 4);
        assert_eq!(world.silent, None, "it was asked");
        world.give(Event::Command(Command::Reload));
        let (rounds, wakes) = (world.rounds, world.wakes);
        // What the reload began is over.
        world.rest(begin + HOUR - Duration::from_secs(600));
        let (rounds_before, wakes_before) = (world.rounds, world.wakes);
        assert!(rounds_before > rounds && wakes_before > wakes);
        world.rest(begin + HOUR);
        assert_eq!(world.wakes - wakes_before, world.rounds - rounds_before, "ten minutes idle, in hour {hour}");
        assert!((119..=121).contains(&(world.rounds - rounds_before)), "one each 5 s");
        if hour == 1 {
            after_two_hours = resident();
        }
    }
    // Three at first, each hour one that died and one that hung, and what the reloads restarted.
    assert!(world.starts >= 3 + 2 * 24, "{} starts", world.starts);
    let grown = resident().saturating_sub(after_two_hours);
    assert!(grown <= 64, "{grown} KiB more after 22 hours, {} rounds and {} starts", world.rounds, world.starts);
    println!(
        "{after_two_hours} KiB after 2 hours, {grown} more after 24; {} rounds, {} starts",
        world.rounds, world.starts
    );
}
