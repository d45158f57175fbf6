//! The ordered stop: the command and the jobs, then the daemons and services in reverse start order, then all remaining processes.
//!
//! All deadlines up to the final SIGKILL are parts of one budget ([`StopBudget`]). Every daemon has time to save its state, unless a second stop
//! signal arrives.

use std::time::Duration;

use model::daemons::DaemonName;
use model::exit_code;
use model::supervise::StopBudget;

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
    /// Whether the container stops only because the command ended.
    by_command: bool,
    /// The deadline at which all remaining processes are sent SIGKILL.
    until: Moment,
    /// Whether the stop was requested a second time, so that no process gets time to end by itself.
    is_hurried: bool,
    budget: StopBudget,
    /// Whether jobs were notified and may still be running.
    jobs_left: bool,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The command and the jobs end first, because they use the daemons; a running hook also ends here. The jobs are notified once the command has
    /// ended, but no later than `notify_at`, which is `None` if they were notified or will not be. `command_kill_at` is `None` once the command or
    /// hook has ended or was sent SIGKILL. Jobs that are still running at `until` are killed with all other processes.
    Work { command_kill_at: Option<Moment>, notify_at: Option<Moment>, until: Moment },
    /// Each unit is sent SIGTERM once all units that depend on it have ended.
    Units { all_at: Moment },
    /// Every unit was sent SIGTERM, whatever depends on it.
    AllUnits { kill_at: Moment },
    /// All other processes end: job steps, orphans.
    Remaining { kill_at: Moment },
    /// SIGKILL was sent to all remaining processes, at least once.
    Killing { again_at: Moment, give_up_at: Moment },
}

/// The longest share of the stop timeout that the command can use in a cluster, in eighths: 5 s of the default 8 s.
const COMMAND_EIGHTHS: u32 = 5;
/// How long the remaining processes have from SIGTERM to SIGKILL if jobs are left: their slurmstepd ignores SIGTERM, and the jobs were notified
/// before.
const REMAINING_GRACE_AFTER_JOBS: Duration = Duration::from_millis(200);
/// How long orphans have from SIGTERM to SIGKILL, at most.
const REMAINING_GRACE: Duration = Duration::from_secs(2);
/// The interval at which SIGKILL is repeated: a fork bomb creates new processes, and children of a killed process are reparented to slurminit.
const KILL_INTERVAL: Duration = Duration::from_millis(50);
/// How long PID 1 waits for killed processes. A process in uninterruptible sleep dies only when its system call returns.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);

impl Stop {
    pub(super) fn next_wake(&self) -> Option<Moment> {
        match self.stage {
            Stage::Work { command_kill_at, notify_at, until } => {
                [command_kill_at, notify_at, Some(until)].into_iter().flatten().min()
            }
            Stage::Units { all_at: at } | Stage::AllUnits { kill_at: at } => Some(at),
            Stage::Remaining { kill_at } => Some(kill_at.min(self.until)),
            Stage::Killing { again_at, give_up_at } => Some(again_at.min(give_up_at)),
        }
    }

    /// Handles the end of the command after the stop began. Its exit code becomes the container's, unless something failed before.
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

    /// Begins the stop. If a failure caused the stop, `why` describes the failure, and is repeated in the last message.
    pub(super) fn begin_stop(&mut self, code: u8, why: Option<Notice>) {
        if self.is_stopping() {
            return;
        }
        let now = self.cluster.step.now;
        let budget = self.cluster.policy.stop_budget();
        let end = now + budget.total;
        let stage = if self.setup.has_cluster {
            let until = end - budget.units;
            let jobs = self.setup.jobs_grace + budget.jobs_margin;
            Stage::Work {
                command_kill_at: Some(until.min(now + budget.total * COMMAND_EIGHTHS / 8)),
                notify_at: Some(now.max(until.saturating_sub(jobs))),
                until,
            }
        } else {
            Stage::Work { command_kill_at: Some(end), notify_at: None, until: end }
        };
        let by_command = self.cmd == Cmd::Ended;
        self.phase =
            Phase::Stop(Stop { code, by_command, why, until: end, is_hurried: false, budget, jobs_left: false, stage });
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
        // A signal that requested the stop was already passed on to the command.
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
            if !std::mem::replace(&mut stop.is_hurried, true) {
                stop.until = stop.until.min(step.now);
                if let Stage::Work { command_kill_at, notify_at, until } = &mut stop.stage {
                    *command_kill_at = command_kill_at.map(|_| step.now);
                    (*notify_at, *until) = (None, step.now);
                }
                step.report(Notice::SecondStopSignal);
            }
        }
    }

    pub(super) fn advance_stop(&mut self) {
        let Phase::Stop(stop) = &mut self.phase else { return };
        let (stage, is_hurried, jobs_left) = (stop.stage, stop.is_hurried, stop.jobs_left);
        let Cluster { units, step, .. } = &mut self.cluster;
        let now = step.now;
        let late = now >= stop.until;
        // A unit that was already stopping for a restart keeps its own deadline until all units are killed.
        units.iter_mut().filter(|unit| unit.is_stopping()).for_each(|unit| unit.advance(step));
        match stage {
            Stage::Work { .. } => self.advance_work(),
            Stage::Units { all_at } if is_hurried || now >= all_at => {
                // The units get this grace period even if PID 1 itself was suspended meanwhile.
                let grace = if is_hurried { Duration::ZERO } else { stop.budget.sigterm_to_sigkill };
                self.enter_stage(Stage::AllUnits { kill_at: now + grace });
            }
            Stage::Units { .. } | Stage::AllUnits { .. } => {
                let kill = matches!(stage, Stage::AllUnits { kill_at } if is_hurried || now >= kill_at);
                units.iter_mut().for_each(Unit::cancel);
                let has_ended = match stage {
                    Stage::AllUnits { .. } => stop_at_once(units, step, kill),
                    _ => units.stop_in_order(&units.ids().collect::<Vec<_>>(), RestartIntent::NoRestart, step),
                };
                if has_ended {
                    let grace = if jobs_left { REMAINING_GRACE_AFTER_JOBS } else { REMAINING_GRACE };
                    self.enter_stage(Stage::Remaining { kill_at: now + grace });
                } else if kill {
                    // The last stage waits for the units that were just killed, and repeats SIGKILL.
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

    fn advance_work(&mut self) {
        let step = &mut self.cluster.step;
        let hook = step.tasks().find(|task| matches!(task, Child::Hook(_)));
        let command = if self.cmd == Cmd::Running { Some(Child::Cmd) } else { hook };
        let Phase::Stop(stop) = &mut self.phase else { return };
        let Stage::Work { command_kill_at, notify_at, until } = &mut stop.stage else { return };
        match command {
            None => *command_kill_at = None,
            Some(child) if command_kill_at.is_some_and(|at| step.now >= at) => {
                *command_kill_at = None;
                if child == Child::Cmd {
                    step.report(Notice::Killing { name: "the command".to_owned() });
                }
                step.push(Effect::Kill(child));
            }
            Some(_) => {}
        }
        let command_over = command_kill_at.is_none();
        let notify = notify_at.take_if(|at| command_over || step.now >= *at).is_some();
        if notify {
            // This moves the deadline only if PID 1 itself was suspended.
            *until = (*until).max(step.now + self.setup.jobs_grace + stop.budget.jobs_margin);
        }
        let (is_last_moment, is_hurried) = (step.now >= *until, stop.is_hurried);
        if notify {
            self.notify_jobs();
        }
        let step = &mut self.cluster.step;
        if !step.is_running(Child::JobsQuiesce) {
            if command_over {
                self.enter_units();
            }
        } else if is_last_moment {
            // After a second stop signal, the message about that signal already gives the reason.
            if !is_hurried {
                step.report(Notice::JobsNotAccountedAtStop);
            }
            step.kill_task(Child::JobsQuiesce);
            self.enter_units();
        }
    }

    fn enter_units(&mut self) {
        let Phase::Stop(stop) = &self.phase else { return };
        let all_at = stop.until.saturating_sub(stop.budget.sigterm_to_sigkill);
        self.enter_stage(Stage::Units { all_at });
    }

    /// Notifies jobs of the stop, if the cluster is up. In a container with slurmctld but without a node, the helper only records the next job ID.
    fn notify_jobs(&mut self) {
        let Cluster { units, node, step, job_care, .. } = &mut self.cluster;
        let required_daemon = match job_care {
            _ if units.iter().any(|unit| unit.is(DaemonName::Slurmctld)) => Some(DaemonName::Slurmctld),
            JobCare::Cluster | JobCare::Node => Some(DaemonName::Munged),
            JobCare::OtherContainers => None,
        };
        if node.report.is_some() && required_daemon.is_some_and(|daemon| units.has_ready(daemon)) {
            step.start_task(Child::JobsQuiesce);
        }
    }

    /// Handles the end of the helper that notifies the jobs, whether it succeeded or not.
    pub(super) fn jobs_quiesce_exited(&mut self, exit: Exit) {
        let Phase::Stop(stop) = &mut self.phase else { return };
        stop.jobs_left = matches!(exit, Exit::Code(exit_code::JOBS_LEFT) | Exit::Signal(_));
        // If the child was too late, its kill was already reported.
        if matches!(stop.stage, Stage::Work { .. }) && !matches!(exit, Exit::Code(0 | exit_code::JOBS_LEFT)) {
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

/// Stops all units at once, with SIGKILL if `kill`. Returns whether no unit's process is left.
fn stop_at_once(units: &mut Units, step: &mut Step, kill: bool) -> bool {
    for unit in units.iter_mut() {
        if unit.is_running() {
            unit.stop(RestartIntent::NoRestart, step);
        }
        if kill {
            unit.kill_by(step.now);
        }
        if unit.is_stopping() {
            unit.advance(step);
        }
    }
    !units.iter().any(Unit::is_alive)
}
