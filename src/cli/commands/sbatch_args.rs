//! `slurminit sbatch-args`: the arguments for the resources of a method.json, for `sbatch $(slurminit sbatch-args FILE) JOB`.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;

use crate::commands::detect::parse_seconds;
use slurm::client::Client;
use slurm::error::QueryError;
use slurm::sbatch_args::{Capacity, Resources, is_plain_name, sbatch_line};

/// The maximum size of a method.json (1 MiB).
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Printed instead of arguments on failure: sbatch rejects this option, so nothing is submitted even if a shell ignores the exit code.
const REFUSED: &str = "--refused-by-slurminit";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The method.json; `-` is standard input
    #[arg(value_name = "FILE")]
    method: PathBuf,
    /// The partition for the job, if not the default one
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    partition: Option<String>,
    /// Do not check whether the cluster has the requested resources
    #[arg(long)]
    offline: bool,
    /// Timeout for the cluster's response
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = parse_seconds)]
    timeout: Duration,
}

fn parse_name(text: &str) -> Result<String, String> {
    is_plain_name(text).then(|| text.to_owned()).ok_or_else(|| "not a partition name".to_owned())
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let outcome = arguments(&args);
    let line = outcome.as_deref().unwrap_or(REFUSED);
    let written = writeln!(std::io::stdout(), "{line}").context("cannot write to standard output");
    outcome.and(written)
}

fn arguments(args: &Args) -> anyhow::Result<String> {
    let name = args.method.display();
    let text = read(&args.method).with_context(|| format!("{name}"))?;
    let requested = Resources::parse(&text).map_err(anyhow::Error::msg).with_context(|| format!("{name}"))?;
    let cluster = if args.offline { None } else { Some(capacity(args.timeout)?) };
    let line = sbatch_line(&requested, cluster.as_ref(), args.partition.as_deref());
    line.map_err(anyhow::Error::msg).with_context(|| format!("{name}"))
}

fn read(path: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let read = if path == Path::new("-") {
        std::io::stdin().lock().take(MAX_FILE_BYTES + 1).read_to_string(&mut text)
    } else {
        std::fs::File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)
    };
    let length = read.context("cannot be read as text")?;
    anyhow::ensure!(u64::try_from(length)? <= MAX_FILE_BYTES, "is longer than 1 MiB; is it a method.json?");
    Ok(text)
}

/// Queries the controller of this machine's slurm.conf.
fn capacity(timeout: Duration) -> anyhow::Result<Capacity> {
    Client::with_total_timeout(timeout).capacity().map_err(|error| match error {
        QueryError::Missing(_) => anyhow::anyhow!("{error}; use --offline to print the arguments unchecked"),
        QueryError::TimedOut(_) => anyhow::anyhow!(
            "the controller did not respond in {} s; see `slurminit status`, raise --timeout, or use --offline",
            timeout.as_secs_f64()
        ),
        QueryError::Failed { .. } => anyhow::anyhow!("{error}; see `slurminit status`, or use --offline"),
    })
}
