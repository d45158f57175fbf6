//! `slurminit agent`: monitors the GPUs while the container runs.

use super::Configuration;
use model::exit_code;
use watch::agent;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    configuration: Configuration,
}

pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    agent::run(&args.configuration.load()?, std::path::Path::new("/"))?;
    Ok(exit_code::SUCCESS)
}
