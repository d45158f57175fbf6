//! Tracks the node's state by querying the controller.

use std::time::Duration;

use model::prepared::Prepared;

use super::step::Step;
use super::{Child, Moment, Notice};
use crate::node_report::{NodeReport, NodeVerdict, TEST_JOB_REASON};

/// The first pause between two queries of the node's state.
const FIRST_QUERY_PAUSE: Duration = Duration::from_millis(4);
/// The longest pause while the container starts.
const MAX_QUERY_PAUSE: Duration = Duration::from_millis(250);
/// The longest pause once the node is overdue, or the start is complete.
const MAX_LATE_QUERY_PAUSE: Duration = Duration::from_secs(5);
/// How long one query may take: longer than Slurm's own timeout of 10 s.
const QUERY_TIMEOUT: Duration = Duration::from_secs(15);

/// The node as the controller reports it.
#[derive(Debug, Default)]
pub(super) struct Node {
    state: State,
    /// The answer to the last query; `None` if there was none, or if the query failed.
    pub(super) report: Option<NodeReport>,
    /// Whether the node was resumed with the present files and the present slurmctld. It is then not resumed again: if the drain returns, its cause
    /// still exists.
    is_resumed: bool,
    /// Whether the node has been usable since the container's start.
    has_been_usable: bool,
    /// Whether the test job failed with the present files, so that `slurminit test-job` drained the node.
    has_failed_test: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum State {
    /// slurmctld or slurmd is not ready.
    #[default]
    Unwatched,
    /// The next query starts at this moment; the pause grows.
    QueryAt { at: Moment, pause: Duration },
    /// A query is running, with this deadline.
    Querying { pause: Duration, until: Moment },
    /// The node is being resumed.
    Resuming { until: Moment },
    /// The state is known; no further queries.
    Known,
}

impl Node {
    pub(super) fn next_wake(&self) -> Option<Moment> {
        match self.state {
            State::QueryAt { at, .. } => Some(at),
            State::Querying { until, .. } | State::Resuming { until } => Some(until),
            State::Unwatched | State::Known => None,
        }
    }

    /// Whether the node is usable, or remains drained: by an administrator, by the agent, or for another cause that this start has not repaired.
    pub(super) fn is_known(&self) -> bool {
        self.state == State::Known
    }

    /// Whether the state is being determined.
    pub(super) fn is_queried(&self) -> bool {
        !matches!(self.state, State::Unwatched | State::Known)
    }

    /// Whether jobs can run according to the last report.
    pub(super) fn is_usable(&self) -> bool {
        self.report.as_ref().is_some_and(|report| report.verdict() == NodeVerdict::Usable)
    }

    /// Whether the node is drained because the test job failed with the present files.
    pub(super) fn is_drained_by_test(&self) -> bool {
        self.has_failed_test && self.report.as_ref().is_some_and(|report| report.has_drain_reason(TEST_JOB_REASON))
    }

    /// Records that the test job failed. The node remains drained until an administrator resumes it, or the files change.
    pub(super) fn fail_test(&mut self, step: &Step) {
        (self.has_failed_test, self.is_resumed) = (true, false);
        self.request_query(step);
    }

    /// Forgets a failed test job, because the files have changed.
    pub(super) fn forget_failed_test(&mut self, step: &Step) {
        if std::mem::take(&mut self.has_failed_test) {
            self.request_query(step);
        }
    }

    pub(super) fn stop(&mut self) {
        self.state = State::Unwatched;
        self.has_failed_test = false;
    }

    /// Resets the state, because the daemons restart.
    pub(super) fn forget(&mut self, step: &mut Step) {
        self.stop();
        self.is_resumed = false;
        step.kill_task(Child::NodeCheck);
        step.kill_task(Child::NodeResume);
    }

    /// Allows another resume. A new slurmctld may have a stale state from before the last resume, because changes are
    /// saved with a delay of five seconds.
    pub(super) fn controller_came_up(&mut self) {
        self.is_resumed = false;
    }

    /// Queries as soon as possible, unless a query or a resume is already running.
    pub(super) fn request_query(&mut self, step: &Step) {
        let is_running = match self.state {
            State::Querying { .. } => step.is_running(Child::NodeCheck),
            State::Resuming { .. } => step.is_running(Child::NodeResume),
            State::Unwatched | State::QueryAt { .. } | State::Known => false,
        };
        if !is_running {
            self.state = State::QueryAt { at: step.now, pause: FIRST_QUERY_PAUSE };
        }
    }

    pub(super) fn advance(&mut self, step: &mut Step) {
        let next = step.now + QUERY_TIMEOUT;
        match &mut self.state {
            State::QueryAt { at, pause } if step.now >= *at => {
                self.state = State::Querying { pause: *pause, until: next };
                step.start_task(Child::NodeCheck);
            }
            State::Querying { until, .. } if step.now >= *until => {
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

    /// Handles a report, or `None` if the query failed. `late`: the start no longer waits for the node. Returns whether
    /// this report made the state known.
    pub(super) fn take_report(
        &mut self,
        mut report: Option<NodeReport>,
        prepared: Option<&Prepared>,
        late: bool,
        step: &mut Step,
    ) -> bool {
        let State::Querying { pause, .. } = self.state else { return false };
        // A slurmctld that runs as root sets its reasons as root.
        if let Some(report) = report.as_mut().filter(|_| prepared.is_some_and(Prepared::has_slurmctld_of_root)) {
            report.is_roots = false;
        }
        let own_epilog = prepared.is_some_and(|prepared| prepared.own_epilog) && !self.is_resumed;
        let verdict = match &report {
            Some(report) if own_epilog && report.is_drained_by_epilog() => NodeVerdict::Repaired,
            // Once the node has been usable, the agent itself resumes the node that it drained.
            Some(report) if self.has_been_usable && report.is_drained_by_agent() => NodeVerdict::Drained,
            report => report.as_ref().map_or(NodeVerdict::NotYet, NodeReport::verdict),
        };
        let changed = self.report != report;
        self.report = report;
        let verdict = if self.is_drained_by_test() { NodeVerdict::NotYet } else { verdict };
        let reason = || self.report.as_ref().map(|report| report.reason.clone()).unwrap_or_default();
        match verdict {
            NodeVerdict::Repaired if !self.is_resumed => {
                step.report(Notice::Resuming { reason: reason() });
                self.is_resumed = true;
                self.state = State::Resuming { until: step.now + QUERY_TIMEOUT };
                step.start_task(Child::NodeResume);
            }
            NodeVerdict::Usable => {
                (self.has_been_usable, self.has_failed_test) = (true, false);
                self.state = State::Known;
            }
            NodeVerdict::Drained => {
                let is_drained_by_agent = self.report.as_ref().is_some_and(NodeReport::is_drained_by_agent);
                if changed && !is_drained_by_agent {
                    let node = prepared.and_then(Prepared::name_of_node).unwrap_or("localhost").to_owned();
                    step.report(Notice::DrainedByAdministrator { node, reason: reason() });
                }
                self.state = State::Known;
            }
            NodeVerdict::NotYet | NodeVerdict::Repaired => {
                // Even after the start, the first queries are close together: a restarted slurmctld receives the node's
                // registration within seconds.
                let max_pause = if late { MAX_LATE_QUERY_PAUSE } else { MAX_QUERY_PAUSE };
                self.state = State::QueryAt { at: step.now + pause, pause: (pause * 2).min(max_pause) };
            }
        }
        self.is_known()
    }
}
