//! `slurminit nodes`: shows all nodes of the cluster and their GPUs.

mod table;

pub(super) use table::users;

use std::path::Path;

use super::{Configuration, print_value};
use control::status;
use install::load_config;
use slurm::nodes;
use slurm::nodes::ClusterNodes;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args, configuration: &Configuration) -> anyhow::Result<()> {
    let cluster = query_cluster(configuration.file())?;
    print_value(args.json, &cluster, || table::table(&cluster))
}

/// The nodes of this container's cluster, as Slurm reports them.
pub(super) fn query_cluster(config: Option<&Path>) -> anyhow::Result<ClusterNodes> {
    let directory = load_config::run_directory(config)?;
    let prepared = status::read(&directory).ok().and_then(|status| status.snapshot.prepared);
    nodes::query_cluster(prepared.as_ref())
}
