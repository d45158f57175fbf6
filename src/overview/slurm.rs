//! Asks slurmctld for the nodes, the queue and the scheduler.
//!
//! EDGE.

use std::time::{Duration, Instant};

use crate::nodes;
use crate::prepared::Prepared;
use crate::tool;

use super::queue::{self, Queue};
use super::scheduler::Scheduler;
use super::seen::Slurm;

/// How long all questions may take together. Prometheus waits for 10 s.
pub const PATIENCE: Duration = Duration::from_secs(4);

/// Asks. `own` is what this container's start found.
///
/// # Errors
/// Why there is no answer, in one line.
pub fn ask(own: Option<&Prepared>) -> Result<Slurm, String> {
    let began = Instant::now();
    let left = || PATIENCE.saturating_sub(began.elapsed());
    let queue = tool::ask("squeue", &queue::ARGUMENTS, left()).output_of("squeue")?;
    let cluster = nodes::within(own, left()).map_err(|error| format!("{error:#}"))?;
    let scheduler = tool::ask("sdiag", &[] as &[&str], left()).output_of("sdiag")?;
    Ok(Slurm { cluster, queue: Queue::parse(&queue), scheduler: Scheduler::parse(&scheduler), took: began.elapsed() })
}
