//! `slurminit timeline`: shows how long each part of the start took.

use std::io::Write as _;
use std::path::PathBuf;

use super::status::current;
use crate::{exit_code, load_config, timeline};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print a picture, for a browser
    #[arg(long)]
    svg: bool,
    /// The configuration; /config/slurminit.toml if there is one
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    let config = load_config::load(args.config.as_deref())?;
    let status = current(&config.paths.run)?;
    std::io::stdout().write_all(timeline::draw(&status.version, &status.snapshot, args.svg).as_bytes())?;
    Ok(exit_code::SUCCESS)
}
