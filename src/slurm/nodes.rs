//! All nodes of the cluster and their GPUs, as slurmctld knows them, in whichever container this runs.
//!
//! Each question has a deadline.

pub mod answer;
pub mod close;
pub mod finish;
pub mod targets;

use std::time::{Duration, Instant};

use anyhow::Context as _;

use machine::node_report::OUR_REASON;
use model::prepared::Prepared;
use sys::tool;
use sys::tool::answer::Answer;

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
    ask(own, PATIENCE, true)
}

/// The same within `patience`, but for how many nodes there can be.
///
/// # Errors
/// Why there is no answer.
pub fn within(own: Option<&Prepared>, patience: Duration) -> anyhow::Result<Cluster> {
    ask(own, patience, false)
}

fn ask(own: Option<&Prepared>, patience: Duration, has_limit: bool) -> anyhow::Result<Cluster> {
    let until = Instant::now() + patience;
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
    let config = match has_limit {
        true => said("scontrol", &["show", "config"], left()).context(NO_ANSWER)?,
        false => String::new(),
    };
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

/// One node, with the jobs that have its GPUs. It takes one question where no GPU is in use.
///
/// # Errors
/// Why there is no answer.
pub fn cluster_of(name: &str, patience: Duration) -> anyhow::Result<Cluster> {
    let until = Instant::now() + patience;
    let left = || until.saturating_duration_since(Instant::now());
    let nodes = match tool::ask("scontrol", &["--details", "--json", "show", "node", name], left()) {
        // As in `cluster`.
        Answer::Ended { succeeded: false, stderr, .. } if stderr.contains("unrecognized option") => {
            said("sinfo", &["--all", "--json", &format!("--nodes={name}")], left())
        }
        answer => answer.output_of("scontrol").map_err(anyhow::Error::msg),
    };
    let nodes = nodes.context(NO_ANSWER)?;
    let cluster = Cluster::parse(&nodes, NO_JOBS, "").context("Slurm's JSON is not what it should be")?;
    let is_used = |gpu: &Gpu| matches!(gpu.state, GpuState::Allocated { .. } | GpuState::Shared { .. });
    if !cluster.nodes.iter().flat_map(|node| &node.gpus).any(is_used) {
        return Ok(cluster);
    }
    let (states, list) = (format!("--states={}", answer::HOLDING), format!("--nodelist={name}"));
    // squeue takes `localhost` for this machine's name.
    let arguments = ["--all", &states, "--json", &list];
    let arguments = arguments.get(..if name == "localhost" { 3 } else { 4 }).unwrap_or_default();
    let jobs = said("squeue", arguments, left()).context(NO_ANSWER)?;
    Cluster::parse(&nodes, &jobs, "").context("Slurm's JSON is not what it should be")
}

/// As squeue says it.
const NO_JOBS: &str = "{\"jobs\":[]}";
