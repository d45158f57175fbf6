//! The simulation: time is a number, a child is an entry in a set.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use model::daemons::{DaemonName, Hook, ReadinessTest};
use model::unit::{Gate, Handover, LivenessProbe, ProbeTest};

/// The units of [`cluster`].
pub(in super::super) const MUNGED: UnitId = UnitId(0);
pub(in super::super) const SLURMCTLD: UnitId = UnitId(1);
pub(in super::super) const SLURMD: UnitId = UnitId(2);
pub(in super::super) const API: UnitId = UnitId(3);
pub(in super::super) const UNITS: [UnitId; 4] = [MUNGED, SLURMCTLD, SLURMD, API];
pub(in super::super) const DAEMONS: [UnitId; 3] = [MUNGED, SLURMCTLD, SLURMD];

pub(in super::super) const MS: Duration = Duration::from_millis(1);

fn spec(name: &str, after: &[&str], gate: Gate, daemon: Option<DaemonName>, essential: Option<u8>) -> Spec {
    Spec {
        node: None,
        name: name.to_owned(),
        command: vec![name.to_owned()],
        user: None,
        env: BTreeMap::new(),
        default_env: vec![],
        handover: Handover::Never,
        after: after.iter().map(ToString::to_string).collect(),
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

pub(in super::super) fn hook(timeout: Duration) -> Hook {
    Hook { command: vec!["hook".to_owned()], timeout }
}

pub(in super::super) fn cluster(has_cmd: bool) -> Setup {
    Setup {
        units: vec![
            spec("munged", &[], Gate::MungeKey, Some(DaemonName::Munged), Some(exit_code::MUNGED)),
            spec("slurmctld", &["munged"], Gate::Files, Some(DaemonName::Slurmctld), Some(exit_code::SLURMCTLD)),
            spec("slurmd", &["slurmctld"], Gate::Files, Some(DaemonName::Slurmd), Some(exit_code::SLURMD)),
            spec("api", &["slurmd"], Gate::Hooks, None, None),
        ],
        hooks: vec![],
        has_cmd,
        has_cluster: true,
        jobs: JobCare::Cluster,
        supervise: Supervise::default(),
        jobs_grace: Duration::from_secs(3),
        wait_jobs: false,
        seed: 7,
    }
}

/// The result of a preparation with or without one of the user's own Slurm files.
pub(in super::super) fn own_files(has_own_files: bool) -> Prepared {
    Prepared { has_own_files, node_name: "n1".to_owned(), ..Prepared::default() }
}

/// Adds liveness checks to the daemons.
pub(in super::super) fn probed(mut setup: Setup) -> Setup {
    for unit in setup.units.iter_mut().filter(|unit| unit.daemon.is_some()) {
        unit.liveness = unit.daemon.map(|name| LivenessProbe { test: ProbeTest::Daemon(name), timeout: None });
    }
    setup
}

/// Applies the machine's effects, and asserts the invariants that must hold after each step.
pub(in super::super) struct Sim {
    pub(in super::super) machine: Machine,
    pub(in super::super) now: Moment,
    pub(in super::super) alive: BTreeSet<Child>,
    pub(in super::super) spawned: Vec<Child>,
    pub(in super::super) stopped: Vec<Child>,
    /// Children that got SIGHUP.
    pub(in super::super) hung_up: Vec<Child>,
    /// When each running child was spawned, and when it first got SIGTERM.
    spawned_at: BTreeMap<Child, Moment>,
    sigterm_at: BTreeMap<Child, Moment>,
    /// Children that got SIGKILL and are not reaped yet, if that takes time.
    killed: BTreeSet<Child>,
    pub(super) reaps_late: bool,
    /// Whether the stop was requested a second time.
    is_hurried: bool,
    pub(in super::super) notices: Vec<Notice>,
    pub(super) stubborn: BTreeSet<Child>,
    /// Children that are stopped by SIGSTOP.
    pub(in super::super) suspended: BTreeSet<Child>,
    pub(in super::super) exit: Option<u8>,
}

impl Sim {
    pub(in super::super) fn new(setup: Setup) -> Self {
        let mut sim = Self {
            machine: Machine::new(setup),
            now: Duration::ZERO,
            alive: BTreeSet::new(),
            spawned: vec![],
            stopped: vec![],
            hung_up: vec![],
            spawned_at: BTreeMap::new(),
            sigterm_at: BTreeMap::new(),
            killed: BTreeSet::new(),
            reaps_late: false,
            is_hurried: false,
            notices: vec![],
            stubborn: BTreeSet::new(),
            suspended: BTreeSet::new(),
            exit: None,
        };
        sim.send(Event::Tick);
        sim
    }

    pub(in super::super) fn send(&mut self, event: Event) {
        assert_eq!(self.exit, None, "event after the exit");
        let is_stop_request = match event {
            Event::Signal(signal) => [libc::SIGTERM, libc::SIGINT, libc::SIGQUIT].contains(&signal),
            Event::Command(command) => command == Command::Stop,
            _ => false,
        };
        self.is_hurried |= is_stop_request && self.machine.is_stopping();
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            for effect in self.machine.step(self.now, event) {
                assert_eq!(self.exit, None, "effect after the exit");
                match effect {
                    Effect::Spawn(child) => {
                        assert!(self.alive.insert(child), "a second {child:?} while the first is running");
                        self.check_order(child);
                        self.spawned.push(child);
                        self.spawned_at.insert(child, self.now);
                        self.sigterm_at.remove(&child);
                    }
                    Effect::Signal(child, signal) => {
                        assert!(self.alive.contains(&child), "signal {signal} to {child:?}, which has exited");
                        match signal {
                            libc::SIGTERM => {
                                self.stopped.push(child);
                                self.sigterm_at.entry(child).or_insert(self.now);
                            }
                            libc::SIGSTOP => drop(self.suspended.insert(child)),
                            libc::SIGCONT => drop(self.suspended.remove(&child)),
                            libc::SIGHUP => self.hung_up.push(child),
                            _ => {}
                        }
                    }
                    Effect::Continue(child) => {
                        assert!(self.alive.contains(&child), "CONT to {child:?}, which has exited")
                    }
                    Effect::Kill(child) => {
                        assert!(self.alive.contains(&child), "KILL to {child:?}, which has exited");
                        self.check_kill(child);
                        if self.reaps_late {
                            self.killed.insert(child);
                        } else {
                            self.alive.remove(&child);
                            events.push(Event::Exited(child, Exit::Signal(libc::SIGKILL)));
                        }
                    }
                    Effect::SignalAll(signal) => {
                        let dying: Vec<_> = self.alive.iter().copied().collect();
                        for child in dying.into_iter().filter(|c| signal == libc::SIGKILL || !self.stubborn.contains(c))
                        {
                            self.alive.remove(&child);
                            events.push(Event::Exited(child, Exit::Signal(signal)));
                        }
                        if self.alive.is_empty() {
                            events.insert(0, Event::NoChildren);
                        }
                    }
                    Effect::CheckReadiness(_) => {}
                    Effect::Report(notice) => self.notices.push(notice),
                    Effect::Exit(code) => self.exit = Some(code),
                }
            }
            if self.exit.is_some() {
                return;
            }
        }
        self.suspended.retain(|child| self.alive.contains(child));
        let slurmctld = self.machine.units().named("slurmctld");
        let is_slurmctld_starting = slurmctld.is_some_and(|unit| unit.is_alive() && !unit.is_ready());
        // The accounting starts once a search for lost jobs that got SIGKILL was reaped.
        let is_search_ending =
            [Child::JobsReclaim, Child::JobsReclaimDeadSteps].iter().any(|search| self.killed.contains(search));
        let is_waited_for = is_slurmctld_starting || is_search_ending || self.alive.contains(&Child::JobsAccount);
        assert!(self.suspended.is_empty() || is_waited_for, "{:?} are suspended without a reason", self.suspended);
    }

    /// In an orderly stop, a daemon has time to save its state, and the jobs have their grace period.
    fn check_kill(&self, child: Child) {
        if !self.machine.is_stopping() || self.is_hurried {
            return;
        }
        let budget = self.machine.cluster.policy.stop_budget();
        let (since, least) = match child {
            Child::Unit(_) => (self.sigterm_at.get(&child), budget.sigterm_to_sigkill),
            Child::JobsQuiesce => (self.spawned_at.get(&child), self.machine.setup.jobs_grace),
            _ => return,
        };
        let time = since.map(|since| self.now - *since);
        assert!(time.is_some_and(|time| time >= least), "{child:?} is killed after {time:?}, less than {least:?}");
    }

    /// Reaps the children that got SIGKILL.
    pub(in super::super) fn reap_killed(&mut self) {
        while let Some(child) = self.killed.pop_first() {
            if self.exit.is_none() && self.alive.contains(&child) {
                self.exits(child, Exit::Signal(libc::SIGKILL));
            }
        }
    }

    /// A unit may start only when the units it needs are ready, and its gate is open.
    fn check_order(&self, child: Child) {
        if let Child::Unit(unit) = child {
            let spec = &self.machine.units()[unit].spec;
            for other in &spec.after {
                let other_unit = self.machine.units().named(other);
                let is_ready = other_unit.is_some_and(Unit::satisfies);
                let was_ready = self.machine.units()[unit].has_been_ready();
                let is_optional = was_ready && other_unit.is_some_and(Unit::is_for_accounting);
                assert!(is_ready || is_optional, "{} before {other} is ready", spec.name);
            }
            assert!(self.machine.cluster.gates.is_open(spec.gate));
            assert!(!self.machine.is_stopping(), "{} started during the stop", spec.name);
        }
    }

    pub(in super::super) fn exits(&mut self, child: Child, exit: Exit) {
        assert!(self.alive.remove(&child), "{child:?} is not running");
        self.killed.remove(&child);
        self.send(Event::Exited(child, exit));
    }

    /// Advances the clock. A process that got SIGKILL is reaped after 1 ms.
    pub(in super::super) fn wait(&mut self, time: Duration) {
        if time >= MS {
            self.reap_killed();
        }
        if self.exit.is_none() {
            self.now += time;
            self.send(Event::Tick);
        }
    }

    pub(in super::super) fn prepared(&mut self) {
        self.prepared_with(Prepared::default());
    }

    pub(in super::super) fn prepared_with(&mut self, prepared: Prepared) {
        self.send(Event::Prepare(PrepareEvent::MungeKeyReady));
        self.send(Event::Prepare(PrepareEvent::Done(prepared)));
        self.exits(Child::Prepare, Exit::Code(0));
    }

    pub(in super::super) fn ready(&mut self) {
        self.ready_with(Prepared::default());
    }

    pub(in super::super) fn ready_with(&mut self, prepared: Prepared) {
        self.prepared_with(prepared);
        for unit in DAEMONS {
            self.send(Event::ReadinessChecked(unit, true));
        }
        self.node("idle|none");
    }

    pub(in super::super) fn node(&mut self, line: &str) {
        self.send(Event::Node(NodeReport::parse(line).unwrap()));
        self.exits(Child::NodeCheck, Exit::Code(0));
    }

    /// Ends all processes that were requested to stop, in time order, until the machine exits.
    pub(in super::super) fn run_to_exit(&mut self) {
        let start = self.now;
        while self.exit.is_none() {
            assert!(self.now - start < Duration::from_secs(30), "the stop exceeds 30 s: {:?}", self.machine);
            self.reap_killed();
            if self.exit.is_some() {
                break;
            }
            let stopping = self.alive.iter().copied().find(|c| self.stopped.contains(c) && !self.stubborn.contains(c));
            match stopping {
                Some(child) => self.exits(child, Exit::Code(0)),
                None => match self.machine.next_wake() {
                    Some(at) => self.wait(at.saturating_sub(self.now).max(MS)),
                    None if self.alive.is_empty() => self.send(Event::NoChildren),
                    None => panic!("no event will wake the machine: {:?}", self.machine),
                },
            }
        }
    }
}
