//! Ends jobs at a planned stop: no new starts, a notice, a grace period, and requeueing of the jobs that the stop ended.
//!
//! A job that requested a signal gets it first, and two thirds of the grace period to end or to requeue itself. Then it gets the notice
//! that all other jobs get at once.
//!
//! A stop must never cost a job more than a crash would, and after a crash Slurm requeues running jobs. If TERM would end the script
//! anyway, the requeue itself is the notice: slurmctld requeues the job at once and has slurmd end its steps with TERM. The job never
//! becomes FAILED, so jobs that wait for its failure do not start. A script that catches or ignores TERM only gets TERM. Its job is
//! COMPLETED if the script exits with 0, and requeued if it fails. A job that is still running after the grace period is requeued, and its
//! processes get SIGKILL. A job that still remains, such as an allocation without processes, is saved as running, and the next start
//! requeues or fails it. With [`OnStop::Cancel`], jobs only get TERM, and those still running after the grace period are cancelled.

mod kill;
mod requested_signal;
mod scripts;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::note::JobNote;
use super::wait::Backlog;
use super::{POLL_INTERVAL, SLURM, STOP_REASON, job_names, jobs_on_the_node, pause, persistent_drain, start_soon};
use config::OnStop;
use machine::node_report::OUR_REASON;
use model::exit_code;
use model::message;
use model::queued_job::{PENDING, QueuedJob};
use requested_signal::SignalledJobs;
use slurm::client::Jobs;
use sys::report;

/// How long jobs may take to end after SIGKILL: slurmd runs the Epilog, and reports to slurmctld.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);
/// The states of jobs that ended by themselves, with an error and without.
const FAILED: &str = "FAILED";
const COMPLETED: &str = "COMPLETED";

/// Warns about jobs that are left: users of `docker run IMAGE sbatch job.sh` may expect the container to wait.
pub(super) fn warn_about_jobs(queue: &[QueuedJob]) {
    let Backlog { running, waiting, .. } = Backlog::of(queue);
    if running + waiting > 0 {
        report::warn(message!(
            "jobs-left-alone",
            "stopping with jobs in the queue ({running} running, {waiting} waiting); they are lost without a state volume",
            running,
            waiting
        ));
        report::warn(message!("fix", "to wait for jobs: docker run --env SLURMINIT_WAIT_JOBS=true, or sbatch --wait"));
    }
}

/// Notifies the jobs, waits until they end, and kills those that do not end in time. The exit code shows whether some are left.
///
/// `has_other_nodes`: the node is one of several in the cluster.
pub(super) fn run(node: &str, grace: Duration, on_stop: OnStop, has_other_nodes: bool) -> anyhow::Result<u8> {
    let begin = Instant::now();
    let node_filter = has_other_nodes.then_some(node);
    // Drain the node before listing the running jobs, so that no job starts after the list was made.
    if persistent_drain(node)?.is_none() {
        let reason = format!("reason={OUR_REASON}{STOP_REASON}");
        SLURM.update_node(node, &["state=drain", &reason])?;
    }
    let jobs = jobs_on_the_node(node_filter)?;
    let running: Vec<&QueuedJob> = jobs.iter().filter(|job| !job.is_completing()).collect();
    JobNote::ContainerStopped.write(&job_names(running.iter().copied()));
    if jobs.is_empty() {
        return Ok(exit_code::SUCCESS);
    }
    let dependencies = if running.is_empty() { BTreeMap::new() } else { pending_dependencies()? };
    let end = begin + grace;
    let signalled = requested_signal::send(&running, begin + grace / 3);
    let (signalled_jobs, unsignalled_jobs): (Vec<_>, Vec<_>) =
        running.into_iter().partition(|job| signalled.contains(&job.id));
    let mut notices = give_notice(&unsignalled_jobs, node_filter, end, on_stop)?;
    if !signalled_jobs.is_empty() {
        let ended = |jobs: &[&str]| match on_stop {
            OnStop::Requeue => requeue_signalled(jobs, &signalled, &dependencies).map(drop),
            OnStop::Cancel => Ok(()),
        };
        let running_after_signal = wait_for_each(signalled_jobs, node_filter, begin + grace * 2 / 3, ended)?;
        notices.extend(give_notice(&running_after_signal, node_filter, end, on_stop)?);
    }

    // slurmd must report the end of each job to slurmctld. Otherwise slurmctld's stop takes long, because it waits for slurmd.
    let mut left = wait_for_end(node_filter, end, |_| true)?;
    let NotifiedJobs { mut requeued, notified } = notices;
    if !left.is_empty() {
        requeued.extend(kill_remaining(&left, node_filter, on_stop)?);
        left = jobs_on_the_node(node_filter)?;
    }
    let is_left = |name: &str| left.iter().any(|job| job.id == name);
    if on_stop == OnStop::Requeue {
        let has_ended = |name: &&str| !is_left(name) && !requeued.iter().any(|job| job == name);
        let ended: Vec<&str> = notified.iter().map(String::as_str).filter(has_ended).collect();
        let mut requeued_after_end = requeue_ended(&ended, &[FAILED], &dependencies)?;
        let ended: Vec<&str> = signalled.names().filter(has_ended).filter(|name| !ended.contains(name)).collect();
        requeued_after_end.extend(requeue_signalled(&ended, &signalled, &dependencies)?);
        // Slurm makes a requeued job wait two minutes after its end, and refuses to change this before the job has ended.
        requeued.iter().filter(|name| !is_left(name)).chain(&requeued_after_end).for_each(|name| start_soon(name));
    }
    if left.is_empty() {
        return Ok(exit_code::SUCCESS);
    }
    let left = job_names(&left).join(",");
    // Setting the node down now would make slurmd wait for its job steps; the next start handles these jobs first.
    let who = if has_other_nodes { "the controller" } else { "the next start" };
    report::info(message!(
        "jobs-still-ending",
        "jobs still ending: {jobs}; {who} requeues those that are still running (those with --no-requeue, and allocations, fail)",
        jobs = left,
        who
    ));
    Ok(exit_code::JOBS_LEFT)
}

/// Waits until no job is left on the node, or until the deadline. `should_continue` is called between two polls; when it returns false,
/// the wait ends. Returns the jobs that are left.
fn wait_for_end(
    node_filter: Option<&str>,
    until: Instant,
    mut should_continue: impl FnMut(&[QueuedJob]) -> bool,
) -> anyhow::Result<Vec<QueuedJob>> {
    let mut left = jobs_on_the_node(node_filter)?;
    while !left.is_empty() && should_continue(&left) && Instant::now() < until {
        // Polls more often while only Epilogs run: an Epilog is short, and `docker run IMAGE srun ...` waits for it.
        pause(if left.iter().all(QueuedJob::is_completing) { POLL_INTERVAL / 4 } else { POLL_INTERVAL });
        left = jobs_on_the_node(node_filter)?;
    }
    Ok(left)
}

/// Waits until each of these jobs has ended, or until the deadline. Calls `ended` with the jobs that have ended, and returns those that
/// are still running.
fn wait_for_each<'a>(
    mut jobs: Vec<&'a QueuedJob>,
    node_filter: Option<&str>,
    until: Instant,
    ended: impl Fn(&[&str]) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<&'a QueuedJob>> {
    loop {
        let holding = jobs_on_the_node(node_filter)?;
        let (left, gone): (Vec<_>, Vec<_>) =
            jobs.into_iter().partition(|job| holding.iter().any(|other| other.id == job.id));
        if !gone.is_empty() {
            ended(&job_names(gone))?;
        }
        if left.is_empty() || Instant::now() >= until {
            return Ok(left.into_iter().filter(|job| is_running(&job.id, &holding)).collect());
        }
        jobs = left;
        pause(POLL_INTERVAL);
    }
}

/// Requeues or cancels jobs whose grace period is over, kills their processes, and waits for at most [`KILL_TIMEOUT`] until slurmctld has
/// recorded their end. Returns the result of [`requeue`]; nothing with [`OnStop::Cancel`].
fn kill_remaining(left: &[QueuedJob], node_filter: Option<&str>, on_stop: OnStop) -> anyhow::Result<Vec<String>> {
    let all = job_names(left).join(",");
    let running: Vec<&QueuedJob> = left.iter().filter(|job| !job.is_completing()).collect();
    let requeued = match on_stop {
        OnStop::Requeue => {
            report::warn(message!(
                "jobs-killed",
                "jobs {jobs} did not end in time; killing their processes",
                jobs = all
            ));
            requeue(&running, node_filter)?
        }
        OnStop::Cancel => {
            report::warn(message!(
                "jobs-killed",
                "jobs {jobs} did not end in time; cancelling them and killing their processes",
                jobs = all
            ));
            if !running.is_empty() {
                // A job that has just ended makes scancel fail, but only after scancel has cancelled the other jobs.
                let _ = SLURM.run("scancel", &job_names(running));
            }
            Vec::new()
        }
    };
    // An allocation without a step on this node has no process to kill, and remains.
    let should_continue = |left: &[QueuedJob]| {
        let ids: Vec<String> = left.iter().map(|job| job.number.to_string()).collect();
        let has_step = kill::kill(&ids.iter().map(String::as_str).collect());
        has_step || left.iter().any(|job| job.is_completing())
    };
    wait_for_end(node_filter, Instant::now() + KILL_TIMEOUT, should_continue)?;
    Ok(requeued)
}

/// Requeues those of the jobs that Slurm may run again. Returns the IDs of all that are no longer running, including those that ended by
/// themselves meanwhile. A requeued job never becomes FAILED.
fn requeue(jobs: &[&QueuedJob], node_filter: Option<&str>) -> anyhow::Result<Vec<String>> {
    let mut requeued: Vec<String> = jobs.iter().map(|job| job.id.clone()).collect();
    if requeued.is_empty() {
        return Ok(requeued);
    }
    // Slurm refuses this for allocations and for jobs with --no-requeue, and continues with the next job.
    // With "incomplete", it does not requeue a job that has ended by itself meanwhile.
    let _ = SLURM.run("scontrol", &["requeue", "incomplete", &requeued.join(",")]);
    let remaining = jobs_on_the_node(node_filter)?;
    requeued.retain(|name| !is_running(name, &remaining));
    Ok(requeued)
}

/// Whether the job is among the jobs that hold resources, and is not completing.
fn is_running(name: &str, holding: &[QueuedJob]) -> bool {
    holding.iter().any(|job| job.id == name && !job.is_completing())
}

/// The jobs that were notified of the stop.
#[derive(Debug, Default)]
struct NotifiedJobs {
    /// Jobs for which the requeue itself was the notice.
    requeued: Vec<String>,
    /// Jobs that only got TERM.
    notified: Vec<String>,
}

impl NotifiedJobs {
    fn extend(&mut self, other: Self) {
        self.requeued.extend(other.requeued);
        self.notified.extend(other.notified);
    }
}

/// Requeues each of these jobs, or sends it TERM. `end`: the end of the grace period.
fn give_notice(
    running: &[&QueuedJob],
    node_filter: Option<&str>,
    end: Instant,
    on_stop: OnStop,
) -> anyhow::Result<NotifiedJobs> {
    if running.is_empty() {
        return Ok(NotifiedJobs::default());
    }
    let requeued = match on_stop {
        OnStop::Requeue => {
            let with_handler = scripts::handling_term();
            let others: Vec<&QueuedJob> =
                running.iter().copied().filter(|job| !with_handler.contains(&job.number.to_string())).collect();
            requeue(&others, node_filter)?
        }
        OnStop::Cancel => Vec::new(),
    };
    let remaining = jobs_on_the_node(node_filter)?;
    let is_notified = |job: &&QueuedJob| !job.is_completing() && running.iter().any(|other| other.id == job.id);
    let notified: Vec<&str> = job_names(remaining.iter().filter(is_notified));
    let seconds = format!("{:.1}", end.saturating_duration_since(Instant::now()).as_secs_f64());
    if !requeued.is_empty() {
        report::info(message!(
            "jobs-requeued",
            "jobs {jobs} requeued; grace period {seconds} s",
            jobs = requeued.join(","),
            seconds
        ));
    }
    if !notified.is_empty() {
        report::info(message!(
            "jobs-notified",
            "sending SIGTERM to jobs {jobs}; grace period {seconds} s",
            jobs = notified.join(","),
            seconds
        ));
        // --full also signals the batch script, which may write a checkpoint. If a job ends at this moment scancel
        // fails, but only after it has signalled the others.
        let _ = SLURM.run("scancel", &[&["--full", "--signal=TERM"], notified.as_slice()].concat());
    }
    let notified = notified.into_iter().map(str::to_owned).collect();
    Ok(NotifiedJobs { requeued, notified })
}

/// Requeues the jobs that ended after their requested signal, and returns them with those that requeued themselves. If the script got
/// the signal and exited with 0, the job is COMPLETED and not requeued. If the steps got it, a job that is COMPLETED is requeued too,
/// because the signal may have ended its last steps early.
fn requeue_signalled(
    ended: &[&str],
    signalled: &SignalledJobs,
    dependencies: &BTreeMap<String, String>,
) -> anyhow::Result<Vec<String>> {
    if ended.is_empty() {
        return Ok(Vec::new());
    }
    let (scripts, steps): (Vec<&str>, Vec<&str>) = ended.iter().partition(|job| signalled.by_script.contains(**job));
    requeue_ended(&scripts, &[FAILED], dependencies)?;
    requeue_ended(&steps, &[FAILED, COMPLETED], dependencies)?;
    let requeued = SLURM.jobs(&Jobs { states: &[PENDING], ..Jobs::default() })?;
    Ok(requeued.into_iter().map(|job| job.id).filter(|job| ended.contains(&job.as_str())).collect())
}

/// Requeues those of the ended jobs that are in one of these states. Slurm refuses this for allocations and for jobs with
/// --no-requeue.
fn requeue_ended(
    ended: &[&str],
    states: &[&str],
    dependencies: &BTreeMap<String, String>,
) -> anyhow::Result<Vec<String>> {
    if ended.is_empty() {
        return Ok(Vec::new());
    }
    let found = SLURM.jobs(&Jobs { states, ..Jobs::default() })?;
    let found: BTreeSet<&str> = found.iter().map(|job| job.id.as_str()).collect();
    let mut requeued = Vec::new();
    for name in ended.iter().filter(|name| found.contains(**name)) {
        if SLURM.run("scontrol", &["requeue", name]).is_ok() {
            report::info(message!("job-requeued", "job {job} ended during the stop; requeued", job = name));
            requeued.push((*name).to_owned());
        }
    }
    for (job, dependency) in
        dependencies.iter().filter(|(_, dependency)| requeued.iter().any(|name| includes_job(dependency, name)))
    {
        // Restore the dependencies of a waiting job: the end of the requeued job had met them, or made them impossible to meet.
        let _ = SLURM.update_job(job, &[format!("dependency={dependency}")]);
    }
    Ok(requeued)
}

/// The dependency of each pending job, in the format of `scontrol update`.
fn pending_dependencies() -> anyhow::Result<BTreeMap<String, String>> {
    let waiting = SLURM.jobs(&Jobs { states: &[PENDING], ..Jobs::default() })?;
    Ok(waiting.iter().filter_map(|job| Some((job.number.to_string(), for_update(&job.dependency)?))).collect())
}

/// Converts `afterok:5(unfulfilled),afterany:6_*(unfulfilled)` to the format of scontrol; `None` if it names no job.
fn for_update(dependency: &str) -> Option<String> {
    let mut pieces = dependency.split('(');
    let first = pieces.next()?.to_owned();
    let updated = pieces.fold(first, |text, piece| text + piece.split_once(')').map_or("", |(_, rest)| rest));
    updated.contains(':').then_some(updated)
}

/// Whether a dependency may include this job: it names the job, its array, or another task of the array.
fn includes_job(dependency: &str, job: &str) -> bool {
    let (array, _) = job.split_once('_').unwrap_or((job, ""));
    dependency.split([',', '?', ':', '+', '_']).any(|word| word == array)
}

#[cfg(test)]
mod tests {
    use super::{for_update, includes_job};

    #[test]
    fn removes_states_from_dependency() {
        assert_eq!(for_update("afterok:5(unfulfilled)").as_deref(), Some("afterok:5"));
        let two = "afterok:5(unfulfilled),afterany:6_*(unfulfilled)";
        assert_eq!(for_update(two).as_deref(), Some("afterok:5,afterany:6_*"));
        let either = "afterok:5(failed)?afternotok:15(unfulfilled)";
        assert_eq!(for_update(either).as_deref(), Some("afterok:5?afternotok:15"));
        assert_eq!(for_update("(null)"), None);
        assert_eq!(for_update(""), None);
    }

    #[test]
    fn matches_whole_job_ids_in_dependencies() {
        assert!(includes_job("afterok:5,afterany:6_*", "5") && includes_job("afterok:5,afterany:6_*", "6"));
        assert!(includes_job("afternotok:6_*", "6_2") && includes_job("afternotok:6_2", "6_2"), "matches the array");
        assert!(!includes_job("afterok:15", "5") && !includes_job("afterok:51", "5"));
    }
}
