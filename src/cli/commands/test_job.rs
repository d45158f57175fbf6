//! `slurminit test-job`: runs one job on this node if the node is idle, and drains the node if the job fails.

use std::path::PathBuf;
use std::time::Duration;

use super::Configuration;
use startup::test_job;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Look for the user's own Slurm files below this directory
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// The node's name in Slurm
    #[arg(long)]
    node: String,
    /// The time limit of the job, in seconds
    #[arg(long)]
    limit: f64,
}

pub(crate) fn run(args: Args, configuration: &Configuration) -> anyhow::Result<u8> {
    let limit = Duration::try_from_secs_f64(args.limit)?;
    test_job::run(configuration.file(), &args.root, &args.node, limit)
}
