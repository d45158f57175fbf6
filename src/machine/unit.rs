//! The life cycle of a daemon or service. A unit's state changes only here and in [`end`].

pub(super) mod end;

use std::collections::VecDeque;
use std::time::Duration;

use model::daemons::{DaemonName, ReadinessTest, RestartPolicy};

use super::liveness::LivenessHistory;
use super::readiness::Check;
use super::step::Step;
use super::{Child, Effect, Exit, Moment, Notice};
use crate::UnitId;
use model::unit::Spec;

/// A unit: its definition, state and history.
#[derive(Debug)]
pub struct Unit {
    /// The unit's index.
    pub id: UnitId,
    /// The unit's definition.
    pub spec: Spec,
    /// The units that must be ready before this unit starts, and must outlive it.
    pub(super) dependencies: Vec<UnitId>,
    pub(super) state: State,
    starts: u32,
    pub(super) last_end: Option<End>,
    pub(super) liveness_history: LivenessHistory,
    /// Whether the unit has ever been ready in this run of the container.
    has_been_ready: bool,
    /// The number of consecutive external failures.
    external_failures: u32,
    /// The failed dependency that keeps this unit from starting, if that was logged.
    pub(super) failed_dependency: Option<UnitId>,
    /// The times of failures within the give-up window, oldest first.
    failures: VecDeque<Moment>,
    consecutive_failures: u32,
}

/// How a unit's last process ended.
#[derive(Debug)]
pub(super) struct End {
    pub(super) at: Moment,
    /// When the process was requested to stop, or the earliest time at which it may have begun to exit by itself.
    pub(super) shutdown_began: Moment,
    pub(super) exit: Exit,
    /// Why slurminit stopped the process; `None` if it did not.
    pub(super) intent: Option<RestartIntent>,
    /// How the unit failed to answer, if slurminit stopped it for that reason.
    pub(super) unresponsive_reason: Option<String>,
}

/// Whether and why a unit that was stopped is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RestartIntent {
    /// The unit is not restarted.
    NoRestart,
    /// The unit did not become ready. This counts as a failure; its restart policy decides whether it is restarted.
    NotReady,
    /// The unit is restarted because it did not respond. A user may have caused that, so it does not count as a
    /// failure.
    Unresponsive,
    /// The unit is restarted on request, or by a reload.
    Requested,
}

/// The state of a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The unit waits for other units or for a gate, such as the end of the preparation.
    Waiting,
    /// The process is alive but not ready yet.
    Starting { since: Moment, check: Check, until: Moment, is_reported: bool },
    /// The unit is ready.
    Ready { since: Moment },
    /// The process was sent SIGTERM. SIGTERM is repeated at `next_sigterm`; SIGKILL follows at the deadline.
    Stopping { since: Moment, deadline: Moment, next_sigterm: Option<Moment>, killed: bool, intent: RestartIntent },
    /// The unit failed. It is started again after this moment, once its dependencies are ready.
    BackingOff { until: Moment },
    /// The unit ended, or its start was canceled. It is not started again, except on request or by a reload.
    Finished,
    /// The unit failed too often.
    GivenUp,
}

/// After this time the start is logged as slow.
const SLOW_START: Duration = Duration::from_secs(2);
/// munged can lose a SIGTERM while it starts (0.5.16: seen in its first 20 ms), so the signal is repeated. All
/// daemons tolerate a second SIGTERM. A service may treat a second one as a request to abort, and gets only one.
const SIGTERM_INTERVAL: Duration = Duration::from_millis(100);
/// The time from SIGTERM to SIGKILL of a database that is still starting. A SIGTERM in its first second can make
/// mariadbd hang (11.8). It has no clients yet, and InnoDB recovers from SIGKILL.
const STARTING_DATABASE_STOP_TIMEOUT: Duration = Duration::from_secs(1);
/// The interval at which SIGKILL is repeated.
const KILL_INTERVAL: Duration = Duration::from_millis(500);

impl Unit {
    pub(super) fn new(id: UnitId, spec: Spec, dependencies: Vec<UnitId>) -> Self {
        Self {
            id,
            spec,
            dependencies,
            state: State::Waiting,
            starts: 0,
            last_end: None,
            liveness_history: LivenessHistory::default(),
            has_been_ready: false,
            external_failures: 0,
            failed_dependency: None,
            failures: VecDeque::new(),
            consecutive_failures: 0,
        }
    }

    pub(super) fn state(&self) -> &State {
        &self.state
    }

    pub(super) fn name(&self) -> String {
        self.spec.name.clone()
    }

    /// How many times the unit has been started.
    pub fn starts(&self) -> u32 {
        self.starts
    }

    /// Whether the unit has ever been ready in this run of the container.
    pub fn has_been_ready(&self) -> bool {
        self.has_been_ready
    }

    /// Whether the unit is this daemon.
    pub fn is(&self, name: DaemonName) -> bool {
        self.spec.daemon == Some(name)
    }

    pub(super) fn is_for_accounting(&self) -> bool {
        self.spec.daemon.is_some_and(DaemonName::is_for_accounting)
    }

    pub(super) fn reads_slurms_files(&self) -> bool {
        self.is(DaemonName::Slurmctld) || self.is(DaemonName::Slurmd)
    }

    /// Whether the process is alive and has not become ready yet.
    pub fn is_starting(&self) -> bool {
        matches!(self.state, State::Starting { .. })
    }

    pub(super) fn is_ready(&self) -> bool {
        self.ready_since().is_some()
    }

    /// Whether the unit is ready, or has finished successfully.
    pub(super) fn is_ready_or_succeeded(&self) -> bool {
        self.is_ready() || self.has_succeeded()
    }

    pub(super) fn ready_since(&self) -> Option<Moment> {
        match self.state {
            State::Ready { since } => Some(since),
            _ => None,
        }
    }

    /// Whether the main process is alive and is not being stopped.
    pub(super) fn is_running(&self) -> bool {
        self.is_starting() || self.is_ready()
    }

    pub(super) fn is_stopping(&self) -> bool {
        matches!(self.state, State::Stopping { .. })
    }

    /// Whether the main process is alive.
    pub(super) fn is_alive(&self) -> bool {
        self.is_running() || self.is_stopping()
    }

    /// Whether the unit has ended, and its restart policy does not start it again.
    pub(super) fn has_finished(&self) -> bool {
        self.state == State::Finished
    }

    /// Whether the unit exited with code 0 without being stopped.
    pub(super) fn has_succeeded(&self) -> bool {
        let ended_well = |end: &End| end.exit == Exit::Code(0) && end.intent.is_none();
        self.has_finished() && self.last_end.as_ref().is_some_and(ended_well)
    }

    /// Whether units that need this one may start. A unit that runs once and has no readiness test must have exited with 0.
    pub(super) fn satisfies(&self) -> bool {
        let is_one_shot = self.spec.restart == RestartPolicy::Never && self.spec.readiness == ReadinessTest::Started;
        self.has_succeeded() || self.is_ready() && !is_one_shot
    }

    /// Whether the unit may start as soon as its gate is open and the units it needs are ready.
    pub(super) fn is_due(&self, now: Moment) -> bool {
        match self.state {
            State::Waiting => true,
            State::BackingOff { until } => now >= until,
            _ => false,
        }
    }

    pub(super) fn next_wake(&self) -> Option<Moment> {
        match &self.state {
            State::Starting { check, until, .. } => Some(check.next_wake().min(*until)),
            State::Stopping { deadline, next_sigterm, .. } => {
                Some(next_sigterm.map_or(*deadline, |at| at.min(*deadline)))
            }
            State::BackingOff { until } => Some(*until),
            State::Waiting | State::Ready { .. } | State::Finished | State::GivenUp => None,
        }
    }

    /// Waits for other units, without a deadline.
    pub(super) fn wait(&mut self) {
        self.state = State::Waiting;
    }

    /// Starts the unit's process. `limit`: how long the first run of a readiness command may take.
    pub(super) fn start(&mut self, limit: Duration, step: &mut Step) {
        let (since, until) = (step.now, step.now + self.spec.ready_timeout);
        self.state = State::Starting { since, check: Check::new(since, limit), until, is_reported: false };
        self.failed_dependency = None;
        self.starts = self.starts.saturating_add(1);
        step.push(Effect::Spawn(Child::Unit(self.id)));
    }

    /// Marks a starting unit as ready and returns `true`. In any other state, does nothing and returns `false`.
    pub(super) fn mark_ready(&mut self, step: &mut Step) -> bool {
        let State::Starting { since, .. } = self.state else { return false };
        self.state = State::Ready { since: step.now };
        self.has_been_ready = true;
        step.report(Notice::UnitReady { name: self.name(), after: step.now.saturating_sub(since) });
        true
    }

    /// Performs due actions while the process is alive.
    pub(super) fn advance(&mut self, step: &mut Step) {
        let now = step.now;
        match &mut self.state {
            State::Starting { since, until, .. } if now >= *until => {
                let after = now.saturating_sub(*since);
                let restarts = self.spec.restart != RestartPolicy::Never;
                step.report(Notice::NeverReady { name: self.name(), after, restarts });
                self.stop(RestartIntent::NotReady, step);
            }
            State::Starting { since, until, is_reported, .. } => {
                if now >= *since + SLOW_START && !std::mem::replace(is_reported, true) {
                    let timeout = *until - *since;
                    step.report(Notice::SlowStart { name: self.name(), timeout });
                }
                self.check_readiness(step);
            }
            State::Stopping { deadline, next_sigterm, killed, .. } if now >= *deadline => {
                (*deadline, *next_sigterm) = (now + KILL_INTERVAL, None);
                if !std::mem::replace(killed, true) {
                    step.report(Notice::Killing { name: self.name() });
                }
                step.push(Effect::Kill(Child::Unit(self.id)));
            }
            State::Stopping { next_sigterm: Some(next_sigterm), .. } if now >= *next_sigterm => {
                *next_sigterm = now + SIGTERM_INTERVAL;
                step.signal(Child::Unit(self.id), libc::SIGTERM);
            }
            _ => {}
        }
    }

    /// Sends SIGTERM to the process. SIGCONT follows, because a stopped process does not act on SIGTERM.
    pub(super) fn stop(&mut self, intent: RestartIntent, step: &mut Step) {
        step.kill_task(Child::Probe(self.id));
        let next_sigterm = self.spec.daemon.is_some().then(|| step.now + SIGTERM_INTERVAL);
        let is_starting_database = self.is(DaemonName::Mariadbd) && self.is_starting();
        let limit = if is_starting_database { STARTING_DATABASE_STOP_TIMEOUT } else { Duration::MAX };
        let (since, deadline) = (step.now, step.now + self.spec.stop_timeout.min(limit));
        self.state = State::Stopping { since, deadline, next_sigterm, killed: false, intent };
        step.signal(Child::Unit(self.id), libc::SIGTERM);
        step.signal(Child::Unit(self.id), libc::SIGCONT);
    }

    /// Moves the time of a stopping unit's SIGKILL to `at`, unless SIGKILL is already due earlier.
    pub(super) fn kill_by(&mut self, at: Moment) {
        if let State::Stopping { deadline, killed: false, .. } = &mut self.state {
            *deadline = at.min(*deadline);
        }
    }

    /// Marks a unit that has yet to start as finished, because the container stops.
    pub(super) fn cancel(&mut self) {
        if let State::Waiting | State::BackingOff { .. } = self.state {
            self.state = State::Finished;
        }
    }

    /// Restarts the unit without recording a failure; dependent units keep running. A unit that is not running starts
    /// once its gate is open and its dependencies are ready.
    pub(super) fn restart(&mut self, step: &mut Step) {
        self.forget_failures();
        step.report(Notice::RestartRequested { name: self.name() });
        match &mut self.state {
            State::Starting { .. } | State::Ready { .. } => self.stop(RestartIntent::Requested, step),
            State::Stopping { intent, .. } => *intent = RestartIntent::Requested,
            State::Waiting | State::BackingOff { .. } | State::Finished | State::GivenUp => self.wait(),
        }
    }
}

/// The pause after `times` events: none after 0, `first` after 1, then doubling up to `limit`.
pub(super) fn exponential_backoff(times: u32, first: Duration, limit: Duration) -> Duration {
    let Some(doubled) = times.checked_sub(1) else { return Duration::ZERO };
    first.saturating_mul(1_u32.checked_shl(doubled).unwrap_or(u32::MAX)).min(limit)
}
