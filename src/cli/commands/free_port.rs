//! `slurminit free-port`: frees a unit's port that another process took while the unit was down.

use model::exit_code;
use startup::free_port;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The port
    #[arg(long)]
    port: u16,
    /// The unit that needs it
    #[arg(long)]
    unit: String,
    /// The session of another unit, which may keep the port
    #[arg(long)]
    spare: Vec<i32>,
    /// The port was taken before, so kill all processes of that user
    #[arg(long)]
    again: bool,
}

/// Exits with 0 if the port is free.
pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    let is_free = free_port::free(args.port, &args.unit, &args.spare, args.again);
    Ok(if is_free { exit_code::SUCCESS } else { exit_code::FAILURE })
}
