//! `slurminit metrics`: serves metrics and the status page.

use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use sys::secret_variables;
use watch::metrics;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The address and port to listen on
    #[arg(long)]
    listen: SocketAddr,
    /// An additional host name that is allowed in the Host header of requests; can be repeated
    #[arg(long = "allow-host", value_name = "NAME")]
    hosts: Vec<String>,
    /// The run directory
    #[arg(long)]
    run: PathBuf,
    /// Serve GPU metrics under the names of dcgm-exporter, too
    #[arg(long)]
    dcgm: bool,
    /// The cluster has accounting: also query the shares of its accounts
    #[arg(long)]
    accounting: bool,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    if std::env::vars_os().any(|(name, _)| !secret_variables::is_inheritable(&name)) {
        // A process cannot remove variables from its /proc/PID/environ, so this process re-executes itself without the secret
        // variables.
        let mut command = Command::new(std::env::current_exe()?);
        command.args(std::env::args_os().skip(1)).env_clear().envs(secret_variables::inheritable_variables());
        return Err(command.exec().into());
    }
    let host = nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let Args { listen, hosts, run, dcgm, accounting } = args;
    metrics::run(metrics::Settings { listen, hosts, run, dcgm, host, accounting })
}
