//! `slurminit job-map`: updates the GPU-to-job map for exporters on the host.
//!
//! slurmd runs it as root through `/etc/slurm/prolog` and `/etc/slurm/epilog`. It never fails, because Slurm drains a node whose prolog or epilog
//! fails.

use std::path::PathBuf;

use model::message::Report;
use model::{message, printable};
use probe::job_map;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Whether the job begins or has ended
    #[arg(value_parser = ["begin", "end"])]
    when: String,
    /// The directory of the map, in which each GPU has a file
    dir: PathBuf,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let outcome = super::epilog::job_from_environment().and_then(|(job, _)| {
        match args.when.as_str() {
            "begin" => job_map::begin(&args.dir, &job, &|name| std::env::var(name).ok()),
            _ => job_map::end(&args.dir, &job),
        }
        .map_err(anyhow::Error::from)
    });
    if let Err(error) = outcome {
        let (id, dir) = (std::env::var("SLURM_JOB_ID").unwrap_or_default(), args.dir.display());
        super::epilog::report(Report::warn(message!(
            "job-map-not-written",
            "cannot record the {when} of job {job} in the job map {directory}: {error}",
            when = if args.when == "begin" { "start" } else { "end" },
            job = id,
            directory = dir,
            error = printable::short(&format!("{error:#}"), 300)
        )));
    }
    Ok(())
}
