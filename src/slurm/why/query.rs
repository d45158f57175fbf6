//! Queries slurmctld for the data of a snapshot.

use super::request::{COLUMNS, Request};
use super::{Details, Reservation, Situation};
use crate::client::{Client, Jobs};
use crate::error::QueryError;
use crate::node_record::value;
use crate::nodes::{ClusterNodes, query_nodes_and_jobs};
use model::prepared::Prepared;
use model::queued_job::{HOLDING, PENDING, QueuedJob};

impl Details {
    /// Queries the data that explain these jobs.
    ///
    /// # Errors
    /// A query fails.
    pub fn query(client: &Client, jobs: &[QueuedJob]) -> Result<Self, QueryError> {
        let states: Vec<&str> = [PENDING].into_iter().chain(HOLDING).collect();
        let rows = client.job_columns(&Jobs { states: &states, options: &["--all"], ..Jobs::default() }, &COLUMNS)?;
        let mut details = Self { requests: rows.iter().filter_map(Request::parse).collect(), ..Self::default() };
        if jobs.iter().any(|job| job.is_pending() || job.holds_resources()) {
            // The first line of the configuration: `Configuration data as of 2026-11-28T09:13:07`.
            let first = client.config()?.first_line();
            details.now = first.rsplit(' ').next().unwrap_or_default().to_owned();
            let reservations = client.output("scontrol", &["--oneliner", "show", "reservation"])?;
            details.reservations = reservations.lines().filter_map(reservation).collect();
        }
        Ok(details)
    }
}

/// The queue, the nodes and the details, from one successful series of queries.
#[derive(Debug)]
pub struct Snapshot {
    /// The jobs that have not ended, with an entry for each task of an array.
    pub jobs: Vec<QueuedJob>,
    cluster: ClusterNodes,
    details: Details,
}

impl Snapshot {
    /// Queries slurmctld.
    ///
    /// # Errors
    /// A query fails, or Slurm's JSON has an unknown format.
    pub fn query(client: &Client, prepared: Option<&Prepared>) -> anyhow::Result<Self> {
        let jobs = client.jobs_for_display(&Jobs { options: &["--all", "--array"], ..Jobs::default() })?;
        let cluster = query_nodes_and_jobs(client, prepared)?;
        let details = Details::query(client, &jobs)?;
        Ok(Self { jobs, cluster, details })
    }

    /// The data of the snapshot, for explanations of its jobs.
    pub fn situation(&self) -> Situation<'_> {
        Situation { jobs: &self.jobs, nodes: &self.cluster.nodes, details: &self.details }
    }
}

fn reservation(line: &str) -> Option<Reservation> {
    let text = |key| value(line, key).map(str::to_owned);
    let (name, start, end, nodes) = (text("ReservationName")?, text("StartTime")?, text("EndTime")?, text("Nodes")?);
    Some(Reservation { name, start, end, nodes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use sys::tool::answer::Answer;

    #[test]
    fn explains_queue_with_reservations_of_the_nodes() {
        let pending = "7|7|PENDING|2|0:00|main|bob|1000|||||Resources|1||lab|train\n";
        let columns: String = COLUMNS
            .iter()
            .map(|(name, width)| match *name {
                "JobID" => format!("{:width$}", 7),
                "tres-alloc" => format!("{:width$}", "cpu=2,mem=1G"),
                _ => " ".repeat(*width),
            })
            .collect();
        let run = |program: &str, arguments: &[&str]| {
            let line = format!("{program} {}", arguments.join(" "));
            // Each line of the display begins with a random mark.
            let mark =
                line.rsplit_once("--format=").and_then(|(_, format)| format.split_once('%')).unwrap_or_default().0;
            let stdout = match line.as_str() {
                line if line.starts_with("squeue --noheader --all --array --format=") => format!("{mark}{pending}"),
                line if line.starts_with("squeue --noheader --all --states=PENDING,") && line.contains("--Format") => columns.clone(),
                line if line.starts_with("squeue --noheader --all --json") => "{\"jobs\": []}".to_owned(),
                "scontrol --details --json show node" => {
                    r#"{"nodes": [{"name": "c1", "state": ["IDLE"], "partitions": ["main"], "cpus": 4, "real_memory": 9000}]}"#.to_owned()
                }
                "scontrol show config" => "Configuration data as of 2026-11-28T12:00:00\n".to_owned(),
                "scontrol --oneliner show reservation" => "ReservationName=upkeep StartTime=2026-11-28T11:00:00 \
                    EndTime=2026-11-28T13:00:00 Nodes=c1\nNo reservations in the system\n".to_owned(),
                _ => panic!("{line}"),
            };
            Answer::Ended { succeeded: true, stdout, stderr: String::new() }
        };
        let snapshot = Snapshot::query(&Client::with_runner(&run), None).unwrap();
        let situation = snapshot.situation();
        assert_eq!(situation.details.now, "2026-11-28T12:00:00");
        let [reservation] = situation.details.reservations.as_slice() else { panic!("{:?}", situation.details) };
        assert_eq!((reservation.name.as_str(), reservation.nodes.as_str()), ("upkeep", "c1"));
        assert_eq!(situation.details.requests[&7].memory_mib, 1024);
        let mut job = snapshot.jobs[0].clone();
        situation.describe(&mut job);
        assert!(job.waits_for.contains("upkeep"), "{}", job.waits_for);
    }
}
