//! A simulated day of the state machine with a crash, a hang and a reload every hour: memory must not grow.
//! This is a separate test binary, so that no other test affects the resident size.

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

/// The state machine with simulated children: daemons obey every signal and helper commands exit with 0.
struct Simulation {
    machine: Machine,
    now: Duration,
    events: VecDeque<Event>,
    silent: Option<UnitId>,
    starts: u32,
    rounds: u32,
    wakes: u32,
}

impl Simulation {
    fn new() -> Self {
        let config = Config::default();
        let machine = Machine::new(Setup {
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

    fn process(&mut self, event: Event) {
        self.events.push_back(event);
        while let Some(event) = self.events.pop_front() {
            for effect in self.machine.step(self.now, event) {
                self.perform(effect);
            }
            // PID 1 takes a snapshot after each event.
            assert!(!self.machine.snapshot().units.is_empty());
        }
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Spawn(Child::Unit(_)) => self.starts += 1,
            Effect::Spawn(child) => {
                self.queue_output(child);
                self.events.push_back(Event::Exited(child, Exit::Code(0)));
            }
            Effect::CheckReadiness(unit) => self.events.push_back(Event::ReadinessChecked(unit, true)),
            Effect::Signal(child, _) => self.events.push_back(Event::Exited(child, Exit::Code(0))),
            Effect::Kill(child) => self.events.push_back(Event::Exited(child, Exit::Signal(9))),
            Effect::Report(notice) => assert!(!notice.to_string().is_empty()),
            Effect::Continue(_) => {}
            Effect::SignalAll(_) | Effect::Exit(_) => panic!("unexpected shutdown: {effect:?}"),
        }
    }

    /// Queues the events that the child reports before it exits.
    fn queue_output(&mut self, child: Child) {
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
                for unit in self.machine.units_being_checked() {
                    let is_silent = self.silent.take_if(|silent| silent == unit).is_some();
                    let liveness = if is_silent { Liveness::Silent("no answer".to_owned()) } else { Liveness::Answers };
                    self.events.push_back(Event::Liveness(*unit, liveness));
                }
            }
            _ => {}
        }
    }

    /// Advances the time to `until` and sends a tick at each deadline.
    fn advance_to(&mut self, until: Duration) {
        while let Some(wake) = self.machine.next_wake().filter(|wake| *wake <= until) {
            self.now = wake.max(self.now);
            self.wakes += 1;
            self.process(Event::Tick);
        }
        self.now = until;
    }
}

/// The anonymous resident memory of this process in KiB.
fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn simulated_day_grows_no_memory_and_wakes_only_for_liveness() {
    let mut simulation = Simulation::new();
    simulation.process(Event::Tick);
    let mut after_two_hours = 0;
    for hour in 0..24 {
        let begin = HOUR * hour;
        let unit = simulation.machine.units().ids().nth(hour as usize % DAEMONS).unwrap();
        simulation.advance_to(begin + HOUR / 4);
        assert!(simulation.machine.snapshot().ready, "in hour {hour}");
        simulation.process(Event::Exited(Child::Unit(unit), Exit::Signal(9)));
        simulation.advance_to(begin + HOUR / 2);
        simulation.silent = Some(unit);
        simulation.advance_to(begin + HOUR * 3 / 4);
        assert_eq!(simulation.silent, None, "the unit was not checked");
        simulation.process(Event::Command(Command::Reload));
        let (rounds, wakes) = (simulation.rounds, simulation.wakes);
        // The reload completes in this time.
        simulation.advance_to(begin + HOUR - Duration::from_secs(600));
        let (rounds_before, wakes_before) = (simulation.rounds, simulation.wakes);
        assert!(rounds_before > rounds && wakes_before > wakes);
        simulation.advance_to(begin + HOUR);
        assert_eq!(simulation.wakes - wakes_before, simulation.rounds - rounds_before, "extra wake-ups in hour {hour}");
        assert!((119..=121).contains(&(simulation.rounds - rounds_before)), "one round every 5 s");
        if hour == 1 {
            after_two_hours = resident_kib();
        }
    }
    // Three initial starts, one per crash, one per hang, and the restarts by reloads.
    assert!(simulation.starts >= 3 + 2 * 24, "{} starts", simulation.starts);
    let growth = resident_kib().saturating_sub(after_two_hours);
    assert!(growth <= 64, "{growth} KiB in 22 hours, {} rounds, {} starts", simulation.rounds, simulation.starts);
    println!(
        "{after_two_hours} KiB after 2 hours, {growth} more after 24; {} rounds, {} starts",
        simulation.rounds, simulation.starts
    );
}
