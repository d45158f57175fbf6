//! `slurminit why`: explains why a job waits.

use super::Configuration;
use control::status;
use install::load_config;
use model::printable;
use slurm::client::{Client, limit};
use slurm::why::Snapshot;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The job's ID: 17, or 17_3 for a task of an array
    #[arg(value_name = "JOB")]
    job: String,
}

pub(crate) fn run(args: Args, configuration: &Configuration) -> anyhow::Result<()> {
    let directory = load_config::run_directory(configuration.file())?;
    let prepared = status::read(&directory).ok().and_then(|status| status.snapshot.prepared);
    let snapshot = Snapshot::query(&Client::with_total_timeout(limit::COMMAND), prepared.as_ref())?;
    let situation = snapshot.situation();
    let Some(job) = situation.job(&args.job) else {
        anyhow::bail!(
            "job {} is not in the queue: it has ended, never existed, or is hidden (PrivateData); try `sacct -j {0}`, or `sacct -c -j {0}` as root",
            printable::short(&args.job, 40)
        );
    };
    super::print(&format!("{}\n", printable::line(&situation.sentence(job))))
}
