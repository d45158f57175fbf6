//! `slurminit environments`: writes each user's login environment for Slurm.

use super::PathArgs;
use model::exit_code;
use startup::prepare::environments;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    at: PathArgs,
}

pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    environments::write(args.at.config.as_deref(), &args.at.root)?;
    Ok(exit_code::SUCCESS)
}
