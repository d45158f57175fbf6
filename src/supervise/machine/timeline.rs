//! What the start spent its time on.

use serde::{Deserialize, Serialize};

use super::super::daemon::Gate;
use super::unit::State;
use super::{Child, Cmd, Machine, Moment, Node, Phase};

/// One part of the start, from its beginning to its end, in microseconds since slurminit started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// What it is.
    pub part: Part,
    /// When it began.
    pub from_us: u64,
    /// When it was done; `None` if it is not, or never was.
    pub until_us: Option<u64>,
}

/// A part of the start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// The pre-start hook of this number, from 1.
    Hook(usize),
    /// The preparation as a whole.
    Prepare,
    /// Its first part: directories, and the munge key.
    Key,
    /// Its second: the driver and the kernel are asked.
    Detection,
    /// Its third: plan, text, files.
    Files,
    /// A daemon or service, from its start until it is ready.
    Unit(String),
    /// The jobs of a former start are accounted for.
    Jobs,
    /// The controller is asked until the node can be used.
    Node,
    /// The moment the command starts.
    Command,
}

/// The moments at which something began and was done, each the first of its kind.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    pub(super) is_detected: bool,
    moments: Vec<(Mark, Moment, Option<Moment>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Hook(usize),
    Prepare,
    Key,
    Detection,
    Files,
    Unit(usize),
    Jobs,
    Node,
    Command,
}

impl Timeline {
    /// `goes_on` as long as it is not done.
    fn note(&mut self, now: Moment, mark: Mark, goes_on: bool) {
        match self.moments.iter_mut().find(|(other, ..)| *other == mark) {
            Some((_, _, until @ None)) if !goes_on => *until = Some(now),
            Some(_) => {}
            None if goes_on => self.moments.push((mark, now, None)),
            None => {}
        }
    }

    /// Something that takes no time that could be seen.
    fn note_done(&mut self, now: Moment, mark: Mark) {
        self.note(now, mark, true);
        self.note(now, mark, false);
    }
}

impl Machine {
    /// Looks at the state after a step, for what has begun and what is done.
    pub(super) fn note_moments(&mut self, now: Moment) {
        if self.is_stopping() {
            return;
        }
        let line = &mut self.timeline;
        let hook = match self.phase {
            Phase::Hook { index, .. } => Some(index),
            _ => None,
        };
        for index in 0..self.setup.hooks.len() {
            line.note(now, Mark::Hook(index), hook == Some(index));
        }
        let prepares = matches!(self.phase, Phase::Prepare { .. });
        let has_key = self.open.contains(&Gate::MungeKey);
        line.note(now, Mark::Prepare, prepares);
        line.note(now, Mark::Key, prepares && !has_key);
        line.note(now, Mark::Detection, prepares && has_key && !line.is_detected);
        line.note(now, Mark::Files, prepares && line.is_detected);
        for (index, unit) in self.units.iter().enumerate() {
            match unit.state {
                State::Starting { .. } => line.note(now, Mark::Unit(index), true),
                State::Ready { .. } => line.note_done(now, Mark::Unit(index)),
                _ => {}
            }
        }
        line.note(now, Mark::Jobs, self.tasks.contains(&Child::JobsRecover));
        line.note(now, Mark::Node, !matches!(self.node, Node::Unwatched | Node::Known));
        if self.cmd == Cmd::Running {
            line.note_done(now, Mark::Command);
        }
    }

    /// The parts of the start in the order in which they began.
    pub(super) fn timeline(&self) -> Vec<Span> {
        let us = |moment: Moment| u64::try_from(moment.as_micros()).unwrap_or(u64::MAX);
        let span = |(mark, from, until): &(Mark, Moment, Option<Moment>)| Span {
            part: match *mark {
                Mark::Hook(index) => Part::Hook(index + 1),
                Mark::Prepare => Part::Prepare,
                Mark::Key => Part::Key,
                Mark::Detection => Part::Detection,
                Mark::Files => Part::Files,
                Mark::Unit(unit) => Part::Unit(self.name(unit)),
                Mark::Jobs => Part::Jobs,
                Mark::Node => Part::Node,
                Mark::Command => Part::Command,
            },
            from_us: us(*from),
            until_us: until.map(us),
        };
        self.timeline.moments.iter().map(span).collect()
    }
}
