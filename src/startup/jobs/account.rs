//! Finds batch jobs that have started although slurmctld has no record of their start, and cancels those that may run only once.
//!
//! slurmctld saves changes within five seconds. If it is killed in that time, its successor lists such jobs as pending, and
//! starts them again within 0.2 s of coming up. PID 1 suspends slurmd meanwhile: a launch request that slurmd has not read
//! yet is lost when slurmd is killed.

use std::collections::BTreeSet;

use super::follow::{LOG_LINES, STARTED_JOBS_FILE};
use super::note::JobNote;
use super::notes::Notes;
use super::{SLURM, ids, node_names, reclaim, spool};
use config::DaemonName;
use control::client;
use install::load_config;
use machine::protocol::{self, Request};
use model::log::split_text;
use model::message;
use model::queued_job::PENDING;
use nix::sys::signal::Signal;
use slurm::client::Jobs;
use slurm::config::RunningConfig;
use sys::leftovers::look;
use sys::proc::{self, Process, Processes, Role};
use sys::report;

/// squeue's columns, with one line per job or array task.
const COLUMNS: [(&str, usize); 7] = [
    ("JobID", 16),
    ("ArrayJobID", 16),
    ("ArrayTaskID", 16),
    ("Requeue", 16),
    ("State", 16),
    ("StartTime", 24),
    ("NodeList", 16),
];

/// Jobs that have started on this node, according to the spool directory, the daemons' logs and the recorded starts.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct StartedJobs {
    /// Job IDs.
    pub(super) ids: BTreeSet<String>,
    /// Array tasks, as `ARRAY_TASK`, and their job IDs: a task that slurmctld has forgotten gets another job ID.
    tasks: BTreeSet<(String, String)>,
}

/// The jobs that slurmctld lists: each job ID, with the array task that has it, if any.
#[derive(Debug, Default, PartialEq, Eq)]
struct KnownJobs(BTreeSet<(String, Option<String>)>);

impl KnownJobs {
    /// Reads squeue's rows.
    fn of(rows: Vec<[String; 7]>) -> Self {
        let known_job = |[id, array, task, ..]: [String; 7]| (id, is_number(&task).then(|| format!("{array}_{task}")));
        Self(rows.into_iter().map(known_job).collect())
    }

    /// Whether the task can have this job ID. Several waiting tasks share the ID of their array.
    fn allows(&self, task: &str, id: &str) -> bool {
        let mut same_id = self.0.iter().filter(|(listed, _)| listed == id).peekable();
        same_id.peek().is_none() || same_id.any(|(_, other)| other.as_deref() == Some(task))
    }
}

/// A log line in which slurmctld assigns a job to nodes (Slurm 24.11, `job_scheduler.c`, `backfill.c`).
/// Other lines, and the rest of these lines, may contain text from users.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct AllocationLine {
    /// `7`, or `12_3(15)` for the task of an array.
    pub(super) job: String,
    /// Whether the backfill scheduler started the job.
    pub(super) by_backfill: bool,
}

impl AllocationLine {
    /// Parses a line of `slurminit logs`.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let (_, message) = split_text(line, DaemonName::Slurmctld.as_str())?;
        let of = |begin, by_backfill| {
            let (job, _) = message.strip_prefix(begin)?.split_once(' ')?;
            job.starts_with(|c: char| c.is_ascii_digit()).then(|| Self { job: job.to_owned(), by_backfill })
        };
        of("sched: Allocate JobId=", false).or_else(|| of("sched/backfill: _start_job: Started JobId=", true))
    }
}

impl StartedJobs {
    /// Combines slurmd's records, slurmctld's log and the recorded starts. Only slurmctld's log, and the records
    /// made from it, contain both the array task and its job ID.
    fn of(mut ids: BTreeSet<String>, slurmctld: &str, recorded_starts: &str) -> Self {
        ids.extend(recorded_starts.lines().filter(|line| is_number(line)).map(str::to_owned));
        let assigned: Vec<String> =
            slurmctld.lines().filter_map(|line| Some(AllocationLine::parse(line)?.job)).collect();
        let recorded_tasks =
            recorded_starts.lines().filter_map(|line| line.split_once(' ')).map(|(id, task)| (task, id));
        let tasks = assigned.iter().filter_map(|job| parse_task(job)).chain(recorded_tasks);
        let tasks =
            tasks.filter(|(_, id)| ids.contains(*id)).map(|(task, id)| (task.to_owned(), id.to_owned())).collect();
        Self { ids, tasks }
    }

    /// Removes tasks whose job ID, according to slurmctld, belongs to another job.
    /// If slurmctld does not list the ID, the task is kept.
    fn without_contradictions(mut self, listed: &KnownJobs) -> Self {
        self.tasks.retain(|(task, id)| listed.allows(task, id));
        self
    }

    fn contains(&self, job: &NonRequeueableJob) -> bool {
        match &job.task {
            Some(task) => self.tasks.iter().any(|(begun, _)| begun == task),
            None => self.ids.contains(&job.id),
        }
    }
}

/// A job that may run only once.
#[derive(Debug, PartialEq, Eq)]
struct NonRequeueableJob {
    id: String,
    task: Option<String>,
    is_pending: bool,
    /// When the job was assigned to a node, in Slurm's format; `None` if it was not.
    started: Option<String>,
}

impl NonRequeueableJob {
    /// Reads a row of squeue; `None` if the job may run again, or if its ID is not a number.
    fn of([id, array, task, requeue, state, start, node]: [String; 7]) -> Option<Self> {
        (is_number(&id) && requeue == "0").then(|| Self {
            id,
            task: is_number(&task).then(|| format!("{array}_{task}")),
            is_pending: state == PENDING,
            started: (!node.is_empty()).then_some(start),
        })
    }

    /// The job's ID in the form that Slurm's commands accept: `7`, or `12_3` for the task of an array.
    fn name(&self) -> &str {
        self.task.as_ref().unwrap_or(&self.id)
    }

    /// Whether the slurmctld that started at `boot` has assigned the job to a node.
    fn was_started_since(&self, boot: &str) -> bool {
        self.started.as_ref().is_some_and(|start| start.as_str() >= boot)
    }
}

/// Parses `12_3(15) ...` (`%pJ`): the task and its job ID, which is the array's or a later one.
pub(super) fn parse_task(text: &str) -> Option<(&str, &str)> {
    let (task, rest) = text.split_once('(')?;
    let (id, _) = rest.split_once(')')?;
    let (array, index) = task.split_once('_')?;
    let number = |word: &str| word.parse::<u32>().ok().filter(|_| is_number(word));
    (number(index).is_some() && number(id)? >= number(array)?).then_some((task, id))
}

fn is_number(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit())
}

/// Prevents non-requeueable jobs from running twice, and reports the batch jobs that slurmctld has forgotten. If slurmd was suspended,
/// it started all its jobs before this slurmctld came up.
pub(super) fn run(node: &str, is_slurmd_suspended: bool) -> anyhow::Result<()> {
    let started = started_jobs(node)?.without_contradictions(&KnownJobs::of(rows()?));
    let boot = SLURM.config()?.get("BOOT_TIME").unwrap_or_default();
    let mut relaunched = BTreeSet::new();
    // slurmctld may start a job after the first pass listed it as pending and before its cancellation. The second pass detects that.
    for _ in 0..2 {
        let jobs_with_step = reclaim::jobs_with_step();
        for job in non_requeueable_jobs()?.iter().filter(|job| started.contains(job)) {
            let is_relaunched =
                is_slurmd_suspended && job.was_started_since(&boot) && !jobs_with_step.contains(&job.id);
            if job.is_pending || is_relaunched && relaunched.insert(job.name().to_owned()) {
                cancel(job.name());
            }
        }
    }
    if !relaunched.is_empty() {
        let jobs = relaunched.into_iter().collect::<Vec<_>>().join(",");
        report::warn(message!(
            "jobs-launched-again",
            "slurmctld lost the start of jobs {jobs} and launched them again; restarting slurmd to discard the launch requests",
            jobs
        ));
        end_slurmd();
    }
    if let Err(error) = ids::check_lost_jobs() {
        report::warn(message!(
            "lost-jobs-not-checked",
            "cannot check which batch jobs slurmctld has forgotten: {error}",
            error = format!("{error:#}")
        ));
    }
    Ok(())
}

/// Removes the files that earlier jobs left in the spool directories of this container's nodes.
pub(super) fn clean_spool(node: &str) -> anyhow::Result<()> {
    let config = SLURM.config()?;
    for node in node_names(node) {
        let spool = config.spool_directory(&node);
        if let Err(error) = spool::clean(&spool, &node) {
            report::warn(message!(
                "spool-not-cleaned",
                "cannot remove spool files of earlier jobs from {spool}: {error}",
                spool,
                error
            ));
        }
    }
    Ok(())
}

/// The jobs that slurmd has started.
pub(super) fn started_jobs(node: &str) -> anyhow::Result<StartedJobs> {
    let config = SLURM.config()?;
    let mut ids = BTreeSet::new();
    for (node, number) in node_names(node).iter().zip(1..) {
        ids.extend(spool::started_jobs(&config.spool_directory(node)));
        let slurmd = DaemonName::Slurmd.of_simulated_node(number);
        ids.extend(last_lines(&slurmd).lines().filter_map(|line| launched_job(&slurmd, line)).map(str::to_owned));
    }
    let recorded_starts = recorded_starts(&config).unwrap_or_default();
    Ok(StartedJobs::of(ids, &last_lines("slurmctld"), &recorded_starts))
}

/// The job that slurmd launches, according to this line of `slurminit logs`. Once a job has ended, this is the only
/// trace that slurmd leaves (Slurm 24.11, `req.c`).
pub(super) fn launched_job<'a>(slurmd: &str, line: &'a str) -> Option<&'a str> {
    let (_, message) = split_text(line, slurmd)?;
    let rest = message.strip_prefix("Launching batch job ")?;
    rest.split_once(" for UID ").map(|(id, _)| id).filter(|id| is_number(id))
}

/// The content of [`STARTED_JOBS_FILE`], which may include starts in earlier containers.
fn recorded_starts(config: &RunningConfig) -> anyhow::Result<String> {
    Ok(Notes::open_as_root(&config.state_directory().unwrap_or_default())?.text(STARTED_JOBS_FILE)?.unwrap_or_default())
}

/// The last log lines of a daemon, which PID 1 keeps; empty if they cannot be read.
fn last_lines(daemon: &str) -> String {
    let Ok(run) = load_config::run_directory(None) else { return String::new() };
    let request = Request::Logs { name: daemon.to_owned(), lines: LOG_LINES };
    let lines = client::ask(&protocol::socket(&run), &request).map(|(_, lines)| lines).unwrap_or_default();
    String::from_utf8_lossy(&lines).into_owned()
}

/// The jobs that slurmctld lists and that may run only once.
fn non_requeueable_jobs() -> anyhow::Result<Vec<NonRequeueableJob>> {
    Ok(rows()?.into_iter().filter_map(NonRequeueableJob::of).collect())
}

fn rows() -> anyhow::Result<Vec<[String; 7]>> {
    let which = Jobs { states: &["all"], options: &["--array"], ..Jobs::default() };
    Ok(SLURM.job_columns(&which, &COLUMNS)?)
}

/// Cancels a job. A failure is only logged, so that the other jobs are cancelled too.
fn cancel(job: &str) {
    // If the job has ended by itself meanwhile, both commands may fail.
    JobNote::AlreadyStarted.write(&[job]);
    report::warn(match SLURM.run("scancel", &[job]) {
        Ok(()) => message!(
            "job-cancelled-once",
            "job {job} had started when slurmctld died and may run only once (--no-requeue); cancelled",
            job
        ),
        Err(error) => message!(
            "job-not-cancelled-once",
            "job {job} had started when slurmctld died and may run only once (--no-requeue); could not cancel it: {error}",
            job,
            error
        ),
    });
}

/// Kills only the daemon: slurmstepd processes live on, and PID 1 starts a new slurmd.
fn end_slurmd() {
    let (all, supervisor) = (Processes::read(), proc::supervisor());
    let slurmds =
        all.iter().filter(|process| is_daemon_of(process, supervisor) && look::is_slurmd_or_descendant(process.pid));
    slurmds.filter_map(Process::handle).for_each(|handle| handle.send(Signal::SIGKILL));
}

/// Whether the process is a daemon that slurminit started. slurminit is not PID 1 with `docker run --init`.
fn is_daemon_of(process: &Process, supervisor: i32) -> bool {
    process.role == Role::Daemon && process.parent == supervisor
}

#[cfg(test)]
mod tests {
    use super::{KnownJobs, NonRequeueableJob, Process, Role, StartedJobs, is_daemon_of, launched_job};

    #[test]
    fn ends_slurmd_of_slurminit_that_is_not_pid_1() {
        let slurmd = |parent| Process { role: Role::Daemon, parent, ..Process::default() };
        assert!(is_daemon_of(&slurmd(7), 7) && is_daemon_of(&slurmd(1), 1));
        // A slurmd that slurmd forked for a job, and a process of a user.
        assert!(!is_daemon_of(&slurmd(40), 7) && !is_daemon_of(&Process { parent: 7, ..Process::default() }, 7));
    }

    fn tasks(slurmctld: &str) -> Vec<String> {
        let ids = ["15", "16", "5"].map(str::to_owned).into();
        StartedJobs::of(ids, slurmctld, "").tasks.into_iter().map(|(task, _)| task).collect()
    }

    #[test]
    fn task_has_not_started_if_its_job_id_was_reused() {
        let time = "2026-11-22T10:10:55.002778Z  info slurmctld: ";
        let log = format!("{time}sched: Allocate JobId=1_2(5) NodeList=localhost\n");
        let row = |row: [&str; 7]| row.map(str::to_owned);
        let pending = row(["1", "1", "2", "0", "PENDING", "N/A", ""]);
        let has_started = |others: &[[String; 7]]| {
            let listed = KnownJobs::of(others.iter().cloned().chain([pending.clone()]).collect());
            let started = StartedJobs::of(["5".to_owned()].into(), &log, "").without_contradictions(&listed);
            started.contains(&NonRequeueableJob::of(pending.clone()).unwrap())
        };
        assert!(has_started(&[row(["1", "1", "1", "0", "PENDING", "N/A", ""])]), "slurmctld no longer lists job 5");
        assert!(has_started(&[row(["5", "1", "2", "0", "RUNNING", "N/A", ""])]));
        assert!(!has_started(&[row(["5", "5", "N/A", "1", "RUNNING", "N/A", ""])]), "ID 5 belongs to another job");
        assert!(!has_started(&[row(["5", "4", "1", "1", "RUNNING", "N/A", ""])]));
    }

    #[test]
    fn finds_task_in_allocation_line() {
        let time = "2026-11-22T10:10:55.002778Z  info slurmctld: ";
        let log = format!(
            "{time}sched: Allocate JobId=12_3(15) NodeList=localhost #CPUs=1 Partition=debug\n\
             {time}sched/backfill: _start_job: Started JobId=12_4(16) in debug on localhost\n\
             {time}sched: Allocate JobId=12_5(17) NodeList=localhost\n{time}sched: Allocate JobId=7 NodeList=localhost\n"
        );
        assert_eq!(tasks(&log), ["12_3", "12_4"], "slurmd has not started job 17");
    }

    #[test]
    fn ignores_user_text_in_log_lines() {
        let time = "2026-11-22T10:10:55.002778Z  info slurmctld: ";
        for text in [
            "_update_job: setting comment to JobId=99_1(15) for JobId=5",
            "_update_job: setting comment to x slurmctld: sched: Allocate JobId=99_1(15) for JobId=5",
            "sched: Allocate JobId=5 NodeList=localhost JobId=99_1(15)",
            "sched: Allocate JobId=99_1(15)",
        ] {
            assert_eq!(tasks(&format!("{time}{text}\n")), [""; 0], "{text}");
        }
    }

    #[test]
    fn finds_launched_job_in_log_of_its_slurmd() {
        let launched = |text: &str| launched_job("slurmd", text).map(str::to_owned);
        assert_eq!(launched("2026 info slurmd: Launching batch job 7 for UID 1000").as_deref(), Some("7"));
        for other in ["slurmstepd: Launching batch job 7", "slurmd: Launching batch job 7x", "slurmd: launch task 7"] {
            assert_eq!(launched(&format!("2026 info {other} for UID 1000")), None, "{other}");
        }
    }

    #[test]
    fn finds_task_in_notes() {
        let started = StartedJobs::of(["15".to_owned()].into(), "", "15 12_3\n16 12_4\n17 12_5\n17\n18\nx\n\n");
        let tasks: Vec<_> = started.tasks.into_iter().map(|(task, _)| task).collect();
        assert_eq!(tasks, ["12_3", "12_5"], "slurmd has not started job 16");
        assert_eq!(started.ids.into_iter().collect::<Vec<_>>(), ["15", "17", "18"]);
    }

    #[test]
    fn parses_non_requeueable_jobs_from_squeue() {
        let parse = |row: [&str; 7]| NonRequeueableJob::of(row.map(str::to_owned));
        let job = parse(["15", "12", "3", "0", "RUNNING", "2026-11-22T10:10:55", "localhost"]).unwrap();
        assert_eq!((job.name(), job.is_pending), ("12_3", false));
        assert!(job.was_started_since("2026-11-22T10:10:50") && !job.was_started_since("2026-11-22T10:10:56"));
        let job = parse(["12", "12", "N/A", "0", "PENDING", "N/A", ""]).unwrap();
        assert_eq!((job.name(), job.is_pending), ("12", true));
        assert!(!job.was_started_since("2026-11-22T10:10:50"), "no node allocated");
        assert_eq!(parse(["12", "12", "N/A", "1", "PENDING", "N/A", ""]), None, "the job can be requeued");
    }
}
