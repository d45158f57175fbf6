//! `slurminit free-port`: frees a unit's port that another process took while the unit was down.

use model::exit_code;
use startup::free_port::{self, Port};
use startup::stopped;

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
    /// Stop the processes of the owner's user until the unit listens, because the port was taken before
    #[arg(long)]
    again: bool,
    /// Read stopped processes from the input, and resume them once it has ended and the port's unit listens
    #[arg(long)]
    resume: bool,
}

/// Exits with 0 if the port is free.
pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    if args.resume {
        stopped::resume_after_listen(args.port, std::io::stdin().lock());
        return Ok(exit_code::SUCCESS);
    }
    let port = Port { number: args.port, unit: &args.unit, spared_sessions: &args.spare };
    Ok(if free_port::free(port, args.again) { exit_code::SUCCESS } else { exit_code::FAILURE })
}
