//! A job as squeue lists it.

use serde::{Deserialize, Serialize};

use crate::{printable, slurm_time};

/// squeue's columns for [`QueuedJob::parse`]. No column is user-defined text, which could imitate another column or line.
pub const COLUMNS: &str = "%A|%i|%T|%C|%M|%P|%u|%U|%N|%n|%x|%E|%r";

/// The length at which a displayed field is cut, in characters.
const MAX_FIELD_LENGTH: usize = 100;

/// The state of a pending job.
pub const PENDING: &str = "PENDING";
/// The state of a job that is ending: not all of its nodes have reported its end to slurmctld.
pub const COMPLETING: &str = "COMPLETING";
/// The states of jobs that hold resources.
pub const HOLDING: [&str; 5] = ["RUNNING", "SUSPENDED", "CONFIGURING", "STOPPED", COMPLETING];

/// A job and its user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnedJob {
    /// The job ID.
    pub job: u64,
    /// The user's name; untrusted text.
    pub user: String,
}

/// A job in the queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct QueuedJob {
    /// The job ID. Each started task of an array has its own; the pending tasks share one.
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
    /// The user's ID.
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
    /// Slurm's reason for the state: `Priority`; the text `None` if there is none, as for a running job.
    pub reason: String,
    /// The GRES requested per node; empty unless queried.
    #[serde(skip)]
    pub gres: String,
    /// The job's name; untrusted text, empty unless queried.
    pub name: String,
    /// The number of requested or allocated GPUs; 0 unless queried.
    pub gpus: u64,
    /// Why a pending job has not started, in plain words; empty unless queried.
    pub waits_for: String,
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
        let shown = |text| printable::short(text, MAX_FIELD_LENGTH);
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
    pub fn is_pending(&self) -> bool {
        self.state == PENDING
    }

    /// Whether the job holds resources.
    pub fn holds_resources(&self) -> bool {
        HOLDING.contains(&self.state.as_str())
    }

    /// The ID of the job array to which this task belongs; `None` for a job that is not part of an array.
    pub fn array(&self) -> Option<&str> {
        self.id.split_once('_').map(|(array, _)| array)
    }

    /// Slurm's reason in plain words, such as `waits for job 9`. An unknown reason is quoted. Empty if the job is not
    /// pending, or if Slurm reports no reason.
    pub fn plain_reason(&self) -> String {
        let waits_for = |what: &str| format!("waits for {what}");
        match self.reason.as_str() {
            _ if !self.is_pending() => String::new(),
            "None" | "" => String::new(),
            "Dependency" => waits_for(&self.awaited_jobs()),
            "Resources" => waits_for(&format!("resources; {}", self.request())),
            "Priority" => waits_for("jobs with a higher priority"),
            "BeginTime" => waits_for("its start time"),
            "JobHeldUser" => "is held by its user".to_owned(),
            "JobHeldAdmin" => "is held by an administrator".to_owned(),
            "JobArrayTaskLimit" => waits_for("other tasks of its array"),
            "Licenses" => waits_for("a license"),
            "Reservation" => waits_for("its reservation"),
            "PartitionDown" | "PartitionInactive" => waits_for("its partition, which is down or inactive"),
            "PartitionNodeLimit" => "requests a number of nodes that its partition does not allow".to_owned(),
            "PartitionTimeLimit" => "requests more time than its partition allows".to_owned(),
            "BadConstraints" => "cannot start: no node has the requested features or resources".to_owned(),
            reason if reason.starts_with("QOS") || reason.starts_with("Assoc") => {
                format!("waits because of a limit of its account or QOS ({reason})")
            }
            reason if reason.starts_with("ReqNodeNotAvail") || reason.starts_with("Nodes required for job are") => {
                format!("waits for nodes that are down, drained or reserved; {}", self.request())
            }
            reason => format!("waits; Slurm's reason is {reason}"),
        }
    }

    /// The requested GPUs and CPUs. Slurm does not report which resource is missing; it can also be memory.
    fn request(&self) -> String {
        let gpus = if self.gpus == 0 { String::new() } else { format!("{} and ", printable::count(self.gpus, "GPU")) };
        format!("it requests {gpus}{}", printable::count(self.cpus, "CPU"))
    }

    /// Whether this job depends on `other`. If `other` is a task of an array: whether this job depends on the array or on any of its tasks.
    pub fn awaits(&self, other: &Self) -> bool {
        let id = other.array().map_or_else(|| other.number.to_string(), str::to_owned);
        self.dependencies().contains(&id)
    }

    /// The IDs of the jobs that this job depends on: 5 and 6 for `afterok:5(unfulfilled),afterany:6_*(unfulfilled)`.
    fn dependencies(&self) -> Vec<String> {
        let id = |one: &str| {
            let (_, job) = one.trim_start_matches('?').split_once(':')?;
            let digits: String = job.chars().take_while(char::is_ascii_digit).collect();
            (!digits.is_empty()).then_some(digits)
        };
        self.dependency.split([',', '?']).filter_map(id).collect()
    }

    /// The jobs that this job waits for: `jobs 5, 6`; `another job` if Slurm reports no ID.
    pub fn awaited_jobs(&self) -> String {
        let jobs = self.dependencies();
        match jobs.as_slice() {
            [] => "another job".to_owned(),
            [job] => format!("job {job}"),
            jobs => format!("jobs {}", printable::short(&jobs.join(", "), MAX_FIELD_LENGTH)),
        }
    }

    /// Whether the job is ending: not all of its nodes have reported its end to slurmctld.
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
    fn explains_reasons_in_plain_words() {
        let job = |reason: &str, gpus, dependency: &str| QueuedJob {
            state: PENDING.to_owned(),
            cpus: 4,
            gpus,
            reason: reason.to_owned(),
            dependency: dependency.to_owned(),
            ..QueuedJob::default()
        };
        for (job, expected) in [
            (job("Dependency", 0, "afterok:9(unfulfilled)"), "waits for job 9"),
            (job("Dependency", 0, "afterok:9(unfulfilled),afterany:10_*(unfulfilled)"), "waits for jobs 9, 10"),
            (job("Dependency", 0, "singleton(unfulfilled)"), "waits for another job"),
            (job("Resources", 2, ""), "waits for resources; it requests 2 GPUs and 4 CPUs"),
            (job("Resources", 0, ""), "waits for resources; it requests 4 CPUs"),
            (
                job(
                    "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
                    1,
                    "",
                ),
                "waits for nodes that are down, drained or reserved; it requests 1 GPU and 4 CPUs",
            ),
            (job("QOSMaxGRESPerUser", 1, ""), "waits because of a limit of its account or QOS (QOSMaxGRESPerUser)"),
            (job("JobHeldUser", 0, ""), "is held by its user"),
            (job("SomethingNew", 0, ""), "waits; Slurm's reason is SomethingNew"),
            (job("None", 0, ""), ""),
        ] {
            assert_eq!(job.plain_reason(), expected);
        }
        let running = QueuedJob { state: "RUNNING".to_owned(), ..job("Resources", 0, "") };
        assert_eq!(running.plain_reason(), "");
    }

    #[test]
    fn returns_text_after_columns_unchanged() {
        let line = "18|17_3|RUNNING|2|1-02:03:04|main|alice|1000|c[1-2]|c1|c9|afterok:5(unfulfilled)|None|a|b";
        let (job, rest) = QueuedJob::parse(line).unwrap();
        assert_eq!((job.number, job.id.as_str(), job.seconds(), job.uid), (18, "17_3", Some(93_784), 1000));
        assert_eq!((job.nodes.as_str(), job.required.as_str(), job.excluded.as_str()), ("c[1-2]", "c1", "c9"));
        assert_eq!(
            (job.state.as_str(), job.cpus, job.partition.as_str(), job.user.as_str()),
            ("RUNNING", 2, "main", "alice")
        );
        assert_eq!((job.array(), QueuedJob::default().array()), (Some("17"), None));
        let pending = QueuedJob { state: PENDING.to_owned(), ..job.clone() };
        assert!(job.holds_resources() && !pending.holds_resources());
        assert_eq!((job.dependency.as_str(), job.reason.as_str(), rest), ("afterok:5(unfulfilled)", "None", "a|b"));
        for other in ["", "slurm_load_jobs error: x|y", "20|20|RUNNING|x"] {
            assert_eq!(QueuedJob::parse(other), None, "{other}");
        }
    }
}
