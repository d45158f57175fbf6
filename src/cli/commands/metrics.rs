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
    /// A name by which the server may be requested
    #[arg(long = "allow-host", value_name = "NAME")]
    hosts: Vec<String>,
    /// The run directory
    #[arg(long)]
    run: PathBuf,
    /// Also serve GPU metrics under the names of dcgm-exporter
    #[arg(long)]
    dcgm: bool,
    /// The cluster has accounting
    #[arg(long)]
    accounting: bool,
}

pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    let host = nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let Args { listen, hosts, run, dcgm, accounting } = args;
    metrics::run(metrics::Settings { listen, hosts, run, dcgm, host, accounting })?;
    Ok(exit_code::SUCCESS)
}
