//! Tracks the node's state by asking the controller.

use std::time::Duration;

use model::prepared::Prepared;

use super::step::Step;
use super::{Child, Moment, Notice};
use crate::node_report::{NodeReport, NodeVerdict};

/// The first pause between two questions about the node's state.
const ASK: Duration = Duration::from_millis(4);
/// The longest pause while the container starts.
const ASK_MAX: Duration = Duration::from_millis(250);
/// The longest pause once the node is overdue, or the container serves.
const ASK_LATE: Duration = Duration::from_secs(5);
/// How long one question may take: longer than Slurm's own timeout of 10 s.
const ASK_DEADLINE: Duration = Duration::from_secs(15);

/// The node as the controller reports it.
#[derive(Debug, Default)]
pub(super) struct Node {
    state: State,
    /// The last known state of the node.
    pub(super) report: Option<NodeReport>,
    /// Whether a drain was already taken back.
    resumed: bool,
    /// Whether the node has been usable since the container's start.
    has_served: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum State {
    /// The daemons that could answer are not ready.
    #[default]
    Unwatched,
    /// Ask again at this moment; the pause grows.
    AskAt { at: Moment, pause: Duration },
    /// A query is running, with this deadline.
    Asking { pause: Duration, until: Moment },
    /// A drain is being taken back.
    Resuming { until: Moment },
    /// The state is known; no further queries.
    Known,
}

impl Node {
    pub(super) fn next_wake(&self) -> Option<Moment> {
        match self.state {
            State::AskAt { at, .. } => Some(at),
            State::Asking { until, .. } | State::Resuming { until } => Some(until),
            State::Unwatched | State::Known => None,
        }
    }

    /// Whether the node is usable, or was drained by an administrator.
    pub(super) fn is_known(&self) -> bool {
        self.state == State::Known
    }

    /// Whether the state is being determined.
    pub(super) fn is_asked(&self) -> bool {
        !matches!(self.state, State::Unwatched | State::Known)
    }

    pub(super) fn stop(&mut self) {
        self.state = State::Unwatched;
    }

    /// Resets the state, because the daemons restart.
    pub(super) fn forget(&mut self, step: &mut Step) {
        self.stop();
        self.resumed = false;
        step.kill_task(Child::NodeCheck);
        step.kill_task(Child::NodeResume);
    }

    /// A new slurmctld may have a stale state from before a resume: changes are saved with a delay of five seconds.
    pub(super) fn controller_came_up(&mut self) {
        self.resumed = false;
    }

    /// Asks as soon as possible, unless a question is already under way.
    pub(super) fn ask(&mut self, step: &Step) {
        let under_way = match self.state {
            State::Asking { .. } => step.runs(Child::NodeCheck),
            State::Resuming { .. } => step.runs(Child::NodeResume),
            State::Unwatched | State::AskAt { .. } | State::Known => false,
        };
        if !under_way {
            self.state = State::AskAt { at: step.now, pause: ASK };
        }
    }

    pub(super) fn advance(&mut self, step: &mut Step) {
        let next = step.now + ASK_DEADLINE;
        match &mut self.state {
            State::AskAt { at, pause } if step.now >= *at => {
                self.state = State::Asking { pause: *pause, until: next };
                step.start_task(Child::NodeCheck);
            }
            State::Asking { until, .. } if step.now >= *until => {
                *until = next;
                step.kill_task(Child::NodeCheck);
            }
            State::Resuming { until } if step.now >= *until => {
                *until = next;
                step.kill_task(Child::NodeResume);
            }
            _ => {}
        }
    }

    /// Handles a report, or `None` if the query failed. `late`: the start no longer waits for the node. Returns whether the state is
    /// now known.
    pub(super) fn take_report(
        &mut self,
        report: Option<NodeReport>,
        prepared: Option<&Prepared>,
        late: bool,
        step: &mut Step,
    ) -> bool {
        let State::Asking { pause, .. } = self.state else { return false };
        let own_epilog = prepared.is_some_and(|prepared| prepared.own_epilog) && !self.resumed;
        let verdict = match &report {
            Some(report) if own_epilog && report.blames_the_epilog() => NodeVerdict::Repaired,
            // The agent resumes the nodes that it drained, once the node is ready.
            Some(report) if self.has_served && report.is_the_agents_drain() => NodeVerdict::Drained,
            report => report.as_ref().map_or(NodeVerdict::NotYet, NodeReport::verdict),
        };
        let changed = self.report != report;
        self.report = report;
        let reason = || self.report.as_ref().map(|report| report.reason.clone()).unwrap_or_default();
        match verdict {
            NodeVerdict::Repaired if !self.resumed => {
                step.report(Notice::Resuming { reason: reason() });
                // Only once: if the drain comes back, its cause still exists.
                self.resumed = true;
                self.state = State::Resuming { until: step.now + ASK_DEADLINE };
                step.start_task(Child::NodeResume);
            }
            NodeVerdict::Usable => {
                self.has_served = true;
                self.state = State::Known;
            }
            NodeVerdict::Drained => {
                let is_the_agents = self.report.as_ref().is_some_and(NodeReport::is_the_agents_drain);
                if changed && !is_the_agents {
                    let node = prepared.and_then(Prepared::name_of_node).unwrap_or("localhost").to_owned();
                    step.report(Notice::DrainedByAdministrator { node, reason: reason() });
                }
                self.state = State::Known;
            }
            NodeVerdict::NotYet | NodeVerdict::Repaired => {
                // Also in service the first questions are close together: a restarted slurmctld learns of the node within seconds.
                let longest = if late { ASK_LATE } else { ASK_MAX };
                self.state = State::AskAt { at: step.now + pause, pause: (pause * 2).min(longest) };
            }
        }
        self.is_known()
    }
}
