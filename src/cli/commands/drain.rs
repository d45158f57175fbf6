//! `slurminit drain`: drains nodes.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::Configuration;
use crate::commands::nodes::query_cluster;
use model::printable;
use slurm::client::{Client, limit};
use slurm::nodes;
use slurm::nodes::close;
use slurm::nodes::close::NodeAction;
use slurm::nodes::{ClusterNode, ClusterNodes};
use startup::jobs;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The nodes: compute-1, or compute-[1-3]
    #[arg(required = true, value_name = "NODE")]
    nodes: Vec<String>,
    /// The reason, which Slurm shows with the node
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Wait at most this long until the jobs on the nodes have ended; exit with 1 if some have not
    #[arg(long, value_name = "SECONDS")]
    wait: Option<u64>,
    /// Afterwards delete the nodes from the cluster one by one; stops with an error at a node that a job requests or excludes by name
    #[arg(long)]
    delete: bool,
}

/// The interval at which jobs are polled: Slurm sends no event when a job ends.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

pub(crate) fn run(args: Args, configuration: &Configuration) -> anyhow::Result<()> {
    let reason = args.reason.as_deref().map(close::reason);
    let names = apply_to_nodes(&args.nodes, configuration.file(), |node| close::drain(node, reason.as_deref()))?;
    if let Some(seconds) = args.wait {
        wait(&names, configuration.file(), Duration::from_secs(seconds))?;
    }
    for name in names.iter().filter(|_| args.delete) {
        jobs::join::delete_for_operator(name)?;
        super::print(&format!("{name} is deleted\n"))?;
    }
    Ok(())
}

/// Applies the action that `step` returns for each node, prints the outcomes, and returns the names of the nodes. If a node does not exist,
/// no node is changed. If an action is refused, the function fails after it has changed the other nodes.
pub(super) fn apply_to_nodes(
    lists: &[String],
    config: Option<&Path>,
    mut step: impl FnMut(&ClusterNode) -> NodeAction,
) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for list in lists {
        names.extend(nodes::expand_node_list(list)?);
    }
    names.sort_unstable();
    names.dedup();
    let cluster = query_cluster(config)?;
    let nodes = names.iter().map(|name| cluster.node(name)).collect::<anyhow::Result<Vec<&ClusterNode>>>()?;
    let mut refused = Vec::new();
    for node in nodes {
        match step(node) {
            NodeAction::Unchanged(why) => super::print(&format!("{}\n", printable::line(&why)))?,
            NodeAction::Refused(why) => refused.push(why),
            NodeAction::Update(arguments, outcome) => {
                update(&node.name, &arguments)?;
                super::print(&format!("{}\n", printable::line(&outcome)))?;
            }
        }
    }
    anyhow::ensure!(refused.is_empty(), "{}", refused.join("\n"));
    Ok(names)
}

pub(super) fn update(node: &str, arguments: &[String]) -> anyhow::Result<()> {
    Client::with_timeout(limit::COMMAND).update_node(node, arguments).with_context(|| {
        let root = nix::unistd::geteuid().is_root();
        let hint = if root { "" } else { " (requires root, in any container of the cluster)" };
        format!("cannot update node {node}{hint}")
    })
}

#[expect(clippy::disallowed_methods, reason = "Slurm has no event for the end of a job")]
fn wait(names: &[String], config: Option<&Path>, timeout: Duration) -> anyhow::Result<()> {
    let start = Instant::now();
    let mut last_reply: Option<ClusterNodes> = None;
    loop {
        // slurmctld may be down for a while, so the last successful reply is kept.
        let result = query_cluster(config);
        if let Ok(cluster) = &result {
            if close::unfinished_jobs(cluster, names).is_empty() {
                return super::print(&format!("no jobs left on {}\n", names.join(", ")));
            }
            last_reply = Some(cluster.clone());
        }
        if start.elapsed() >= timeout {
            let last_reply = last_reply.map_or_else(|| result, Ok)?;
            let jobs = close::unfinished_jobs(&last_reply, names).join("; ");
            anyhow::bail!("some jobs have not ended after {} s: {jobs}", timeout.as_secs());
        }
        std::thread::sleep(POLL_INTERVAL.min(timeout.saturating_sub(start.elapsed())));
    }
}
