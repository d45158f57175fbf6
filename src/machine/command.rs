//! Operator requests, from the control socket or by signal.

use super::reload::Cause;
use super::{Child, Cmd, Effect, Exit, Machine, Notice, Phase};
use crate::UnitId;

/// A request from an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Stop this unit and start it again, or start it if it is not running.
    Restart(UnitId),
    /// Run detection again and apply the changes.
    Reload,
    /// Stop the container, as SIGTERM does.
    Stop,
}

impl Machine {
    /// Why the command is refused now; `None` if it is accepted.
    pub fn refusal(&self, command: Command) -> Option<&'static str> {
        match command {
            Command::Restart(_) | Command::Reload if self.is_stopping() => Some("the container is stopping"),
            Command::Restart(_) | Command::Reload | Command::Stop => None,
        }
    }

    pub(super) fn command(&mut self, command: Command) {
        if self.refusal(command).is_some() {
            return;
        }
        match command {
            Command::Stop => self.signalled(libc::SIGTERM),
            Command::Restart(id) => self.cluster.units[id].restart(&mut self.cluster.step),
            Command::Reload => self.request_reload(Cause::Verb),
        }
    }

    /// Requests a reload, unless slurminit runs as a plain init or the container is stopping.
    fn request_reload(&mut self, cause: Cause) {
        if self.setup.has_cluster && !self.is_stopping() {
            self.reload.request(cause);
        }
    }

    pub(super) fn signalled(&mut self, signal: i32) {
        let step = &mut self.cluster.step;
        if self.cmd == Cmd::Running {
            step.signal(Child::Cmd, signal);
            if signal != libc::SIGTERM {
                return;
            }
            step.push(Effect::Continue(Child::Cmd));
            // A plain init leaves the handling of a signal to its command, unless a stop timeout is configured. In a cluster the daemons must be
            // stopped, too.
            let is_limited = self.cluster.policy.stop_timeout.is_some() && !self.is_stopping();
            if !self.setup.has_cluster && !is_limited {
                return;
            }
        }
        match signal {
            libc::SIGTERM | libc::SIGINT | libc::SIGQUIT => match &self.phase {
                Phase::Stop(_) => self.kill_all_now(),
                Phase::End => {}
                _ => {
                    self.cluster.step.report(Notice::StopRequested { signal });
                    // A command that never ran, or whose jobs may not have ended yet, must not count as a success.
                    let cut_short = matches!(self.cmd, Cmd::Waiting | Cmd::Awaiting(_));
                    let code = if cut_short { Exit::Signal(signal).code() } else { 0 };
                    self.begin_stop(code, None);
                }
            },
            libc::SIGHUP => self.request_reload(Cause::Hangup),
            _ => {}
        }
    }
}
