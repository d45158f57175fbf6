//! `slurminit drain`: has nodes take no more jobs.

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
    /// Why, for those who look at the node
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Wait until the jobs that run there have ended; 1 is the exit code if some have not
    #[arg(long, value_name = "SECONDS")]
    wait: Option<u64>,
    #[command(flatten)]
    at: Configuration,
}

/// The pause between two looks at the jobs, because Slurm has no event for the end of a job.
const LOOK: Duration = Duration::from_millis(500);

pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    let reason = args.reason.as_deref().map(close::reason);
    let names = each(&args.nodes, args.at.file(), |node| close::drain(node, reason.as_deref()))?;
    match args.wait {
        Some(seconds) => wait(&names, args.at.file(), Duration::from_secs(seconds)),
        None => Ok(exit_code::SUCCESS),
    }
}

/// Does with each node what `step` says, and reports it; returns their names. All nodes must be there before one is changed.
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
        let hint = if root { "" } else { " (only root may do that, in any container of the cluster)" };
        format!("{node} is not changed{hint}")
    })
}

#[expect(clippy::disallowed_methods, reason = "Slurm has no event for the end of a job")]
fn wait(names: &[String], config: Option<&Path>, patience: Duration) -> anyhow::Result<u8> {
    let begin = Instant::now();
    let mut last: Option<ClusterNodes> = None;
    loop {
        // slurmctld may be away for a while; the last look counts.
        let asked = ask(config);
        if let Ok(cluster) = &asked {
            if close::unfinished(cluster, names).is_empty() {
                super::print(&format!("no job is left on {}\n", names.join(", ")))?;
                return Ok(exit_code::SUCCESS);
            }
            last = Some(cluster.clone());
        }
        if begin.elapsed() >= patience {
            let last = last.map_or_else(|| asked, Ok)?;
            let jobs = close::unfinished(&last, names).join("; ");
            anyhow::bail!("jobs still run after {} s on {jobs}", patience.as_secs());
        }
        std::thread::sleep(LOOK.min(patience.saturating_sub(begin.elapsed())));
    }
}
