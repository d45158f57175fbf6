//! All nodes of the cluster and their GPUs, as slurmctld knows them, in whichever container this runs.
//!
//! EDGE. Each question has a deadline.

pub mod answer;
pub mod close;
pub mod finish;
pub mod targets;

use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::prepared::Prepared;
use crate::supervise::node::OUR_REASON;
use crate::tool;
use crate::tool::answer::Answer;

pub use answer::{Cluster, Gpu, GpuState, Job, Node};

/// How the reason of a node begins that has less than is promised of it, and which is not to be started again.
pub fn less_than_promised() -> String {
    format!("{OUR_REASON}it has less than [autoscale] promises: ")
}

/// How long all questions may take together.
const PATIENCE: Duration = Duration::from_secs(10);

/// Asks slurmctld. `own` is what this container's start found, which knows its node's GPUs where the controller does not.
///
/// # Errors
/// Why there is no answer.
pub fn cluster(own: Option<&Prepared>) -> anyhow::Result<Cluster> {
    let until = Instant::now() + PATIENCE;
    let left = || until.saturating_duration_since(Instant::now());
    let nodes = match tool::ask("scontrol", &["--details", "--json", "show", "node"], left()) {
        // scontrol has no --json before 23.02, and the sinfo of that time prints the nodes as they are.
        Answer::Ended { succeeded: false, stderr, .. } if stderr.contains("unrecognized option") => {
            said("sinfo", &["--all", "--json"], left())
        }
        answer => answer.output_of("scontrol").map_err(anyhow::Error::msg),
    };
    let nodes = nodes.context(NO_ANSWER)?;
    let states = format!("--states={}", answer::HOLDING);
    let jobs = said("squeue", &["--all", &states, "--json"], left()).context(NO_ANSWER)?;
    // Before 23.02 it has no such line.
    let config = said("scontrol", &["show", "config"], left()).context(NO_ANSWER)?;
    let mut cluster = Cluster::parse(&nodes, &jobs, &config).context("Slurm's JSON is not what it should be")?;
    if let Some(own) = own {
        cluster.describe(&own.node_name, &own.gpus);
    }
    Ok(cluster)
}

/// What to do where slurmctld does not answer.
const NO_ANSWER: &str = "the controller cannot be asked; see `slurminit status`";

fn said(program: &str, arguments: &[&str], deadline: Duration) -> anyhow::Result<String> {
    tool::ask(program, arguments, deadline).output_of(program).map_err(anyhow::Error::msg)
}

/// The names that a list such as `compute-[1-3],gpu7` stands for, expanded by Slurm itself.
///
/// # Errors
/// It is no list of names.
pub fn names(list: &str) -> anyhow::Result<Vec<String>> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.,[]".contains(c);
    anyhow::ensure!(
        list.starts_with(|c: char| c.is_ascii_alphanumeric()) && list.chars().all(is_plain),
        "{list:?} is no node, and no list of nodes such as compute-[1-3]"
    );
    let names = said("scontrol", &["show", "hostnames", list], PATIENCE)?;
    Ok(names.lines().map(str::to_owned).collect())
}
