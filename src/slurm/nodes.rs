//! The nodes of the cluster and their GPUs, as reported by slurmctld. Works in any container of the cluster.

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
/// A query fails, or Slurm's JSON has an unknown format.
pub fn query_cluster(prepared: Option<&Prepared>) -> anyhow::Result<ClusterNodes> {
    let client = Client::with_total_timeout(limit::COMMAND);
    let mut cluster = query_nodes_and_jobs(&client, prepared)?;
    cluster.most_nodes = client.config().map(|config| config.max_node_count()).context(CONTROLLER_UNRESPONSIVE)?;
    Ok(cluster)
}

/// Like [`query_cluster`], without the maximum number of nodes.
///
/// # Errors
/// A query fails, or Slurm's JSON has an unknown format.
pub fn query_nodes_and_jobs(client: &Client, prepared: Option<&Prepared>) -> anyhow::Result<ClusterNodes> {
    let nodes = nodes_json(client, None).context(CONTROLLER_UNRESPONSIVE)?;
    let jobs = jobs_json(client, None).context(CONTROLLER_UNRESPONSIVE)?;
    let mut cluster = ClusterNodes::parse(&nodes, &jobs).context(UNKNOWN_JSON_FORMAT)?;
    if let Some(prepared) = prepared {
        cluster.describe(&prepared.node_name, &prepared.gpus);
    }
    Ok(cluster)
}

/// One node, with its jobs if a GPU is in use. Otherwise the list of jobs is empty, which saves a query.
///
/// # Errors
/// A query fails, or Slurm's JSON has an unknown format.
pub fn query_node(name: &str, client: &Client) -> anyhow::Result<ClusterNodes> {
    let nodes = nodes_json(client, Some(name)).context(CONTROLLER_UNRESPONSIVE)?;
    let cluster = ClusterNodes::parse(&nodes, NO_JOBS).context(UNKNOWN_JSON_FORMAT)?;
    if !cluster.nodes.iter().flat_map(|node| &node.gpus).any(|gpu| gpu.state.is_in_use()) {
        return Ok(cluster);
    }
    let jobs = jobs_json(client, Some(name)).context(CONTROLLER_UNRESPONSIVE)?;
    ClusterNodes::parse(&nodes, &jobs).context(UNKNOWN_JSON_FORMAT)
}

/// The node with this name, or all nodes, as JSON.
fn nodes_json(client: &Client, name: Option<&str>) -> Result<String, QueryError> {
    let arguments = ["--details", "--json", "show", "node"].into_iter().chain(name);
    client.output("scontrol", &arguments.collect::<Vec<_>>())
}

/// The jobs that hold resources, on this node or in the whole cluster, as JSON.
fn jobs_json(client: &Client, node: Option<&str>) -> Result<String, QueryError> {
    client.jobs_json(&Jobs { node, options: &["--all", "--json"], ..Jobs::HOLDING })
}

const CONTROLLER_UNRESPONSIVE: &str = "cannot query the controller; see `slurminit status`";
const UNKNOWN_JSON_FORMAT: &str = "Slurm's JSON output has an unknown format";

/// squeue's JSON without a job.
const NO_JOBS: &str = "{\"jobs\":[]}";

/// Expands a list such as `compute-[1-3],gpu7` into names, with Slurm's own command.
///
/// # Errors
/// The text is not a list of names, or scontrol fails.
pub fn expand_node_list(list: &str) -> anyhow::Result<Vec<String>> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.,[]".contains(c);
    anyhow::ensure!(
        list.starts_with(|c: char| c.is_ascii_alphanumeric()) && list.chars().all(is_plain),
        "not a node or list of nodes such as compute-[1-3]: {list:?}"
    );
    Ok(Client::with_timeout(limit::COMMAND).hostnames(list)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::answers;
    use model::prepared::OfferedGpu;

    const NODES: &str =
        r#"{"nodes": [{"name": "c1", "state": ["MIXED"], "gres": "gpu:2", "gres_used": "gpu:1(IDX:1)"}]}"#;
    const JOBS: &str = r#"{"jobs": [{"job_id": 7, "user_name": "alice", "gres_detail": ["gpu:1(IDX:1)"],
        "job_resources": {"nodes": {"allocation": [{"name": "c1"}]}}}]}"#;

    #[test]
    fn adds_own_models_where_controller_has_none() {
        let run = answers([("scontrol --details --json show node", Ok(NODES)), ("squeue", Ok(JOBS))]);
        let gpu = |index| OfferedGpu { index, model: "NVIDIA H200".to_owned(), ..OfferedGpu::default() };
        let prepared =
            |node: &str| Prepared { node_name: node.to_owned(), gpus: vec![gpu(2), gpu(3)], ..Prepared::default() };
        let models = |prepared: Option<&Prepared>| {
            let cluster = query_nodes_and_jobs(&Client::with_runner(&run), prepared).unwrap();
            let gpus = cluster.nodes[0].gpus.iter();
            gpus.map(|gpu| (gpu.index, gpu.model.clone().unwrap_or_default())).collect::<Vec<_>>()
        };
        assert_eq!(models(Some(&prepared("c1"))), [(2, "NVIDIA H200".to_owned()), (3, "NVIDIA H200".to_owned())]);
        assert_eq!(models(Some(&prepared("c2"))), [(0, String::new()), (1, String::new())]);
        assert_eq!(models(None), [(0, String::new()), (1, String::new())]);
    }

    #[test]
    fn queries_jobs_of_a_node_only_if_a_gpu_is_in_use() {
        let job = |nodes: &str, jobs| {
            let known = [("scontrol --details --json show node c1", Ok(nodes)), ("squeue", jobs)];
            let run = answers(known);
            let cluster = query_node("c1", &Client::with_runner(&run))?;
            anyhow::Ok(cluster.nodes[0].gpus[1].state.jobs().iter().map(|job| job.job).collect::<Vec<_>>())
        };
        assert_eq!(job(NODES, Ok(JOBS)).unwrap(), [7]);
        assert!(job(NODES, Err("Unable to contact slurm controller")).is_err());
        let free = NODES.replace("gpu:1(IDX:1)", "gpu:0");
        assert_eq!(job(&free, Err("not queried")).unwrap(), [0; 0]);
    }

    #[test]
    fn list_of_nodes_has_no_option_and_no_other_text() {
        for list in ["", "-x", "[1-2]", "a;b", "a b", "a/b", "ä"] {
            let why = expand_node_list(list).unwrap_err().to_string();
            assert!(why.starts_with("not a node or list of nodes"), "{list}: {why}");
        }
    }

    #[test]
    fn own_shortfall_is_a_reason_of_slurminit() {
        assert!(shortfall_reason_prefix().starts_with(OUR_REASON) && shortfall_reason_prefix().ends_with(": "));
    }
}
