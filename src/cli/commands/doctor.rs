//! `slurminit doctor`: checks for known faults, on the host or in the container.

mod text;

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Configuration;
use super::detect::parse_seconds;
use crate::version;
use doctor::look;
use doctor::look::Scope;
use doctor::{Verdict, examine, worst_verdict};
use model::exit_code;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
    /// Show only faults, warnings and checks that failed to run
    #[arg(long, conflicts_with = "json")]
    brief: bool,
    /// The host's files are below this directory: `docker run -v /:/host:ro ... doctor --root /host`
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// Timeout of each check
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = parse_seconds)]
    timeout: Duration,
    /// In the container: a munge credential that another machine has just made; `-` reads it from standard input
    #[arg(long, value_name = "FILE")]
    credential: Option<PathBuf>,
    /// On the host: the image for testing the GPUs, if the engine has it
    #[arg(long, default_value = "slurminit:latest")]
    image: String,
    /// On the host: do not start a container to test the GPUs
    #[arg(long)]
    no_trial: bool,
    /// Examine the directory of --root as a container, not as a host
    #[arg(long, hide = true)]
    container: bool,
}

/// The exit code is that of the worst verdict.
pub(crate) fn run(args: Args, configuration: &Configuration) -> anyhow::Result<u8> {
    let root = args.root.display();
    anyhow::ensure!(args.root.is_dir(), "--root {root}: no such directory");
    let is_container = args.container || (args.root == Path::new("/") && Path::new(version::SLURM).exists());
    let Args { root, timeout: deadline, credential, image, no_trial, .. } = args;
    let config = configuration.config.clone();
    let facts = look::facts(&Scope { root, deadline, config, credential, image, no_trial }, is_container);
    let examined = examine(&facts);
    let place = if is_container { "in the container" } else { "on the host" };
    let text = if args.json { text::json(place, &examined)? } else { text::text(place, &examined, args.brief) };
    super::print(&text)?;
    Ok(match worst_verdict(&examined) {
        Verdict::Ok | Verdict::Note => exit_code::SUCCESS,
        Verdict::CouldNotLook => exit_code::NOT_CHECKED,
        Verdict::Warn => exit_code::WARNINGS,
        Verdict::Fail => exit_code::FAILURE,
    })
}
