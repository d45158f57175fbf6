//! `slurminit free-port`: gets a unit's port back from a process that took it while the unit was down.

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
    /// It was taken before, so end all processes of the thief's user
    #[arg(long)]
    again: bool,
}

/// The exit code says whether the port is free.
pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    let is_free = free_port::free(args.port, &args.unit, &args.spare, args.again);
    Ok(if is_free { exit_code::SUCCESS } else { exit_code::FAILURE })
}
