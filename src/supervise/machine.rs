//! The supervisor's state machine: events in, effects out.
//!
//! PURE. It reads no clock and holds no pid. `now` is the time since slurminit started; a child is named by what it is
//! for, so there can be no second one of a kind, and the edge alone knows pids. Deadlines are not timers to be set and
//! cancelled: each state owns its own, and [`Machine::next_wake`] is the earliest of them.

mod boot;
mod command;
mod environments;
mod jobs;
mod liveness;
mod notice;
mod reload;
mod setback;
mod snapshot;
mod stop;
mod timeline;
mod unit;

pub use command::Command;
pub use jobs::Follows;
pub use notice::Notice;
pub use reload::{Cause, LastReload, Outcome, ReloadNotice, ReloadSnapshot};
pub use snapshot::{Snapshot, UnitSnapshot};
pub use timeline::{Part, Span};

use std::collections::BTreeSet;
use std::time::Duration;

use crate::config::Supervise;
use crate::report::{PrepareEvent, Prepared};

use super::daemon::{Gate, Spec};
use super::liveness::Verdict;
use super::node::NodeReport;
use environments::Environments;
use jobs::Accounts;
use liveness::Liveness;
use stop::Stop;
use timeline::Timeline;
use unit::{State, Unit};

/// Time since slurminit started, by the monotonic clock.
pub type Moment = Duration;

/// A process that slurminit starts, by what it is for. At most one of each lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Child {
    /// The pre-start hook of this number.
    Hook(usize),
    /// `slurminit prepare`.
    Prepare,
    /// `slurminit environments`.
    Environments,
    /// A daemon or a service.
    Unit(usize),
    /// The readiness command of a unit.
    Probe(usize),
    /// The command that gets a unit's port back from a process that took it.
    FreePort(usize),
    /// The questions whether the ready units still answer.
    Liveness,
    /// The question for the node's state.
    NodeCheck,
    /// The command that takes back a drain whose cause is gone.
    NodeResume,
    /// The command that accounts for the jobs of a former start.
    JobsRecover,
    /// The command that gives back what a slurmctld that came back wrongly believes to be in use.
    JobsReclaim,
    /// The command that gives running jobs notice of the stop.
    JobsQuiesce,
    /// `slurminit prepare --reload`.
    Reload,
    /// `scontrol reconfigure`.
    Reconfigure,
    /// `slurminit prepare --restore`.
    Restore,
    /// The container's command.
    Cmd,
}

/// How a child ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It ended with this code.
    Code(u8),
    /// This signal ended it.
    Signal(i32),
    /// It never ran.
    NotStarted(SpawnFailure),
}

/// Why a program could not be executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpawnFailure {
    /// What a shell would exit with: 127 not found, 126 not executable.
    pub code: u8,
    /// Which file, and why.
    pub message: String,
    /// What around it was the cause, if it was not the program or its configuration.
    pub fault: Option<Fault>,
}

/// What in its surroundings ended a unit, or kept it from starting. It is no failure of the unit's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No process could be made: a limit on them was reached.
    Processes,
    /// No memory was left, and the kernel took this process.
    Memory,
    /// No file descriptor was left.
    Descriptors,
    /// Another process has this port.
    Port(u16),
}

impl Exit {
    /// The exit code that a shell would give: 128+n for signal n.
    pub fn code(&self) -> u8 {
        match self {
            Self::Code(code) => *code,
            Self::Signal(signal) => 128_u8.saturating_add(u8::try_from(*signal).unwrap_or(127)),
            Self::NotStarted(failure) => failure.code,
        }
    }
}

/// What the world tells the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A child is gone, and reaped.
    Exited(Child, Exit),
    /// The same of a unit that its surroundings ended.
    Struck(usize, Exit, Fault),
    /// The preparation said something.
    Prepare(PrepareEvent),
    /// The unit's readiness was looked at.
    Looked(usize, bool),
    /// The node's state, as the controller tells it.
    Node(NodeReport),
    /// What came of asking the unit whether it still answers.
    Liveness(usize, Verdict),
    /// Something was written in the operator's directory.
    ConfigurationChanged,
    /// Something was written that users' accounts are read from.
    AccountsChanged,
    /// A signal came for slurminit.
    Signal(i32),
    /// An operator asked for something.
    Command(Command),
    /// No child is left, known or orphaned.
    NoChildren,
    /// A deadline has come.
    Tick,
}

/// What the machine wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Start it. A failure comes back as [`Exit::NotStarted`].
    Spawn(Child),
    /// Send it a signal.
    Signal(Child, i32),
    /// KILL its whole process group.
    Kill(Child),
    /// Look whether the unit is ready; the answer is [`Event::Looked`].
    Look(usize),
    /// Send a signal to every process that is left.
    SignalAll(i32),
    /// Tell the operator.
    Say(Notice),
    /// Leave with this code.
    Exit(u8),
}

/// What the machine is given at its start and never changes.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The daemons and services; empty in the role `none`.
    pub units: Vec<Spec>,
    /// The deadline of each pre-start hook.
    pub hooks: Vec<Duration>,
    /// Whether the container has a command.
    pub has_cmd: bool,
    /// Whether the command is all there is: no preparation, no cluster.
    pub only_cmd: bool,
    /// Restarts and deadlines.
    pub supervise: Supervise,
    /// How long jobs have from their notice to the end of the stop's patience with them.
    pub jobs_grace: Duration,
    /// Any number; it spreads the restarts of many containers.
    pub seed: u64,
}

/// Where the container is between start and end.
#[derive(Debug)]
enum Phase {
    /// Nothing was done yet.
    New,
    /// A pre-start hook runs.
    Hook { index: usize, until: Moment },
    /// The preparation runs.
    Prepare { since: Moment, until: Moment, told: bool },
    /// The daemons start; the node is not usable yet.
    Boot { until: Moment, told: bool },
    /// The cluster can be used.
    Serve,
    /// Everything is being stopped.
    Stop(Stop),
    /// Nothing is left to do.
    End,
}

/// The container's command.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Cmd {
    /// There is none.
    None,
    /// The cluster is not ready for it.
    Waiting,
    /// It runs.
    Running,
    /// It ended.
    Ended,
}

/// What is known of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    /// The daemons that would tell are not ready.
    Unwatched,
    /// Ask again at this moment; the pause grows.
    AskAt { at: Moment, pause: Duration },
    /// The question is under way, and is worth waiting for until then.
    Asking { pause: Duration, until: Moment },
    /// A drain is being taken back.
    Resuming { until: Moment },
    /// Known for good.
    Known,
}

/// The supervisor.
#[derive(Debug)]
pub struct Machine {
    setup: Setup,
    phase: Phase,
    open: BTreeSet<Gate>,
    units: Vec<Unit>,
    cmd: Cmd,
    node: Node,
    liveness: Liveness,
    report: Option<NodeReport>,
    resumed: bool,
    jobs_left: bool,
    /// Whether the jobs of a former start were accounted for, or are just being.
    recovered: bool,
    /// Whether a slurmd was ready before.
    had_slurmd: bool,
    accounts: Accounts,
    environments: Environments,
    prepared: Option<Prepared>,
    tasks: BTreeSet<Child>,
    reload: reload::Reload,
    timeline: Timeline,
    jitter: u64,
}

impl Machine {
    /// A machine that has done nothing yet; the first [`Event::Tick`] starts it.
    pub fn new(setup: Setup) -> Self {
        let units = setup.units.iter().map(|_| Unit::new()).collect();
        let cmd = if setup.has_cmd { Cmd::Waiting } else { Cmd::None };
        let jitter = setup.seed | 1;
        Self {
            setup,
            phase: Phase::New,
            open: BTreeSet::new(),
            units,
            cmd,
            node: Node::Unwatched,
            liveness: Liveness::default(),
            report: None,
            resumed: false,
            jobs_left: false,
            recovered: false,
            had_slurmd: false,
            accounts: Accounts::default(),
            environments: Environments::default(),
            prepared: None,
            tasks: BTreeSet::new(),
            reload: reload::Reload::default(),
            timeline: Timeline::default(),
            jitter,
        }
    }

    /// The daemons and services, in the order in which children are numbered.
    pub fn units(&self) -> &[Spec] {
        &self.setup.units
    }

    /// The node's name in the files of this start; a user's own slurm.conf may have another than the configuration.
    pub fn node_name(&self) -> Option<&str> {
        self.prepared.as_ref().map(|prepared| prepared.node_name.as_str()).filter(|name| !name.is_empty())
    }

    /// Takes one event and says what to do.
    pub fn step(&mut self, now: Moment, event: Event) -> Vec<Effect> {
        let mut out = Vec::new();
        match event {
            Event::Exited(child, exit) => self.exited(now, child, exit, &mut out),
            Event::Struck(unit, exit, fault) => self.unit_exited(now, unit, exit, Some(fault), &mut out),
            Event::Prepare(event) => self.prepare_said(now, event, &mut out),
            Event::Looked(unit, ready) => self.looked(now, unit, ready, &mut out),
            Event::Node(report) => self.node_said(now, Some(report), &mut out),
            Event::Liveness(unit, verdict) => self.liveness_said(unit, verdict),
            Event::ConfigurationChanged => self.configuration_changed(now),
            Event::AccountsChanged => self.accounts_changed(&mut out),
            Event::Signal(signal) => self.signalled(now, signal, &mut out),
            Event::Command(command) => self.command(now, command, &mut out),
            Event::NoChildren => self.no_children(now, &mut out),
            Event::Tick => {}
        }
        self.advance(now, &mut out);
        self.note_moments(now);
        out
    }

    /// When the machine wants a [`Event::Tick`], at the latest.
    pub fn next_wake(&self) -> Option<Moment> {
        let phase = match &self.phase {
            Phase::New | Phase::Serve | Phase::End => None,
            Phase::Hook { until, .. } => Some(*until),
            Phase::Prepare { since, until, told } => Some(if *told { *until } else { *since + SLOW }),
            Phase::Boot { until, told } => (!told).then_some(*until),
            Phase::Stop(stop) => stop.next_wake(),
        };
        let node = match &self.node {
            Node::AskAt { at, .. } => Some(*at),
            Node::Asking { until, .. } | Node::Resuming { until } => Some(*until),
            Node::Unwatched | Node::Known => None,
        };
        // During the stop nobody asks any more whether a unit gets ready.
        let counts = |unit: &&Unit| !self.is_stopping() || matches!(unit.state, State::Stopping { .. });
        let units = self.units.iter().filter(counts).filter_map(Unit::next_wake);
        let rounds = [self.liveness.next_wake(), self.reload.next_wake(), self.accounts.next_wake()];
        units.chain(phase).chain(node).chain(rounds.into_iter().flatten()).min()
    }

    /// Does whatever the state and the time allow. It can run at any time and as often as one likes.
    fn advance(&mut self, now: Moment, out: &mut Vec<Effect>) {
        if !self.is_stopping() {
            self.advance_boot(now, out);
        }
        if !self.is_stopping() {
            // Before the units: what it stops must not start in the same step.
            self.advance_reload(now, out);
            for unit in 0..self.units.len() {
                self.advance_unit(now, unit, out);
            }
            self.advance_node(now, out);
            self.advance_accounts(now, out);
            self.advance_liveness(now, out);
        }
        self.advance_stop(now, out);
    }

    fn is_stopping(&self) -> bool {
        matches!(self.phase, Phase::Stop(_) | Phase::End)
    }

    fn exited(&mut self, now: Moment, child: Child, exit: Exit, out: &mut Vec<Effect>) {
        self.tasks.remove(&child);
        match child {
            Child::Hook(index) => self.hook_exited(now, index, exit, out),
            Child::Prepare => self.prepare_exited(now, exit, out),
            Child::Unit(unit) => {
                let fault = if let Exit::NotStarted(failure) = &exit { failure.fault } else { None };
                self.unit_exited(now, unit, exit, fault, out);
            }
            Child::FreePort(unit) => self.port_is_free(now, unit, &exit, out),
            Child::Environments => self.environments_written(exit, out),
            Child::Probe(unit) => self.looked(now, unit, exit == Exit::Code(0), out),
            Child::Liveness => self.round_ended(now, out),
            // After an answer this says nothing more.
            Child::NodeCheck => self.node_said(now, None, out),
            Child::NodeResume => self.ask_node(now),
            Child::JobsRecover | Child::JobsReclaim => self.accounts_made(now, child, exit, out),
            // The stop goes on.
            Child::JobsQuiesce => self.jobs_quiesced(exit, out),
            Child::Reload | Child::Reconfigure | Child::Restore => self.reload_exited(now, child, &exit, out),
            Child::Cmd => self.cmd_exited(now, exit, out),
        }
    }

    fn cmd_exited(&mut self, now: Moment, exit: Exit, out: &mut Vec<Effect>) {
        self.cmd = Cmd::Ended;
        if let Exit::NotStarted(failure) = &exit {
            out.push(Effect::Say(Notice::CmdNotStarted(failure.clone())));
        }
        match &mut self.phase {
            Phase::Stop(stop) => stop.cmd_code(exit.code()),
            _ => self.begin_stop(now, exit.code(), None, out),
        }
    }

    /// Starts a helper process of slurminit's own, unless one of its kind lives.
    fn spawn_task(&mut self, child: Child, out: &mut Vec<Effect>) {
        if self.tasks.insert(child) {
            out.push(Effect::Spawn(child));
        }
    }
}

/// After this long a wait is worth a word in the log.
const SLOW: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
