//! `slurminit metrics`: serves metrics and the page.

use std::net::SocketAddr;
use std::path::PathBuf;

use model::exit_code;
use watch::metrics;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The address and port
    #[arg(long)]
    listen: SocketAddr,
    /// The run directory
    #[arg(long)]
    run: PathBuf,
    /// The cluster has accounting
    #[arg(long)]
    accounting: bool,
}

pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    let Args { listen, run, accounting } = args;
    metrics::run(metrics::Settings { listen, run, accounting })?;
    Ok(exit_code::SUCCESS)
}
