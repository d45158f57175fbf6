//! Finds jobs that slurmctld lists as running but that have no process, and so hold unused CPUs and GPUs.
//!
//! slurmctld saves changes within five seconds. If it dies in that time, its successor still lists jobs that have just ended as running.
//! Slurm detects a missing batch job when the node registers again, every half hour, and by default never detects an allocation whose srun
//! is gone (24.11, `ping_nodes.c`, `job_mgr.c`). With `InactiveLimit`, slurmctld queries srun itself, but treats a stopped srun as missing and,
//! after a pause of the container, every srun (docs/decisions/reclaim-jobs-after-a-daemons-return.md).

pub(super) mod dead_steps;
mod processes;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::note::JobNote;
use super::{SLURM, node_names, pause};
use machine::node_report::OUR_REASON;
use model::message;
use model::queued_job::PENDING;
use model::slurm_time;
use processes::{Client, InUse, in_use};
use slurm::client::Jobs;
use slurm::config::RunningConfig;
use slurm::error::QueryError;
use sys::report;

/// After this many restarts a lost batch job is held instead of requeued, because the job itself may crash slurmd. This is Slurm's own number
/// of retries (`MAX_BATCH_REQUEUE`).
const MAX_RESTARTS: u32 = 5;

/// The states of jobs that must have a process. squeue's filter for them also finds CONFIGURING jobs.
const HOLDING_STATES: [&str; 2] = ["RUNNING", "SUSPENDED"];

/// squeue's columns and their widths, which exceed the longest values.
const COLUMNS: [(&str, usize); 10] = [
    ("JobID", 16),
    ("State", 16),
    ("HetJobOffset", 16),
    ("JobArrayID", 32),
    ("BatchFlag", 4),
    ("TimeUsed", 16),
    ("AllocSID", 16),
    ("BatchHost", 256),
    ("AllocNodes", 256),
    ("RestartCnt", 16),
];

/// The time that Slurm adds to BatchStartTimeout before it treats a batch job as missing (`job_mgr.c`).
const LAUNCH_MARGIN: Duration = Duration::from_secs(10);

/// Interval between two checks of uncertain jobs, for which Slurm has no event, and between attempts to query slurmctld.
const POLL_INTERVAL: Duration = Duration::from_secs(3);
/// How long to check uncertain jobs and to wait for slurmctld. After this time a lost srun has given up (observed: 17 s), and with the default
/// BatchStartTimeout (10 s) a batch script has started or never will.
const CHECK_TIMEOUT: Duration = Duration::from_secs(50);

#[derive(Debug, PartialEq, Eq)]
struct HeldJob {
    id: String,
    /// The job's ID in the form that Slurm's commands accept: `7`, or `12_3` for the task of an array.
    name: String,
    age: Duration,
    restarts: u32,
    held_by: Holder,
}

/// The process that must exist for a job to be in use.
#[derive(Debug, PartialEq, Eq)]
enum Holder {
    /// The srun or salloc that requested the job, in this session of this host.
    Client { session: String, host: String },
    /// The batch script, on this node.
    Script { node: String },
}

/// Evidence that a job may be lost.
#[derive(Debug, PartialEq, Eq)]
enum Suspicion {
    /// If the job's srun or salloc still runs, it is one of these processes, which were alive at the first check.
    HeldByOneOf(BTreeSet<Client>),
    /// A missing batch script.
    WithoutScript,
}

/// Whether a suspicion is confirmed.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    InUse,
    Uncertain,
    Lost,
}

/// The jobs with a step in this container, except the extern step.
pub(super) fn jobs_with_step() -> BTreeSet<String> {
    in_use().steps
}

/// Cancels, requeues or holds lost jobs.
pub(super) fn run(node: &str) -> anyhow::Result<()> {
    let begin = Instant::now();
    let jobs = await_running_jobs(begin)?;
    if jobs.is_empty() {
        return Ok(());
    }
    let host = nix::unistd::gethostname()?.to_string_lossy().into_owned();
    let mut in_use = in_use();
    let nodes = node_names(node);
    let suspicion = |job: HeldJob| Some((find_suspicion(&job, &in_use, &host, &nodes)?, job.id));
    let mut suspects: Vec<(Suspicion, String)> = jobs.into_iter().filter_map(suspicion).collect();
    while !suspects.is_empty() {
        // squeue runs after the scan of the processes: a job that ended normally before the scan is no longer listed.
        suspects = resolve(suspects, &in_use, &await_running_jobs(begin)?)?;
        if suspects.is_empty() || begin.elapsed() > CHECK_TIMEOUT {
            break;
        }
        pause(POLL_INTERVAL);
        in_use = processes::in_use();
    }
    Ok(())
}

/// Why a job may be lost; `None` if it is in use, or if its srun or batch script would run on another host or node.
fn find_suspicion(job: &HeldJob, in_use: &InUse, our_host: &str, our_nodes: &[String]) -> Option<Suspicion> {
    let short = |host: &str| host.split('.').next().unwrap_or_default().to_owned();
    match &job.held_by {
        Holder::Client { session, host } if short(host) == short(our_host) => {
            let in_session = in_use.clients.iter().filter(|(_, of)| of.to_string() == *session);
            let clients: BTreeSet<_> = in_session.map(|(client, _)| *client).collect();
            let is_in_use = !clients.is_empty() && in_use.tasks.contains(&job.id);
            (!is_in_use).then_some(Suspicion::HeldByOneOf(clients))
        }
        Holder::Script { node } if our_nodes.contains(node) => {
            (!in_use.has_script(&job.id)).then_some(Suspicion::WithoutScript)
        }
        Holder::Client { .. } | Holder::Script { .. } => None,
    }
}

/// Cancels, requeues or holds the lost jobs among the suspects, and returns the suspects that are still uncertain.
fn resolve(
    suspects: Vec<(Suspicion, String)>,
    in_use: &InUse,
    jobs: &[HeldJob],
) -> anyhow::Result<Vec<(Suspicion, String)>> {
    let has_script = suspects.iter().any(|(suspicion, _)| *suspicion == Suspicion::WithoutScript);
    let timeout = if has_script { launch_timeout(&SLURM.config()?)? } else { Duration::MAX };
    let mut uncertain = Vec::new();
    for (suspicion, id) in suspects {
        let Some(job) = jobs.iter().find(|job| job.id == id) else { continue };
        match (judge(&suspicion, job, in_use, timeout), &suspicion) {
            (Verdict::InUse, _) => {}
            (Verdict::Uncertain, _) => uncertain.push((suspicion, id)),
            (Verdict::Lost, Suspicion::HeldByOneOf(_)) => cancel_without_client(&job.name)?,
            (Verdict::Lost, Suspicion::WithoutScript) => requeue(job, JobNote::WithoutScript)?,
        }
    }
    Ok(uncertain)
}

/// Judges a suspicion by the latest list of processes. `timeout`: the age after which a batch job has a script or never will.
fn judge(suspicion: &Suspicion, job: &HeldJob, in_use: &InUse, timeout: Duration) -> Verdict {
    match suspicion {
        Suspicion::HeldByOneOf(clients) => {
            let is_held = clients.iter().any(|client| in_use.clients.contains_key(client));
            match (is_held, in_use.tasks.contains(&job.id)) {
                (true, true) => Verdict::InUse,
                (false, false) => Verdict::Lost,
                _ => Verdict::Uncertain,
            }
        }
        Suspicion::WithoutScript if in_use.has_script(&job.id) => Verdict::InUse,
        Suspicion::WithoutScript if job.age > timeout => Verdict::Lost,
        Suspicion::WithoutScript => Verdict::Uncertain,
    }
}

/// The jobs in [`HOLDING_STATES`]. Repeats a failed query until [`CHECK_TIMEOUT`]: slurmctld listens before it has read its
/// saved state, and on a busy machine squeue gives up before that (observed: after 10 s).
fn await_running_jobs(begin: Instant) -> anyhow::Result<Vec<HeldJob>> {
    loop {
        match running_jobs() {
            Err(_) if begin.elapsed() < CHECK_TIMEOUT => pause(POLL_INTERVAL),
            answer => return answer,
        }
    }
}

fn running_jobs() -> anyhow::Result<Vec<HeldJob>> {
    let which = Jobs { states: &HOLDING_STATES, ..Jobs::default() };
    Ok(SLURM.job_columns(&which, &COLUMNS)?.into_iter().filter_map(parse).collect())
}

/// Reads a row of squeue. Returns `None` for a job in another state, such as CONFIGURING, and for all components of a heterogeneous batch job
/// except the first, because only the first has a script.
fn parse([id, state, component, name, batch, used, session, node, host, restarts]: [String; 10]) -> Option<HeldJob> {
    let held_by = match batch.as_str() {
        _ if !HOLDING_STATES.contains(&state.as_str()) => return None,
        "0" => Holder::Client { session, host },
        "1" if ["0", "N/A"].contains(&component.as_str()) => Holder::Script { node },
        _ => return None,
    };
    let age = Duration::from_secs(slurm_time::seconds(&used).unwrap_or_default());
    Some(HeldJob { id, name, age, restarts: restarts.parse().unwrap_or_default(), held_by })
}

/// Cancels an allocation whose client is gone. `salloc --no-shell` and slurmrestd create allocations without a client on purpose: for these
/// slurmctld rejects the message, because no client can receive it. A client that exists after all shows its user why the job ends.
fn cancel_without_client(job: &str) -> anyhow::Result<()> {
    let note = JobNote::WithoutClient;
    if is_accepted(SLURM.run("scontrol", &["notify", job, &format!("{OUR_REASON}{}", note.text())]))? {
        cancel(job, note)?;
    }
    Ok(())
}

/// Requeues a lost batch job. Holds it after [`MAX_RESTARTS`], and cancels it if it may not be requeued.
fn requeue(job: &HeldJob, note: JobNote) -> anyhow::Result<()> {
    let restarts = job.restarts;
    let job = job.name.as_str();
    if restarts >= MAX_RESTARTS && is_accepted(SLURM.run("scontrol", &["requeuehold", "incomplete", job]))? {
        note.write(&[job]);
        report::warn(message!(
            "job-held",
            "job {job} has lost a process that it needs ({restarts} restarts so far); held, because it may crash slurmd; to retry, run \
             `scontrol release {job}`",
            job,
            restarts
        ));
        return Ok(());
    }
    if !is_accepted(SLURM.run("scontrol", &["requeue", "incomplete", job]))? {
        return cancel(job, note);
    }
    // Slurm's wait of two minutes before the next start begins when the node reports that no process of the job is left.
    let begin = Instant::now();
    let which = Jobs { states: &[PENDING], options: &["--jobs", job], ..Jobs::default() };
    while begin.elapsed() < POLL_INTERVAL && SLURM.jobs(&which)?.is_empty() {
        pause(super::POLL_INTERVAL);
    }
    note.write(&[job]);
    super::start_soon(job);
    report::warn(message!(
        "job-without-process",
        "job {job} has lost a process that it needs; requeued: {why}",
        job,
        why = note.text()
    ));
    Ok(())
}

fn cancel(job: &str, note: JobNote) -> anyhow::Result<()> {
    let why = note.text();
    SLURM.update_job(job, &[format!("admincomment={OUR_REASON}{why}")])?;
    SLURM.run("scancel", &[job])?;
    report::warn(message!(
        "job-without-process",
        "job {job} has lost a process that it needs; cancelled: {why}",
        job,
        why
    ));
    Ok(())
}

fn is_accepted(answer: Result<(), QueryError>) -> anyhow::Result<bool> {
    match answer {
        Err(error) if error.is_operation_disabled() => Ok(false),
        answer => Ok(answer.map(|()| true)?),
    }
}

/// How long after a job's start its batch script may still be missing, because a prolog runs.
fn launch_timeout(config: &RunningConfig) -> anyhow::Result<Duration> {
    let timeout = config.batch_start_timeout();
    Ok(timeout.context("`scontrol show config` does not show BatchStartTimeout")? + LAUNCH_MARGIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sys::proc::{Process, Role, Step};

    fn job(held_by: Holder) -> HeldJob {
        HeldJob { id: "7".to_owned(), name: "5_2".to_owned(), age: Duration::from_secs(62), restarts: 0, held_by }
    }

    fn client_job(host: &str) -> HeldJob {
        job(Holder::Client { session: "40".to_owned(), host: host.to_owned() })
    }

    fn script(node: &str) -> HeldJob {
        job(Holder::Script { node: node.to_owned() })
    }

    #[test]
    fn parses_holder_of_job_from_squeue() {
        let row = |state: &str, component: &str, batch: &str| {
            let columns = ["7", state, component, "5_2", batch, "1:02", "40", "localhost", "node1.lab", "0"];
            parse(columns.map(str::to_owned))
        };
        assert_eq!(row("RUNNING", "N/A", "0"), Some(client_job("node1.lab")));
        assert_eq!(row("RUNNING", "N/A", "1"), Some(script("localhost")));
        assert_eq!(row("SUSPENDED", "0", "1"), Some(script("localhost")));
        assert_eq!(row("RUNNING", "1", "1"), None, "the first component has the script");
        assert_eq!(row("CONFIGURING", "N/A", "1"), None, "a prolog runs, or a node boots");
        assert_eq!(row("COMPLETING", "N/A", "1"), None);
    }

    fn process(pid: i32, name: &str, session: i32) -> Process {
        Process {
            pid,
            parent: 1,
            name: name.to_owned(),
            session,
            start: u64::from(pid.unsigned_abs()),
            ..Process::default()
        }
    }

    fn srun(pid: i32, session: i32) -> Process {
        process(pid, "srun", session)
    }

    fn step(name: &str) -> Process {
        let role = Role::Step(Some(Step { job: 7, name: name.to_owned() }));
        Process { role, ..process(60, "slurmstepd", 60) }
    }

    fn task() -> Process {
        Process { parent: 60, ..process(61, "hostname", 60) }
    }

    fn in_use<const N: usize>(processes: [Process; N]) -> InUse {
        InUse::of(&processes.into_iter().collect())
    }

    fn held_by<const N: usize>(pids: [i32; N]) -> Option<Suspicion> {
        Some(Suspicion::HeldByOneOf(pids.iter().map(|pid| (*pid, u64::from(pid.unsigned_abs()))).collect()))
    }

    #[test]
    fn allocation_is_suspect_without_srun_or_task() {
        let suspect =
            |in_use: &InUse| find_suspicion(&client_job("node1.lab"), in_use, "node1", &["localhost".to_owned()]);
        assert_eq!(suspect(&in_use([srun(51, 40), step("0"), task()])), None);
        assert_eq!(suspect(&in_use([srun(51, 40), step("0")])), held_by([51]), "slurmstepd without a task");
        assert_eq!(suspect(&in_use([srun(51, 40), srun(52, 41)])), held_by([51]), "srun in its session");
        assert_eq!(suspect(&in_use([step("0"), task()])), held_by([]));
        assert_eq!(suspect(&in_use([process(51, "bash", 40)])), held_by([]));
        assert_eq!(suspect(&in_use([Process { is_dead: true, ..srun(51, 40) }])), held_by([]));
        assert_eq!(suspect(&in_use([Process { state: 'T', ..process(51, "salloc", 40) }])), held_by([51]), "stopped");
    }

    #[test]
    fn ignores_jobs_held_on_other_hosts() {
        let suspect = |job: &HeldJob| find_suspicion(job, &InUse::default(), "node1", &["localhost".to_owned()]);
        assert_eq!(suspect(&client_job("login")), None);
        assert_eq!(suspect(&script("node2")), None);
    }

    #[test]
    fn batch_job_is_suspect_without_slurmstepd() {
        let suspect = |in_use: &InUse| find_suspicion(&script("localhost"), in_use, "node1", &["localhost".to_owned()]);
        assert_eq!(suspect(&InUse::default()), Some(Suspicion::WithoutScript));
        assert_eq!(suspect(&in_use([step("batch"), task()])), None);
        assert_eq!(suspect(&in_use([step("batch")])), None, "slurmstepd still reports how the script ended");
        assert_eq!(suspect(&in_use([step("extern"), task()])), Some(Suspicion::WithoutScript));
        assert_eq!(
            suspect(&in_use([step("0"), task()])),
            Some(Suspicion::WithoutScript),
            "only the script reports the job's end"
        );
    }

    #[test]
    fn allocation_is_lost_once_srun_and_tasks_are_gone() {
        let verdict = |in_use: &InUse| judge(&held_by([51]).unwrap(), &client_job("node1"), in_use, Duration::MAX);
        assert_eq!(verdict(&in_use([srun(51, 40), step("0"), task()])), Verdict::InUse);
        assert_eq!(verdict(&in_use([srun(51, 40)])), Verdict::Uncertain, "the step may still start");
        assert_eq!(verdict(&in_use([srun(52, 40), step("0"), task()])), Verdict::Uncertain, "another srun");
        assert_eq!(verdict(&in_use([srun(52, 40), step("0")])), Verdict::Lost);
    }

    #[test]
    fn batch_job_without_script_is_lost_after_launch_timeout() {
        let verdict = |in_use: &InUse, seconds| {
            judge(&Suspicion::WithoutScript, &script("localhost"), in_use, Duration::from_secs(seconds))
        };
        assert_eq!(verdict(&in_use([step("batch")]), 61), Verdict::InUse);
        let verdicts = [61, 62, 63].map(|seconds| verdict(&in_use([step("0"), task()]), seconds));
        assert_eq!(verdicts, [Verdict::Lost, Verdict::Uncertain, Verdict::Uncertain], "the job is 62 s old");
    }
}
