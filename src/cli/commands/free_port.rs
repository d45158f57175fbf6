//! `slurminit free-port`: frees a unit's port that another process took while the unit was down.

use model::exit_code;
use startup::free_port::{self, Port};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The TCP port
    #[arg(long)]
    port: u16,
    /// The unit that needs the port
    #[arg(long)]
    unit: String,
    /// The session ID of a unit that may keep the port; can be repeated
    #[arg(long)]
    spare: Vec<i32>,
}

/// Exits with 0 if the port is free.
pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    let port = Port { number: args.port, unit: &args.unit, spared_sessions: &args.spare };
    Ok(if free_port::free(port) { exit_code::SUCCESS } else { exit_code::FAILURE })
}
