//! `slurminit liveness`: checks whether the daemons respond. If all do, it also handles blocked steps, a full spool directory, and
//! unresponsive nodes.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Context as _;

use machine::liveness_result::{CHECKS_VARIABLE, Liveness, LivenessCheck};
use model::message;
use startup::{full_spool, jobs, liveness};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Also make slurmctld contact unresponsive nodes that are reachable on this port
    #[arg(long, value_name = "PORT")]
    recall: Option<u16>,
    /// The run directory of slurminit
    #[arg(long, value_name = "DIR")]
    run: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let checks =
        std::env::var(CHECKS_VARIABLE).with_context(|| format!("{CHECKS_VARIABLE} is not set; PID 1 sets it"))?;
    let checks: Vec<LivenessCheck> = serde_json::from_str(&checks).context("the checks are not JSON")?;
    let answers = liveness::run_checks(checks)?;
    let mut lines = Vec::new();
    for answer in &answers {
        serde_json::to_writer(&mut lines, answer)?;
        lines.push(b'\n');
    }
    // The result wakes PID 1, so it is written in one piece.
    std::io::stdout().lock().write_all(&lines)?;
    // These checks come after the output of the results, which must not be delayed. They query Slurm, so they run only if every
    // checked daemon and service responds.
    if answers.iter().all(|answer| answer.liveness == Liveness::Answers) {
        liveness::stuck::kill_blocked_steps();
        if let Some(Err(error)) = args.run.as_deref().map(full_spool::check) {
            sys::report::warn(message!(
                "spool-not-checked",
                "cannot check whether slurmd's spool directory is full, or cannot resume the node after a full disk: {error}",
                error = format!("{error:#}")
            ));
        }
        if let Some(Err(error)) = args.recall.map(jobs::wake_silent_nodes::run) {
            sys::report::warn(message!(
                "nodes-not-checked",
                "cannot check unresponsive nodes, or cannot make them register again: {error}",
                error = format!("{error:#}")
            ));
        }
    }
    Ok(())
}
