//! `slurminit environments`: writes each user's login environment for Slurm.

use super::PathArgs;
use startup::prepare::environments;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    paths: PathArgs,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    environments::write(args.paths.config.as_deref(), &args.paths.root)
}
