//! `slurminit stop`: ends the container, as TERM does.

use crate::control::{self, client, protocol::Request};
use crate::exit_code;

pub(crate) use super::Configuration as Args;

/// Does not wait for the end, because that ends this process as well.
pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    let config = args.load()?;
    client::ask(&control::socket(&config.paths.run), &Request::Stop)?;
    println!("the container stops");
    Ok(exit_code::SUCCESS)
}
