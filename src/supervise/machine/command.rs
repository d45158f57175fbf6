//! What an operator asks of the running container, by the control socket or by a signal.

use super::reload::Cause;
use super::unit::{Again, State};
use super::{Child, Cmd, Effect, Exit, Machine, Moment, Notice, Phase};

/// One thing that is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Stop this unit and start it again, or start it if it does not run.
    Restart(usize),
    /// Detect again, and apply what changed.
    Reload,
    /// Stop everything, as TERM does.
    Stop,
}

impl Machine {
    /// Why it cannot be done now; `None` if it can.
    pub fn refusal(&self, command: Command) -> Option<&'static str> {
        match command {
            Command::Restart(_) | Command::Reload if self.is_stopping() => Some("the container stops"),
            Command::Restart(_) | Command::Reload | Command::Stop => None,
        }
    }

    pub(super) fn command(&mut self, now: Moment, command: Command, out: &mut Vec<Effect>) {
        if self.refusal(command).is_some() {
            return;
        }
        match command {
            Command::Stop => self.signalled(now, libc::SIGTERM, out),
            Command::Restart(unit) => self.restart_unit(now, unit, out),
            Command::Reload => self.reload_asked(Cause::Verb),
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

    pub(super) fn signalled(&mut self, now: Moment, signal: i32, out: &mut Vec<Effect>) {
        if self.cmd == Cmd::Running {
            out.push(Effect::Signal(Child::Cmd, signal));
            // A plain init leaves it to its command what a signal means. A cluster has more to stop than the command.
            if self.setup.only_cmd || signal != libc::SIGTERM {
                return;
            }
        }
        match signal {
            libc::SIGTERM | libc::SIGINT | libc::SIGQUIT => match &self.phase {
                Phase::Stop(_) => self.hurry(now, out),
                Phase::End => {}
                _ => {
                    out.push(Effect::Say(Notice::StopAsked { signal }));
                    // Nobody must take a command that never ran for one that succeeded.
                    let code = if self.cmd == Cmd::Waiting { Exit::Signal(signal).code() } else { 0 };
                    self.begin_stop(now, code, None, out);
                }
            },
            libc::SIGHUP => self.reload_asked(Cause::Hangup),
            _ => {}
        }
    }
}
