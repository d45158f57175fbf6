//! `slurminit resume`: has drained nodes take jobs again.

use std::path::PathBuf;

use crate::commands::drain::each;
use crate::exit_code;
use crate::nodes::close;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The nodes: compute-1, or compute-[1-3]
    #[arg(required = true, value_name = "NODE")]
    nodes: Vec<String>,
    /// The configuration; /config/slurminit.toml if there is one
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    each(&args.nodes, args.config.as_deref(), close::resume).map(|_| exit_code::SUCCESS)
}
