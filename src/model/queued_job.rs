//! A job as squeue lists it.

use serde::{Deserialize, Serialize};

use crate::{printable, slurm_time};

/// squeue's columns for [`QueuedJob::parse`]. No column is user-defined text, which could imitate another column or line.
pub const COLUMNS: &str = "%A|%i|%T|%C|%M|%P|%u|%U|%N|%n|%x|%E|%r";

/// The maximum length of a displayed field, in characters.
const LONGEST: usize = 100;

/// The state of a pending job.
pub const PENDING: &str = "PENDING";
/// The state of a job that has ended but is not yet reported to slurmctld.
pub const COMPLETING: &str = "COMPLETING";
/// The states of jobs that hold resources.
pub const HOLDING: [&str; 5] = ["RUNNING", "SUSPENDED", "CONFIGURING", "STOPPED", COMPLETING];

/// A job and its user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnedJob {
    /// The job id.
    pub job: u64,
    /// The user's name; untrusted text.
    pub user: String,
}

/// A job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct QueuedJob {
    /// The job id; each task of an array has one.
    #[serde(skip)]
    pub number: u64,
    /// The ID for Slurm's commands: `17`, `17_3` for an array task, `17_[4-9]` for pending tasks.
    pub id: String,
    /// Slurm's state: `RUNNING`.
    pub state: String,
    /// The number of allocated or requested CPUs.
    pub cpus: u64,
    /// The run time: `1-02:03:04`.
    pub time: String,
    /// The partition, or the requested partitions.
    pub partition: String,
    /// The user.
    pub user: String,
    /// The user's id.
    #[serde(skip)]
    pub uid: u32,
    /// The allocated nodes.
    #[serde(skip)]
    pub nodes: String,
    /// The nodes requested by name.
    #[serde(skip)]
    pub required: String,
    /// The excluded nodes.
    #[serde(skip)]
    pub excluded: String,
    /// The dependencies: `afterok:5(unfulfilled)`.
    #[serde(skip)]
    pub dependency: String,
    /// The account; empty unless queried.
    pub account: String,
    /// The pending reason; `None` if the job is not pending.
    pub reason: String,
    /// The requested GRES; empty unless queried.
    #[serde(skip)]
    pub gres: String,
}

impl QueuedJob {
    /// Parses a line of [`COLUMNS`]; returns the job and the rest of the line.
    pub fn parse(line: &str) -> Option<(Self, &str)> {
        let mut fields = line.trim().splitn(14, '|').map(str::trim);
        let mut next = || fields.next();
        let (number, id, state) = (next()?.parse().ok()?, next()?, next()?);
        let (cpus, time, partition) = (next()?.parse().unwrap_or_default(), next()?, next()?);
        let (user, uid, nodes) = (next()?, next()?.parse().ok()?, next()?);
        let (required, excluded, dependency, reason) = (next()?, next()?, next()?, next()?);
        let shown = |text| printable::short(text, LONGEST);
        let whole = str::to_owned;
        let job = Self {
            number,
            id: whole(id),
            state: shown(state),
            cpus,
            time: shown(time),
            partition: whole(partition),
            user: shown(user),
            uid,
            nodes: whole(nodes),
            required: whole(required),
            excluded: whole(excluded),
            dependency: whole(dependency),
            reason: shown(reason),
            ..Self::default()
        };
        Some((job, fields.next().unwrap_or_default()))
    }

    /// Whether the job is pending.
    pub fn waits(&self) -> bool {
        self.state == PENDING
    }

    /// Whether the job has ended but is not yet reported to slurmctld.
    pub fn is_completing(&self) -> bool {
        self.state == COMPLETING
    }

    /// The run time in seconds.
    pub fn seconds(&self) -> Option<u64> {
        slurm_time::seconds(&self.time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_text_after_columns_unchanged() {
        let line = "18|17_3|RUNNING|2|1-02:03:04|main|alice|1000|c[1-2]||c9|afterok:5(unfulfilled)|None|a|b";
        let (job, rest) = QueuedJob::parse(line).unwrap();
        assert_eq!((job.number, job.id.as_str(), job.seconds(), job.uid), (18, "17_3", Some(93_784), 1000));
        assert_eq!((job.nodes.as_str(), job.required.as_str(), job.excluded.as_str()), ("c[1-2]", "", "c9"));
        assert_eq!((job.dependency.as_str(), job.reason.as_str(), rest), ("afterok:5(unfulfilled)", "None", "a|b"));
        for other in ["", "slurm_load_jobs error: x|y", "20|20|RUNNING|x"] {
            assert_eq!(QueuedJob::parse(other), None, "{other}");
        }
    }
}
