//! Asks slurmctld for the nodes, the queue, the scheduler and, where there is accounting, the accounts' shares.

use std::time::{Duration, Instant};

use model::prepared::Prepared;
use slurm::nodes;
use sys::tool;

use super::fair_share;
use super::queue::{self, Queue};
use super::scheduler::Scheduler;
use super::seen::Slurm;

/// How long all questions may take together. Prometheus waits for 10 s.
pub const PATIENCE: Duration = Duration::from_secs(4);

/// How much of that the accounts' shares may take: nothing else waits for an accounting database.
const FOR_SHARES: Duration = Duration::from_secs(1);

/// Asks, with `has_shares` also for the accounts' shares. `own` is what this container's start found.
///
/// # Errors
/// Why there is no answer, in one line.
pub fn ask(own: Option<&Prepared>, has_shares: bool) -> Result<Slurm, String> {
    let began = Instant::now();
    let left = || PATIENCE.saturating_sub(began.elapsed());
    let queue = tool::ask("squeue", &queue::ARGUMENTS, left()).output_of("squeue")?;
    let cluster = nodes::within(own, left()).map_err(|error| format!("{error:#}"))?;
    let scheduler = tool::ask("sdiag", &[] as &[&str], left()).output_of("sdiag")?;
    let shares = || tool::ask("sshare", &fair_share::ARGUMENTS, left().min(FOR_SHARES)).output_of("sshare").ok();
    let shares = has_shares.then(shares).flatten().unwrap_or_default();
    Ok(Slurm {
        cluster,
        queue: Queue::parse(&queue),
        scheduler: Scheduler::parse(&scheduler),
        fair_shares: fair_share::parse(&shares),
        took: began.elapsed(),
    })
}
