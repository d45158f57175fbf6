//! From the first hook to the moment the cluster can be used.

use std::time::Duration;

use crate::config::{DaemonName, OnGiveUp};
use crate::exit_code;
use crate::inventory::{Finding, Severity};
use crate::report::PrepareEvent;

use super::super::daemon::Gate;
use super::super::node::{NodeReport, NodeVerdict};
use super::{Child, Cmd, Effect, Exit, Machine, Moment, Node, Notice, Phase, SLOW};

/// The first pause between two questions for the node's state.
const ASK: Duration = Duration::from_millis(4);
/// The longest pause while the container starts.
const ASK_MAX: Duration = Duration::from_millis(250);
/// The pause once the node is overdue.
const ASK_LATE: Duration = Duration::from_secs(5);
/// How long one question may take: longer than Slurm's own time-out of 10 s.
const ASK_DEADLINE: Duration = Duration::from_secs(15);

impl Machine {
    /// Whether this Slurm's daemons survive a reconfiguration that fails, by handing over to a new process.
    pub fn hands_over(&self) -> bool {
        self.prepared.as_ref().is_some_and(|prepared| prepared.hands_over)
    }

    pub(super) fn advance_boot(&mut self, now: Moment, out: &mut Vec<Effect>) {
        match &mut self.phase {
            Phase::New => self.next_hook(now, 0, out),
            Phase::Hook { index, until } if now >= *until => {
                let index = *index;
                let limit = self.setup.hooks.get(index).copied().unwrap_or_default();
                let why = Notice::HookTooSlow { index, limit };
                out.push(Effect::Say(why.clone()));
                self.begin_stop(now, exit_code::HOOK, Some(why), out);
            }
            Phase::Prepare { until, .. } if now >= *until => {
                let why = Notice::PrepareTooSlow { limit: self.setup.supervise.prepare_timeout };
                out.push(Effect::Say(why.clone()));
                self.begin_stop(now, exit_code::PREPARE, Some(why), out);
            }
            Phase::Prepare { since, told, .. } if !*told && now >= *since + SLOW => {
                *told = true;
                out.push(Effect::Say(Notice::PrepareSlow));
            }
            Phase::Boot { until, told } if !*told && now >= *until => {
                *told = true;
                let why = Notice::NotReady {
                    after: self.setup.supervise.ready_timeout,
                    node: self.report.clone(),
                    waiting_for: self.waiting_for(),
                };
                out.push(Effect::Say(why.clone()));
                // A command was promised a cluster; without one it must fail. A server stays and goes on trying.
                if self.cmd == Cmd::Waiting {
                    self.begin_stop(now, exit_code::NOT_READY, Some(why), out);
                }
            }
            _ => {}
        }
    }

    fn next_hook(&mut self, now: Moment, index: usize, out: &mut Vec<Effect>) {
        if self.setup.only_cmd {
            self.phase = Phase::Serve;
            return self.start_cmd(out);
        }
        if let Some(limit) = self.setup.hooks.get(index) {
            self.phase = Phase::Hook { index, until: now + *limit };
            return self.spawn_task(Child::Hook(index), out);
        }
        self.open.insert(Gate::Hooks);
        self.phase = Phase::Prepare { since: now, until: now + self.setup.supervise.prepare_timeout, told: false };
        self.spawn_task(Child::Prepare, out);
    }

    pub(super) fn hook_exited(&mut self, now: Moment, index: usize, exit: Exit, out: &mut Vec<Effect>) {
        if !matches!(self.phase, Phase::Hook { index: current, .. } if current == index) {
            return;
        }
        if exit == Exit::Code(0) {
            return self.next_hook(now, index + 1, out);
        }
        let why = Notice::HookFailed { index, exit };
        out.push(Effect::Say(why.clone()));
        self.begin_stop(now, exit_code::HOOK, Some(why), out);
    }

    pub(super) fn prepare_said(&mut self, now: Moment, event: PrepareEvent, out: &mut Vec<Effect>) {
        if self.reload_said(now, &event, out) {
            return;
        }
        if let (Phase::Boot { .. }, PrepareEvent::Failed { exit_code, finding }) = (&self.phase, &event) {
            return self.explained(now, *exit_code, finding, out);
        }
        if !matches!(self.phase, Phase::Prepare { .. }) {
            return;
        }
        match event {
            PrepareEvent::MungeKeyReady => {
                self.open.insert(Gate::MungeKey);
            }
            PrepareEvent::Detected => self.timeline.is_detected = true,
            PrepareEvent::Done(prepared) => {
                self.open.extend([Gate::MungeKey, Gate::Files]);
                out.push(Effect::Say(Notice::Prepared(Box::new(prepared.clone()))));
                self.prepared = Some(prepared);
                self.phase = Phase::Boot { until: now + self.setup.supervise.ready_timeout, told: false };
            }
            PrepareEvent::Failed { exit_code, finding } => {
                let why = Notice::Refused(finding);
                out.push(Effect::Say(why.clone()));
                self.begin_stop(now, exit_code, Some(why), out);
            }
        }
    }

    pub(super) fn prepare_exited(&mut self, now: Moment, exit: Exit, out: &mut Vec<Effect>) {
        // Its last word was read before its death: still here, it died without one.
        if matches!(self.phase, Phase::Prepare { .. }) {
            let why = Notice::Refused(Finding {
                severity: Severity::Error,
                what: format!("the preparation {} before it had written Slurm's files", notice_exit(&exit)),
                cause: "its own words are in the lines above".to_owned(),
                repair: "run `slurminit render --explain` in the container to see where it fails".to_owned(),
            });
            out.push(Effect::Say(why.clone()));
            self.begin_stop(now, exit_code::PREPARE, Some(why), out);
        }
    }

    /// A unit died while the cluster starts. What slurmctld or slurmd cannot read it cannot read at the next start either:
    /// so after a first death a child looks whether its words are about the configuration.
    pub(super) fn explain_death(&mut self, unit: usize, out: &mut Vec<Effect>) {
        let reads_files = self.slurm_units().any(|slurm| slurm == unit);
        let is_first = self.units.get(unit).is_some_and(|unit| unit.starts == 1);
        if matches!(self.phase, Phase::Boot { .. }) && reads_files && is_first {
            self.spawn_task(Child::Explain(unit), out);
        }
    }

    /// The configuration is what the unit died of.
    fn explained(&mut self, now: Moment, exit_code: u8, finding: &Finding, out: &mut Vec<Effect>) {
        let why = Notice::Refused(finding.clone());
        out.push(Effect::Say(why.clone()));
        if self.setup.supervise.on_give_up == OnGiveUp::Exit {
            self.begin_stop(now, exit_code, Some(why), out);
        }
    }

    /// Asks for the node's state as soon as possible; a question that is under way serves as well.
    pub(super) fn ask_node(&mut self, now: Moment) {
        let under_way = match self.node {
            Node::Asking { .. } => self.tasks.contains(&Child::NodeCheck),
            Node::Resuming { .. } => self.tasks.contains(&Child::NodeResume),
            Node::Unwatched | Node::AskAt { .. } | Node::Known => false,
        };
        if !self.is_stopping() && !under_way {
            self.node = Node::AskAt { at: now, pause: ASK };
        }
    }

    pub(super) fn advance_node(&mut self, now: Moment, out: &mut Vec<Effect>) {
        match self.node.clone() {
            Node::AskAt { at, pause } if now >= at => {
                self.node = Node::Asking { pause, until: now + ASK_DEADLINE };
                self.spawn_task(Child::NodeCheck, out);
            }
            Node::Asking { until, pause } if now >= until => {
                out.push(Effect::Kill(Child::NodeCheck));
                self.node = Node::Asking { pause, until: now + ASK_DEADLINE };
            }
            Node::Resuming { until } if now >= until => {
                out.push(Effect::Kill(Child::NodeResume));
                self.node = Node::Resuming { until: now + ASK_DEADLINE };
            }
            _ => {}
        }
    }

    pub(super) fn node_said(&mut self, now: Moment, report: Option<NodeReport>, out: &mut Vec<Effect>) {
        let Node::Asking { pause, .. } = self.node else { return };
        let own_epilog = !self.resumed && self.prepared.as_ref().is_some_and(|prepared| prepared.own_epilog);
        let verdict = match report.as_ref() {
            Some(report) if own_epilog && report.blames_the_epilog() => NodeVerdict::Repaired,
            report => report.map_or(NodeVerdict::NotYet, NodeReport::verdict),
        };
        let changed = self.report != report;
        self.report = report;
        match verdict {
            NodeVerdict::Repaired if !self.resumed => {
                // Once: a drain that comes back has a cause that is still there.
                self.resumed = true;
                out.push(Effect::Say(Notice::Resuming { reason: self.reason() }));
                self.node = Node::Resuming { until: now + ASK_DEADLINE };
                self.spawn_task(Child::NodeResume, out);
            }
            NodeVerdict::Usable => self.node_is_known(out),
            NodeVerdict::Drained => {
                if changed {
                    let node = self.node_name().unwrap_or("localhost").to_owned();
                    out.push(Effect::Say(Notice::DrainedByAdministrator { node, reason: self.reason() }));
                }
                self.node_is_known(out);
            }
            NodeVerdict::NotYet | NodeVerdict::Repaired => {
                let late =
                    matches!(self.phase, Phase::Boot { told: true, .. } | Phase::Serve) && !self.reload.awaits_node();
                let pause = if late { ASK_LATE } else { pause };
                self.node = Node::AskAt { at: now + pause, pause: (pause * 2).min(ASK_MAX.max(pause)) };
            }
        }
    }

    fn node_is_known(&mut self, out: &mut Vec<Effect>) {
        self.node = Node::Known;
        self.daemons_answered();
        if matches!(self.phase, Phase::Boot { .. }) {
            self.phase = Phase::Serve;
            out.push(Effect::Say(Notice::Ready {
                gres: self.prepared.as_ref().map(|p| p.gres.clone()).unwrap_or_default(),
            }));
            self.start_cmd(out);
        }
    }

    fn start_cmd(&mut self, out: &mut Vec<Effect>) {
        if self.cmd == Cmd::Waiting {
            self.cmd = Cmd::Running;
            out.push(Effect::Spawn(Child::Cmd));
        }
    }

    fn reason(&self) -> String {
        self.report.as_ref().map(|report| report.reason.clone()).unwrap_or_default()
    }

    /// The unit that keeps the cluster from being ready, else the node.
    pub(super) fn waiting_for(&self) -> String {
        let slurm = self.setup.units.iter().zip(&self.units);
        let mut not_ready = slurm.filter(|(spec, unit)| spec.daemon.is_some() && !unit.is_ready());
        not_ready.next().map_or_else(
            || "the node".to_owned(),
            |(spec, _)| spec.daemon.map_or_else(String::new, |name: DaemonName| name.to_string()),
        )
    }
}

fn notice_exit(exit: &Exit) -> String {
    super::notice::how(exit)
}
