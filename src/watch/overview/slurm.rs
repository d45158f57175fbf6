//! Queries slurmctld for the nodes, the queue, the scheduler and, with accounting, the accounts' shares.

use std::time::Instant;

use model::prepared::Prepared;
use model::printable;
use slurm::client::{Client, Jobs, limit};
use slurm::nodes;
use slurm::why::Details;

use super::queue::Queue;
use super::seen::Slurm;

/// Maximum length of a job's ID, partition or account, in characters.
const MAX_FIELD: usize = 100;

/// Queries slurmctld, including the accounts' shares if `has_shares`. `prepared` is the result of this container's
/// start.
///
/// # Errors
/// A query other than that of the shares fails: the reason in one line.
pub fn query(prepared: Option<&Prepared>, has_shares: bool) -> Result<Slurm, String> {
    let began = Instant::now();
    let client = Client::with_total_timeout(limit::SCRAPE);
    // Arrays are listed task by task.
    let which = Jobs { states: &["all"], options: &["--all", "--array"], ..Jobs::default() };
    let mut jobs = client.jobs_for_display(&which)?;
    for job in &mut jobs {
        for text in [&mut job.id, &mut job.partition, &mut job.account] {
            *text = printable::short(text, MAX_FIELD);
        }
    }
    let cluster = nodes::query_nodes_and_jobs(&client, prepared).map_err(|error| format!("{error:#}"))?;
    let details = Details::query(&client, &jobs)?;
    let scheduler = client.scheduler()?;
    let left = limit::SCRAPE.saturating_sub(began.elapsed()).min(limit::SHARES);
    let shares = has_shares.then(|| Client::with_timeout(left).shares().ok()).flatten();
    Ok(Slurm {
        cluster,
        queue: Queue { jobs },
        details,
        scheduler,
        fair_shares: shares.unwrap_or_default(),
        took: began.elapsed(),
    })
}
