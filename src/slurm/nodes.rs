//! All nodes of the cluster and their GPUs, as reported by slurmctld, in any container.

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

/// Prefix of the reason of a node that has fewer resources than promised and must not be powered up again.
pub fn less_than_promised() -> String {
    format!("{OUR_REASON}it has less than [autoscale] promises: ")
}

/// Asks slurmctld. `own` is the result of this container's start, for its node's GPUs if the controller does not know them.
///
/// # Errors
/// slurmctld gives no answer.
pub fn cluster(own: Option<&Prepared>) -> anyhow::Result<ClusterNodes> {
    let client = Client::together(limit::COMMAND);
    let mut cluster = asked(&client, own)?;
    // Slurm before 23.02 does not report the maximum number of nodes.
    cluster.most_nodes = client.config().map(|config| config.most_nodes()).context(NO_ANSWER)?;
    Ok(cluster)
}

/// Like [`asked`], without the maximum number of nodes.
///
/// # Errors
/// slurmctld gives no answer.
pub fn asked(client: &Client, own: Option<&Prepared>) -> anyhow::Result<ClusterNodes> {
    let nodes = nodes(client, None).context(NO_ANSWER)?;
    let jobs = jobs(client, None).context(NO_ANSWER)?;
    let mut cluster = ClusterNodes::parse(&nodes, &jobs).context(NO_JSON)?;
    if let Some(own) = own {
        cluster.describe(&own.node_name, &own.gpus);
    }
    Ok(cluster)
}

/// One node, with the jobs that have its GPUs. Needs only one query if no GPU is in use.
///
/// # Errors
/// slurmctld gives no answer.
pub fn cluster_of(name: &str, client: &Client) -> anyhow::Result<ClusterNodes> {
    let nodes = nodes(client, Some(name)).context(NO_ANSWER)?;
    let cluster = ClusterNodes::parse(&nodes, NO_JOBS).context(NO_JSON)?;
    if !cluster.nodes.iter().flat_map(|node| &node.gpus).any(|gpu| gpu.state.is_held()) {
        return Ok(cluster);
    }
    let jobs = jobs(client, Some(name)).context(NO_ANSWER)?;
    ClusterNodes::parse(&nodes, &jobs).context(NO_JSON)
}

/// The nodes as JSON. scontrol has no --json before 23.02, and the sinfo of that time prints complete nodes.
fn nodes(client: &Client, name: Option<&str>) -> Result<String, QueryError> {
    let arguments = ["--details", "--json", "show", "node"].into_iter().chain(name);
    match client.output("scontrol", &arguments.collect::<Vec<_>>()) {
        Err(QueryError::Failed { output, .. }) if output.contains("unrecognized option") => {
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

/// The repair when slurmctld does not respond.
const NO_ANSWER: &str = "the controller does not respond; see `slurminit status`";
const NO_JSON: &str = "Slurm's JSON output has an unknown format";

/// squeue's JSON without a job.
const NO_JOBS: &str = "{\"jobs\":[]}";

/// Expands a list such as `compute-[1-3],gpu7` into names, with Slurm's own command.
///
/// # Errors
/// The text is not a list of names.
pub fn names(list: &str) -> anyhow::Result<Vec<String>> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.,[]".contains(c);
    anyhow::ensure!(
        list.starts_with(|c: char| c.is_ascii_alphanumeric()) && list.chars().all(is_plain),
        "not a node or list of nodes such as compute-[1-3]: {list:?}"
    );
    Ok(Client::each(limit::COMMAND).hostnames(list)?)
}
