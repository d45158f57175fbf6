//! `slurminit stop`: ends the container, as TERM does.

use std::path::PathBuf;

use crate::control::{self, client, protocol::Request};
use crate::{exit_code, load_config};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The configuration; /config/slurminit.toml if there is one
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Does not wait for the end, because that ends this process as well.
pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    let config = load_config::load(args.config.as_deref())?;
    client::ask(&control::socket(&config.paths.run), &Request::Stop)?;
    println!("the container stops");
    Ok(exit_code::SUCCESS)
}
