//! Metrics for Prometheus, and a web page, over HTTP.
//!
//! The process has the rights of an unprivileged user, reads files that other processes write, and queries slurmctld; `scrape` and its
//! callees are pure.

mod cluster;
mod dcgm;
mod exposition;
mod gpus;
mod mig;
mod own;
mod rights;
mod scrape;
mod server;
mod source;

use std::net::SocketAddr;
use std::path::PathBuf;

pub use scrape::text;

/// Settings of the server.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The address and port.
    pub listen: SocketAddr,
    /// Accepted Host names. IP addresses, the hostname and names without a dot are always accepted.
    pub hosts: Vec<String>,
    /// The run directory.
    pub run: PathBuf,
    /// Whether GPUs also have DCGM's metric names.
    pub dcgm: bool,
    /// The machine's name, for DCGM's labels.
    pub host: String,
    /// Whether the cluster has accounting, so that its accounts have shares.
    pub accounting: bool,
}

/// Serves until the process is killed.
///
/// # Errors
/// The rights cannot be given up, or the server cannot be started or cannot listen on the address.
pub fn run(settings: Settings) -> anyhow::Result<()> {
    rights::give_up()?;
    server::run(settings)
}
