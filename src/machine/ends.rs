//! Handles the end of each kind of child process.

use model::daemons::{DaemonName, RestartPolicy};
use model::exit_code;
use model::supervise::OnGiveUp;

use super::cluster::Cluster;
use super::unit::end::DeathOutcome;
use super::unit::{RestartIntent, Unit};
use super::{Child, Cmd, Exit, ExternalCause, Machine, Notice, Phase};
use crate::UnitId;

impl Machine {
    pub(super) fn exited(&mut self, child: Child, exit: Exit) {
        self.cluster.step.task_ended(child);
        match child {
            Child::Unit(id) => {
                let shortage = if let Exit::NotStarted(failure) = &exit { failure.shortage } else { None };
                self.unit_exited(id, exit, shortage);
            }
            Child::Cmd => self.cmd_exited(exit),
            // The only helper whose end matters during a stop.
            Child::JobsQuiesce => self.jobs_quiesce_exited(exit),
            _ if self.is_stopping() => {}
            Child::Hook(index) => self.hook_exited(index, exit),
            Child::Prepare => self.prepare_exited(&exit),
            Child::FreePort(id) => self.free_port_exited(id, &exit),
            Child::Environments => self.environments.exited(exit, &mut self.cluster.step),
            Child::Associations | Child::TestJob => self.helper_exited(child, exit),
            Child::Probe(id) => {
                let ready = self.cluster.units[id].probe_ended(&exit, self.cluster.step.now);
                self.handle_readiness(id, ready);
            }
            Child::Liveness => self.liveness_exited(),
            Child::OomScore if exit == Exit::Code(exit_code::MEMORY_FULL) => {
                self.fail(exit_code::MEMORY_FULL, Notice::MemoryFull);
            }
            // The output of `Explain` was read before its death. The next liveness round restarts `OomScore`, `JobsFollow` and
            // `JobsReached`.
            Child::Explain(_) | Child::OomScore | Child::JobsFollow | Child::JobsReached | Child::Reopen => {}
            // This has no effect if the query's answer was already handled.
            Child::NodeCheck => self.handle_node_report(None),
            Child::NodeResume => self.cluster.node.request_query(&self.cluster.step),
            Child::JobsRecover | Child::JobsAccount | Child::JobsReclaim | Child::JobsReclaimDeadSteps => {
                self.cluster.accounting_ended(child, exit);
            }
            Child::JobsWait => self.jobs_wait_exited(exit),
            Child::Reload | Child::Reconfigure | Child::Restore => self.reload.exited(child, &exit, &mut self.cluster),
        }
    }

    pub(super) fn unit_exited(&mut self, id: UnitId, exit: Exit, shortage: Option<ExternalCause>) {
        let is_stopping = self.is_stopping();
        let Cluster { units, jobs, step, .. } = &mut self.cluster;
        step.kill_task(Child::Probe(id));
        if units[id].is(DaemonName::Slurmctld) {
            jobs.launch_hold.release(units, step);
        }
        let (name, run) = (units[id].name(), units[id].record_end(exit.clone(), step.now));
        let intent = run.intent;
        if is_stopping {
            let may_end = units[id].spec.restart != RestartPolicy::Always && exit == Exit::Code(0);
            units[id].finish();
            return step.report(Notice::UnitStopped { name, exit, expected: intent.is_some() || may_end });
        }
        let is_planned = matches!(intent, Some(RestartIntent::Requested | RestartIntent::Unresponsive));
        if self.reload.unit_exited(id, intent, &mut self.cluster) || is_planned {
            let Cluster { units, step, .. } = &mut self.cluster;
            units[id].wait();
            return step.report(Notice::UnitStopped { name, exit, expected: intent.is_some() });
        }
        let Cluster { units, policy, step, .. } = &mut self.cluster;
        match units[id].handle_death(run, exit.clone(), shortage, policy, step) {
            DeathOutcome::GivenUp => self.give_up(id, exit),
            DeathOutcome::Restarts if shortage.is_none() => self.explain_death(id),
            DeathOutcome::Restarts | DeathOutcome::Finished => {}
        }
    }

    fn free_port_exited(&mut self, id: UnitId, exit: &Exit) {
        let Cluster { units, policy, step, .. } = &mut self.cluster;
        if let Some(last) = units[id].free_port_exited(exit, policy, step) {
            self.give_up(id, last);
        }
    }

    fn give_up(&mut self, id: UnitId, last: Exit) {
        let Cluster { units, policy, step, .. } = &mut self.cluster;
        let essential = units.essential_exit_code(&units[id]).filter(|_| policy.on_give_up == OnGiveUp::Exit);
        let why = Notice::GaveUp {
            name: units[id].name(),
            failures: policy.give_up_after,
            within: policy.give_up_window,
            last,
            hold: essential.is_none(),
        };
        match essential {
            Some(code) => self.fail(code, why),
            None => step.report(why),
        }
    }

    fn liveness_exited(&mut self) {
        let is_checked_phase = matches!(self.phase, Phase::Boot { .. } | Phase::Serve);
        // Only Slurm's daemons are exempt during a reload. A hung munged must be restarted, because they cannot work without it.
        let is_slurm_exempt = self.reload.is_applying();
        let is_exempt = |unit: &Unit| !is_checked_phase || is_slurm_exempt && unit.reads_slurms_files();
        self.liveness.round_ended(&mut self.cluster, is_exempt);
    }

    fn cmd_exited(&mut self, exit: Exit) {
        self.cmd = Cmd::Ended;
        let step = &mut self.cluster.step;
        if let Exit::NotStarted(failure) = &exit {
            step.report(Notice::CmdNotStarted { failure: failure.clone() });
        }
        match &mut self.phase {
            Phase::Stop(stop) => stop.cmd_code(exit.code()),
            Phase::Serve if self.setup.wait_jobs && !matches!(exit, Exit::NotStarted(_)) => {
                self.cmd = Cmd::Awaiting(exit.code());
                step.report(Notice::WaitingForJobs);
                step.start_task(Child::JobsWait);
            }
            _ => self.begin_stop(exit.code(), None),
        }
    }

    /// Stops the container: no job that could still run is left, or waiting for the jobs failed.
    fn jobs_wait_exited(&mut self, exit: Exit) {
        let Cmd::Awaiting(code) = self.cmd else { return };
        if exit != Exit::Code(0) {
            self.cluster.step.report(Notice::JobsNotAwaited { exit });
        }
        self.cmd = Cmd::Ended;
        self.begin_stop(code, None);
    }
}
