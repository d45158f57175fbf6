//! A job as squeue lists it.

use serde::{Deserialize, Serialize};

use crate::{printable, slurm_time};

/// squeue's columns of [`QueuedJob::parse`]. None is a text that a user chooses, which could pass for another column or line.
pub const COLUMNS: &str = "%A|%i|%T|%C|%M|%P|%u|%U|%N|%n|%x|%E|%r";

/// Kept length of a field that is shown, in characters.
const LONGEST: usize = 100;

/// The state of a job that waits.
pub const PENDING: &str = "PENDING";
/// The state of a job that has ended, but whose end slurmctld has not learned yet.
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
    /// The name for Slurm's commands: `17`, `17_3` for a task of an array, `17_[4-9]` for tasks that wait.
    pub id: String,
    /// Slurm's word for its state: `RUNNING`.
    pub state: String,
    /// How many CPUs it has or asks for.
    pub cpus: u64,
    /// How long it has run: `1-02:03:04`.
    pub time: String,
    /// The partition, or several that it may go to.
    pub partition: String,
    /// Its user.
    pub user: String,
    /// The user's id.
    #[serde(skip)]
    pub uid: u32,
    /// The nodes that it has.
    #[serde(skip)]
    pub nodes: String,
    /// The nodes that it asked for by name.
    #[serde(skip)]
    pub required: String,
    /// The nodes that it is to be kept off.
    #[serde(skip)]
    pub excluded: String,
    /// The jobs that it waits for: `afterok:5(unfulfilled)`.
    #[serde(skip)]
    pub dependency: String,
    /// The account that pays for it; empty unless it was asked for.
    pub account: String,
    /// Why it waits; `None` if it does not.
    pub reason: String,
    /// The GRES that it asked for; empty unless it was asked for.
    #[serde(skip)]
    pub gres: String,
}

impl QueuedJob {
    /// Parses a line of [`COLUMNS`], and returns what follows them.
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

    /// Whether it waits.
    pub fn waits(&self) -> bool {
        self.state == PENDING
    }

    /// Whether it has ended, but its end is not known yet.
    pub fn is_completing(&self) -> bool {
        self.state == COMPLETING
    }

    /// How long it has run, in seconds.
    pub fn seconds(&self) -> Option<u64> {
        slurm_time::seconds(&self.time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_the_columns_is_returned_whole() {
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
