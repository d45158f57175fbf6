//! The ordered stop: the command, then the daemons in reverse order, then all remaining processes.

use std::time::Duration;

use model::daemons::DaemonName;
use model::exit_code;

use super::cluster::Cluster;
use super::step::Step;
use super::unit::{RestartIntent, Unit};
use super::units::Units;
use super::{Child, Cmd, Effect, Exit, Machine, Moment, Notice, Phase};
use model::unit::JobCare;

/// A stop in progress.
#[derive(Debug)]
pub(super) struct Stop {
    code: u8,
    why: Option<Notice>,
    /// Whether the end of the command is the only cause of the stop.
    by_command: bool,
    /// The deadline at which all remaining processes get SIGKILL.
    until: Moment,
    /// Whether jobs were notified and are still running.
    jobs_left: bool,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The command and a hook end first, because they use the daemons.
    Command { kill_at: Moment },
    /// Jobs are notified and get time to end. Skipped if the daemons are down.
    Jobs { kill_at: Moment },
    /// Each unit ends once no running unit depends on it.
    Units,
    /// Everything else ends: job steps, orphans.
    Remaining { kill_at: Moment },
    /// SIGKILL was sent to everything left, at least once.
    Killing { again_at: Moment, give_up_at: Moment },
}

/// The command's share of the stop timeout, in eighths: 5 s of 8 s. The daemons need less than 1 s.
const COMMAND_EIGHTHS: u32 = 5;
/// The time that Slurm's own commands take, on top of the jobs' grace period.
const JOBS_MARGIN: Duration = Duration::from_secs(2);
/// How long job steps have from SIGTERM to SIGKILL. They ignore SIGTERM and were notified before.
const REMAINING_GRACE_AFTER_JOBS: Duration = Duration::from_millis(200);
/// How long orphans have from SIGTERM to SIGKILL, at most.
const REMAINING_GRACE: Duration = Duration::from_secs(2);
/// How often SIGKILL is repeated: a fork bomb makes new processes, and children of a killed process are reparented to
/// slurminit.
const KILL_INTERVAL: Duration = Duration::from_millis(50);
/// A process in uninterruptible sleep does not react to SIGKILL; the kernel ends it when PID 1 exits.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);

impl Stop {
    pub(super) fn next_wake(&self) -> Option<Moment> {
        match self.stage {
            Stage::Command { kill_at } | Stage::Jobs { kill_at } | Stage::Remaining { kill_at } => {
                Some(kill_at.min(self.until))
            }
            Stage::Units => Some(self.until),
            Stage::Killing { again_at, give_up_at } => Some(again_at.min(give_up_at)),
        }
    }

    /// The command ended after the stop began. Its code becomes the container's, unless something failed before.
    pub(super) fn cmd_code(&mut self, code: u8) {
        if self.why.is_none() {
            self.code = code;
        }
    }
}

impl Machine {
    /// Reports a failure and begins the stop.
    pub(super) fn fail(&mut self, code: u8, why: Notice) {
        self.cluster.step.report(why.clone());
        self.begin_stop(code, Some(why));
    }

    /// Begins the stop. If a failure caused it, `why` describes it and is repeated as the last message.
    pub(super) fn begin_stop(&mut self, code: u8, why: Option<Notice>) {
        if self.is_stopping() {
            return;
        }
        let now = self.cluster.step.now;
        let limit = self.cluster.policy.stop_timeout();
        let command_limit = if self.setup.has_cluster { limit * COMMAND_EIGHTHS / 8 } else { limit };
        let stage = Stage::Command { kill_at: now + command_limit };
        let by_command = self.cmd == Cmd::Ended;
        self.phase = Phase::Stop(Stop { code, by_command, why, until: now + limit, jobs_left: false, stage });
        self.liveness.stop();
        self.reload.cancel();
        let Cluster { node, jobs, units, step, .. } = &mut self.cluster;
        node.stop();
        jobs.stop(units, step);
        for task in step.tasks() {
            match task {
                // A hook may have to clean up.
                Child::Hook(_) => step.signal(task, libc::SIGTERM),
                _ => step.kill_task(task),
            }
        }
        if self.cmd == Cmd::Waiting {
            self.cmd = Cmd::None;
        }
        // The signal that requested the stop was already passed on.
        if self.cmd == Cmd::Running && !step.has_effect(&Effect::Signal(Child::Cmd, libc::SIGTERM)) {
            step.signal(Child::Cmd, libc::SIGTERM);
            step.push(Effect::Continue(Child::Cmd));
        }
    }

    /// Whether the container stops because its command has ended.
    #[must_use]
    pub fn stops_with_its_command(&self) -> bool {
        matches!(&self.phase, Phase::Stop(Stop { by_command: true, .. }))
    }

    /// Handles a second stop signal: kills all processes at once.
    pub(super) fn kill_all_now(&mut self) {
        let step = &mut self.cluster.step;
        if let Phase::Stop(stop) = &mut self.phase {
            if stop.until > step.now {
                stop.until = step.now;
                step.report(Notice::SecondStopSignal);
            }
        }
    }

    pub(super) fn advance_stop(&mut self) {
        let Phase::Stop(stop) = &mut self.phase else { return };
        let (stage, late, jobs_left) = (stop.stage, self.cluster.step.now >= stop.until, stop.jobs_left);
        let Cluster { units, step, .. } = &mut self.cluster;
        let now = step.now;
        // A unit that was already stopping for a restart keeps its own deadline, whatever the stage.
        units.iter_mut().filter(|unit| unit.is_stopping()).for_each(|unit| unit.advance(step));
        match stage {
            Stage::Command { kill_at } => {
                let hook = step.tasks().find(|task| matches!(task, Child::Hook(_)));
                let running = if self.cmd == Cmd::Running { Some(Child::Cmd) } else { hook };
                match running {
                    None => self.enter_jobs(),
                    Some(child) if late || now >= kill_at => {
                        if child == Child::Cmd {
                            step.report(Notice::Killing { name: "the command".to_owned() });
                        }
                        step.push(Effect::Kill(child));
                        self.enter_jobs();
                    }
                    Some(_) => {}
                }
            }
            Stage::Jobs { .. } if !step.is_running(Child::JobsQuiesce) => self.enter_stage(Stage::Units),
            Stage::Jobs { kill_at } if late || now >= kill_at => {
                step.report(Notice::JobsNotAccountedAtStop { within: self.setup.jobs_grace + JOBS_MARGIN });
                step.kill_task(Child::JobsQuiesce);
                self.enter_stage(Stage::Units);
            }
            Stage::Jobs { .. } => {}
            Stage::Units => {
                stop_units(units, step, late);
                if !units.iter().any(Unit::is_alive) {
                    let grace = if jobs_left { REMAINING_GRACE_AFTER_JOBS } else { REMAINING_GRACE };
                    self.enter_stage(Stage::Remaining { kill_at: now + grace });
                } else if late {
                    // Units that survived SIGKILL are left to the last stage.
                    self.enter_stage(Stage::Killing { again_at: now, give_up_at: now + KILL_TIMEOUT });
                }
            }
            Stage::Remaining { kill_at } if late || now >= kill_at => {
                self.enter_stage(Stage::Killing { again_at: now, give_up_at: now + KILL_TIMEOUT });
            }
            Stage::Killing { give_up_at, .. } if now >= give_up_at => {
                step.report(Notice::Unkillable);
                self.end();
            }
            Stage::Killing { again_at, give_up_at } if now >= again_at => {
                step.push(Effect::SignalAll(libc::SIGKILL));
                stop.stage = Stage::Killing { again_at: now + KILL_INTERVAL, give_up_at };
            }
            Stage::Remaining { .. } | Stage::Killing { .. } => {}
        }
    }

    /// Notifies jobs of the stop, if the cluster is up. A controller only notes the next job id.
    fn enter_jobs(&mut self) {
        let Cluster { units, node, step, job_care, .. } = &mut self.cluster;
        let required_daemon = match job_care {
            _ if units.iter().any(|unit| unit.is(DaemonName::Slurmctld)) => Some(DaemonName::Slurmctld),
            JobCare::Cluster | JobCare::Node => Some(DaemonName::Munged),
            JobCare::OtherContainers => None,
        };
        if node.report.is_none() || !required_daemon.is_some_and(|daemon| units.has_ready(daemon)) {
            return self.enter_stage(Stage::Units);
        }
        step.start_task(Child::JobsQuiesce);
        let kill_at = step.now + self.setup.jobs_grace + JOBS_MARGIN;
        self.enter_stage(Stage::Jobs { kill_at });
    }

    /// Handles the end of the helper that notifies the jobs, whether it succeeded or not.
    pub(super) fn jobs_quiesce_exited(&mut self, exit: Exit) {
        let Phase::Stop(stop) = &mut self.phase else { return };
        stop.jobs_left = matches!(exit, Exit::Code(exit_code::JOBS_LEFT) | Exit::Signal(_));
        // If the child was too late, its kill was already reported.
        if matches!(stop.stage, Stage::Jobs { .. }) && !matches!(exit, Exit::Code(0 | exit_code::JOBS_LEFT)) {
            self.cluster.step.report(Notice::JobsNotNotified { exit });
        }
    }

    fn enter_stage(&mut self, stage: Stage) {
        if let Phase::Stop(stop) = &mut self.phase {
            stop.stage = stage;
        }
        if let Stage::Remaining { .. } = stage {
            self.cluster.step.push(Effect::SignalAll(libc::SIGTERM));
        }
        self.advance_stop();
    }

    pub(super) fn no_children(&mut self) {
        if let Phase::Stop(Stop { stage: Stage::Remaining { .. } | Stage::Killing { .. }, .. }) = self.phase {
            self.end();
        }
    }

    fn end(&mut self) {
        if let Phase::Stop(stop) = std::mem::replace(&mut self.phase, Phase::End) {
            self.cluster.step.report(Notice::Ended { code: stop.code, why: stop.why.map(Box::new) });
            self.cluster.step.push(Effect::Exit(stop.code));
        }
    }
}

/// Stops each unit that no running unit depends on; if `late`, all units at once.
fn stop_units(units: &mut Units, step: &mut Step, late: bool) {
    for id in units.ids() {
        let has_running_dependents = units.has_running_dependents(id);
        let unit = &mut units[id];
        unit.cancel();
        if unit.is_running() && (late || !has_running_dependents) {
            unit.stop(RestartIntent::NoRestart, step);
        }
        if late {
            unit.kill_by(step.now);
        }
        if unit.is_stopping() {
            unit.advance(step);
        }
    }
}
