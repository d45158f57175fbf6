//! `slurminit resume`: resumes nodes that are drained or down.

use std::path::Path;
use std::time::{Duration, Instant};

use super::Configuration;
use crate::commands::drain::{apply_to_nodes, update};
use crate::commands::nodes::query_cluster;
use machine::node_report::NO_REASON;
use slurm::nodes::close;
use slurm::nodes::close::NodeAction;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The nodes: compute-1, or compute-[1-3]
    #[arg(required = true, value_name = "NODE")]
    nodes: Vec<String>,
}

/// Timeout for a resumed node to register. slurmctld pings it at once, and starts no job there before the response.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(30);
/// Polling interval of the nodes, because Slurm has no event for a registration.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub(crate) fn run(args: Args, configuration: &Configuration) -> anyhow::Result<()> {
    // Only nodes that responded before are waited for: unresponsive nodes would cause a timeout.
    let (mut changed, mut resumed) = (Vec::new(), Vec::new());
    apply_to_nodes(&args.nodes, configuration.file(), |node| {
        let step = close::resume(node);
        if matches!(step, NodeAction::Update(..)) {
            changed.push(node.name.clone());
            resumed.extend(node.report.responding.then(|| node.name.clone()));
        }
        step
    })?;
    changed.iter().try_for_each(|name| update(name, &[NO_REASON.to_owned()]))?;
    wait(&resumed, configuration.file())
}

/// Waits until the nodes accept jobs.
#[expect(clippy::disallowed_methods, reason = "Slurm has no event for a registration")]
fn wait(names: &[String], config: Option<&Path>) -> anyhow::Result<()> {
    let deadline = Instant::now() + REGISTRATION_TIMEOUT;
    while !names.is_empty() {
        let cluster = query_cluster(config)?;
        let nodes = cluster.nodes.iter().filter(|node| names.contains(&node.name));
        let not_ready: Vec<String> =
            nodes.filter(|node| !node.accepts_jobs()).map(|node| format!("{} is {}", node.name, node.report)).collect();
        if not_ready.is_empty() {
            break;
        }
        anyhow::ensure!(
            Instant::now() < deadline,
            "resumed, but not ready for jobs after {} s: {}; see slurmd's log on the node",
            REGISTRATION_TIMEOUT.as_secs(),
            not_ready.join(", ")
        );
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}
