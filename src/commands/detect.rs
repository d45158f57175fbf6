//! `slurminit detect`.

pub(super) mod table;

use std::io::{ErrorKind, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;

use crate::detect::nvidia_request::Request;
use crate::detect::{self, Options};
use crate::exit_code;

/// Its command line.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
    /// Look for /proc, /sys, /dev and /usr below this directory
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// How long everything together may take
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = parse_seconds)]
    timeout: Duration,
    /// The NVIDIA management library, if it is not in the usual places
    #[arg(long, env = "SLURMINIT_NVML_LIBRARY", hide = true, value_name = "FILE")]
    nvml_library: Option<PathBuf>,
}

pub(super) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.01..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "want seconds, from 0.01 to 3600".to_owned())
}

/// Does it. What is found, or not found, is no failure.
pub fn run(args: Args) -> anyhow::Result<u8> {
    let root = args.root.display();
    anyhow::ensure!(
        args.root.is_dir(),
        "--root {root}: there is no such directory; give one that has proc, sys and dev"
    );
    // An empty variable is an unset one, as in `docker run -e NAME=`.
    let nvml_library = args.nvml_library.filter(|path| !path.as_os_str().is_empty());
    let request = Request::from_environment();
    let inventory = detect::detect(&Options { root: args.root, deadline: args.timeout, nvml_library, request });
    let text = if args.json { serde_json::to_string_pretty(&inventory)? + "\n" } else { table::render(&inventory) };
    match std::io::stdout().write_all(text.as_bytes()) {
        // `slurminit detect | head -1` has what it wants.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(exit_code::SUCCESS),
        outcome => outcome.map(|()| exit_code::SUCCESS).context("cannot write to standard output"),
    }
}
