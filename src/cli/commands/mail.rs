//! `slurminit mail`: passes a job's mail to a mail server.

use std::path::PathBuf;

use config::{Address, Relay};
use model::exit_code;
use watch::mail;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The mail server
    #[arg(long, value_name = "HOST:PORT", value_parser = parse::<Relay>)]
    relay: Option<Relay>,
    /// The sender
    #[arg(long, value_name = "ADDRESS", value_parser = parse::<Address>)]
    from: Option<Address>,
    /// Where to record that there is no server
    #[arg(long, value_name = "DIR")]
    state: PathBuf,
    /// The subject
    #[arg(short, value_name = "SUBJECT", allow_hyphen_values = true)]
    subject: String,
    /// The recipients, separated by commas
    #[arg(value_name = "ADDRESS", allow_hyphen_values = true)]
    to: String,
}

fn parse<T: TryFrom<String, Error = String>>(text: &str) -> Result<T, String> {
    T::try_from(text.to_owned())
}

pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    mail::send(args.relay.as_ref().zip(args.from.as_ref()), &args.state, &args.subject, &args.to)?;
    Ok(exit_code::SUCCESS)
}
