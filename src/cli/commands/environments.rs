//! `slurminit environments`: writes each user's login environment for Slurm.

use std::path::PathBuf;

use super::Configuration;
use startup::prepare::environments;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Look for slurm.conf and the login files below this directory
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
}

pub(crate) fn run(args: Args, configuration: &Configuration) -> anyhow::Result<()> {
    environments::write(configuration.file(), &args.root)
}
