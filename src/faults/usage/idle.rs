//! Jobs that hold GPUs and do not use them.
//!
//! A job is judged by what was measured over the whole window: without samples the window does not grow, so a driver or a controller that does
//! not respond, and a suspended job, cancel nothing. Nothing that a job could write is an input, and only GPUs that it has alone count.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::JobRecord;

/// The number of parts of a window.
const PARTS: u64 = 60;

/// `[gpu.idle]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IdlePolicy {
    /// What happens to an idle job.
    pub action: IdleAction,
    /// The length of the window.
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

/// What happens to an idle job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum IdleAction {
    /// Nothing.
    #[default]
    Off,
    /// It is logged.
    Report,
    /// It is logged, and its user is warned.
    Warn,
    /// Its user is warned, and it is cancelled after a second window.
    Cancel,
}

/// A job that has not used its GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdleJob {
    /// The job id.
    pub job: u64,
    /// The user's name; untrusted text.
    pub user: String,
    /// The measured time, in seconds.
    pub seconds: u64,
    /// What is due now.
    pub action: IdleAction,
}

impl IdlePolicy {
    fn judges(&self, run: &JobRecord) -> bool {
        let job = &run.job;
        self.action != IdleAction::Off
            && !self.after.is_zero()
            && job.nodes == 1
            && !run.gpus.is_empty()
            && !run.gpus.iter().any(|gpu| gpu.is_shared)
            && (self.partitions.is_empty() || self.partitions.contains(&job.partition))
            && !self.except_users.contains(&job.user)
            && !self.except_qos.contains(&job.qos)
    }
}

/// The last measured time of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Window {
    pub(super) run: (u64, u64),
    /// The measured time in ms, and the integral of the utilization of the GPU that was used most.
    parts: VecDeque<(u64, u64)>,
    /// The sums of each GPU at the last step: time and integral.
    former: Vec<(u64, u64)>,
    /// Whether the user was warned, or the job reported, since it last used a GPU.
    is_warned: bool,
}

impl Window {
    pub(super) fn new(run: (u64, u64)) -> Self {
        Self { run, ..Self::default() }
    }

    pub(super) fn step(&mut self, run: &JobRecord, policy: &IdlePolicy) -> Option<IdleJob> {
        let sums: Vec<(u64, u64)> = run.gpus.iter().map(|gpu| (gpu.percent_ms, gpu.busy)).collect();
        let former = std::mem::replace(&mut self.former, sums);
        if !policy.judges(run) {
            self.parts.clear();
            return None;
        }
        let before = |index: usize| former.get(index).copied().unwrap_or_default();
        let rises = self
            .former
            .iter()
            .enumerate()
            .map(|(index, now)| (now.0.saturating_sub(before(index).0), now.1.saturating_sub(before(index).1)));
        // A GPU without samples may be in use.
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
        if busy >= u64::from(policy.below) * measured {
            self.is_warned = false;
            return None;
        }
        let action = match (policy.action, self.is_warned) {
            (IdleAction::Cancel, false) => IdleAction::Warn,
            (IdleAction::Cancel, true) => IdleAction::Cancel,
            (_, true) => return None,
            (action, false) => action,
        };
        self.is_warned = true;
        // The second window begins.
        self.parts.clear();
        Some(IdleJob { job: run.job.job, user: run.job.user.clone(), seconds: measured / 1000, action })
    }
}
