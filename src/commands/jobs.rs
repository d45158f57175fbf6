//! `slurminit jobs`: what becomes of jobs when the container stops, and of those that a former start left behind.
//!
//! PID 1 runs it as a child with a deadline, so it may wait for Slurm's commands.

mod ids;
mod notes;
mod quiesce;
mod reclaim;
mod spool;
mod twice;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Context as _;

use crate::config::OnStop;
use crate::exit_code;
use crate::supervise::node::OUR_REASON;

/// Its command line.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
    /// The node's name in slurm.conf
    #[arg(long, global = true, default_value = "localhost")]
    node: String,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Give running jobs notice and time, then requeue or cancel them
    Quiesce {
        /// The time from the notice on, in seconds
        #[arg(long)]
        grace: f64,
        /// What happens to those that still run: requeue or cancel
        #[arg(long, value_parser = parse_on_stop)]
        on_stop: OnStop,
    },
    /// Requeue the jobs that ran when a former start ended without notice
    Recover,
    /// Raise the number of the next job where slurmctld ended without saving it, and become slurmctld
    Number(ids::Args),
    /// Cancel or requeue the jobs of which a slurmctld that came back does not know that they ended
    Reclaim,
}

fn parse_on_stop(text: &str) -> Result<OnStop, String> {
    OnStop::ALL.into_iter().find(|on_stop| on_stop.as_str() == text).ok_or_else(|| "want requeue or cancel".to_owned())
}

/// Does it.
pub fn run(args: Args) -> anyhow::Result<u8> {
    match args.what {
        What::Quiesce { grace, on_stop } => {
            let code = quiesce::run(&args.node, Duration::try_from_secs_f64(grace)?, on_stop)?;
            if let Err(error) = ids::note_next() {
                eprintln!("warning: the next job id is not noted, and the next start leaves a gap: {error:#}");
            }
            Ok(code)
        }
        What::Number(args) => ids::run(&args),
        What::Recover => recover(&args.node).and_then(|()| account(&args.node, false)).map(|_| exit_code::SUCCESS),
        What::Reclaim => {
            // slurmctld listens before it has read its state, and may let the first question wait for too long.
            let begun = match account(&args.node, true) {
                Err(_) => account(&args.node, true)?,
                begun => begun?,
            };
            std::thread::scope(|both| {
                both.spawn(|| {
                    if let Err(error) = twice::watch(&args.node, &begun) {
                        eprintln!("warning: nobody could say whether slurmctld started a job twice: {error:#}");
                    }
                });
                reclaim::run(&args.node).map(|()| exit_code::SUCCESS)
            })
        }
    }
}

/// The pause between two looks at the queue; Slurm tells nobody when a job ends.
const LOOK: Duration = Duration::from_millis(20);

fn recover(node: &str) -> anyhow::Result<()> {
    let ghosts = jobs_on_the_node()?;
    if ghosts.is_empty() {
        return Ok(());
    }
    let ids = ghosts.iter().map(|job| job.id.as_str()).collect::<Vec<_>>().join(",");
    eprintln!("jobs {ids} ran when the container last ended, and are gone: they are requeued, or fail");
    let reason = format!("reason={OUR_REASON}the jobs of the former start are gone");
    let told = told_of_the_stop()?;
    let untold = ghosts.iter().filter(|job| job.state != COMPLETING && !told.contains(&job.id));
    quiesce::comment(&untold.map(|job| job.id.as_str()).collect::<Vec<_>>(), "the container ended while this job ran");
    slurm("scontrol", &["update", &format!("nodename={node}"), "state=down", &reason])?;
    for job in ghosts {
        start_soon(&job.id);
    }
    Ok(())
}

/// Says what slurmctld has forgotten, and keeps what may run once from running twice. Returns the jobs that slurmd
/// has begun.
fn account(node: &str, runs: bool) -> anyhow::Result<BTreeSet<String>> {
    let config = output("scontrol", &["show", "config"])?;
    let spool = config.lines().find_map(|line| line.strip_prefix("SlurmdSpoolDir")?.split_once("= "));
    let spool = spool.map(|(_, spool)| spool.trim().replace("%n", node)).unwrap_or_default();
    let mut begun = spool::begun(&spool);
    begun.extend(launched());
    if !begun.is_empty() {
        let waiting = output("squeue", &["--noheader", "--states=PENDING", "--Format=JobID:16,Requeue:4"])?;
        let again = waiting.lines().filter_map(|line| line.trim().split_once(' '));
        for (job, _) in again.filter(|(id, requeue)| requeue.trim() == "0" && begun.contains(*id)) {
            quiesce::comment(&[job], "it had begun when slurmctld died, and --no-requeue lets it run once");
            slurm("scancel", &[job])?;
            eprintln!(
                "warning: job {job} had begun when slurmctld died, and is cancelled: --no-requeue lets it run once"
            );
        }
    }
    if let Err(error) = ids::name_the_lost() {
        eprintln!("warning: batch jobs that slurmctld may have forgotten are not named: {error:#}");
    }
    if runs {
        return Ok(begun);
    }
    if let Err(error) = spool::clean(&spool, node) {
        eprintln!("warning: {spool}: what former jobs left is not removed: {error}");
    }
    Ok(begun)
}

/// The batch jobs that slurmd says it launched, as far back as its last lines go. Nothing else is left of one that has ended.
fn launched() -> BTreeSet<String> {
    let own = std::env::current_exe().unwrap_or_else(|_| "slurminit".into());
    let lines = output(&own.to_string_lossy(), &["logs", "slurmd", "--lines", "1000"]).unwrap_or_default();
    // Slurm 22.05 to 24.11, `req.c`.
    let job = |line: &str| {
        let (_, rest) = line.split_once("Launching batch job ")?;
        rest.split_once(" for UID ").map(|(id, _)| id.to_owned())
    };
    lines.lines().filter_map(job).collect()
}

/// The jobs of which an ordered stop has said so.
fn told_of_the_stop() -> anyhow::Result<BTreeSet<String>> {
    let list = output("squeue", &["--noheader", "--states=RUNNING,SUSPENDED", "--Format=JobID:16,admin_comment:64"])?;
    let told = |line: &str| {
        let (id, comment) = line.trim().split_once(' ')?;
        comment.trim().starts_with(&format!("{OUR_REASON}{}", quiesce::STOPPED)).then(|| id.to_owned())
    };
    Ok(list.lines().filter_map(told).collect())
}

/// Slurm gives a requeued job two minutes of waiting, for a node that may be ill; this one is not. One that failed takes no
/// start time, and needs none.
fn start_soon(job: &str) {
    let _ = slurm("scontrol", &["update", &format!("jobid={job}"), "starttime=now"]);
}

/// A job that has something on the node.
struct Job {
    id: String,
    state: String,
}

/// The state of a job that has ended, and whose end the controller has not heard of yet.
const COMPLETING: &str = "COMPLETING";

fn jobs_on_the_node() -> anyhow::Result<Vec<Job>> {
    let states = "--states=RUNNING,SUSPENDED,CONFIGURING,STOPPED,COMPLETING";
    let list = output("squeue", &["--noheader", "--format=%A %T", states])?;
    let job = |line: &str| {
        let (id, state) = line.trim().split_once(' ')?;
        Some(Job { id: id.to_owned(), state: state.trim().to_owned() })
    };
    Ok(list.lines().filter_map(job).collect())
}

fn slurm(program: &str, arguments: &[&str]) -> anyhow::Result<()> {
    output(program, arguments).map(drop)
}

#[expect(clippy::disallowed_methods, reason = "this is a child of PID 1, and waits for its own children only")]
fn output(program: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let output = std::process::Command::new(program)
        .args(arguments)
        .output()
        .with_context(|| format!("`{program}` cannot be executed"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "`{program} {}`: {}", arguments.join(" "), errors.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[expect(clippy::disallowed_methods, reason = "the queue can only be looked at again after a while")]
fn pause() {
    std::thread::sleep(LOOK);
}
