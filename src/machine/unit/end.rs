//! The end of a unit's process, and what follows it.
//!
//! | cause | counts towards giving up | next start |
//! |---|---|---|
//! | no process, memory or file descriptor was left, which any user can cause | no | after a pause of at most 4 s |
//! | the unit's port is taken | only if the unit was never ready and the port cannot be freed: then the setup is wrong | after `slurminit free-port` has ended: at once on the first retry if the port is free, else after a pause of at most 4 s |
//! | the unit died while it was serving: any user's request may have killed it | no | after a pause of at most 4 s |
//! | any other death of the unit | yes | at once the first time, then after a pause that doubles |
//!
//! [`Unit::record_end`] records the end. The caller then calls exactly one of [`Unit::finish`], [`Unit::wait`] and
//! [`Unit::handle_death`], which set the unit's next state.

use std::time::Duration;

use model::daemons::{ReadinessTest, RestartPolicy};
use model::supervise::Supervise;

use super::{End, RestartIntent, State, Unit, exponential_backoff};
use crate::step::Step;
use crate::{Child, Exit, ExternalCause, Moment, Notice};

/// How long a daemon may take to exit if another program stops it (`scontrol shutdown`).
const MAX_SHUTDOWN: Duration = Duration::from_secs(10);
/// Maximum backoff after an exit that any user can cause. The unit must restart soon after the cause is gone, and an attempt is cheap.
const LONGEST_PAUSE: Duration = Duration::from_secs(4);
/// How long `slurminit free-port` may take. It has a shorter deadline of its own.
const FREE_PORT: Duration = Duration::from_secs(10);

/// The run of a process that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// Why slurminit stopped the process; `None` if it did not.
    pub(crate) intent: Option<RestartIntent>,
    /// How long the process was ready or, if it never was, how long it ran; zero if slurminit stopped it.
    uptime: Duration,
    was_ready: bool,
    /// How long the failed start took; zero if the unit has ever been ready.
    failed_start: Duration,
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
    /// Records that the unit's process has exited.
    pub(crate) fn record_end(&mut self, exit: Exit, at: Moment) -> Run {
        let (intent, shutdown_began) = match self.state {
            State::Stopping { since, intent, .. } => (Some(intent), since),
            _ => (None, at.saturating_sub(MAX_SHUTDOWN)),
        };
        let uptime = match self.state {
            State::Ready { since } | State::Starting { since, .. } => at.saturating_sub(since),
            _ => Duration::ZERO,
        };
        let failed_start = match self.state {
            _ if self.has_been_ready => Duration::ZERO,
            State::Stopping { since, intent: RestartIntent::NotReady, .. } => {
                self.spec.ready_timeout + at.saturating_sub(since)
            }
            _ => uptime,
        };
        let unresponsive_reason = self.liveness_history.unresponsive_reason.take();
        self.last_end = Some(End { at, shutdown_began, exit, intent, unresponsive_reason });
        Run { intent, uptime, was_ready: self.is_ready(), failed_start }
    }

    /// Sets the state of a unit that does not run again.
    pub(crate) fn finish(&mut self) {
        self.state = State::Finished;
    }

    /// Handles an unexpected death of the process.
    pub(crate) fn handle_death(
        &mut self,
        run: Run,
        exit: Exit,
        shortage: Option<ExternalCause>,
        policy: &Supervise,
        step: &mut Step,
    ) -> DeathOutcome {
        let (name, Run { intent, uptime, was_ready, failed_start }) = (self.name(), run);
        let runs_again = match self.spec.restart {
            RestartPolicy::Always => true,
            RestartPolicy::OnFailure => exit != Exit::Code(0) || intent == Some(RestartIntent::NotReady),
            RestartPolicy::Never => false,
        };
        if !runs_again {
            self.finish();
            step.report(Notice::UnitFinished { name, exit });
            return DeathOutcome::Finished;
        }
        // A long run resets the failure count; a long start does not.
        if was_ready && uptime >= policy.reset_after {
            self.forget_failures();
            self.external_failures = 0;
        }
        if let Some(shortage) = shortage {
            self.back_off_externally(exit, shortage, policy, step);
            return DeathOutcome::Restarts;
        }
        // Without a readiness test, a unit is ready as soon as it starts, and may never have listened.
        let has_readiness_test = self.spec.readiness != ReadinessTest::Started;
        let was_serving = has_readiness_test && was_ready && self.liveness_history.has_answered();
        if was_serving {
            self.consecutive_failures = self.consecutive_failures.saturating_add(1);
        } else if self.record_failure(failed_start, policy, step) {
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

    /// Backs off because no process, memory or file descriptor was left, or because the unit's port was taken.
    fn back_off_externally(&mut self, exit: Exit, shortage: ExternalCause, policy: &Supervise, step: &mut Step) {
        self.external_failures = self.external_failures.saturating_add(1);
        let pause = self.external_pause(policy);
        if let ExternalCause::Port(_) = shortage {
            self.back_off(step.now + FREE_PORT);
            step.start_task(Child::FreePort(self.id));
        } else {
            self.back_off(step.now + pause);
        }
        // Logs the first, second, fourth, ... external failure: a user who causes them for days must not fill the log.
        if self.external_failures.is_power_of_two() {
            step.report(Notice::FailedExternally { name: self.name(), exit, shortage, pause });
        }
    }

    /// `slurminit free-port` has ended; exit code 0 means that the port is free. If the unit is given up now, returns
    /// how its last process ended.
    pub(crate) fn free_port_exited(&mut self, exit: &Exit, policy: &Supervise, step: &Step) -> Option<Exit> {
        if !matches!(self.state, State::BackingOff { .. }) {
            return None;
        }
        let is_free = *exit == Exit::Code(0);
        let end = self.last_end.as_ref().map(|end| (step.now.saturating_sub(end.at), end.exit.clone()));
        let (took, last) = end.unwrap_or((Duration::ZERO, Exit::Code(0)));
        if !is_free && !self.has_been_ready && self.record_failure(took, policy, step) {
            return Some(last);
        }
        // The first retry has no pause: the restart must win the race for the port.
        let is_first_retry = is_free && self.external_failures <= 1;
        let pause = if is_first_retry { Duration::ZERO } else { self.external_pause(policy) };
        self.back_off(step.now + pause);
        None
    }

    /// Records a failure and its duration. The give-up window excludes the durations of failures; otherwise a unit that fails slowly would be retried
    /// forever. Returns whether the limit is reached, so that the unit is given up.
    fn record_failure(&mut self, took: Duration, policy: &Supervise, step: &Step) -> bool {
        self.consecutive_failures = self.consecutive_failures.saturating_add(1);
        self.failures.iter_mut().for_each(|at| *at += took);
        self.failures.push_back(step.now);
        self.failures.retain(|at| step.now.saturating_sub(*at) <= policy.give_up_window);
        let too_often = self.failures.len() >= policy.give_up_after as usize;
        if too_often {
            self.state = State::GivenUp;
        }
        too_often
    }

    fn back_off(&mut self, until: Moment) {
        self.state = State::BackingOff { until };
    }

    pub(crate) fn forget_failures(&mut self) {
        self.failures.clear();
        self.consecutive_failures = 0;
    }

    /// The pause before the next start: none after the first failure, then doubling, with a jitter of 25 % in both directions.
    fn pause(&self, policy: &Supervise, random: u64) -> Duration {
        let percent = 75 + u32::try_from(random % 51).unwrap_or(0);
        let failures = self.consecutive_failures.saturating_sub(1);
        let pause = exponential_backoff(failures, policy.restart_initial_delay, policy.restart_max_delay);
        pause.saturating_mul(percent) / 100
    }

    fn external_pause(&self, policy: &Supervise) -> Duration {
        let limit = policy.restart_max_delay.min(LONGEST_PAUSE);
        exponential_backoff(self.external_failures, policy.restart_initial_delay, limit)
    }
}

#[cfg(test)]
mod tests;
