//! `slurminit resume`: has drained nodes take jobs again.

use super::Configuration;
use crate::commands::drain::each;
use crate::exit_code;
use crate::nodes::close;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The nodes: compute-1, or compute-[1-3]
    #[arg(required = true, value_name = "NODE")]
    nodes: Vec<String>,
    #[command(flatten)]
    at: Configuration,
}

pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    each(&args.nodes, args.at.file(), close::resume).map(|_| exit_code::SUCCESS)
}
