//! All nodes of the cluster and their GPUs, as slurmctld knows them, in whichever container this runs.

pub mod answer;
pub mod close;
pub mod finish;
pub mod own;
pub mod targets;

use anyhow::Context as _;

use crate::client::{Client, Jobs, limit};
use crate::error::QueryError;
use machine::node_report::OUR_REASON;
use model::prepared::Prepared;

pub use answer::{ClusterNode, ClusterNodes, GpuState, NodeGpu};

/// How the reason of a node begins that has less than is promised of it, and which is not to be started again.
pub fn less_than_promised() -> String {
    format!("{OUR_REASON}it has less than [autoscale] promises: ")
}

/// Asks slurmctld. `own` is what this container's start found, which knows its node's GPUs where the controller does not.
///
/// # Errors
/// Why there is no answer.
pub fn cluster(own: Option<&Prepared>) -> anyhow::Result<ClusterNodes> {
    let client = Client::together(limit::COMMAND);
    let mut cluster = asked(&client, own)?;
    // Before 23.02 it does not say how many nodes there can be.
    cluster.most_nodes = client.config().map(|config| config.most_nodes()).context(NO_ANSWER)?;
    Ok(cluster)
}

/// The same, but for how many nodes there can be.
///
/// # Errors
/// Why there is no answer.
pub fn asked(client: &Client, own: Option<&Prepared>) -> anyhow::Result<ClusterNodes> {
    let nodes = nodes(client, None).context(NO_ANSWER)?;
    let jobs = jobs(client, None).context(NO_ANSWER)?;
    let mut cluster = ClusterNodes::parse(&nodes, &jobs).context(NO_JSON)?;
    if let Some(own) = own {
        cluster.describe(&own.node_name, &own.gpus);
    }
    Ok(cluster)
}

/// One node, with the jobs that have its GPUs. It takes one question where no GPU is in use.
///
/// # Errors
/// Why there is no answer.
pub fn cluster_of(name: &str, client: &Client) -> anyhow::Result<ClusterNodes> {
    let nodes = nodes(client, Some(name)).context(NO_ANSWER)?;
    let cluster = ClusterNodes::parse(&nodes, NO_JOBS).context(NO_JSON)?;
    if !cluster.nodes.iter().flat_map(|node| &node.gpus).any(|gpu| gpu.state.is_held()) {
        return Ok(cluster);
    }
    let jobs = jobs(client, Some(name)).context(NO_ANSWER)?;
    ClusterNodes::parse(&nodes, &jobs).context(NO_JSON)
}

/// The nodes as JSON. scontrol has no --json before 23.02, and the sinfo of that time prints the nodes as they are.
fn nodes(client: &Client, name: Option<&str>) -> Result<String, QueryError> {
    let arguments = ["--details", "--json", "show", "node"].into_iter().chain(name);
    match client.output("scontrol", &arguments.collect::<Vec<_>>()) {
        Err(QueryError::Failed { said, .. }) if said.contains("unrecognized option") => {
            let only = name.map(|name| format!("--nodes={name}"));
            let fixed = ["--all", "--json"].into_iter();
            client.output("sinfo", &fixed.chain(only.as_deref()).collect::<Vec<_>>())
        }
        answer => answer,
    }
}

/// The jobs that hold resources, as JSON.
fn jobs(client: &Client, node: Option<&str>) -> Result<String, QueryError> {
    client.jobs_json(&Jobs { node, options: &["--all", "--json"], ..Jobs::HOLDING })
}

/// What to do where slurmctld does not answer.
const NO_ANSWER: &str = "the controller cannot be asked; see `slurminit status`";
const NO_JSON: &str = "Slurm's JSON is not what it should be";

/// squeue's JSON without a job.
const NO_JOBS: &str = "{\"jobs\":[]}";

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
    Ok(Client::each(limit::COMMAND).hostnames(list)?)
}
