//! `slurminit run`: what a container is to do; then PID 1.

mod beside;
mod first_word;

use std::ffi::OsString;
use std::io::Write as _;

use crate::init::PROGRAM;
use crate::start::{Start, become_program};
use crate::supervise::machine::PhaseName;
use crate::supervise::signals::Inherited;
use crate::supervise::status;
use crate::take_token::take_token;
use crate::{exit_code, up};
use first_word::Meaning;

pub(super) use beside::serving;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    start: Start,
    /// Join the cluster of this token, which `slurminit join-command` prints in the controller's container
    #[arg(long, value_name = "TOKEN")]
    join: Option<OsString>,
    /// Leave the terminal and session of who starts it: for `slurminit up`
    #[arg(long, hide = true)]
    detached: bool,
    /// Run CMD in the cluster that has just begun here: for slurminit-init
    #[arg(long, hide = true)]
    beside: bool,
}

pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    let Args { mut start, join, detached, beside } = args;
    if beside {
        let (config, ..) = start.configuration()?;
        return beside::run(&start.cluster, &config, &start.cmd);
    }
    if detached {
        up::detach();
    }
    let has_token = join.is_some() || first_word::token(&start.cmd).is_some();
    if !has_token {
        if let Some(code) =
            understand(&mut start)?.map_or_else(|| in_the_running_cluster(&start), |code| Ok(Some(code)))?
        {
            return Ok(code);
        }
    }
    // With one on the command line, this process begins anew.
    if let Err(untaken) = take_token(first_word::token(&start.cmd).or_else(|| join.as_deref().map(Some))) {
        eprintln!("slurminit: {untaken}");
        return Ok(exit_code::CONFIG);
    }
    let error = become_program(&Inherited::capture(), PROGRAM, &start.words());
    anyhow::bail!("{PROGRAM}, which must be in the same directory as slurminit, cannot be executed: {error}")
}

/// Interprets what stands in place of a command; the exit code, where that is all.
fn understand(start: &mut Start) -> anyhow::Result<Option<u8>> {
    match first_word::take_nodes(&mut start.cmd) {
        Ok(nodes) => start.cluster.nodes = nodes.or(start.cluster.nodes),
        Err(why) => {
            eprintln!("slurminit: {why}");
            return Ok(Some(exit_code::CONFIG));
        }
    }
    match first_word::meaning(&start.cmd, &first_word::is_program) {
        Meaning::Command => {}
        Meaning::Help => return say(&first_word::help()).map(Some),
        Meaning::Version => return say(&format!("{}\n", first_word::version())).map(Some),
        Meaning::Verb => start.cmd.insert(0, std::env::current_exe()?.into_os_string()),
        Meaning::Option => {
            let option = start.cmd.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
            eprintln!(
                "slurminit: `{}` is no command; options of `docker run` stand before the image's name, and \
                 `docker run IMAGE --help` says what can follow it",
                crate::printable::lines(&option)
            );
            return Ok(Some(exit_code::CMD_NOT_FOUND));
        }
    }
    Ok(None)
}

/// The command's exit code, where a cluster runs in which it can run.
fn in_the_running_cluster(start: &Start) -> anyhow::Result<Option<u8>> {
    let Ok((config, _, target)) = start.configuration() else { return Ok(None) };
    let running = status::of_the_living(&config.paths.run);
    let runs = running.is_some_and(|status| status.snapshot.phase != PhaseName::Stopping);
    if start.cmd.is_empty() || !target.has_cluster || !runs {
        return Ok(None);
    }
    beside::run(&start.cluster, &config, &start.cmd).map(Some)
}

fn say(text: &str) -> anyhow::Result<u8> {
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(exit_code::SUCCESS)
}
