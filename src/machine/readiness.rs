//! The readiness checks of a starting unit: a socket check, or the unit's command.
//!
//! A command belongs to one start of its unit: it is killed when the unit stops or dies, or when the command exceeds its deadline. The
//! result of a previous start's command is ignored.

use std::time::Duration;

use model::daemons::ReadinessTest;

use super::step::Step;
use super::unit::{State, Unit};
use super::{Child, Effect, Exit, Moment};

/// The state of a starting unit's checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Check {
    /// When the next check is due, or the deadline of the command that runs.
    at: Moment,
    /// The pause before the next check.
    pause: Duration,
    /// The time limit of the command's next run.
    limit: Duration,
    /// Whether the command is running.
    is_command_running: bool,
}

/// The shortest pause between two checks. A check of a socket takes about 50 microseconds.
const CHECK_PAUSE: Duration = Duration::from_millis(1);
/// After this time the start counts as slow, and the pauses grow.
const SLOW_START_AFTER: Duration = Duration::from_millis(200);
/// The longest pause between two checks of a socket.
const MAX_CHECK_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause after a command has failed. The pauses start at [`CHECK_PAUSE`] and double.
const MAX_COMMAND_PAUSE: Duration = Duration::from_secs(1);

impl Check {
    /// `limit`: the time limit of a command.
    pub(super) fn new(now: Moment, limit: Duration) -> Self {
        Self { at: now + CHECK_PAUSE, pause: CHECK_PAUSE, limit, is_command_running: false }
    }

    pub(super) fn next_wake(&self) -> Moment {
        self.at
    }

    fn schedule_next(&mut self, since: Moment, now: Moment) {
        self.at = now + self.pause;
        self.pause = if now < since + SLOW_START_AFTER { CHECK_PAUSE } else { (self.pause * 2).min(MAX_CHECK_PAUSE) };
    }

    fn advance_command(&mut self, probe: Child, step: &mut Step) {
        if self.is_command_running {
            // On a busy machine the next run of the command may need longer.
            self.limit = self.limit.saturating_mul(2);
            self.at = step.now + MAX_COMMAND_PAUSE;
            step.kill_task(probe);
        } else if step.is_running(probe) {
            // The command of a previous start was sent SIGKILL, but has not ended yet.
            self.at = step.now + MAX_COMMAND_PAUSE;
        } else {
            (self.is_command_running, self.at) = (true, step.now + self.limit);
            step.start_task(probe);
        }
    }

    fn command_ended(&mut self, now: Moment) {
        (self.is_command_running, self.at) = (false, now + self.pause);
        self.pause = (self.pause * 2).min(MAX_COMMAND_PAUSE);
    }
}

impl Unit {
    /// Checks whether a starting unit is ready, if a check is due.
    pub(super) fn check_readiness(&mut self, step: &mut Step) {
        let (id, is_command) = (self.id, matches!(self.spec.readiness, ReadinessTest::Command(_)));
        let State::Starting { since, check, .. } = &mut self.state else { return };
        match is_command {
            _ if step.now < check.at => {}
            true => check.advance_command(Child::Probe(id), step),
            false => {
                check.schedule_next(*since, step.now);
                step.push(Effect::CheckReadiness(id));
            }
        }
    }

    /// Handles the end of the readiness command. Returns whether the command, if it belongs to the unit's present start, succeeded.
    pub(super) fn probe_ended(&mut self, exit: &Exit, now: Moment) -> bool {
        match &mut self.state {
            State::Starting { check, .. } if check.is_command_running => {
                check.command_ended(now);
                *exit == Exit::Code(0)
            }
            _ => false,
        }
    }
}
