//! `slurminit free-port`: frees a unit's port that another process took while the unit was down.

use model::exit_code;
use startup::free_port::{self, Port};

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
    /// It was taken before: stop the processes of its owner's user until the unit listens
    #[arg(long)]
    again: bool,
    /// Wait until the port's unit listens, and resume these processes, as PID:START,...
    #[arg(long)]
    resume: Option<String>,
}

/// Exits with 0 if the port is free.
pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    if let Some(list) = args.resume {
        free_port::resume_once_it_listens(args.port, &list);
        return Ok(exit_code::SUCCESS);
    }
    let port = Port { number: args.port, unit: &args.unit, spare: &args.spare };
    Ok(if free_port::free(port, args.again) { exit_code::SUCCESS } else { exit_code::FAILURE })
}
