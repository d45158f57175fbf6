//! Ends jobs at a planned stop: no new starts, a notice, a grace period, and requeueing of the jobs that the stop ended.
//!
//! A job that requested a signal gets it first, and two thirds of the grace period to end or to requeue itself. Then it gets the
//! notice that the others get at once.
//!
//! A stop must never cost a job more than a crash would, and after a crash Slurm requeues running jobs. If TERM would
//! end the script anyway, the requeue itself is the notice: slurmctld requeues the job at once and has slurmd end its
//! steps with TERM. The job never becomes FAILED, so jobs that wait for its failure do not start. A script that catches
//! or ignores TERM only gets TERM. It is COMPLETED if it exits with 0, and requeued if it fails. A job that is still
//! there after the grace period is requeued, and its processes get SIGKILL. What then is left, such as an allocation
//! without processes, stays running in the saved state, and `recover` requeues or fails it.

mod kill;
mod requested_signal;
mod scripts;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::note::JobNote;
use super::wait::Backlog;
use super::{LOOK, SLURM, STOPS, closed_for_good, jobs_on_the_node, names_of, pause, start_soon};
use config::OnStop;
use machine::node_report::OUR_REASON;
use model::exit_code;
use model::message;
use model::queued_job::{PENDING, QueuedJob};
use requested_signal::SignalledJobs;
use slurm::client::Jobs;
use sys::report;

/// How long jobs may take to end after SIGKILL: slurmd runs the Epilog, and reports to slurmctld.
const AFTER_KILL: Duration = Duration::from_secs(1);
/// The states of jobs that ended by themselves, with an error and without.
const FAILED: &str = "FAILED";
const COMPLETED: &str = "COMPLETED";

/// Users of `docker run IMAGE sbatch job.sh` may expect the container to wait.
pub(super) fn hint(queue: &[QueuedJob]) {
    let Backlog { running, waiting, .. } = Backlog::of(queue);
    if running + waiting > 0 {
        report::warn(message!(
            "jobs-left-alone",
            "stopping with jobs in the queue ({running} running, {waiting} waiting), which only a state volume keeps",
            running = running,
            waiting = waiting
        ));
        report::warn(message!(
            "repair",
            "to wait for jobs: docker run --env SLURMINIT_WAIT_JOBS=true, or sbatch --wait"
        ));
    }
}

/// Notifies the jobs and waits for their end. The exit code shows whether some are left.
///
/// `leaves`: the controller is another container, and the node is one of several.
pub(super) fn run(node: &str, grace: Duration, on_stop: OnStop, leaves: bool) -> anyhow::Result<u8> {
    let begin = Instant::now();
    let own = leaves.then_some(node);
    // This comes before the list of running jobs: nothing may start after it.
    if closed_for_good(node)?.is_none() {
        let reason = format!("reason={OUR_REASON}{STOPS}");
        SLURM.update_node(node, &["state=drain", &reason])?;
    }
    let met = jobs_on_the_node(own)?;
    if met.is_empty() && leaves {
        return Ok(exit_code::SUCCESS);
    }
    let running: Vec<&QueuedJob> = met.iter().filter(|job| !job.is_completing()).collect();
    JobNote::Stopped.write(&names_of(running.iter().copied()));
    if met.is_empty() {
        return Ok(exit_code::SUCCESS);
    }
    let waiting = if running.is_empty() { BTreeMap::new() } else { dependents()? };
    let end = begin + grace;
    let signalled = requested_signal::send(&running, begin + grace / 3);
    let (first, others): (Vec<_>, Vec<_>) = running.into_iter().partition(|job| signalled.has(&job.id));
    let mut noticed = give_notice(&others, own, end, on_stop)?;
    if !first.is_empty() {
        let ended = |jobs: &[&str]| match on_stop {
            OnStop::Requeue => requeue_signalled(jobs, &signalled, &waiting).map(drop),
            OnStop::Cancel => Ok(()),
        };
        let still = wait_for_each(first, own, begin + grace * 2 / 3, ended)?;
        noticed.extend(give_notice(&still, own, end, on_stop)?);
    }

    // slurmctld must receive the completion of a job from slurmd: otherwise it waits long for slurmd when it stops.
    let mut left = wait_for_end(own, end, |_| true)?;
    let NotifiedJobs { mut requeued, notified } = noticed;
    if !left.is_empty() {
        requeued.extend(end_now(&left, own, on_stop)?);
        left = jobs_on_the_node(own)?;
    }
    let is_left = |name: &str| left.iter().any(|job| job.id == name);
    if on_stop == OnStop::Requeue {
        let has_ended = |name: &&str| !is_left(name) && !requeued.iter().any(|job| job == name);
        let ended: Vec<&str> = notified.iter().map(String::as_str).filter(has_ended).collect();
        let mut again = requeue_ended(&ended, &[FAILED], &waiting)?;
        let ended: Vec<&str> = signalled.names().filter(has_ended).filter(|name| !ended.contains(name)).collect();
        again.extend(requeue_signalled(&ended, &signalled, &waiting)?);
        // Slurm makes a requeued job wait two minutes after its end, and refuses to change that before.
        requeued.iter().filter(|name| !is_left(name)).chain(&again).for_each(|name| start_soon(name));
    }
    if left.is_empty() {
        return Ok(exit_code::SUCCESS);
    }
    let left = names_of(&left).join(",");
    // Setting the node down now would make slurmd wait for its job steps; the next start handles these jobs first.
    let who = if leaves { "the controller" } else { "the next start" };
    report::info(message!(
        "jobs-still-ending",
        "jobs {jobs} are still ending; {who} requeues them (those with --no-requeue fail)",
        jobs = left,
        who = who
    ));
    Ok(exit_code::JOBS_LEFT)
}

/// Waits until no job is left on the node, or until the deadline. `should_continue` is called between two polls; when it returns false,
/// the wait ends. Returns the jobs that are left.
fn wait_for_end(
    own: Option<&str>,
    until: Instant,
    mut should_continue: impl FnMut(&[QueuedJob]) -> bool,
) -> anyhow::Result<Vec<QueuedJob>> {
    let mut left = jobs_on_the_node(own)?;
    while !left.is_empty() && should_continue(&left) && Instant::now() < until {
        // An Epilog is short, and `docker run IMAGE srun ...` waits for it.
        pause(if left.iter().all(QueuedJob::is_completing) { LOOK / 4 } else { LOOK });
        left = jobs_on_the_node(own)?;
    }
    Ok(left)
}

/// Waits until each of these jobs has ended, or until the deadline, and calls `ended` with those that have. Returns those that run.
fn wait_for_each<'a>(
    mut jobs: Vec<&'a QueuedJob>,
    own: Option<&str>,
    until: Instant,
    ended: impl Fn(&[&str]) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<&'a QueuedJob>> {
    loop {
        let held = jobs_on_the_node(own)?;
        let (left, gone): (Vec<_>, Vec<_>) = jobs.into_iter().partition(|job| held.iter().any(|one| one.id == job.id));
        if !gone.is_empty() {
            ended(&names_of(gone))?;
        }
        if left.is_empty() || Instant::now() >= until {
            let runs = |job: &&QueuedJob| held.iter().any(|one| one.id == job.id && !one.is_completing());
            return Ok(left.into_iter().filter(runs).collect());
        }
        jobs = left;
        pause(LOOK);
    }
}

/// Kills jobs whose grace period is over, and waits until slurmctld has recorded their end. Returns the requeued jobs.
fn end_now(left: &[QueuedJob], own: Option<&str>, on_stop: OnStop) -> anyhow::Result<Vec<String>> {
    let all = names_of(left).join(",");
    let running: Vec<&QueuedJob> = left.iter().filter(|job| !job.is_completing()).collect();
    let requeued = match on_stop {
        OnStop::Requeue => {
            report::warn(message!(
                "jobs-killed",
                "jobs {jobs} did not end in time; killing their processes",
                jobs = all
            ));
            requeue(&running, own)?
        }
        OnStop::Cancel => {
            report::warn(message!(
                "jobs-killed",
                "jobs {jobs} did not end in time; cancelling them and killing their processes",
                jobs = all
            ));
            if !running.is_empty() {
                // A job that has just ended makes scancel fail, but only after it has cancelled the others.
                let _ = SLURM.run("scancel", &names_of(running));
            }
            Vec::new()
        }
    };
    // An allocation without a step on this node has nothing to kill, and stays.
    let should_continue = |left: &[QueuedJob]| {
        let ids: Vec<String> = left.iter().map(|job| job.number.to_string()).collect();
        let has_step = kill::kill(&ids.iter().map(String::as_str).collect());
        has_step || left.iter().any(|job| job.is_completing())
    };
    wait_for_end(own, Instant::now() + AFTER_KILL, should_continue)?;
    Ok(requeued)
}

/// Requeues the jobs among these that Slurm may run again, and returns them. A requeued job never becomes FAILED.
fn requeue(jobs: &[&QueuedJob], own: Option<&str>) -> anyhow::Result<Vec<String>> {
    let mut requeued: Vec<String> = jobs.iter().map(|job| job.id.clone()).collect();
    if requeued.is_empty() {
        return Ok(requeued);
    }
    // Slurm refuses this for allocations and for jobs with --no-requeue, and continues with the next.
    // "incomplete" leaves alone a job that has ended by itself meanwhile.
    let _ = SLURM.run("scontrol", &["requeue", "incomplete", &requeued.join(",")]);
    let still = jobs_on_the_node(own)?;
    let runs = |name: &String| still.iter().any(|job| !job.is_completing() && job.id == *name);
    requeued.retain(|name| !runs(name));
    Ok(requeued)
}

/// How the jobs were notified of the stop.
#[derive(Debug, Default)]
struct NotifiedJobs {
    /// The requeue itself was the notice.
    requeued: Vec<String>,
    /// Only TERM was sent.
    notified: Vec<String>,
}

impl NotifiedJobs {
    fn extend(&mut self, other: Self) {
        self.requeued.extend(other.requeued);
        self.notified.extend(other.notified);
    }
}

/// Requeues these jobs, or sends TERM. `end`: the end of the grace period.
fn give_notice(
    running: &[&QueuedJob],
    own: Option<&str>,
    end: Instant,
    on_stop: OnStop,
) -> anyhow::Result<NotifiedJobs> {
    if running.is_empty() {
        return Ok(NotifiedJobs::default());
    }
    let requeued = match on_stop {
        OnStop::Requeue => {
            let own_way = scripts::handling_term();
            let others: Vec<&QueuedJob> =
                running.iter().copied().filter(|job| !own_way.contains(&job.number.to_string())).collect();
            requeue(&others, own)?
        }
        OnStop::Cancel => Vec::new(),
    };
    let still = jobs_on_the_node(own)?;
    let is_meant = |job: &&QueuedJob| !job.is_completing() && running.iter().any(|one| one.id == job.id);
    let notified: Vec<&str> = names_of(still.iter().filter(is_meant));
    let seconds = format!("{:.1}", end.saturating_duration_since(Instant::now()).as_secs_f64());
    if !requeued.is_empty() {
        report::info(message!(
            "jobs-requeued",
            "jobs {jobs} requeued; grace period {seconds} s",
            jobs = requeued.join(","),
            seconds = seconds
        ));
    }
    if !notified.is_empty() {
        report::info(message!(
            "jobs-notified",
            "sent TERM to jobs {jobs}; grace period {seconds} s",
            jobs = notified.join(","),
            seconds = seconds
        ));
        // --full also signals the batch script, which may write a checkpoint. If a job ends at this moment scancel
        // fails, but only after it has signalled the others.
        let _ = SLURM.run("scancel", &[&["--full", "--signal=TERM"], notified.as_slice()].concat());
    }
    let notified = notified.into_iter().map(str::to_owned).collect();
    Ok(NotifiedJobs { requeued, notified })
}

/// Requeues the jobs that ended after their requested signal, and returns them with those that requeued themselves. A script that
/// got the signal and exits with 0 is COMPLETED. If the steps got it, the exit code is that of a job without its last steps.
fn requeue_signalled(
    ended: &[&str],
    signalled: &SignalledJobs,
    waiting: &BTreeMap<String, String>,
) -> anyhow::Result<Vec<String>> {
    if ended.is_empty() {
        return Ok(Vec::new());
    }
    let (scripts, steps): (Vec<&str>, Vec<&str>) = ended.iter().partition(|job| signalled.by_script.contains(**job));
    requeue_ended(&scripts, &[FAILED], waiting)?;
    requeue_ended(&steps, &[FAILED, COMPLETED], waiting)?;
    let again = SLURM.jobs(&Jobs { states: &[PENDING], ..Jobs::default() })?;
    Ok(again.into_iter().map(|job| job.id).filter(|job| ended.contains(&job.as_str())).collect())
}

/// Requeues those of the ended jobs that are in one of these states. Slurm refuses this for allocations and for jobs with
/// --no-requeue.
fn requeue_ended(ended: &[&str], states: &[&str], waiting: &BTreeMap<String, String>) -> anyhow::Result<Vec<String>> {
    if ended.is_empty() {
        return Ok(Vec::new());
    }
    let found = SLURM.jobs(&Jobs { states, ..Jobs::default() })?;
    let found: BTreeSet<&str> = found.iter().map(|job| job.id.as_str()).collect();
    let mut again = Vec::new();
    for name in ended.iter().filter(|name| found.contains(**name)) {
        if SLURM.run("scontrol", &["requeue", name]).is_ok() {
            report::info(message!("job-requeued", "job {job} ended because of the stop; requeued", job = name));
            again.push((*name).to_owned());
        }
    }
    for (job, dependency) in
        waiting.iter().filter(|(_, dependency)| again.iter().any(|name| waits_for(dependency, name)))
    {
        // Jobs that the end released, or made impossible, depend on the job again.
        let _ = SLURM.update_job(job, &[format!("dependency={dependency}")]);
    }
    Ok(again)
}

/// The dependency of each pending job, in the format of `scontrol update`.
fn dependents() -> anyhow::Result<BTreeMap<String, String>> {
    let waiting = SLURM.jobs(&Jobs { states: &[PENDING], ..Jobs::default() })?;
    Ok(waiting.iter().filter_map(|job| Some((job.number.to_string(), plain(&job.dependency)?))).collect())
}

/// `afterok:5(unfulfilled),afterany:6_*(unfulfilled)` in the format of scontrol; `None` if it is malformed.
fn plain(dependency: &str) -> Option<String> {
    let mut pieces = dependency.split('(');
    let first = pieces.next()?.to_owned();
    let plain = pieces.fold(first, |text, piece| text + piece.split_once(')').map_or("", |(_, rest)| rest));
    plain.contains(':').then_some(plain)
}

/// Whether a dependency includes this job, or its array.
fn waits_for(dependency: &str, job: &str) -> bool {
    let (array, _) = job.split_once('_').unwrap_or((job, ""));
    dependency.split([',', '?', ':', '+', '_']).any(|word| word == array)
}

#[cfg(test)]
mod tests {
    use super::{plain, waits_for};

    #[test]
    fn removes_states_from_dependency() {
        assert_eq!(plain("afterok:5(unfulfilled)").as_deref(), Some("afterok:5"));
        let two = "afterok:5(unfulfilled),afterany:6_*(unfulfilled)";
        assert_eq!(plain(two).as_deref(), Some("afterok:5,afterany:6_*"));
        assert_eq!(plain("afterok:5(failed)?afternotok:15(unfulfilled)").as_deref(), Some("afterok:5?afternotok:15"));
        assert_eq!(plain("(null)"), None);
        assert_eq!(plain(""), None);
    }

    #[test]
    fn matches_whole_job_ids_in_dependencies() {
        assert!(waits_for("afterok:5,afterany:6_*", "5") && waits_for("afterok:5,afterany:6_*", "6"));
        assert!(waits_for("afternotok:6_*", "6_2") && waits_for("afternotok:6_2", "6_2"), "matches the array");
        assert!(!waits_for("afterok:15", "5") && !waits_for("afterok:51", "5"));
    }
}
