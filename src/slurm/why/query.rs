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
    /// slurmctld does not respond.
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
    /// The jobs that have not ended, task by task.
    pub jobs: Vec<QueuedJob>,
    cluster: ClusterNodes,
    details: Details,
}

impl Snapshot {
    /// Queries slurmctld.
    ///
    /// # Errors
    /// slurmctld does not respond.
    pub fn query(client: &Client, prepared: Option<&Prepared>) -> anyhow::Result<Self> {
        let jobs = client.jobs_for_display(&Jobs { options: &["--all", "--array"], ..Jobs::default() })?;
        let cluster = query_nodes_and_jobs(client, prepared)?;
        let details = Details::query(client, &jobs)?;
        Ok(Self { jobs, cluster, details })
    }

    /// The data that explain a job.
    pub fn situation(&self) -> Situation<'_> {
        Situation { jobs: &self.jobs, nodes: &self.cluster.nodes, details: &self.details }
    }
}

fn reservation(line: &str) -> Option<Reservation> {
    let text = |key| value(line, key).map(str::to_owned);
    let (name, start, end, nodes) = (text("ReservationName")?, text("StartTime")?, text("EndTime")?, text("Nodes")?);
    Some(Reservation { name, start, end, nodes })
}
