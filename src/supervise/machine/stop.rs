//! The ordered stop: the command, then the daemons in reverse order, then whatever is left.

use std::time::Duration;

use crate::config::DaemonName;
use crate::exit_code;

use super::jobs::Accounts;
use super::unit::{Again, State};
use super::{Child, Cmd, Effect, Exit, Machine, Moment, Node, Notice, Phase};

/// A stop under way.
#[derive(Debug)]
pub(super) struct Stop {
    code: u8,
    why: Option<Notice>,
    /// By then everything gets KILL.
    until: Moment,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The command and a hook end first: they use the daemons.
    Command { kill_at: Moment },
    /// Jobs get notice, and time; nobody asks for a queue that is down.
    Jobs { kill_at: Moment },
    /// Each unit ends when none that needs it lives.
    Units,
    /// Everything that nobody waits for: job steps, orphans.
    Rest { kill_at: Moment },
    /// KILL was sent to all of it, at least once.
    Killing { again_at: Moment, give_up_at: Moment },
}

/// The command's share of the whole time, in eighths: 5 of 8 s. The daemons need less than one.
const COMMAND_EIGHTHS: u32 = 5;
/// What asking Slurm costs on top of the jobs' grace.
const JOBS_MARGIN: Duration = Duration::from_secs(2);
/// Job steps ignore TERM, and have had their notice.
const REST_GRACE_AFTER_JOBS: Duration = Duration::from_millis(200);
/// How long orphans have from TERM to KILL, at most.
const REST_GRACE: Duration = Duration::from_secs(2);
/// How often KILL is sent again: a fork bomb makes new ones, and the children of a killed process come to us.
const KILL_EVERY: Duration = Duration::from_millis(50);
/// A process in uninterruptible sleep ignores KILL; the kernel ends it with us.
const KILL_PATIENCE: Duration = Duration::from_secs(1);

impl Stop {
    pub(super) fn next_wake(&self) -> Option<Moment> {
        match self.stage {
            Stage::Command { kill_at } | Stage::Jobs { kill_at } | Stage::Rest { kill_at } => {
                Some(kill_at.min(self.until))
            }
            Stage::Units => Some(self.until),
            Stage::Killing { again_at, give_up_at } => Some(again_at.min(give_up_at)),
        }
    }

    /// The command ended after the stop began: its code is the container's, unless something failed before.
    pub(super) fn cmd_code(&mut self, code: u8) {
        if self.why.is_none() {
            self.code = code;
        }
    }
}

impl Machine {
    /// Begins the stop. `why` is what went wrong; it is said once more at the very end.
    pub(super) fn begin_stop(&mut self, now: Moment, code: u8, why: Option<Notice>, out: &mut Vec<Effect>) {
        if self.is_stopping() {
            return;
        }
        let limit = self.setup.supervise.stop_timeout;
        let stage = Stage::Command { kill_at: now + limit * COMMAND_EIGHTHS / 8 };
        self.phase = Phase::Stop(Stop { code, why, until: now + limit, stage });
        self.node = Node::Unwatched;
        self.liveness.stop();
        self.accounts = Accounts::default();
        self.reload.cancel();
        for task in &self.tasks {
            match task {
                // An operator's script may have something to undo.
                Child::Hook(_) => out.push(Effect::Signal(*task, libc::SIGTERM)),
                _ => out.push(Effect::Kill(*task)),
            }
        }
        if self.cmd == Cmd::Waiting {
            self.cmd = Cmd::None;
        }
        // The signal that asked for the stop was passed on already.
        if self.cmd == Cmd::Running && !out.contains(&Effect::Signal(Child::Cmd, libc::SIGTERM)) {
            out.push(Effect::Signal(Child::Cmd, libc::SIGTERM));
        }
    }

    /// Nobody wants to wait any more.
    pub(super) fn hurry(&mut self, now: Moment, out: &mut Vec<Effect>) {
        if let Phase::Stop(stop) = &mut self.phase {
            if stop.until > now {
                stop.until = now;
                out.push(Effect::Say(Notice::Hurried));
            }
        }
    }

    pub(super) fn advance_stop(&mut self, now: Moment, out: &mut Vec<Effect>) {
        if !matches!(self.phase, Phase::Stop(_)) {
            return;
        }
        // One that was being stopped for a restart has its own deadline, whatever stage the stop of all is in.
        for unit in 0..self.units.len() {
            self.advance_stopping_unit(now, unit, out);
        }
        let Phase::Stop(stop) = &self.phase else { return };
        let late = now >= stop.until;
        match stop.stage {
            Stage::Command { kill_at } => {
                let hook = self.tasks.iter().copied().find(|task| matches!(task, Child::Hook(_)));
                let first = if self.cmd == Cmd::Running { Some(Child::Cmd) } else { hook };
                match first {
                    None => self.enter_jobs(now, out),
                    Some(child) if late || now >= kill_at => {
                        out.push(Effect::Kill(child));
                        self.enter_jobs(now, out);
                    }
                    Some(_) => {}
                }
            }
            Stage::Jobs { .. } if !self.tasks.contains(&Child::JobsQuiesce) => self.enter_stage(now, Stage::Units, out),
            Stage::Jobs { kill_at } if late || now >= kill_at => {
                out.push(Effect::Say(Notice::JobsNotAsked { within: self.setup.jobs_grace + JOBS_MARGIN }));
                out.push(Effect::Kill(Child::JobsQuiesce));
                self.enter_stage(now, Stage::Units, out);
            }
            Stage::Jobs { .. } => {}
            Stage::Units => self.advance_stop_units(now, late, out),
            Stage::Rest { kill_at } if late || now >= kill_at => {
                let stage = Stage::Killing { again_at: now, give_up_at: now + KILL_PATIENCE };
                self.enter_stage(now, stage, out);
            }
            Stage::Killing { give_up_at, .. } if now >= give_up_at => {
                out.push(Effect::Say(Notice::Unkillable));
                self.end(out);
            }
            Stage::Killing { again_at, give_up_at } if now >= again_at => {
                out.push(Effect::SignalAll(libc::SIGKILL));
                self.set_stage(Stage::Killing { again_at: now + KILL_EVERY, give_up_at });
            }
            Stage::Rest { .. } | Stage::Killing { .. } => {}
        }
    }

    /// Asks the jobs to end, where there is a cluster that can have some.
    fn enter_jobs(&mut self, now: Moment, out: &mut Vec<Effect>) {
        let slurmctld = self.setup.units.iter().position(|spec| spec.daemon == Some(DaemonName::Slurmctld));
        let answers = slurmctld.and_then(|unit| self.units.get(unit)).is_some_and(super::Unit::is_ready);
        if !answers || self.report.is_none() {
            return self.enter_stage(now, Stage::Units, out);
        }
        self.spawn_task(Child::JobsQuiesce, out);
        self.enter_stage(now, Stage::Jobs { kill_at: now + self.setup.jobs_grace + JOBS_MARGIN }, out);
    }

    /// The jobs had their notice, or something kept them from it.
    pub(super) fn jobs_quiesced(&mut self, exit: Exit, out: &mut Vec<Effect>) {
        self.jobs_left = matches!(exit, Exit::Code(exit_code::JOBS_LEFT) | Exit::Signal(_));
        let in_time = matches!(&self.phase, Phase::Stop(Stop { stage: Stage::Jobs { .. }, .. }));
        // One that came too late was told of when it was killed.
        if in_time && !matches!(exit, Exit::Code(0 | exit_code::JOBS_LEFT)) {
            out.push(Effect::Say(Notice::JobsNotTold { exit }));
        }
    }

    fn advance_stop_units(&mut self, now: Moment, late: bool, out: &mut Vec<Effect>) {
        for unit in 0..self.units.len() {
            let Some(this) = self.units.get(unit) else { continue };
            match this.state {
                State::Waiting | State::BackingOff { .. } => self.set_state(unit, State::Finished),
                State::Starting { .. } | State::Ready { .. } if late || !self.is_needed(unit) => {
                    self.stop_unit(now, unit, Again::No, out);
                }
                _ => {}
            }
            if late {
                if let Some(State::Stopping { deadline, killed: false, .. }) =
                    self.units.get_mut(unit).map(|unit| &mut unit.state)
                {
                    *deadline = (*deadline).min(now);
                }
            }
            self.advance_stopping_unit(now, unit, out);
        }
        if !self.units.iter().any(super::Unit::is_alive) {
            let grace = if self.jobs_left { REST_GRACE_AFTER_JOBS } else { REST_GRACE };
            let stage = Stage::Rest { kill_at: now + grace };
            self.enter_stage(now, stage, out);
        } else if late {
            // KILL was sent; what survives it is left to the last stage.
            let stage = Stage::Killing { again_at: now, give_up_at: now + KILL_PATIENCE };
            self.enter_stage(now, stage, out);
        }
    }

    fn advance_stopping_unit(&mut self, now: Moment, unit: usize, out: &mut Vec<Effect>) {
        if self.units.get(unit).is_some_and(|unit| matches!(unit.state, State::Stopping { .. })) {
            self.advance_unit(now, unit, out);
        }
    }

    /// Whether another living unit was started after this one, and so must end before it.
    fn is_needed(&self, unit: usize) -> bool {
        self.setup.units.iter().zip(&self.units).any(|(spec, other)| other.is_alive() && spec.after.contains(&unit))
    }

    fn enter_stage(&mut self, now: Moment, stage: Stage, out: &mut Vec<Effect>) {
        self.set_stage(stage);
        if let Stage::Rest { .. } = stage {
            out.push(Effect::SignalAll(libc::SIGTERM));
        }
        self.advance_stop(now, out);
    }

    fn set_stage(&mut self, stage: Stage) {
        if let Phase::Stop(stop) = &mut self.phase {
            stop.stage = stage;
        }
    }

    pub(super) fn no_children(&mut self, _now: Moment, out: &mut Vec<Effect>) {
        if let Phase::Stop(Stop { stage: Stage::Rest { .. } | Stage::Killing { .. }, .. }) = self.phase {
            self.end(out);
        }
    }

    fn end(&mut self, out: &mut Vec<Effect>) {
        if let Phase::Stop(stop) = std::mem::replace(&mut self.phase, Phase::End) {
            out.push(Effect::Say(Notice::Ended { code: stop.code, why: stop.why.map(Box::new) }));
            out.push(Effect::Exit(stop.code));
        }
    }
}
