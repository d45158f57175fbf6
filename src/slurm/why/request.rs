//! What a job requests, from columns of `squeue --Format`.

use model::queued_job::QueuedJob;
use model::slurm_time::seconds;

/// The columns of [`Request::parse`], with their widths. No column contains free text from a user.
pub(super) const COLUMNS: [(&str, usize); 15] = [
    ("JobID", 20),
    ("tres-alloc", 200),
    ("tres-per-job", 100),
    ("tres-per-node", 100),
    ("tres-per-task", 100),
    ("tres-per-socket", 100),
    ("NumTasks", 12),
    ("NumNodes", 20),
    ("PriorityLong", 14),
    ("TimeLimit", 20),
    ("StartTime", 22),
    ("EndTime", 22),
    ("Feature", 200),
    ("OverSubscribe", 10),
    ("Reservation", 80),
];

/// GPUs of one type, or of any type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpus {
    /// The GRES type; `None` for any type.
    pub gres_type: Option<String>,
    /// The number.
    pub count: u64,
}

/// The resources that a job requests, or holds if it is running.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The minimum number of nodes.
    pub nodes: u64,
    /// The number of tasks.
    pub tasks: u64,
    /// The CPUs on all nodes.
    pub cpus: u64,
    /// The memory on all nodes, in MiB.
    pub memory_mib: u64,
    /// The GPUs on all nodes.
    pub gpus: Vec<Gpus>,
    /// Whether the job requests resources that are not compared with the nodes: other GRES, shares of GPUs, GPUs per socket.
    pub has_more: bool,
    /// The requested features: `h200&cc9.0`; empty for none.
    pub features: String,
    /// Whether the job requests whole nodes.
    pub is_exclusive: bool,
    /// The reservation; empty for none.
    pub reservation: String,
    /// Slurm's priority; 0 for a job that is held.
    pub priority: u64,
    /// The time limit: `1:00:00`, `UNLIMITED`.
    pub limit: String,
    /// When the job started; for a pending job, Slurm's estimate, if there is one.
    pub start: String,
    /// When the job reaches its time limit; not a date if there is no limit.
    pub end: String,
}

impl Request {
    /// Parses the columns into the job ID and the request; `None` if the job ID is not a number.
    pub fn parse(columns: &[String; 15]) -> Option<(u64, Self)> {
        let [
            job,
            total,
            per_job,
            per_node,
            per_task,
            per_socket,
            tasks,
            nodes,
            priority,
            limit,
            start,
            end,
            features,
            shared,
            reservation,
        ] = columns;
        let text = |text: &str| if ["(null)", "N/A"].contains(&text) { String::new() } else { text.to_owned() };
        let tres = |name: &str| total.split(',').find_map(|item| item.strip_prefix(name)?.strip_prefix('='));
        // The column can be a range such as `1-2`, whose minimum counts.
        let nodes = nodes.split('-').next().and_then(|nodes| nodes.parse().ok()).unwrap_or(1).max(1);
        let tasks = tasks.parse().unwrap_or(1).max(1);
        let mut request = Self {
            nodes,
            tasks,
            cpus: tres("cpu").and_then(|cpus| cpus.parse().ok()).unwrap_or_default(),
            memory_mib: tres("mem").and_then(mebibytes).unwrap_or_default(),
            gpus: Vec::new(),
            has_more: !text(per_socket).is_empty(),
            features: text(features),
            is_exclusive: shared == "NO",
            reservation: text(reservation),
            priority: priority.parse().unwrap_or_default(),
            limit: limit.clone(),
            start: start.clone(),
            end: end.clone(),
        };
        for (gres, times) in [(per_job, 1), (per_node, nodes), (per_task, tasks)] {
            request.add(&text(gres), times);
        }
        Some((job.parse().ok()?, request))
    }

    /// Adds a list of GRES such as `gres/gpu:nvidia:2` or `gres/gpu:nvidia=2`, each count multiplied by `times`.
    fn add(&mut self, gres: &str, times: u64) {
        for item in gres.split(',').filter(|item| !item.is_empty()) {
            let item = item.trim_start_matches("gres/").trim_start_matches("gres:").replace('=', ":");
            let mut parts: Vec<&str> = item.split(':').collect();
            let count = parts.last().and_then(|count| count.parse::<u64>().ok());
            parts.truncate(parts.len() - usize::from(count.is_some()));
            let count = count.unwrap_or(1).saturating_mul(times);
            match parts.as_slice() {
                ["gpu"] => self.gpus.push(Gpus { gres_type: None, count }),
                ["gpu", kind] => self.gpus.push(Gpus { gres_type: Some((*kind).to_owned()), count }),
                // CPUs and memory are already in the column `tres-alloc`.
                ["cpu" | "mem"] => {}
                _ => self.has_more = true,
            }
        }
    }

    /// The number of GPUs of all types.
    pub fn gpu_count(&self) -> u64 {
        self.gpus.iter().fold(0, |sum, gpus| sum.saturating_add(gpus.count))
    }

    /// Whether the job has a time limit of less than a year. If backfill starts a job without a limit, Slurm sets a year (24.11).
    pub(super) fn has_limit(&self) -> bool {
        seconds(&self.limit).is_some_and(|seconds| seconds < 365 * 86_400)
    }

    /// Whether one node must provide all resources: the job does not require several nodes, and either it has only one task, which cannot be
    /// spread, or only one node is usable.
    pub(super) const fn is_single(&self, usable_nodes: usize) -> bool {
        self.nodes == 1 && (self.tasks == 1 || usable_nodes == 1)
    }

    /// Lists of features. A node must have all features of at least one list. `None` for an expression that only Slurm evaluates.
    pub(super) fn alternatives(&self) -> Option<Vec<Vec<&str>>> {
        let is_plain = !self.features.contains(['[', ']', '(', ')', '*', '!']);
        is_plain.then(|| self.features.split('|').map(|all| all.split([',', '&']).collect()).collect())
    }
}

/// Whether the job is pending only because other jobs are ahead of it, or because resources or nodes are not available. A job for which Slurm
/// shows no reason counts, too.
pub(super) fn is_in_line(job: &QueuedJob) -> bool {
    job.is_pending()
        && (["Resources", "Priority", "None", ""].contains(&job.reason.as_str()) || needs_nodes(&job.reason))
}

/// Whether this is the reason of a job whose nodes are down, drained or reserved.
pub(super) fn needs_nodes(reason: &str) -> bool {
    reason.starts_with("ReqNodeNotAvail") || reason.starts_with("Nodes required for job are")
}

/// A size such as `4G`, `1500M` or `2.50T`, in MiB.
fn mebibytes(text: &str) -> Option<u64> {
    let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len()));
    let factor = match unit {
        "K" => 1.0 / 1024.0,
        "" | "M" => 1.0,
        "G" => 1024.0,
        "T" => 1024.0 * 1024.0,
        "P" => 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    let number = number.parse::<f64>().ok().filter(|number| (0.0..1e9).contains(number))?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the product is below 2^64")]
    Some((number * factor).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_gpus_of_all_options() {
        let columns = |per_job: &str, per_node: &str, per_task: &str, per_socket: &str| {
            [
                "7",
                "cpu=6,mem=2.50G,node=2",
                per_job,
                per_node,
                per_task,
                per_socket,
                "3",
                "2-4",
                "9",
                "UNLIMITED",
                "N/A",
                "NONE",
                "(null)",
                "OK",
                "(null)",
            ]
            .map(str::to_owned)
        };
        let parse = |per_job, per_node, per_task, per_socket| {
            let (job, request) = Request::parse(&columns(per_job, per_node, per_task, per_socket)).unwrap();
            assert_eq!((job, request.nodes, request.tasks, request.cpus, request.memory_mib), (7, 2, 3, 6, 2560));
            (request.gpu_count(), request.has_more)
        };
        assert_eq!(parse("gres/gpu:2", "N/A", "N/A", "N/A"), (2, false));
        assert_eq!(parse("N/A", "gres/gpu:nvidia:2", "N/A", "N/A"), (4, false));
        assert_eq!(parse("N/A", "gres/gpu", "cpu=2,gres/gpu:h200=1", "N/A"), (5, false));
        assert_eq!(parse("N/A", "gres:gpu:1,gres:shard:2", "N/A", "N/A"), (2, true));
        assert_eq!(parse("N/A", "N/A", "N/A", "gres/gpu:1"), (0, true));
        assert!(Request::parse(&columns("", "", "", "").map(|_| "x".to_owned())).is_none());
    }

    #[test]
    fn reads_each_unit_of_memory() {
        let sizes = ["2048K", "1500", "1500M", "2.50G", "2T", "1P"].map(mebibytes);
        assert_eq!(sizes, [2, 1500, 1500, 2560, 2 << 20, 1 << 30].map(Some));
        assert_eq!(["", "1X", "-1M", "M"].map(mebibytes), [None; 4]);
    }
}
