//! The jobs' part of a planned stop: no new start, notice, time to end, and a place in the queue for what the stop ended.
//!
//! A stop must never cost a job more than a crash would: after a crash Slurm requeues what ran. Here the requeue is the
//! notice itself wherever TERM would end the script anyway: slurmctld puts the job back into the queue at once and tells slurmd
//! to end its steps with TERM. The job never is FAILED, so no job that waits for its failure is let go. A script that
//! catches or ignores TERM has its own way to end: it gets TERM alone, is COMPLETED if it exits with 0, and is requeued
//! if it fails. What goes on until the grace is over runs in the saved state, and `recover` requeues it.

mod scripts;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::{COMPLETING, Job, jobs_on_the_node, output, pause, slurm, start_soon};
use crate::config::OnStop;
use crate::exit_code;
use crate::supervise::node::OUR_REASON;

/// What AdminComment says of a job that the stop met.
pub(super) const STOPPED: &str = "the container stopped while this job ran";

/// Does it, and says by its code whether jobs are left.
pub(super) fn run(node: &str, grace: Duration, on_stop: OnStop) -> anyhow::Result<u8> {
    let begin = Instant::now();
    if output("squeue", &["--noheader", "--format=%A"])?.trim().is_empty() {
        return Ok(exit_code::SUCCESS);
    }
    // Before the look at what runs: nothing may start after it.
    let reason = format!("reason={OUR_REASON}the container stops");
    slurm("scontrol", &["update", &format!("nodename={node}"), "state=drain", &reason])?;
    let met = jobs_on_the_node()?;
    let running: Vec<&str> = ids(met.iter().filter(|job| job.state != COMPLETING));
    let waiting = dependents()?;
    let noticed = if running.is_empty() { Noticed::default() } else { give_notice(&running, grace, on_stop)? };

    // slurmctld must hear from slurmd that a job has completed: without it, it waits for slurmd at its own end, for long.
    let mut left = jobs_on_the_node()?;
    while !left.is_empty() && begin.elapsed() < grace {
        pause();
        left = jobs_on_the_node()?;
    }
    let is_left = |id: &String| left.iter().any(|job| job.id == *id);
    if on_stop == OnStop::Requeue {
        let ended: Vec<String> = noticed.told.into_iter().filter(|id| !is_left(id)).collect();
        let again = requeue_failed(&ended, &waiting)?;
        // Slurm has a requeued job wait two minutes from its end on, and lets nobody change that before its end.
        noticed.requeued.iter().filter(|id| !is_left(id)).chain(&again).for_each(|id| start_soon(id));
    }
    if left.is_empty() {
        return Ok(exit_code::SUCCESS);
    }
    let left = ids(left.iter());
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

fn ids<'a>(jobs: impl Iterator<Item = &'a Job>) -> Vec<&'a str> {
    jobs.map(|job| job.id.as_str()).collect()
}

/// How the jobs learned of the stop.
#[derive(Debug, Default)]
struct Noticed {
    /// By being requeued.
    requeued: Vec<String>,
    /// By TERM alone.
    told: Vec<String>,
}

fn give_notice(running: &[&str], grace: Duration, on_stop: OnStop) -> anyhow::Result<Noticed> {
    comment(running, STOPPED);
    let mut requeued: Vec<String> = Vec::new();
    if on_stop == OnStop::Requeue {
        let own_way = scripts::that_hear_term();
        requeued = running.iter().filter(|id| !own_way.contains(**id)).map(ToString::to_string).collect();
        if !requeued.is_empty() {
            // It refuses allocations and jobs with --no-requeue, and goes on with the next. One that ended by itself
            // meanwhile has ended: "incomplete" leaves it alone.
            let _ = slurm("scontrol", &["requeue", "incomplete", &requeued.join(",")]);
        }
    }
    let still = jobs_on_the_node()?;
    let told: Vec<&str> = ids(still.iter().filter(|job| job.state != COMPLETING));
    requeued.retain(|id| !told.contains(&id.as_str()));
    if !requeued.is_empty() {
        eprintln!("jobs {} are requeued, and have {:.1} s to end", requeued.join(","), grace.as_secs_f64());
    }
    if !told.is_empty() {
        eprintln!("jobs {} get TERM, and {:.1} s to end", told.join(","), grace.as_secs_f64());
        // --full reaches the batch script too, which is where a checkpoint is written. A job that ends in this moment
        // makes scancel fail, after it has told the others.
        let _ = slurm("scancel", &[&["--full", "--signal=TERM"], told.as_slice()].concat());
    }
    let told = told.into_iter().map(str::to_owned).collect();
    Ok(Noticed { requeued, told })
}

/// Requeues those of the ended jobs that failed: TERM ended them. Slurm refuses it for allocations and for jobs with
/// --no-requeue, which stay failed.
fn requeue_failed(ended: &[String], waiting: &BTreeMap<String, String>) -> anyhow::Result<Vec<String>> {
    if ended.is_empty() {
        return Ok(Vec::new());
    }
    let list = output("squeue", &["--noheader", "--states=FAILED", "--format=%A"])?;
    let failed: BTreeSet<&str> = list.lines().map(str::trim).collect();
    let mut again = Vec::new();
    for id in ended.iter().filter(|id| failed.contains(id.as_str())) {
        if slurm("scontrol", &["requeue", id]).is_ok() {
            eprintln!("job {id} failed by the stop and is requeued");
            again.push(id.clone());
        }
    }
    for (job, dependency) in waiting.iter().filter(|(_, dependency)| again.iter().any(|id| names(dependency, id))) {
        // What the failure has let go, or made impossible, waits for the job again.
        let _ = slurm("scontrol", &["update", &format!("jobid={job}"), &format!("dependency={dependency}")]);
    }
    Ok(again)
}

/// What each pending job waits for, as `scontrol update` takes it.
fn dependents() -> anyhow::Result<BTreeMap<String, String>> {
    let list = output("squeue", &["--noheader", "--states=PENDING", "--format=%A %E"])?;
    Ok(list.lines().filter_map(dependent).collect())
}

/// `7 afterok:5(unfulfilled),afterany:6_*(unfulfilled)`
fn dependent(line: &str) -> Option<(String, String)> {
    let (job, dependency) = line.trim().split_once(' ')?;
    let mut pieces = dependency.split('(');
    let first = pieces.next()?.to_owned();
    let plain = pieces.fold(first, |text, piece| text + piece.split_once(')').map_or("", |(_, rest)| rest));
    (plain.contains(':')).then(|| (job.to_owned(), plain))
}

/// Whether a dependency waits for this job.
fn names(dependency: &str, job: &str) -> bool {
    dependency.split([',', '?', ':', '+', '_']).any(|word| word == job)
}

/// Says it in the jobs; a job that has just ended takes it or does not.
pub(super) fn comment(jobs: &[&str], what: &str) {
    if !jobs.is_empty() {
        let to = format!("jobid={}", jobs.join(","));
        let _ = slurm("scontrol", &["update", &to, &format!("admincomment={OUR_REASON}{what}")]);
    }
}

#[cfg(test)]
mod tests {
    use super::{dependent, names};

    #[test]
    fn a_dependency_is_given_back_as_it_was() {
        let read = |line| dependent(line).map(|(_, dependency)| dependency);
        assert_eq!(read("7 afterok:5(unfulfilled)").as_deref(), Some("afterok:5"));
        let two = "7 afterok:5(unfulfilled),afterany:6_*(unfulfilled)";
        assert_eq!(read(two).as_deref(), Some("afterok:5,afterany:6_*"));
        assert_eq!(read("7 afterok:5(failed)?afternotok:15(unfulfilled)").as_deref(), Some("afterok:5?afternotok:15"));
        assert_eq!(read("7 (null)"), None);
        assert_eq!(read("7"), None);
    }

    #[test]
    fn a_job_is_named_by_its_whole_number() {
        assert!(names("afterok:5,afterany:6_*", "5") && names("afterok:5,afterany:6_*", "6"));
        assert!(!names("afterok:15", "5") && !names("afterok:51", "5"));
    }
}
