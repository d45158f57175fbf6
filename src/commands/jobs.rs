//! `slurminit jobs`: what becomes of jobs when the container stops, and of those that a former start left behind.
//!
//! PID 1 runs it as a child with a deadline, so it may wait for Slurm's commands.

mod reclaim;

use std::time::{Duration, Instant};

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
    /// Cancel or requeue the jobs of which a slurmctld that came back does not know that they ended
    Reclaim,
}

fn parse_on_stop(text: &str) -> Result<OnStop, String> {
    OnStop::ALL.into_iter().find(|on_stop| on_stop.as_str() == text).ok_or_else(|| "want requeue or cancel".to_owned())
}

/// Does it.
pub fn run(args: Args) -> anyhow::Result<u8> {
    match args.what {
        What::Quiesce { grace, on_stop } => quiesce(&args.node, Duration::try_from_secs_f64(grace)?, on_stop),
        What::Recover => recover(&args.node).map(|()| exit_code::SUCCESS),
        What::Reclaim => reclaim::run(&args.node).map(|()| exit_code::SUCCESS),
    }
}

/// The pause between two looks at the queue; Slurm tells nobody when a job ends.
const LOOK: Duration = Duration::from_millis(20);

/// Says by its code whether jobs are left.
fn quiesce(node: &str, grace: Duration, on_stop: OnStop) -> anyhow::Result<u8> {
    let start = Instant::now();
    let mut left = jobs_on_the_node()?;
    let running: Vec<&str> = left.iter().filter(|job| job.state != COMPLETING).map(|job| job.id.as_str()).collect();
    if !running.is_empty() {
        give_notice(node, &running, grace)?;
    }
    // slurmctld must hear from slurmd that a job has completed: without it, it waits for slurmd at its own end, for long.
    while !left.is_empty() && start.elapsed() < grace {
        pause();
        left = jobs_on_the_node()?;
    }
    if left.is_empty() {
        return Ok(exit_code::SUCCESS);
    }
    let left: Vec<&str> = left.iter().map(|job| job.id.as_str()).collect();
    if on_stop == OnStop::Requeue {
        // Taking the node down now would make slurmd wait for its job steps; the next start accounts for these jobs first.
        eprintln!(
            "jobs {} did not end in time; the next start requeues them, or fails those with --no-requeue",
            left.join(",")
        );
        return Ok(exit_code::JOBS_LEFT);
    }
    eprintln!("jobs {} did not end in time and are cancelled", left.join(","));
    slurm("scancel", &left)?;
    slurm("scancel", &[&["--full", "--signal=KILL"], left.as_slice()].concat())?;
    Ok(exit_code::JOBS_LEFT)
}

/// Takes the node out of service, for no new job may start, and asks the running ones to end.
fn give_notice(node: &str, jobs: &[&str], grace: Duration) -> anyhow::Result<()> {
    eprintln!("jobs {} get TERM, and {:.1} s to end", jobs.join(","), grace.as_secs_f64());
    let reason = format!("reason={OUR_REASON}the container stops");
    slurm("scontrol", &["update", &format!("nodename={node}"), "state=drain", &reason])?;
    // --full reaches the batch script too, which is where a checkpoint is written.
    slurm("scancel", &[&["--full", "--signal=TERM"], jobs].concat())
}

fn recover(node: &str) -> anyhow::Result<()> {
    let ghosts = jobs_on_the_node()?;
    if ghosts.is_empty() {
        return Ok(());
    }
    let ids = ghosts.iter().map(|job| job.id.as_str()).collect::<Vec<_>>().join(",");
    eprintln!("jobs {ids} ran when the container last ended, and are gone: they are requeued, or fail");
    let reason = format!("reason={OUR_REASON}the jobs of the former start are gone");
    slurm("scontrol", &["update", &format!("nodename={node}"), "state=down", &reason])?;
    for job in ghosts {
        start_soon(&job.id);
    }
    Ok(())
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
