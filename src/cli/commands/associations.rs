//! `slurminit associations`: creates or updates the accounts, users and QOS of the configuration.

use std::path::PathBuf;

use super::Configuration;
use plan::FileName;
use slurm::associations;
use sys::trusted_path;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Look for slurm.conf and the passwd and group files below this directory
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
}

pub(crate) fn run(args: Args, configuration: &Configuration) -> anyhow::Result<()> {
    let mut config = configuration.load()?;
    install::add_host_accounts(&mut config, &args.root)?;
    let path = config.paths.slurm.join(FileName::SlurmConf.as_str());
    let text = trusted_path::read(&sys::under(&args.root, &path))?;
    let text = String::from_utf8_lossy(&text);
    let cluster = plan::last_value(&text, "ClusterName").unwrap_or_else(|| "slurminit".to_owned());
    associations::apply(&config, &cluster).map_err(anyhow::Error::msg)
}
