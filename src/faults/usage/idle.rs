//! Jobs that hold GPUs and do not use them.
//!
//! A job is judged by the measurements over a whole window. Without samples the window does not grow, so an unresponsive driver or
//! controller, or a suspension of the job, never leads to a cancellation. A job cannot falsify the measurements. A part of a GPU (shards,
//! MPS) is idle only if the whole GPU is.
//!
//! A job on several nodes is idle if its GPUs on all of them are. Each node marks the job while the job's GPUs on that node are idle, and the
//! job's first node acts once all marks are fresh. The marks are a word of AdminComment, which users cannot write. A node without a fresh mark,
//! for example because its agent is down, prevents every action.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::JobRecord;

/// The beginning of the word in a job's AdminComment that contains the marks: `slurminit-idle:c1=1790000000,c2=1790000030`, with times in
/// seconds since 1970.
const MARK: &str = "slurminit-idle:";
/// The number of parts into which a window is divided.
const PARTS: u64 = 60;

/// The settings of the table `[gpu.idle]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IdlePolicy {
    /// The strongest action on an idle job.
    pub action: IdleAction,
    /// The length of the window over which use is measured; 0 disables the policy.
    #[serde(deserialize_with = "model::value::seconds")]
    pub after: Duration,
    /// The mean utilization, in percent, below which a GPU is idle.
    pub below: u8,
    /// The partitions whose jobs are judged; empty means all.
    pub partitions: Vec<String>,
    /// Users whose jobs are not judged.
    pub except_users: Vec<String>,
    /// QOS whose jobs are not judged.
    pub except_qos: Vec<String>,
}

impl Default for IdlePolicy {
    fn default() -> Self {
        Self {
            action: IdleAction::Off,
            after: Duration::from_secs(7200),
            below: 2,
            partitions: Vec::new(),
            except_users: Vec::new(),
            except_qos: Vec::new(),
        }
    }
}

/// The actions on an idle job, from none to the strongest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum IdleAction {
    /// No action.
    #[default]
    Off,
    /// The job is logged.
    Report,
    /// The job is logged, and its user is warned.
    Warn,
    /// The job is logged, and its user is warned. If the job is also idle in the next window, it is cancelled.
    Cancel,
}

/// A job that has not used its GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdleJob {
    /// The job ID.
    pub job: u64,
    /// The user's name; untrusted text.
    pub user: String,
    /// The measured time, in seconds.
    pub seconds: u64,
    /// The action that is due now.
    pub action: IdleAction,
}

impl IdlePolicy {
    fn judges(&self, run: &JobRecord) -> bool {
        let job = &run.job;
        self.action != IdleAction::Off
            && !self.after.is_zero()
            && !run.gpus.is_empty()
            && (self.partitions.is_empty() || self.partitions.contains(&job.partition))
            && !self.except_users.contains(&job.user)
            && !self.except_qos.contains(&job.qos)
    }
}

/// The marks in an AdminComment: the name of each node, and the time in seconds since 1970.
fn marks(comment: &str) -> Vec<(&str, u64)> {
    let word = comment.split_whitespace().find_map(|word| word.strip_prefix(MARK)).unwrap_or_default();
    word.split(',')
        .filter_map(|mark| mark.split_once('='))
        .filter_map(|(node, at)| Some((node, at.parse().ok()?)))
        .collect()
}

/// An AdminComment without the marks.
pub fn without_marks(comment: &str) -> String {
    comment.split_whitespace().filter(|word| !word.starts_with(MARK)).collect::<Vec<_>>().join(" ")
}

/// The comment with this node's mark set to the time `at`; `None` removes the mark.
pub fn with_mark(comment: &str, node: &str, at: Option<u64>) -> String {
    let others = marks(comment).into_iter().filter(|(other, _)| *other != node);
    let all: Vec<String> = others.chain(at.map(|at| (node, at))).map(|(node, at)| format!("{node}={at}")).collect();
    let note = without_marks(comment);
    if all.is_empty() { note } else { format!("{note} {MARK}{}", all.join(",")).trim_start().to_owned() }
}

/// The most recent measurements of a run, up to the length of the window.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Window {
    pub(super) run: (u64, u64),
    /// For each part of the window, the measured time in ms, and the use of the most used GPU in percent times ms.
    parts: VecDeque<(u64, u64)>,
    /// The sums of each GPU at the last call of [`Self::step`]: the measured time in ms, and the use in percent times ms.
    former: Vec<(u64, u64)>,
    /// Whether this node has warned the user, or reported the job, since the last window in which the job used a GPU of this node.
    is_warned: bool,
    /// Whether the job's GPUs on this node were idle over the last complete window.
    #[serde(default)]
    is_idle: bool,
}

impl Window {
    pub(super) fn new(run: (u64, u64)) -> Self {
        Self { run, ..Self::default() }
    }

    /// The change of this node's mark at `now` (seconds since 1970): `None` leaves it, `Some(None)` removes it, and `Some(Some(time))` sets
    /// it. Only a job on several nodes gets a mark.
    pub(super) fn mark(&self, run: &JobRecord, policy: &IdlePolicy, now: u64) -> Option<Option<u64>> {
        let own = marks(&run.job.comment).into_iter().find(|(node, _)| *node == run.node);
        let is_fresh = own.is_some_and(|(_, at)| now.saturating_sub(at) < policy.after.as_secs() / 4);
        match (run.job.nodes > 1 && self.is_idle, own) {
            (true, _) => (!is_fresh).then_some(Some(now)),
            (false, own) => own.map(|_| None),
        }
    }

    /// Whether this node may act on the job now: the only node of the job, or its first node if the marks of all other nodes are fresh.
    fn decides(&self, run: &JobRecord, policy: &IdlePolicy, now: u64) -> bool {
        let is_fresh = |at: u64| now.saturating_sub(at) <= policy.after.as_secs() / 2;
        let fresh =
            marks(&run.job.comment).into_iter().filter(|(node, at)| *node != run.node && is_fresh(*at)).count() as u64;
        run.job.nodes == 1 || (run.job.is_first_node && fresh + 1 >= run.job.nodes)
    }

    pub(super) fn step(&mut self, run: &JobRecord, policy: &IdlePolicy, now: u64) -> Option<IdleJob> {
        let sums: Vec<(u64, u64)> = run.gpus.iter().map(|gpu| (gpu.percent_ms, gpu.busy)).collect();
        let former = std::mem::replace(&mut self.former, sums);
        if !policy.judges(run) {
            self.parts.clear();
            self.is_idle = false;
            return None;
        }
        let before = |index: usize| former.get(index).copied().unwrap_or_default();
        let rises = self
            .former
            .iter()
            .enumerate()
            .map(|(index, now)| (now.0.saturating_sub(before(index).0), now.1.saturating_sub(before(index).1)));
        // A GPU without samples may be in use, so the measured time is that of the GPU with the fewest samples.
        let ms = rises.clone().map(|(ms, _)| ms).min().unwrap_or_default();
        let busy = rises.map(|(_, busy)| busy).max().unwrap_or_default();
        let length = u64::try_from(policy.after.as_millis()).unwrap_or(u64::MAX);
        match self.parts.back_mut() {
            Some(part) if part.0 < length / PARTS => *part = (part.0 + ms, part.1 + busy),
            _ => self.parts.push_back((ms, busy)),
        }
        let mut measured: u64 = self.parts.iter().map(|part| part.0).sum();
        while let Some(first) = self.parts.front().filter(|first| measured - first.0 >= length) {
            measured -= first.0;
            self.parts.pop_front();
        }
        if measured < length {
            return None;
        }
        let busy: u64 = self.parts.iter().map(|part| part.1).sum();
        self.is_idle = busy < u64::from(policy.below) * measured;
        if !self.is_idle {
            self.is_warned = false;
            return None;
        }
        if !self.decides(run, policy, now) {
            return None;
        }
        let action = match (policy.action, self.is_warned) {
            (IdleAction::Cancel, false) => IdleAction::Warn,
            (IdleAction::Cancel, true) => IdleAction::Cancel,
            (_, true) => return None,
            (action, false) => action,
        };
        self.is_warned = true;
        // Each action begins a new window.
        self.parts.clear();
        Some(IdleJob { job: run.job.job, user: run.job.user.clone(), seconds: measured / 1000, action })
    }
}
