//! Handles running jobs when the container stops, and jobs that an earlier start left behind. Also ensures unique job IDs, and joins a node to
//! a controller in another container.
//!
//! This code runs only in children of PID 1 and in users' commands, never in PID 1 itself, so it may wait for Slurm's commands.

mod account;
pub(crate) mod cluster_id;
pub mod controller_reachability;
mod duplicate_launch;
pub mod follow;
pub mod ids;
pub mod join;
mod note;
mod notes;
pub mod own_group;
mod quiesce;
mod reclaim;
mod spool;
mod wait;
pub mod wake_silent_nodes;
mod wanted;

pub use wait::run as wait;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use config::OnStop;
use machine::node_report::{NodeReport, OUR_REASON};
use model::exit_code;
use model::hostlist;
use model::message;
use model::queued_job::QueuedJob;
use note::JobNote;
use slurm::client::{Client, Jobs, limit};
use slurm::config::RunningConfig;
use slurm::error::QueryError;
use sys::report;

/// Notifies running jobs, and requeues or cancels those still running after the grace period. The exit code shows
/// whether jobs are left.
pub fn quiesce(node: &str, grace: Duration, on_stop: OnStop, after_command: bool) -> anyhow::Result<u8> {
    let begin = Instant::now();
    let (queue, config) = queue_and_config();
    let mut queue = queue?;
    if after_command {
        quiesce::warn_about_jobs(&queue);
    }
    if queue.is_empty() {
        note_id_of(config);
        return Ok(exit_code::SUCCESS);
    }
    // After CMD has ended, a job that it submitted may still be completing. Nothing has to be stopped for such a job.
    while !queue.is_empty() && queue.iter().all(QueuedJob::is_completing) && begin.elapsed() < grace {
        pause(POLL_INTERVAL);
        queue = SLURM.jobs(&Jobs::default())?;
    }
    let code = match queue.is_empty() {
        true => exit_code::SUCCESS,
        false => quiesce::run(node, grace, on_stop, false)?,
    };
    note_next_id();
    Ok(code)
}

/// Queries the queue and the configuration at the same time: most stops find no job, and then need both answers.
fn queue_and_config() -> (Result<Vec<QueuedJob>, QueryError>, Result<RunningConfig, QueryError>) {
    std::thread::scope(|scope| {
        let config = std::thread::Builder::new().spawn_scoped(scope, || SLURM.config());
        let queue = SLURM.jobs(&Jobs::default());
        let config = config.ok().and_then(|thread| thread.join().ok());
        (queue, config.unwrap_or_else(|| SLURM.config()))
    })
}

/// Like [`quiesce()`], but for the jobs of one node of several; then the node leaves the cluster. If the controller is in this container,
/// the node does not leave, because jobs that request it by name would become invalid.
pub fn leave(node: &str, grace: Duration, on_stop: OnStop, with_controller: bool) -> anyhow::Result<u8> {
    let code = quiesce::run(node, grace, on_stop, true)?;
    match with_controller {
        true => note_next_id(),
        false => join::leave(node)?,
    }
    Ok(code)
}

/// Records the next job ID; without that record, the next start may skip some IDs.
pub fn note_next_id() {
    note_id_of(SLURM.config());
}

fn note_id_of(config: Result<RunningConfig, QueryError>) {
    if let Err(error) = config.map_err(anyhow::Error::from).and_then(|config| ids::note_next(&config)) {
        report::warn(message!(
            "next-id-not-recorded",
            "cannot record the next job ID, so the next start may skip some IDs: {error}",
            error = format!("{error:#}")
        ));
    }
}

/// Requeues or fails the jobs that an earlier start left behind, cancels those that would run a second time despite --no-requeue, and removes
/// the spool files of earlier jobs.
pub fn recover(node: &str) -> anyhow::Result<()> {
    requeue_orphans(node, None)?;
    account::run(node, true)?;
    account::clean_spool(node)
}

/// Prevents jobs that may run only once from running twice. Makes a second attempt if the first fails: slurmctld listens
/// before it has read its state, so the first query may time out.
pub fn account(node: &str, is_slurmd_suspended: bool) -> anyhow::Result<()> {
    account::run(node, is_slurmd_suspended).or_else(|_| account::run(node, is_slurmd_suspended))
}

/// Requeues, holds or cancels jobs whose slurmstepd died.
pub fn reclaim_dead_steps(node: &str) -> anyhow::Result<()> {
    reclaim::dead_steps::run(node)
}

/// Cancels, requeues or holds jobs that ended, or whose slurmstepd died, while slurmctld was down. Resumes the node if slurmctld drains it for a
/// duplicate launch.
pub fn reclaim(node: &str) -> anyhow::Result<()> {
    std::thread::scope(|scope| {
        let warn = |error: &dyn std::fmt::Display| {
            report::warn(message!(
                "launches-not-checked",
                "cannot check whether slurmctld started a job twice: {error}",
                error = format!("{error:#}")
            ));
        };
        let watch = move || {
            let _ = duplicate_launch::watch(node).inspect_err(|error| warn(error));
        };
        if let Err(error) = std::thread::Builder::new().spawn_scoped(scope, watch) {
            warn(&error);
        }
        // A slurmstepd may have been killed together with slurmctld.
        reclaim::dead_steps::run(node)?;
        reclaim::run(node)
    })
}

/// Drain reason of a node whose container stops.
const STOP_REASON: &str = "the container stops";

/// The pause between two checks of the queue: Slurm sends no event when a job ends.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
const SLURM: Client = Client::with_timeout(limit::JOBS);

/// Requeues or fails the jobs that an earlier start left behind. `node_filter`: in a cluster with other nodes, the node whose jobs are
/// handled.
fn requeue_orphans(node: &str, node_filter: Option<&str>) -> anyhow::Result<()> {
    let orphans = jobs_on_the_node(node_filter)?;
    if orphans.is_empty() {
        return Ok(());
    }
    report::info(message!(
        "jobs-of-last-start",
        "jobs lost when the container last stopped: {jobs}; requeueing them; those with --no-requeue, and allocations of srun or salloc, fail",
        jobs = job_names(&orphans).join(",")
    ));
    // A drain that a start does not remove keeps its reason.
    let reason = match persistent_drain(node)? {
        Some(report) => format!("reason={}", report.reason),
        None => format!("reason={OUR_REASON}jobs of the previous start were lost"),
    };
    let notified = notified_of_stop()?;
    let unnotified = orphans.iter().filter(|job| !job.is_completing() && !notified.contains(&job.number.to_string()));
    JobNote::ContainerEnded.write(&job_names(unnotified));
    SLURM.update_node(node, &["state=down", &reason])?;
    // slurmctld sends the node a kill request and retries it for 10 s (24.11, `slurm_protocol_api.c`), and a slurmd that
    // comes up meanwhile would end the new start of a job instead. So the jobs start only after these retries.
    orphans.iter().for_each(|job| start_after(&job.id, 12));
    Ok(())
}

/// The jobs that a clean stop has notified.
fn notified_of_stop() -> anyhow::Result<BTreeSet<String>> {
    let which = Jobs { states: &["RUNNING", "SUSPENDED"], ..Jobs::default() };
    let rows = SLURM.job_columns(&which, &[("JobID", 16), ("admin_comment", 64)])?;
    let notified = rows.into_iter().filter(|[_, comment]| JobNote::parse(comment) == Some(JobNote::ContainerStopped));
    Ok(notified.map(|[id, _]| id).collect())
}

/// Slurm makes a requeued job wait two minutes, in case the node is faulty, but this node is not. slurmd rejects a launch request from the
/// same second in which it ended the job (Slurm 24.11, `cred_context.c`, `slurm_cred.c`), so the start is set to the next second. Slurm
/// refuses a start time for a failed job, which needs none.
fn start_soon(job: &str) {
    start_after(job, 1);
}

fn start_after(job: &str, seconds: u32) {
    let _ = SLURM.update_job(job, &[format!("starttime=now+{seconds}")]);
}

/// The report of a node that was drained by an administrator, or for a cause that a start does not fix. Code that closes such a node must
/// keep its drain reason, because the next start would otherwise remove the drain.
fn persistent_drain(node: &str) -> anyhow::Result<Option<NodeReport>> {
    Ok(SLURM.node_reports(node)?.into_iter().find(NodeReport::is_permanently_closed))
}

/// The IDs of jobs in the form that Slurm's commands accept, such as `7` or `12_3`.
fn job_names<'a>(jobs: impl IntoIterator<Item = &'a QueuedJob>) -> Vec<&'a str> {
    jobs.into_iter().map(|job| job.id.as_str()).collect()
}

/// The names of this container's nodes: several if nodes are simulated.
fn node_names(node: &str) -> Vec<String> {
    hostlist::names(node).unwrap_or_else(|| vec![node.to_owned()])
}

/// The jobs that hold resources on the node `node_filter`; if it is `None`, on all nodes.
fn jobs_on_the_node(node_filter: Option<&str>) -> anyhow::Result<Vec<QueuedJob>> {
    Ok(SLURM.jobs(&Jobs { node: node_filter, ..Jobs::HOLDING })?)
}

/// Sleeps between two polls: Slurm sends no event when a job ends, a start fails or a node is drained.
#[expect(clippy::disallowed_methods, reason = "these are children of PID 1, and Slurm has no such events")]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}
