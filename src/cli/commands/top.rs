//! `slurminit top`: GPUs, queue, nodes and daemons, live.

use super::Configuration;
use install::load_config;
use model::exit_code;
use watch::top;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    configuration: Configuration,
}

pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    top::run(&load_config::run_directory(args.configuration.file())?)?;
    Ok(exit_code::SUCCESS)
}
