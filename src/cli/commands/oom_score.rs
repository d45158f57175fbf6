//! `slurminit oom-score`: keeps `oom_score_adj` of jobs' and users' processes above that of the daemons.

use startup::oom_score;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A user whose processes are daemons or services
    #[arg(long, value_name = "NAME")]
    spare: Vec<String>,
    /// Keep so many MiB of memory for when it runs out, until the input ends
    #[arg(long, value_name = "MIB")]
    reserve: Option<u64>,
}

/// Runs until it is killed.
pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    if let Some(mib) = args.reserve {
        oom_score::keep_memory(mib)?;
        return Ok(model::exit_code::SUCCESS);
    }
    let paths = install::load_config::load(None).unwrap_or_default().paths;
    oom_score::keep(&args.spare, &paths.run)
}
