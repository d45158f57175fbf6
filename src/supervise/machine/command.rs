//! What an operator asks of the running container.

use super::unit::{Again, State};
use super::{Effect, Machine, Moment, Notice};

/// One thing that is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Stop this unit and start it again, or start it if it does not run.
    Restart(usize),
    /// Stop everything, as TERM does.
    Stop,
}

impl Machine {
    /// Why it cannot be done now; `None` if it can.
    pub fn refusal(&self, command: Command) -> Option<&'static str> {
        match command {
            Command::Restart(_) if self.is_stopping() => Some("the container stops"),
            Command::Restart(_) | Command::Stop => None,
        }
    }

    pub(super) fn command(&mut self, now: Moment, command: Command, out: &mut Vec<Effect>) {
        if self.refusal(command).is_some() {
            return;
        }
        match command {
            Command::Stop => self.signalled(now, libc::SIGTERM, out),
            Command::Restart(unit) => self.restart_unit(now, unit, out),
        }
    }

    /// Ends the unit and starts it again, without a mark in its history; what needs it stays. One that does not run starts
    /// as soon as what it needs is there.
    pub(super) fn restart_unit(&mut self, now: Moment, unit: usize, out: &mut Vec<Effect>) {
        let name = self.name(unit);
        let Some(this) = self.units.get_mut(unit) else { return };
        this.forget_failures();
        out.push(Effect::Say(Notice::RestartAsked { name }));
        match &mut this.state {
            State::Starting { .. } | State::Ready { .. } => self.stop_unit(now, unit, Again::AsAsked, out),
            State::Stopping { again, .. } => *again = Again::AsAsked,
            State::Waiting | State::BackingOff { .. } | State::Finished | State::GivenUp => {
                this.state = State::Waiting;
            }
        }
    }
}
