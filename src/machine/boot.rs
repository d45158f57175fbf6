//! The phases from the first hook to a usable cluster.

use std::time::Duration;

use model::daemons::DaemonName;
use model::exit_code;
use model::inventory::{Finding, Kind};
use model::prepared::{PrepareEvent, Prepared};
use model::supervise::OnGiveUp;

use super::cluster::Cluster;
use super::finishing::Helper;
use super::unit::Unit;
use super::{Child, Cmd, Effect, Exit, Machine, Moment, Notice, Phase};
use crate::UnitId;
use crate::node_report::NodeReport;
use model::unit::Gate;
use model::unit::JobCare;

/// A preparation that takes this long is logged.
const SLOW: Duration = Duration::from_secs(1);

impl Phase {
    pub(super) fn next_wake(&self) -> Option<Moment> {
        match self {
            Self::New | Self::Serve | Self::End => None,
            Self::Hook { until, .. } => Some(*until),
            Self::Prepare { since, until, is_reported } => Some(if *is_reported { *until } else { *since + SLOW }),
            Self::Boot { helper: Some(helper), .. } => Some(helper.until),
            Self::Boot { until, is_reported, .. } => (!is_reported).then_some(*until),
            Self::Stop(stop) => stop.next_wake(),
        }
    }

    /// Whether the cluster is ready, or overdue.
    pub(super) fn is_overdue_or_serves(&self) -> bool {
        matches!(self, Self::Boot { is_reported: true, .. } | Self::Serve)
    }
}

impl Machine {
    pub(super) fn advance_boot(&mut self) {
        let now = self.cluster.step.now;
        match &mut self.phase {
            Phase::New => self.next_hook(0),
            Phase::Hook { index, until } if now >= *until => {
                let index = *index;
                let limit = self.setup.hooks.get(index).map(|hook| hook.timeout).unwrap_or_default();
                self.fail(exit_code::HOOK, Notice::HookTooSlow { index, limit });
            }
            Phase::Prepare { until, .. } if now >= *until => {
                let limit = self.cluster.policy.prepare_timeout();
                self.fail(exit_code::PREPARE, Notice::PrepareTooSlow { limit });
            }
            Phase::Prepare { since, is_reported, .. } if !*is_reported && now >= *since + SLOW => {
                *is_reported = true;
                self.cluster.step.report(Notice::PrepareSlow);
            }
            Phase::Boot { helper: Some(Helper { child, until }), .. } if now >= *until => {
                let child = *child;
                self.cluster.kill_helper(child);
                self.run_next_helper(Some(child));
            }
            Phase::Boot { until, is_reported: false, helper: None } if now >= *until => {
                self.report_not_ready(Notice::NotReady {
                    after: self.cluster.policy.ready_timeout,
                    node: self.cluster.node.report.clone(),
                    waiting_for: self.waiting_for(),
                });
            }
            _ => {}
        }
    }

    /// Reports once why the cluster is not ready.
    fn report_not_ready(&mut self, why: Notice) {
        match &mut self.phase {
            Phase::Boot { is_reported, .. } if !*is_reported => *is_reported = true,
            _ => return,
        }
        // A command requires a cluster, so the container fails without one. A container without a command keeps trying.
        match self.cmd {
            Cmd::Waiting => self.fail(exit_code::NOT_READY, why),
            _ => {
                self.cluster.gates.open(Gate::Served);
                self.cluster.step.report(why);
            }
        }
    }

    fn next_hook(&mut self, index: usize) {
        if !self.setup.has_cluster {
            self.phase = Phase::Serve;
            return self.start_cmd();
        }
        let step = &mut self.cluster.step;
        if let Some(hook) = self.setup.hooks.get(index) {
            self.phase = Phase::Hook { index, until: step.now + hook.timeout };
            return step.start_task(Child::Hook(index));
        }
        self.cluster.gates.open(Gate::Hooks);
        self.phase = Phase::Prepare {
            since: step.now,
            until: step.now + self.cluster.policy.prepare_timeout(),
            is_reported: false,
        };
        step.start_task(Child::Prepare);
    }

    pub(super) fn hook_exited(&mut self, index: usize, exit: Exit) {
        match self.phase {
            Phase::Hook { index: current, .. } if current == index => {}
            _ => return,
        }
        match exit {
            Exit::Code(0) => self.next_hook(index + 1),
            exit => self.fail(exit_code::HOOK, Notice::HookFailed { index, exit }),
        }
    }

    pub(super) fn handle_prepare_event(&mut self, event: PrepareEvent) {
        let Some(event) = self.reload.handle_message(event, &mut self.cluster) else { return };
        match (&self.phase, event) {
            (Phase::Boot { .. }, PrepareEvent::Failed { exit_code, finding }) => {
                self.handle_config_error(exit_code, finding);
            }
            (Phase::Prepare { .. }, PrepareEvent::MungeKeyReady) => self.cluster.gates.open(Gate::MungeKey),
            (Phase::Prepare { .. }, PrepareEvent::Detected) => self.timeline.is_detected = true,
            (Phase::Prepare { .. }, PrepareEvent::Done(prepared)) => self.boot(prepared),
            (Phase::Prepare { .. }, PrepareEvent::Failed { exit_code, finding }) => {
                self.fail(exit_code, Notice::Refused { finding });
            }
            _ => {}
        }
    }

    /// Lets the daemons start, now that Slurm's files are written.
    fn boot(&mut self, prepared: Prepared) {
        self.cluster.gates.open(Gate::MungeKey);
        self.cluster.gates.open(Gate::Files);
        if self.cluster.job_care != JobCare::Cluster {
            // Only a container with slurmctld and every slurmd of the cluster accounts for the jobs of a previous start.
            self.cluster.gates.open(Gate::Jobs);
        }
        self.cluster.step.report(Notice::Prepared { prepared: Box::new(prepared.clone()) });
        self.cluster.units.set_slurm_user(prepared.slurm_user.as_deref());
        self.cluster.prepared = Some(prepared);
        let until = self.cluster.step.now + self.cluster.policy.ready_timeout;
        self.phase = Phase::Boot { until, is_reported: false, helper: None };
    }

    pub(super) fn prepare_exited(&mut self, exit: &Exit) {
        // The preparation's messages were read before its death. If the phase has not changed, it died without a final message.
        if matches!(self.phase, Phase::Prepare { .. }) {
            let finding = Finding::error(
                Kind::Other,
                format!("the preparation returned no result: it {exit}"),
                "its output, if any, is above",
                "run `render --explain` in a new container (docker compose run --rm slurm render --explain)",
            );
            self.fail(exit_code::PREPARE, Notice::Refused { finding });
        }
    }

    /// Handles the death of a unit while the cluster starts. Files that slurmctld or slurmd cannot read now will be unreadable at the next start too.
    /// So after the first death, a child checks whether the unit's log lines report an error of the configuration.
    pub(super) fn explain_death(&mut self, id: UnitId) {
        let unit = &self.cluster.units[id];
        if matches!(self.phase, Phase::Boot { .. }) && unit.reads_slurms_files() && unit.starts() == 1 {
            self.cluster.step.start_task(Child::Explain(id));
        }
    }

    /// Reports that the configuration caused a unit's death, and stops the container unless `on_give_up` is `hold`.
    fn handle_config_error(&mut self, exit_code: u8, finding: Finding) {
        let why = Notice::Refused { finding };
        match self.cluster.policy.on_give_up {
            OnGiveUp::Exit => self.fail(exit_code, why),
            OnGiveUp::Hold => self.cluster.step.report(why),
        }
    }

    /// Handles the controller's report on the node; `None` if the query failed.
    pub(super) fn handle_node_report(&mut self, report: Option<NodeReport>) {
        let Cluster { node, prepared, step, units, .. } = &mut self.cluster;
        let late = self.phase.is_overdue_or_serves() && !self.reload.awaits_node();
        if !node.take_report(report, prepared.as_ref(), late, step) {
            if let Some(report) = node.report.clone().filter(|_| node.is_drained_by_test()) {
                self.report_not_ready(Notice::NoJobRuns { node: report });
            }
            return;
        }
        // The controller reports the node as usable or as drained only if munged, slurmctld and slurmd all work.
        units.iter_mut().filter(|unit| unit.spec.daemon.is_some()).for_each(Unit::record_usable_node);
        // The helpers start only after this report: by then slurmctld has registered its TRES with the database.
        if matches!(self.phase, Phase::Boot { helper: None, .. }) {
            self.run_next_helper(None);
        }
    }

    fn run_next_helper(&mut self, previous: Option<Child>) {
        let next = self.cluster.start_helper(previous, true);
        match &mut self.phase {
            Phase::Boot { helper, .. } if next.is_some() => *helper = next,
            _ => self.serve(),
        }
    }

    /// Handles the end of a helper that the start, a reload or both wait for.
    pub(super) fn helper_exited(&mut self, child: Child, exit: Exit) {
        let awaited = match &mut self.phase {
            Phase::Boot { helper, .. } => helper.take_if(|helper| helper.child == child),
            _ => None,
        };
        let is_awaited_by_reload = self.reload.awaits(child);
        if awaited.is_none() && !is_awaited_by_reload {
            return;
        }
        // If jobs cannot run, the next report on the node states the cause.
        let jobs_run = self.cluster.helper_ended(child, exit);
        if awaited.is_some() && jobs_run {
            self.run_next_helper(Some(child));
        }
        if is_awaited_by_reload {
            self.reload.helper_ended(child, jobs_run, &mut self.cluster);
        }
    }

    fn serve(&mut self) {
        let Cluster { prepared, step, job_care, gates, .. } = &mut self.cluster;
        gates.open(Gate::Served);
        self.phase = Phase::Serve;
        let gres = || prepared.as_ref().map(|prepared| prepared.gres.clone()).unwrap_or_default();
        step.report(Notice::Ready { gres: (*job_care != JobCare::OtherContainers).then(gres) });
        self.start_cmd();
    }

    fn start_cmd(&mut self) {
        if self.cmd == Cmd::Waiting {
            self.cmd = Cmd::Running;
            self.cluster.step.push(Effect::Spawn(Child::Cmd));
        }
    }

    /// The first daemon that is not ready; `the node` or `the controller` if all are.
    fn waiting_for(&self) -> String {
        let last = if self.setup.jobs == JobCare::OtherContainers { "the controller" } else { "the node" };
        let mut not_ready = self.cluster.units.iter().filter(|unit| !unit.is_ready());
        let daemon: Option<DaemonName> = not_ready.find_map(|unit| unit.spec.daemon);
        daemon.map_or_else(|| last.to_owned(), |name| name.to_string())
    }
}
