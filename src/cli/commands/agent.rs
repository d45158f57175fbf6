//! `slurminit agent`: monitors the GPUs while the container runs.

use super::Configuration;
use watch::agent;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    configuration: Configuration,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    agent::run(&args.configuration.load()?, std::path::Path::new("/"))
}
