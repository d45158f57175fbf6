//! `slurminit agent`: monitors the GPUs and, if configured, memory and directories while the container runs.

use super::Configuration;
use watch::agent;

#[derive(Debug, clap::Args)]
pub(crate) struct Args;

pub(crate) fn run(_: Args, configuration: &Configuration) -> anyhow::Result<()> {
    agent::run(&configuration.load()?, std::path::Path::new("/"))
}
