//! `slurminit resume`: resumes drained nodes.

use std::path::Path;
use std::time::{Duration, Instant};

use super::Configuration;
use crate::commands::drain::{each, update};
use crate::commands::nodes::ask;
use machine::node_report::NO_REASON;
use model::exit_code;
use slurm::nodes::close;
use slurm::nodes::close::Step;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The nodes: compute-1, or compute-[1-3]
    #[arg(required = true, value_name = "NODE")]
    nodes: Vec<String>,
    #[command(flatten)]
    at: Configuration,
}

/// Timeout for a resumed node to register. slurmctld pings it at once, and starts no job there before the response.
const PATIENCE: Duration = Duration::from_secs(30);
/// Polling interval of the nodes, because Slurm has no event for a registration.
const LOOK: Duration = Duration::from_millis(100);

pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    // A node that did not respond before will not respond now.
    let (mut changed, mut resumed) = (Vec::new(), Vec::new());
    each(&args.nodes, args.at.file(), |node| {
        let step = close::resume(node);
        if matches!(step, Step::Update(..)) {
            changed.push(node.name.clone());
            resumed.extend(node.report.responding.then(|| node.name.clone()));
        }
        step
    })?;
    changed.iter().try_for_each(|name| update(name, &[NO_REASON.to_owned()]))?;
    wait(&resumed, args.at.file()).map(|()| exit_code::SUCCESS)
}

/// Waits until the nodes accept jobs.
#[expect(clippy::disallowed_methods, reason = "Slurm has no event for a registration")]
fn wait(names: &[String], config: Option<&Path>) -> anyhow::Result<()> {
    let until = Instant::now() + PATIENCE;
    while !names.is_empty() {
        let cluster = ask(config)?;
        let nodes = cluster.nodes.iter().filter(|node| names.contains(&node.name));
        let waiting: Vec<String> =
            nodes.filter(|node| !node.takes_jobs()).map(|node| format!("{} is {}", node.name, node.report)).collect();
        if waiting.is_empty() {
            break;
        }
        anyhow::ensure!(
            Instant::now() < until,
            "resumed, but not ready for jobs after {} s: {}; see slurmd's log on the node",
            PATIENCE.as_secs(),
            waiting.join(", ")
        );
        std::thread::sleep(LOOK);
    }
    Ok(())
}
