//! `slurminit logs`: what a daemon said last.

use std::io::Write as _;
use std::path::PathBuf;

use super::load_config;
use crate::control::{self, client, protocol::Request};
use crate::exit_code;

/// Its command line.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The daemon or service; slurminit for its own lines
    name: String,
    /// How many lines, at most; 64 KiB are kept
    #[arg(long, short = 'n', value_name = "N", default_value_t = 50)]
    lines: u32,
    /// The configuration; /config/slurminit.toml if there is one
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Does it.
pub fn run(args: Args) -> anyhow::Result<u8> {
    let config = load_config::load(args.config.as_deref())?;
    let request = Request::Logs { name: args.name, lines: args.lines };
    let (_, lines) = client::ask(&control::socket(&config.paths.run), &request)?;
    std::io::stdout().write_all(&lines)?;
    Ok(exit_code::SUCCESS)
}
