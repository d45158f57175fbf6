//! Jobs that run in slurmctld's eyes alone, and hold CPUs and GPUs that nobody uses.
//!
//! slurmctld saves a change within five seconds. When it dies in that time, what has just ended runs again in the eyes of the
//! next one. Slurm finds a batch job that is gone when the node registers anew, which is every half hour; an allocation
//! whose srun is gone it never finds (22.05 to 24.11, `ping_nodes.c`, `job_mgr.c`; seen for minutes, each). Its `InactiveLimit`
//! asks srun itself, but takes one that is stopped for one that is gone, and after a pause of the container each of
//! them: docs/architecture.md.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use anyhow::Context as _;

use super::{output, slurm};
use crate::doctor::look::seconds;
use crate::supervise::node::OUR_REASON;

/// What squeue tells of each job, and how wide; the widths are beyond what can be in them.
const COLUMNS: [(&str, usize); 6] =
    [("JobID", 16), ("BatchFlag", 4), ("TimeUsed", 16), ("AllocSID", 16), ("BatchHost", 256), ("AllocNodes", 256)];

/// The programs that hold an allocation for as long as they live, as the kernel names them (15 bytes at most).
const HOLDERS: [&str; 3] = ["srun", "salloc", "scrun"];

/// Why an allocation is cancelled.
const NOBODY: &str = "its srun or salloc ended while slurmctld was away";

/// Why a batch job is requeued, or cancelled.
const NO_SCRIPT: &str = "its script ended, or was to start, while slurmctld was away";

/// slurmctld's answer where a job is not of that kind (Slurm 22.05 to 24.11, ESLURM_DISABLED).
const NOT_OF_THAT_KIND: &str = "presently disabled";

/// What Slurm itself adds to BatchStartTimeout before it calls a batch job missing (`job_mgr.c`).
const LAUNCH_MARGIN: Duration = Duration::from_secs(10);

/// The step that Slurm itself adds to each job where PrologFlags=Contain; nobody's work is in it.
const NOBODYS_STEP: &str = "extern";

/// A job that runs.
#[derive(Debug, PartialEq, Eq)]
struct Job {
    id: String,
    age: Duration,
    held_by: Holder,
}

/// Without which a job holds its CPUs for nothing.
#[derive(Debug, PartialEq, Eq)]
enum Holder {
    /// The srun or salloc that asked for it, in this session of this host.
    Client { session: String, host: String },
    /// Its batch script, on this node.
    Script { node: String },
}

/// What of all processes tells that a job is in use.
#[derive(Debug, Default)]
struct InUse {
    /// The sessions that have a program that holds an allocation.
    sessions: BTreeSet<String>,
    /// The jobs that have a step; a batch script is one.
    jobs: BTreeSet<String>,
}

/// Cancels or requeues them. A batch job that is too young to be called missing is looked at again.
pub(super) fn run(node: &str) -> anyhow::Result<()> {
    while let Some(pause) = look(node)? {
        wait(pause);
    }
    Ok(())
}

/// Returns the time after which it is worth looking again.
fn look(node: &str) -> anyhow::Result<Option<Duration>> {
    let before = running()?;
    if before.is_empty() {
        return Ok(None);
    }
    let in_use = in_use();
    let host = nix::unistd::gethostname()?.to_string_lossy().into_owned();
    let lost: Vec<_> = before.into_iter().filter(|job| is_lost(job, &in_use, &host, node)).collect();
    if lost.is_empty() {
        return Ok(None);
    }
    // What has ended between the two looks has told slurmctld so before it ended.
    let after: BTreeSet<_> = running()?.into_iter().map(|job| job.id).collect();
    let launch = launch_time()?;
    let mut again = None;
    for Job { id, age, held_by } in lost.into_iter().filter(|job| after.contains(&job.id)) {
        match held_by {
            Holder::Client { .. } => release(&id)?,
            Holder::Script { .. } if age > launch => requeue(&id)?,
            Holder::Script { .. } => again = Some(launch + Duration::from_secs(1) - age).max(again),
        }
    }
    Ok(again)
}

fn running() -> anyhow::Result<Vec<Job>> {
    let format = COLUMNS.map(|(name, width)| format!("{name}:{width}")).join(",");
    let list = output("squeue", &["--noheader", "--states=RUNNING,SUSPENDED", "--Format", &format])?;
    Ok(list.lines().filter_map(parse).collect())
}

fn parse(line: &str) -> Option<Job> {
    let mut from = 0;
    let [id, batch, used, session, node, host] = COLUMNS.map(|(_, width)| {
        let column = line.get(from..line.len().min(from + width)).unwrap_or_default().trim();
        from += width;
        column.to_owned()
    });
    let held_by = match batch.as_str() {
        "0" => Holder::Client { session, host },
        "1" => Holder::Script { node },
        _ => return None,
    };
    Some(Job { id, age: Duration::from_secs(seconds(&used)), held_by })
}

/// What was asked for on another host may have its srun there, and another node may have the script.
fn is_lost(job: &Job, in_use: &InUse, our_host: &str, our_node: &str) -> bool {
    let short = |host: &str| host.split('.').next().unwrap_or_default().to_owned();
    let can_be = match &job.held_by {
        Holder::Client { session, host } => short(host) == short(our_host) && !in_use.sessions.contains(session),
        Holder::Script { node } => node == our_node,
    };
    can_be && !in_use.jobs.contains(&job.id)
}

/// Ends an allocation that nobody holds. `salloc --no-shell` and slurmrestd leave such, and mean to: slurmctld sends a message
/// only where there was somebody to hear it. Whoever is there after all learns why it ends.
fn release(job: &str) -> anyhow::Result<()> {
    if is_possible(slurm("scontrol", &["notify", job, &format!("{OUR_REASON}{NOBODY}")]))? {
        cancel(job, NOBODY)?;
    }
    Ok(())
}

/// Does what Slurm does with a batch job that is missing from its node.
fn requeue(job: &str) -> anyhow::Result<()> {
    if !is_possible(slurm("scontrol", &["requeue", job]))? {
        return cancel(job, NO_SCRIPT);
    }
    super::start_soon(job);
    eprintln!("warning: job {job} runs in slurmctld's eyes alone, and is requeued: {NO_SCRIPT}");
    Ok(())
}

fn cancel(job: &str, why: &str) -> anyhow::Result<()> {
    slurm("scontrol", &["update", &format!("jobid={job}"), &format!("admincomment={OUR_REASON}{why}")])?;
    slurm("scancel", &[job])?;
    eprintln!("warning: job {job} runs in slurmctld's eyes alone, and is cancelled: {why}");
    Ok(())
}

fn is_possible(answer: anyhow::Result<()>) -> anyhow::Result<bool> {
    match answer {
        Ok(()) => Ok(true),
        Err(error) if error.to_string().contains(NOT_OF_THAT_KIND) => Ok(false),
        Err(error) => Err(error),
    }
}

/// How long after a job's start its batch script may not be there yet, as a prolog runs.
fn launch_time() -> anyhow::Result<Duration> {
    let config = output("scontrol", &["show", "config"])?;
    parse_launch_time(&config).context("`scontrol show config` names no BatchStartTimeout")
}

/// `BatchStartTimeout       = 10 sec`
fn parse_launch_time(config: &str) -> Option<Duration> {
    let line = config.lines().find_map(|line| line.strip_prefix("BatchStartTimeout"))?;
    let seconds = line.trim_start().strip_prefix('=')?.split_whitespace().next()?.parse().ok()?;
    Some(Duration::from_secs(seconds) + LAUNCH_MARGIN)
}

fn in_use() -> InUse {
    let mut in_use = InUse::default();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        // Most entries are no processes, and a process may end at any moment.
        if let Ok(stat) = fs::read_to_string(process.path().join("stat")) {
            in_use.sessions.extend(held_session(&stat));
        }
        if let Ok(title) = fs::read(process.path().join("cmdline")) {
            in_use.jobs.extend(job_of_step(&String::from_utf8_lossy(&title)));
        }
    }
    in_use
}

/// The session of a process that holds allocations. `/proc/PID/stat`: `PID (NAME) STATE PPID PGRP SESSION ...` (proc(5)).
fn held_session(stat: &str) -> Option<String> {
    let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
    let mut rest = rest.split_whitespace();
    let lives = !rest.next()?.starts_with(['Z', 'X']);
    (HOLDERS.contains(&name) && lives).then(|| rest.nth(2).map(str::to_owned)).flatten()
}

/// The job whose step this process runs: `slurmstepd: [JOB.STEP]` is its title (Slurm 22.05 to 24.11, `slurmstepd.c`).
fn job_of_step(title: &str) -> Option<String> {
    let (job, step) = title.strip_prefix("slurmstepd: [")?.split_once(']')?.0.split_once('.')?;
    (step != NOBODYS_STEP).then(|| job.to_owned())
}

#[expect(clippy::disallowed_methods, reason = "that a job has not started has no event")]
fn wait(pause: Duration) {
    std::thread::sleep(pause);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(columns: [&str; 6]) -> String {
        COLUMNS.iter().zip(columns).map(|((_, width), text)| format!("{text:width$}")).collect()
    }

    fn job(held_by: Holder) -> Job {
        Job { id: "7".to_owned(), age: Duration::from_secs(62), held_by }
    }

    fn client(host: &str) -> Job {
        job(Holder::Client { session: "40".to_owned(), host: host.to_owned() })
    }

    fn script(node: &str) -> Job {
        job(Holder::Script { node: node.to_owned() })
    }

    #[test]
    fn squeue_tells_who_holds_a_job() {
        assert_eq!(parse(&row(["7", "0", "1:02", "40", "node1", "node1.lab"])), Some(client("node1.lab")));
        assert_eq!(parse(&row(["7", "1", "1:02", "40", "localhost", ""])), Some(script("localhost")));
        assert_eq!(parse(row(["7", "1", "1:02", "40", "localhost", ""]).trim_end()), Some(script("localhost")));
        for bad in ["", "7", "slurm_load_jobs error: Unable to contact slurm controller"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_job_is_in_use_while_its_srun_or_a_step_lives_or_nobody_here_can_tell() {
        let lost = |job: &Job, in_use: &InUse| is_lost(job, in_use, "node1", "localhost");
        let nothing = InUse::default();
        assert!(lost(&client("node1.lab"), &nothing));
        assert!(!lost(&client("login"), &nothing), "its srun may live there");
        assert!(lost(&script("localhost"), &nothing));
        assert!(!lost(&script("node2"), &nothing));
        let session = InUse { sessions: BTreeSet::from(["40".to_owned()]), ..InUse::default() };
        assert!(!lost(&client("node1"), &session));
        let step = InUse { jobs: BTreeSet::from(["7".to_owned()]), ..InUse::default() };
        assert!(!lost(&client("node1"), &step));
        assert!(!lost(&script("localhost"), &step));
    }

    #[test]
    fn what_holds_an_allocation_is_known_by_its_name() {
        assert_eq!(held_session("52 (srun) S 40 52 40 0 -1 4194304").as_deref(), Some("40"));
        assert_eq!(held_session("52 (salloc) T 40 52 40 0 -1 4194304").as_deref(), Some("40"), "stopped, not gone");
        for other in ["52 (srun) Z 40 52 40 0", "52 (bash) S 1 52 40 0", "52 (srun) S", "52 (a) srun) S 1 52 40 0", ""]
        {
            assert_eq!(held_session(other), None, "{other}");
        }
    }

    #[test]
    fn a_step_is_known_by_its_title() {
        assert_eq!(job_of_step("slurmstepd: [7.0]\0").as_deref(), Some("7"));
        assert_eq!(job_of_step("slurmstepd: [7.batch]").as_deref(), Some("7"));
        assert_eq!(job_of_step("slurmstepd: [7.extern]"), None);
        for other in ["", "slurmstepd infinity", "sh\0-c\0echo [7.0]", "slurmstepd: [7]"] {
            assert_eq!(job_of_step(other), None, "{other}");
        }
    }

    #[test]
    fn a_script_may_be_late_as_long_as_slurm_lets_it() {
        let config = "BOOT_TIME = x\nBatchStartTimeout       = 10 sec\nBurstBufferType = (null)\n";
        assert_eq!(parse_launch_time(config), Some(Duration::from_secs(20)));
        assert_eq!(parse_launch_time("Configuration data as of\n"), None);
    }
}
