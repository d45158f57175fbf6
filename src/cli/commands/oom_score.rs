//! `slurminit oom-score`: keeps `oom_score_adj` of jobs' and users' processes above that of the daemons.

use std::path::PathBuf;

use startup::oom_score;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A user whose processes are daemons or services; can be repeated
    #[arg(long, value_name = "NAME")]
    spare: Vec<String>,
    /// A spool directory of slurmd, whose sockets are made inaccessible to users; can be repeated
    #[arg(long, value_name = "DIRECTORY")]
    spool: Vec<PathBuf>,
}

/// Runs until it is killed, or until files in memory (tmpfs) still fill the memory limit after an OOM kill.
pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    let paths = install::load_config::load(None).unwrap_or_default().paths;
    Ok(oom_score::keep(&args.spare, &paths.run, args.spool))
}
