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

/// Prefix of the reason of a node that has fewer resources than configured and must not be powered up again.
pub fn shortfall_reason_prefix() -> String {
    format!("{OUR_REASON}it has less than [autoscale] promises: ")
}

/// Queries slurmctld. `prepared`, the result of this container's start, is the source of its node's GPU models if the
/// controller has none.
///
/// # Errors
/// slurmctld does not respond.
pub fn query_cluster(prepared: Option<&Prepared>) -> anyhow::Result<ClusterNodes> {
    let client = Client::with_total_timeout(limit::COMMAND);
    let mut cluster = query_nodes_and_jobs(&client, prepared)?;
    cluster.most_nodes = client.config().map(|config| config.max_node_count()).context(CONTROLLER_UNRESPONSIVE)?;
    Ok(cluster)
}

/// Like [`query_nodes_and_jobs`], without the maximum number of nodes.
///
/// # Errors
/// slurmctld does not respond.
pub fn query_nodes_and_jobs(client: &Client, prepared: Option<&Prepared>) -> anyhow::Result<ClusterNodes> {
    let nodes = nodes_json(client, None).context(CONTROLLER_UNRESPONSIVE)?;
    let jobs = jobs_json(client, None).context(CONTROLLER_UNRESPONSIVE)?;
    let mut cluster = ClusterNodes::parse(&nodes, &jobs).context(UNKNOWN_JSON_FORMAT)?;
    if let Some(prepared) = prepared {
        cluster.describe(&prepared.node_name, &prepared.gpus);
    }
    Ok(cluster)
}

/// One node, with the jobs that use its GPUs. Needs only one query if no GPU is in use.
///
/// # Errors
/// slurmctld does not respond.
pub fn query_node(name: &str, client: &Client) -> anyhow::Result<ClusterNodes> {
    let nodes = nodes_json(client, Some(name)).context(CONTROLLER_UNRESPONSIVE)?;
    let cluster = ClusterNodes::parse(&nodes, NO_JOBS).context(UNKNOWN_JSON_FORMAT)?;
    if !cluster.nodes.iter().flat_map(|node| &node.gpus).any(|gpu| gpu.state.is_in_use()) {
        return Ok(cluster);
    }
    let jobs = jobs_json(client, Some(name)).context(CONTROLLER_UNRESPONSIVE)?;
    ClusterNodes::parse(&nodes, &jobs).context(UNKNOWN_JSON_FORMAT)
}

/// The nodes as JSON.
fn nodes_json(client: &Client, name: Option<&str>) -> Result<String, QueryError> {
    let arguments = ["--details", "--json", "show", "node"].into_iter().chain(name);
    client.output("scontrol", &arguments.collect::<Vec<_>>())
}

/// The jobs that hold resources, as JSON.
fn jobs_json(client: &Client, node: Option<&str>) -> Result<String, QueryError> {
    client.jobs_json(&Jobs { node, options: &["--all", "--json"], ..Jobs::HOLDING })
}

const CONTROLLER_UNRESPONSIVE: &str = "the controller does not respond; see `slurminit status`";
const UNKNOWN_JSON_FORMAT: &str = "Slurm's JSON output has an unknown format";

/// squeue's JSON without a job.
const NO_JOBS: &str = "{\"jobs\":[]}";

/// Expands a list such as `compute-[1-3],gpu7` into names, with Slurm's own command.
///
/// # Errors
/// The text is not a list of names.
pub fn expand_node_list(list: &str) -> anyhow::Result<Vec<String>> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.,[]".contains(c);
    anyhow::ensure!(
        list.starts_with(|c: char| c.is_ascii_alphanumeric()) && list.chars().all(is_plain),
        "not a node or list of nodes such as compute-[1-3]: {list:?}"
    );
    Ok(Client::with_timeout(limit::COMMAND).hostnames(list)?)
}
