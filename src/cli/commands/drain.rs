//! `slurminit drain`: drains nodes.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::Configuration;
use crate::commands::nodes::ask;
use model::{exit_code, printable};
use slurm::client::{Client, limit};
use slurm::nodes;
use slurm::nodes::close;
use slurm::nodes::close::Step;
use slurm::nodes::{ClusterNode, ClusterNodes};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The nodes: compute-1, or compute-[1-3]
    #[arg(required = true, value_name = "NODE")]
    nodes: Vec<String>,
    /// The reason, which Slurm shows with the node
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Wait until the jobs there have ended; exit with 1 if some have not
    #[arg(long, value_name = "SECONDS")]
    wait: Option<u64>,
    #[command(flatten)]
    at: Configuration,
}

/// Polling interval of the jobs, because Slurm has no event for the end of a job.
const LOOK: Duration = Duration::from_millis(500);

pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    let reason = args.reason.as_deref().map(close::reason);
    let names = each(&args.nodes, args.at.file(), |node| close::drain(node, reason.as_deref()))?;
    match args.wait {
        Some(seconds) => wait(&names, args.at.file(), Duration::from_secs(seconds)),
        None => Ok(exit_code::SUCCESS),
    }
}

/// Applies `step` to each node, and prints the result; returns their names. All nodes must exist before one is changed.
pub(super) fn each(
    lists: &[String],
    config: Option<&Path>,
    mut step: impl FnMut(&ClusterNode) -> Step,
) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for list in lists {
        names.extend(nodes::names(list)?);
    }
    names.sort_unstable();
    names.dedup();
    let cluster = ask(config)?;
    let nodes = names.iter().map(|name| cluster.node(name)).collect::<anyhow::Result<Vec<&ClusterNode>>>()?;
    let mut refused = Vec::new();
    for node in nodes {
        match step(node) {
            Step::Nothing(why) => super::print(&format!("{}\n", printable::line(&why)))?,
            Step::Refused(why) => refused.push(why),
            Step::Update(arguments, what) => {
                update(&node.name, &arguments)?;
                super::print(&format!("{}\n", printable::line(&what)))?;
            }
        }
    }
    anyhow::ensure!(refused.is_empty(), "{}", refused.join("\n"));
    Ok(names)
}

pub(super) fn update(node: &str, arguments: &[String]) -> anyhow::Result<()> {
    Client::each(limit::COMMAND).update_node(node, arguments).with_context(|| {
        let root = nix::unistd::geteuid().is_root();
        let hint = if root { "" } else { " (requires root, in any container of the cluster)" };
        format!("cannot change {node}{hint}")
    })
}

#[expect(clippy::disallowed_methods, reason = "Slurm has no event for the end of a job")]
fn wait(names: &[String], config: Option<&Path>, patience: Duration) -> anyhow::Result<u8> {
    let begin = Instant::now();
    let mut last: Option<ClusterNodes> = None;
    loop {
        // slurmctld may be down for a while; the last poll counts.
        let asked = ask(config);
        if let Ok(cluster) = &asked {
            if close::unfinished(cluster, names).is_empty() {
                super::print(&format!("no jobs left on {}\n", names.join(", ")))?;
                return Ok(exit_code::SUCCESS);
            }
            last = Some(cluster.clone());
        }
        if begin.elapsed() >= patience {
            let last = last.map_or_else(|| asked, Ok)?;
            let jobs = close::unfinished(&last, names).join("; ");
            anyhow::bail!("jobs are still running after {} s on {jobs}", patience.as_secs());
        }
        std::thread::sleep(LOOK.min(patience.saturating_sub(begin.elapsed())));
    }
}
