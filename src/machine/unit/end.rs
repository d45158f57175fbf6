//! The end of a unit's process, and what follows it.
//!
//! [`Unit::ended_run`] describes the run that has ended. The caller passes it to exactly one of [`Unit::finish`],
//! [`Unit::wait_after`] and [`Unit::handle_death`], which records the end and sets the unit's next state.

use std::time::Duration;

use model::daemons::{ReadinessTest, RestartPolicy};
use model::supervise::Supervise;

use super::{End, RestartIntent, State, Unit, exponential_backoff};
use crate::external_failure::LONGEST_PAUSE;
use crate::step::Step;
use crate::{Exit, Moment, Notice, Shortage};

/// The maximum time for a daemon to exit that was stopped by another program (`scontrol shutdown`).
const MAX_SHUTDOWN: Duration = Duration::from_secs(10);

/// The run of a process that has ended.
#[derive(Debug)]
#[must_use]
pub(crate) struct EndedRun {
    ended_at: Moment,
    exit: Exit,
    /// Why slurminit stopped the process; `None` if it did not.
    pub(crate) intent: Option<RestartIntent>,
    /// When the process was requested to stop, or the earliest time at which it may have begun to exit by itself.
    shutdown_began: Moment,
    /// How long the process ran; zero if slurminit stopped it.
    uptime: Duration,
    was_ready: bool,
}

/// The consequence of an unexpected death of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeathOutcome {
    /// The unit has finished.
    Finished,
    /// The unit restarts after a pause.
    Restarts,
    /// The unit failed too often.
    GivenUp,
}

impl Unit {
    /// The run of the unit's process, which has just ended.
    pub(crate) fn ended_run(&self, exit: Exit, now: Moment) -> EndedRun {
        let (intent, shutdown_began) = match self.state {
            State::Stopping { since, intent, .. } => (Some(intent), since),
            _ => (None, now.saturating_sub(MAX_SHUTDOWN)),
        };
        let uptime = match self.state {
            State::Ready { since } | State::Starting { since, .. } => now.saturating_sub(since),
            _ => Duration::ZERO,
        };
        EndedRun { ended_at: now, exit, intent, shutdown_began, uptime, was_ready: self.is_ready() }
    }

    /// The unit does not run again.
    pub(crate) fn finish(&mut self, run: EndedRun) {
        self.record(run);
        self.state = State::Finished;
    }

    /// The unit starts again as soon as what it needs is ready.
    pub(crate) fn wait_after(&mut self, run: EndedRun) {
        self.record(run);
        self.wait();
    }

    /// Handles an unexpected death of the process.
    pub(crate) fn handle_death(
        &mut self,
        run: EndedRun,
        shortage: Option<Shortage>,
        policy: &Supervise,
        step: &mut Step,
    ) -> DeathOutcome {
        let (name, exit, uptime, was_ready) = (self.name(), run.exit.clone(), run.uptime, run.was_ready);
        let runs_again = match self.spec.restart {
            RestartPolicy::Always => true,
            RestartPolicy::OnFailure => exit != Exit::Code(0) || run.intent == Some(RestartIntent::NotReady),
            RestartPolicy::Never => false,
        };
        if !runs_again {
            self.finish(run);
            step.report(Notice::UnitFinished { name, exit });
            return DeathOutcome::Finished;
        }
        self.record(run);
        // A long run resets the failure count.
        if uptime >= policy.reset_after {
            self.forget_failures();
            self.external_failures.consecutive_failures = 0;
        }
        if let Some(shortage) = shortage {
            self.failed_externally(exit, shortage, policy, step);
            return DeathOutcome::Restarts;
        }
        // A unit that is ready as soon as it starts may never have listened.
        let has_readiness_test = self.spec.readiness != ReadinessTest::Started;
        // The configuration is not the cause: the unit was ready until now, and any user's request may have killed it.
        let was_serving = has_readiness_test && was_ready && self.liveness_history.has_answered();
        if was_serving {
            self.consecutive_failures = self.consecutive_failures.saturating_add(1);
        } else if self.record_failure(policy, step) {
            return DeathOutcome::GivenUp;
        }
        let pause = self.pause(policy, step.random()).min(if was_serving { LONGEST_PAUSE } else { Duration::MAX });
        self.back_off(step.now + pause);
        step.report(Notice::UnitDied { name: name.clone(), exit, uptime, pause });
        if was_serving && self.consecutive_failures == policy.give_up_after {
            step.report(Notice::CrashLoop { name, deaths: policy.give_up_after });
        }
        DeathOutcome::Restarts
    }

    fn record(&mut self, run: EndedRun) {
        let EndedRun { ended_at: at, exit, intent, shutdown_began, .. } = run;
        let unresponsive_reason = self.liveness_history.unresponsive_reason.take();
        self.last_end = Some(End { at, shutdown_began, exit, intent, unresponsive_reason });
    }

    /// Records a failure. Returns whether the limit is exceeded, so that the unit is given up.
    pub(crate) fn record_failure(&mut self, policy: &Supervise, step: &Step) -> bool {
        self.consecutive_failures = self.consecutive_failures.saturating_add(1);
        self.failures.push_back(step.now);
        self.failures.retain(|at| step.now.saturating_sub(*at) <= policy.give_up_window);
        let too_often = self.failures.len() >= policy.give_up_after as usize;
        if too_often {
            self.state = State::GivenUp;
        }
        too_often
    }

    pub(crate) fn back_off(&mut self, until: Moment) {
        self.state = State::BackingOff { until };
    }

    pub(crate) fn is_backing_off(&self) -> bool {
        matches!(self.state, State::BackingOff { .. })
    }

    pub(crate) fn forget_failures(&mut self) {
        self.failures.clear();
        self.consecutive_failures = 0;
    }

    /// The pause before the next start: none after the first failure, then doubling, with 25 % jitter.
    fn pause(&self, policy: &Supervise, random: u64) -> Duration {
        let percent = 75 + u32::try_from(random % 51).unwrap_or(0);
        let failures = self.consecutive_failures.saturating_sub(1);
        let pause = exponential_backoff(failures, policy.restart_initial_delay, policy.restart_max_delay);
        pause.saturating_mul(percent) / 100
    }
}
