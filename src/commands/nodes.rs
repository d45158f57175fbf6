//! `slurminit nodes`: shows all nodes of the cluster and their GPUs.

mod table;

use std::path::{Path, PathBuf};

use crate::nodes::{self, Cluster};
use crate::supervise::status;
use crate::{exit_code, load_config, printable};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
    /// The configuration; /config/slurminit.toml if there is one
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    let cluster = ask(args.config.as_deref())?;
    let text = match args.json {
        true => printable::json(&serde_json::to_string_pretty(&cluster)?).into_owned() + "\n",
        false => table::table(&cluster),
    };
    super::print(&text).map(|()| exit_code::SUCCESS)
}

/// The cluster of this container.
pub(super) fn ask(config: Option<&Path>) -> anyhow::Result<Cluster> {
    let directory = load_config::run_directory(config)?;
    let own = status::read(&directory).ok().and_then(|status| status.snapshot.prepared);
    nodes::cluster(own.as_ref())
}
