//! `slurminit look`: samples one vendor's GPUs repeatedly, or one GPU once, and prints a line of JSON for each event.

use std::io::Write as _;
use std::time::Duration;

use anyhow::Context as _;
use nix::unistd::getppid;

use faults::sample::{Identity, Line};
use model::inventory::Vendor;
use probe::{live, vendor};
use watch::agent::rights;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The vendor: nvidia, amd, intel
    #[arg(long, value_parser = parse_vendor)]
    vendor: Vendor,
    /// The sampling interval
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 5000)]
    interval_ms: u64,
    /// A GPU that must not be opened, as JSON; can be repeated
    #[arg(long, value_name = "GPU", value_parser = parse_identity)]
    closed: Vec<Identity>,
    /// All GPUs are closed: list them without loading the driver's library
    #[arg(long)]
    all_closed: bool,
    /// Sample only this GPU, once
    #[arg(long, value_name = "GPU", value_parser = parse_identity)]
    only: Option<Identity>,
    /// Also measure values that need extra calls: tensor cores, PCI Express
    #[arg(long)]
    meters: bool,
}

fn parse_vendor(word: &str) -> Result<Vendor, String> {
    let known = Vendor::ALL.into_iter().find(|vendor| vendor.as_str() == word);
    known.ok_or_else(|| format!("not a vendor: {word:?}"))
}

fn parse_identity(text: &str) -> Result<Identity, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let parent = getppid();
    let mut output = rights::redirect_stdout()?;
    let detection = probe::Options::from_environment("/".into(), Duration::ZERO);
    rights::give_up(parent)?;
    let options = live::Options {
        root: detection.root,
        library: detection.nvml_library,
        vendor: args.vendor,
        interval: Duration::from_millis(args.interval_ms),
        closed: args.closed,
        all_closed: args.all_closed,
        only: args.only,
        meters: args.meters,
    };
    let mut print = |line: &Line| {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        output.write_all(&text)
    };
    vendor::probe_of(args.vendor).watch(&options, &mut print).context("cannot write to standard output")
}
