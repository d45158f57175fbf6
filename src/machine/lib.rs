//! The supervisor's state machine: events in, effects out.
//!
//! The machine reads no clock and holds no PID. `now` is the time since slurminit started. A child is named by
//! its purpose, so there can be only one of each kind; only the supervisor has PIDs. Deadlines are not timers to be set and
//! cancelled: each state owns its deadline, and [`Machine::next_wake`] returns the earliest.

#![forbid(unsafe_code)]

mod boot;
mod child;
mod cluster;
mod command;
mod ends;
mod environments;
mod finishing;
mod gates;
mod jobs;
mod launch_hold;
mod liveness;
pub mod liveness_result;
mod node;
pub mod node_report;
mod notice;
pub mod protocol;
mod readiness;
mod reload;
mod snapshot;
mod step;
mod stop;
mod timeline;
mod unit;
mod units;

pub use child::{Child, Exit, ExternalCause, SpawnFailure};
pub use command::Command;
pub use finishing::ASSOCIATIONS_TIMEOUT;
pub use jobs::InheritedState;
pub use model::task::Setup;
pub use notice::Notice;
pub use reload::{Cause, LastReload, Outcome, ReloadSnapshot};
pub use snapshot::{LastExit, PhaseName, STATUS_FILE, Snapshot, Status, StopReason, UnitSnapshot, UnitState};
pub use timeline::{Part, Span};
pub use unit::Unit;
pub use units::{UnitId, Units};

use std::time::Duration;

use model::prepared::{PrepareEvent, Prepared};

use crate::liveness_result::Liveness;
use crate::node_report::NodeReport;
use cluster::Cluster;
use environments::Environments;
use finishing::Helper;
use liveness::Rounds;
use reload::Reload;
use stop::Stop;
use timeline::Timeline;

/// Time since slurminit started, on the monotonic clock.
pub type Moment = Duration;

/// An input of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "an event lives for one step, and the preparation sends one large one")]
pub enum Event {
    /// A child has ended and was reaped.
    Exited(Child, Exit),
    /// A unit's process has ended because of an external failure.
    FailedExternally(UnitId, Exit, ExternalCause),
    /// A message from the preparation.
    Prepare(PrepareEvent),
    /// The result of a readiness check.
    ReadinessChecked(UnitId, bool),
    /// The node's state, as reported by the controller.
    Node(NodeReport),
    /// The result of a liveness check.
    Liveness(UnitId, Liveness),
    /// A slurmstepd was killed or has failed, so its job may still be listed as running.
    SlurmstepdDied,
    /// The operator's configuration was written, replaced or removed.
    ConfigurationChanged,
    /// /etc/passwd was written, replaced or removed.
    AccountsChanged,
    /// slurminit received a signal.
    Signal(i32),
    /// An operator sent a command.
    Command(Command),
    /// No child is left, neither a known one nor an orphan.
    NoChildren,
    /// A deadline was reached.
    Tick,
}

/// An action for the supervisor to perform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Start the child. A failure is returned as [`Exit::NotStarted`].
    Spawn(Child),
    /// Send the child a signal.
    Signal(Child, i32),
    /// Send SIGCONT if the child is stopped, because a stopped process does not act on the preceding signal.
    Continue(Child),
    /// Send SIGKILL to the child's process group.
    Kill(Child),
    /// Check whether the unit is ready; the answer is [`Event::ReadinessChecked`].
    CheckReadiness(UnitId),
    /// Send a signal to every remaining process.
    SignalAll(i32),
    /// Report to the operator.
    Report(Notice),
    /// Exit with this code.
    Exit(u8),
}

/// The phase of the container's life.
#[derive(Debug)]
enum Phase {
    /// Nothing has been done yet.
    New,
    /// A pre-start hook is running.
    Hook { index: usize, until: Moment },
    /// The preparation is running.
    Prepare { since: Moment, until: Moment, is_reported: bool },
    /// The daemons are starting; the node is not usable yet, or a helper is running.
    Boot { until: Moment, is_reported: bool, helper: Option<Helper> },
    /// The cluster is ready, or the container has no cluster.
    Serve,
    /// The container is being stopped.
    Stop(Stop),
    /// Nothing is left to do.
    End,
}

/// The container's command.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Cmd {
    /// The container has no command.
    None,
    /// The command waits for the cluster.
    Waiting,
    /// The command is running.
    Running,
    /// The command ended with this code; the jobs in the queue are being waited for.
    Awaiting(u8),
    /// The command ended.
    Ended,
}

/// The supervisor. The first [`Event::Tick`] starts it.
#[derive(Debug)]
pub struct Machine {
    setup: Setup,
    phase: Phase,
    cmd: Cmd,
    cluster: Cluster,
    liveness: Rounds,
    reload: Reload,
    environments: Environments,
    timeline: Timeline,
}

impl Machine {
    /// A machine that has not started anything.
    pub fn new(mut setup: Setup) -> Self {
        let units = std::mem::take(&mut setup.units);
        Self {
            phase: Phase::New,
            cmd: if setup.has_cmd { Cmd::Waiting } else { Cmd::None },
            cluster: Cluster::new(units, setup.jobs, setup.supervise.clone(), setup.seed),
            liveness: Rounds::default(),
            reload: Reload::default(),
            environments: Environments::default(),
            timeline: Timeline::default(),
            setup,
        }
    }

    /// The daemons and services.
    pub fn units(&self) -> &Units {
        &self.cluster.units
    }

    /// The result of the preparation; `None` until it is done.
    pub fn prepared(&self) -> Option<&Prepared> {
        self.cluster.prepared.as_ref()
    }

    /// Whether slurmd is suspended or must not start, so that no job is launched.
    pub fn holds_launches(&self) -> bool {
        self.cluster.jobs.launch_hold.is_held()
    }

    /// The units that the current liveness round checks.
    pub fn units_being_checked(&self) -> &[UnitId] {
        self.liveness.units_being_checked()
    }

    /// How long the unit may take to answer a liveness check.
    pub fn probe_timeout(&self, id: UnitId) -> Duration {
        liveness::probe_timeout(&self.cluster.units[id].spec, &self.cluster.policy)
    }

    /// The files that a reload restores, and the unit that died with the new ones.
    pub fn rollback_files_and_cause(&self) -> (&[String], Option<UnitId>) {
        self.reload.rollback_files_and_cause()
    }

    /// Handles one event and returns the effects to apply.
    pub fn step(&mut self, now: Moment, event: Event) -> Vec<Effect> {
        self.cluster.step.now = now;
        let is_active = !self.is_stopping();
        match event {
            Event::Exited(child, exit) => self.exited(child, exit),
            Event::FailedExternally(id, exit, shortage) => self.unit_exited(id, exit, Some(shortage)),
            Event::Prepare(event) => self.handle_prepare_event(event),
            Event::ReadinessChecked(id, ready) => self.handle_readiness(id, ready),
            Event::Node(report) => self.handle_node_report(Some(report)),
            Event::Liveness(id, liveness) => self.liveness.take_result(id, liveness),
            Event::ConfigurationChanged if is_active && self.setup.has_cluster => self.reload.note_change(now),
            // Not necessary during the preparation, whose last step reads the accounts.
            Event::AccountsChanged if is_active && self.cluster.prepared.is_some() => {
                self.environments.accounts_changed(&mut self.cluster.step);
            }
            Event::SlurmstepdDied if is_active => self.cluster.slurmstepd_died(),
            Event::Signal(signal) => self.signalled(signal),
            Event::Command(command) => self.command(command),
            Event::NoChildren => self.no_children(),
            Event::ConfigurationChanged | Event::AccountsChanged | Event::SlurmstepdDied | Event::Tick => {}
        }
        self.advance();
        self.record_parts();
        self.cluster.step.take_effects()
    }

    /// The effects of a step that panicked, up to the panic.
    pub fn effects_of_panic(&mut self) -> Vec<Effect> {
        self.cluster.step.take_effects()
    }

    /// The time by which the machine needs an [`Event::Tick`]; `None` if it has no deadline.
    pub fn next_wake(&self) -> Option<Moment> {
        // During the stop nothing waits for a unit to become ready.
        let has_deadline = |unit: &&Unit| !self.is_stopping() || unit.is_stopping();
        let Cluster { units, node, jobs, .. } = &self.cluster;
        let units = units.iter().filter(has_deadline).filter_map(Unit::next_wake);
        let parts = [
            self.phase.next_wake(),
            node.next_wake(),
            jobs.next_wake(),
            self.liveness.next_wake(),
            self.reload.next_wake(),
        ];
        units.chain(parts.into_iter().flatten()).min()
    }

    /// Advances all parts as far as state and time allow. Idempotent.
    fn advance(&mut self) {
        if !self.is_stopping() {
            self.advance_boot();
        }
        if !self.is_stopping() {
            // The reload may correct an overdue start. It advances before the units, so that a unit that it stops does not start in the same step.
            self.reload.advance(&mut self.cluster, self.phase.is_overdue_or_serves());
            self.cluster.advance_units();
            let Cluster { units, policy, node, jobs, step, .. } = &mut self.cluster;
            node.advance(step);
            jobs.advance(step);
            self.liveness.advance(units, policy, step);
        }
        self.advance_stop();
    }

    fn is_stopping(&self) -> bool {
        matches!(self.phase, Phase::Stop(_) | Phase::End)
    }

    /// Handles the result of a readiness check. During the stop it is ignored: dependent units must not start any more.
    fn handle_readiness(&mut self, id: UnitId, ready: bool) {
        if ready && !self.is_stopping() {
            self.cluster.mark_ready(id);
        }
    }
}

#[cfg(test)]
mod tests;
