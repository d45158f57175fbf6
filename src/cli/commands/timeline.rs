//! `slurminit timeline`: shows how long each part of the start took.

use std::io::Write as _;

use super::status::current;
use model::exit_code;
use startup::timeline;

pub(crate) use super::Configuration as Args;

pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    let config = args.load()?;
    let status = current(&config.paths.run)?;
    std::io::stdout().write_all(timeline::draw(&status.version, &status.snapshot).as_bytes())?;
    Ok(exit_code::SUCCESS)
}
