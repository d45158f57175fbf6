//! `slurminit detect`.

pub(super) mod table;

use std::io::{ErrorKind, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;

use super::load_config;
use crate::detect::nvidia_request::Request;
use crate::detect::{self, Options};
use crate::doctor::facts::CudaFacts;
use crate::doctor::look;
use crate::doctor::requirements::{Known, Requirement, requirements};
use crate::exit_code;
use crate::inventory::{Inventory, Vendor};
use crate::plan;
use crate::printable;

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
    /// The configuration, for what GPUs must have at least; /config/slurminit.toml if there is one
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// What `--json` prints.
#[derive(serde::Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    inventory: &'a Inventory,
    requirements: &'a [Requirement],
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
    let (root, deadline) = (args.root, args.timeout);
    let inventory = detect::detect(&Options { root: root.clone(), deadline, nvml_library, request, conditions: true });
    // A broken file is no reason not to say what there is.
    let config = load_config::load(args.config.as_deref());
    let floors = config.as_ref().map(|config| config.gpu.floors()).map_err(ToString::to_string);
    let has_nvidia = inventory.drivers.iter().any(|driver| driver.vendor == Vendor::Nvidia);
    let (environment, cuda) = (look::environment(), if has_nvidia { look::cuda(&root) } else { CudaFacts::default() });
    let known = Known { inventory: &inventory, environment: &environment, cuda: &cuda, floors: &floors };
    let requirements = requirements(&known);
    let text = if args.json {
        let json = serde_json::to_string_pretty(&Report { inventory: &inventory, requirements: &requirements })?;
        printable::json(&json).into_owned() + "\n"
    } else {
        // The JSON has the facts, whatever jobs are to have of them.
        let offered = config.as_ref().ok().map(|config| plan::select(config, &inventory, &mut Vec::new()));
        table::render(offered.as_ref().unwrap_or(&inventory), &requirements)
    };
    match std::io::stdout().write_all(text.as_bytes()) {
        // `slurminit detect | head -1` has what it wants.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(exit_code::SUCCESS),
        outcome => outcome.map(|()| exit_code::SUCCESS).context("cannot write to standard output"),
    }
}
