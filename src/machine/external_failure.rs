//! External failures: a unit finds no process, memory or file descriptor left, or its port taken.
//!
//! Any user can cause these, and none of them is the unit's fault. So they do not count towards giving up, with one
//! exception. If a port is taken before the unit was ever ready, by a process that slurminit may not end, the setup is
//! wrong.

use std::time::Duration;

use model::supervise::Supervise;

use super::step::Step;
use super::unit::{Unit, exponential_backoff};
use super::{Child, Exit, Notice, Shortage};

/// A unit's history of external failures.
#[derive(Debug, Default)]
pub(super) struct ExternalFailures {
    pub(super) consecutive_failures: u32,
    /// Whether the unit has been ready since the container started.
    pub(super) has_been_ready: bool,
    /// Whether `slurminit free-port` runs for the unit.
    is_freeing_port: bool,
}

/// The longest pause after an external failure. The unit must return soon after the cause has gone, and a try is cheap.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(4);
/// How long `slurminit free-port` may take. It has a shorter deadline of its own.
const FREE_PORT: Duration = Duration::from_secs(10);

impl Unit {
    /// How many external failures in a row the unit has had.
    pub fn consecutive_external_failures(&self) -> u32 {
        self.external_failures.consecutive_failures
    }

    /// The unit's process ended because of an external failure.
    pub(super) fn failed_externally(&mut self, exit: Exit, shortage: Shortage, policy: &Supervise, step: &mut Step) {
        self.external_failures.consecutive_failures = self.external_failures.consecutive_failures.saturating_add(1);
        let pause = self.pause_after_external_failure(policy);
        if let Shortage::Port(_) = shortage {
            self.external_failures.is_freeing_port = true;
            self.back_off(step.now + FREE_PORT);
            step.start_task(Child::FreePort(self.id));
        } else {
            self.back_off(step.now + pause);
        }
        // Logs the first, second, fourth, ... external failure: a user who causes them for days must not fill the log.
        if self.external_failures.consecutive_failures.is_power_of_two() {
            step.report(Notice::FailedExternally { name: self.name(), exit, shortage, pause });
        }
    }

    fn pause_after_external_failure(&self, policy: &Supervise) -> Duration {
        exponential_backoff(
            self.external_failures.consecutive_failures,
            policy.restart_initial_delay,
            policy.restart_max_delay.min(LONGEST_PAUSE),
        )
    }

    /// `slurminit free-port` has ended; exit code 0 means that the port is free. If the unit is given up now, returns
    /// how its last process ended.
    pub(super) fn free_port_exited(&mut self, exit: &Exit, policy: &Supervise, step: &Step) -> Option<Exit> {
        if !std::mem::take(&mut self.external_failures.is_freeing_port) || !self.is_backing_off() {
            return None;
        }
        let is_free = *exit == Exit::Code(0);
        if !is_free && !self.external_failures.has_been_ready && self.record_failure(policy, step) {
            return Some(self.last_end.as_ref().map_or(Exit::Code(0), |end| end.exit.clone()));
        }
        // The first retry has no pause: the restart must win the race for the port.
        let is_first_retry = is_free && self.external_failures.consecutive_failures <= 1;
        let pause = if is_first_retry { Duration::ZERO } else { self.pause_after_external_failure(policy) };
        self.back_off(step.now + pause);
        None
    }
}

#[cfg(test)]
mod tests;
