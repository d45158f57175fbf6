//! `slurminit associations`: creates the accounts, users and QOS of the configuration.

use super::PathArgs;
use install::load_config;
use plan::FileName;
use slurm::associations;
use sys::trusted_path;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    paths: PathArgs,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let mut config = load_config::load(args.paths.config.as_deref())?;
    install::add_host_accounts(&mut config, &args.paths.root)?;
    let path = config.paths.slurm.join(FileName::SlurmConf.as_str());
    let text = trusted_path::read(&sys::under(&args.paths.root, &path))?;
    let text = String::from_utf8_lossy(&text);
    let cluster = plan::last_value(&text, "ClusterName").unwrap_or_else(|| "slurminit".to_owned());
    associations::apply(&config, &cluster).map_err(anyhow::Error::msg)
}
