//! `slurminit run`: what a container is to do; then PID 1.

mod first_word;

use std::ffi::OsString;
use std::io::Write as _;

use crate::exit_code;
use crate::init::Start;
use crate::take_token::take_token;
use first_word::Meaning;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    start: Start,
    /// Join the cluster of this token, which `slurminit join-command` prints in the controller's container
    #[arg(long, value_name = "TOKEN")]
    join: Option<OsString>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    let Args { mut start, join } = args;
    let given = first_word::token(&start.cmd).or_else(|| join.as_deref().map(Some));
    if let Err(untaken) = take_token(given) {
        eprintln!("slurminit: {untaken}");
        return Ok(exit_code::CONFIG);
    }
    match first_word::take_nodes(&mut start.cmd) {
        Ok(nodes) => start.nodes = nodes.or(start.nodes),
        Err(why) => {
            eprintln!("slurminit: {why}");
            return Ok(exit_code::CONFIG);
        }
    }
    match first_word::meaning(&start.cmd, &first_word::is_program) {
        Meaning::Command => {}
        Meaning::Help => return say(&first_word::help()),
        Meaning::Version => return say(&format!("{}\n", first_word::version())),
        Meaning::Verb => start.cmd.insert(0, std::env::current_exe()?.into_os_string()),
        Meaning::Option => {
            let option = start.cmd.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
            eprintln!(
                "slurminit: `{}` is no command; options of `docker run` stand before the image's name, and \
                 `docker run IMAGE --help` says what can follow it",
                crate::printable::lines(&option)
            );
            return Ok(exit_code::CMD_NOT_FOUND);
        }
    }
    let error = start.become_init();
    anyhow::bail!("slurminit-init, which must be in the same directory as slurminit, cannot be executed: {error}")
}

fn say(text: &str) -> anyhow::Result<u8> {
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(exit_code::SUCCESS)
}
