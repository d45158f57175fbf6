//! `slurminit stop`: ends the container, as TERM does.

use std::path::PathBuf;

use super::load_config;
use crate::control::{self, client, protocol::Request};
use crate::exit_code;

/// Its command line.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The configuration; /config/slurminit.toml if there is one
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Does it. It does not wait for the end, which would end it as well.
pub fn run(args: Args) -> anyhow::Result<u8> {
    let config = load_config::load(args.config.as_deref())?;
    client::ask(&control::socket(&config.paths.run), &Request::Stop)?;
    println!("the container stops");
    Ok(exit_code::SUCCESS)
}
