//! Records how long each part of the start took.

use serde::{Deserialize, Serialize};

use super::{Child, Cmd, Machine, Moment, Phase};
use model::unit::Gate;

/// One part of the start: its beginning and end, in microseconds since slurminit started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// The part.
    pub part: Part,
    /// The beginning of the span, in microseconds since slurminit started.
    pub from_us: u64,
    /// The end of the span, in microseconds since slurminit started; `None` while it lasts.
    pub until_us: Option<u64>,
}

/// A part of the start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// The pre-start hook with this number, counted from 1.
    Hook(usize),
    /// The preparation as a whole.
    Prepare,
    /// The first part of the preparation: directories and the munge key.
    Key,
    /// The second part: querying drivers and the kernel.
    Detection,
    /// The third part: planning, rendering, writing files.
    Files,
    /// A daemon or service, from its start until it is ready.
    Unit(String),
    /// Requeueing the jobs that were lost when the container's previous run ended.
    Jobs,
    /// Querying the controller until the node is usable or remains drained.
    Node,
    /// The test job.
    TestJob,
    /// The moment at which the command starts.
    Command,
}

/// The first beginning and end of each part.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    pub(super) is_detected: bool,
    pub(super) spans: Vec<Span>,
}

impl Timeline {
    /// Records the beginning of a part, and its end once `is_running` is false.
    fn note(&mut self, now: Moment, part: Part, is_running: bool) {
        let us = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
        match self.spans.iter_mut().find(|span| span.part == part) {
            Some(span) if !is_running && span.until_us.is_none() => span.until_us = Some(us),
            None if is_running => self.spans.push(Span { part, from_us: us, until_us: None }),
            _ => {}
        }
    }

    /// Records a part without a duration.
    fn note_done(&mut self, now: Moment, part: Part) {
        self.note(now, part.clone(), true);
        self.note(now, part, false);
    }
}

impl Machine {
    /// Called after each step: records the parts that have begun or ended.
    pub(super) fn record_parts(&mut self) {
        if self.is_stopping() {
            return;
        }
        let (timeline, cluster) = (&mut self.timeline, &self.cluster);
        let now = cluster.step.now;
        let hook = match self.phase {
            Phase::Hook { index, .. } => Some(index),
            _ => None,
        };
        for index in 0..self.setup.hooks.len() {
            timeline.note(now, Part::Hook(index + 1), hook == Some(index));
        }
        let is_preparing = matches!(self.phase, Phase::Prepare { .. });
        let has_key = cluster.gates.is_open(Gate::MungeKey);
        timeline.note(now, Part::Prepare, is_preparing);
        timeline.note(now, Part::Key, is_preparing && !has_key);
        timeline.note(now, Part::Detection, is_preparing && has_key && !timeline.is_detected);
        timeline.note(now, Part::Files, is_preparing && timeline.is_detected);
        for unit in cluster.units.iter() {
            if unit.is_starting() {
                timeline.note(now, Part::Unit(unit.name()), true);
            } else if unit.is_ready() {
                timeline.note_done(now, Part::Unit(unit.name()));
            }
        }
        timeline.note(now, Part::Jobs, cluster.step.is_running(Child::JobsRecover));
        timeline.note(now, Part::Node, cluster.node.is_queried());
        timeline.note(now, Part::TestJob, cluster.step.is_running(Child::TestJob));
        if self.cmd == Cmd::Running {
            timeline.note_done(now, Part::Command);
        }
    }
}
