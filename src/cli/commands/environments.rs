//! `slurminit environments`: writes each user's login environment for Slurm.

use super::PathArgs;
use model::exit_code;
use startup::prepare::environments;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    paths: PathArgs,
}

pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    environments::write(args.paths.config.as_deref(), &args.paths.root)?;
    Ok(exit_code::SUCCESS)
}
