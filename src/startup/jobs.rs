//! What happens to jobs when the container stops, and to those that an earlier start left behind.
//!
//! Everything here runs in children of PID 1 with a deadline, so it may wait for Slurm's commands.

mod account;
pub mod follow;
pub mod ids;
pub mod join;
mod notes;
mod quiesce;
pub mod reached;
pub mod recall;
mod reclaim;
mod spool;
mod twice;
mod wait;
mod wanted;

pub use wait::run as wait;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Context as _;

use config::{NodeRange, OnStop};
use machine::node_report::{NodeReport, OUR_REASON, SINFO_FORMAT};
use sys::tool;

/// Notifies running jobs, and requeues or cancels those still running after the grace period. The exit code says
/// whether jobs are left.
pub fn quiesce(node: &str, grace: Duration, on_stop: OnStop, after_command: bool) -> anyhow::Result<u8> {
    if after_command {
        quiesce::hint();
    }
    let code = quiesce::run(node, grace, on_stop, false)?;
    note_next_id();
    Ok(code)
}

/// The same for the jobs of one node of several; then the node leaves the cluster. With the controller in this container it stays:
/// jobs that ask for it by its name would become invalid.
pub fn leave(node: &str, grace: Duration, on_stop: OnStop, with_controller: bool) -> anyhow::Result<u8> {
    let code = quiesce::run(node, grace, on_stop, true)?;
    match with_controller {
        true => note_next_id(),
        false => join::leave(node)?,
    }
    Ok(code)
}

/// A successor of slurmctld takes a noted id for the one to go on with; otherwise it leaves a gap.
pub fn note_next_id() {
    if let Err(error) = ids::note_next() {
        eprintln!("warning: the next job id is not noted, and the next start leaves a gap: {error:#}");
    }
}

/// Requeues the jobs that ran when a former start ended without notice.
pub fn recover(node: &str) -> anyhow::Result<()> {
    requeue_ghosts(node, None)?;
    account::run(node, true)?;
    account::clean_spool(node)
}

/// Keeps jobs that may run only once from running twice. It is tried twice, because slurmctld listens before it has
/// read its state and may let the first question time out.
pub fn account(node: &str, held: bool) -> anyhow::Result<()> {
    account::run(node, held).or_else(|_| account::run(node, held))
}

/// Ends jobs that have ended without a returned slurmctld knowing.
pub fn reclaim(node: &str) -> anyhow::Result<()> {
    std::thread::scope(|both| {
        both.spawn(|| {
            if let Err(error) = twice::watch(node) {
                eprintln!("warning: nobody could say whether slurmctld started a job twice: {error:#}");
            }
        });
        reclaim::run(node)
    })
}

/// Why a container that stops closes its node.
const STOPS: &str = "the container stops";

/// The pause between two checks of the queue, because Slurm has no event for the end of a job.
const LOOK: Duration = Duration::from_millis(20);
/// How long one of Slurm's commands may take. PID 1 has a deadline for this process as a whole.
const PATIENCE: Duration = Duration::from_secs(60);

/// `only`: the jobs of this node, where there are others.
fn requeue_ghosts(node: &str, only: Option<&str>) -> anyhow::Result<()> {
    let ghosts = jobs_on_the_node(only)?;
    if ghosts.is_empty() {
        return Ok(());
    }
    let names = ghosts.iter().map(|job| job.name.as_str()).collect::<Vec<_>>().join(",");
    eprintln!("jobs {names} ran when the container last ended, and are gone: they are requeued, or fail");
    // A person's drain stays theirs.
    let reason = match closed_for_good(node)? {
        Some(report) => format!("reason={}", report.reason),
        None => format!("reason={OUR_REASON}the jobs of the former start are gone"),
    };
    let told = told_of_the_stop()?;
    let untold = ghosts.iter().filter(|job| job.state != COMPLETING && !told.contains(&job.id));
    quiesce::comment(
        &untold.map(|job| job.name.as_str()).collect::<Vec<_>>(),
        "the container ended while this job ran",
    );
    slurm("scontrol", &["update", &format!("nodename={node}"), "state=down", &reason])?;
    // slurmctld tells the node to end them, for 10 s where nobody listens yet (24.11, `slurm_protocol_api.c`), and a slurmd that
    // comes up meanwhile would end the new start of a job instead.
    ghosts.iter().for_each(|job| start_after(&job.name, 12));
    Ok(())
}

/// The jobs that an ordered stop has notified.
fn told_of_the_stop() -> anyhow::Result<BTreeSet<String>> {
    let list = output("squeue", &["--noheader", "--states=RUNNING,SUSPENDED", "--Format=JobID:16,admin_comment:64"])?;
    let told = |line: &str| {
        let (id, comment) = line.trim().split_once(' ')?;
        comment.trim().starts_with(&format!("{OUR_REASON}{}", quiesce::STOPPED)).then(|| id.to_owned())
    };
    Ok(list.lines().filter_map(told).collect())
}

/// Slurm makes a requeued job wait two minutes, in case the node is faulty; this one is not. slurmd rejects a launch
/// request from the same second in which it ended the job (Slurm 22.05 to 24.11, `cred_context.c`, `slurm_cred.c`), so
/// the start is set to the next second. A failed job refuses a start time, and needs none.
fn start_soon(job: &str) {
    start_after(job, 1);
}

fn start_after(job: &str, seconds: u32) {
    let _ = slurm("scontrol", &["update", &format!("jobid={job}"), &format!("starttime=now+{seconds}")]);
}

/// What the controller says of a node that a person has drained, or a cause that no start repairs. Whoever else closes such a node must
/// leave the reason as it is: the next start would take the drain back.
fn closed_for_good(node: &str) -> anyhow::Result<Option<NodeReport>> {
    Ok(reports(node)?.into_iter().find(NodeReport::is_closed_for_good))
}

/// What the controller says of a node, or of several.
fn reports(node: &str) -> anyhow::Result<Vec<NodeReport>> {
    let nodes = format!("--nodes={node}");
    let said = output("sinfo", &["--noheader", &nodes, &format!("--format={SINFO_FORMAT}")])?;
    Ok(said.lines().filter_map(NodeReport::parse).collect())
}

/// The nodes of this container: several where they are simulated.
fn names(node: &str) -> Vec<String> {
    NodeRange::each(node)
        .map_or_else(|| vec![node.to_owned()], |ranges| ranges.iter().flat_map(NodeRange::names).collect())
}

struct Job {
    /// The job ID, by which processes and slurmd know it.
    id: String,
    /// The name for Slurm's commands: `ARRAY_TASK` for an array task, because the last task has the array's own ID.
    name: String,
    state: String,
}

/// The state of a job that has ended, but whose end the controller has not learned yet.
const COMPLETING: &str = "COMPLETING";

/// Those of this node, or of the only one there is.
fn jobs_on_the_node(node: Option<&str>) -> anyhow::Result<Vec<Job>> {
    let states = "--states=RUNNING,SUSPENDED,CONFIGURING,STOPPED,COMPLETING";
    let nodes: Vec<String> = node.map(|node| format!("--nodelist={node}")).into_iter().collect();
    let fixed = ["--noheader", "--format=%A %i %T", states];
    let list = output("squeue", &fixed.into_iter().chain(nodes.iter().map(String::as_str)).collect::<Vec<_>>())?;
    let job = |line: &str| {
        let mut words = line.split_whitespace().map(str::to_owned);
        Some(Job { id: words.next()?, name: words.next()?, state: words.next()? })
    };
    Ok(list.lines().filter_map(job).collect())
}

fn slurm(program: &str, arguments: &[&str]) -> anyhow::Result<()> {
    output(program, arguments).map(drop)
}

fn output(program: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let output = tool::output(std::process::Command::new(program).args(arguments), PATIENCE)
        .with_context(|| format!("`{program}` cannot be executed"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "`{program} {}`: {}", arguments.join(" "), errors.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Slurm tells nobody when a job ends or does not start, nor of a drain: the only way is to look again.
#[expect(clippy::disallowed_methods, reason = "these are children of PID 1, and Slurm has no such events")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}
