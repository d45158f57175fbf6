//! `slurminit job-processes`: OOM scores, OOM kills and leftover processes of jobs.

use startup::job_processes;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A user whose processes are daemons or services
    #[arg(long, value_name = "NAME")]
    spare: Vec<String>,
    /// Kill what jobs leave behind: no cgroup contains their processes
    #[arg(long)]
    end_leftovers: bool,
    /// Keep so many MiB of memory for when it runs out, until the input ends
    #[arg(long, value_name = "MIB")]
    reserve: Option<u64>,
}

/// Runs until it is killed.
pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    if let Some(mib) = args.reserve {
        job_processes::keep_memory(mib)?;
        return Ok(model::exit_code::SUCCESS);
    }
    job_processes::keep(&args.spare, args.end_leftovers)
}
