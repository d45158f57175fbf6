//! The batch script of a session. It ends when the job has had no step for a while, and the job ends with it.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::fcntl::OFlag;

use super::client::{Clients, processes};
use slurm::client::{Client, limit};
use watch::agent::unix;

/// The interval of slurmctld queries for the steps. While a killed step is still ending, each check of the clients also queries slurmctld.
const INTERVAL: Duration = Duration::from_secs(5);
/// The interval of checks of the steps' clients.
const CLIENT_INTERVAL: Duration = Duration::from_secs(1);
/// The minimum time that the session waits for its first step.
const FIRST: Duration = Duration::from_secs(10);
/// How long the session waits for killed steps to end: slurmstepd first tries to reach the client, whose machine may be gone.
const ENDING: Duration = Duration::from_secs(30);
/// The terminals of the job get a warning this long before its time limit.
const WARNING: Duration = Duration::from_secs(600);
/// The prefix of the directories that SSH servers and notebooks create in /tmp. A server that is killed leaves its directory behind.
pub(crate) const FILES: &str = "slurminit-session-";

pub(super) fn run(keep: Duration) -> anyhow::Result<()> {
    let job = std::env::var("SLURM_JOB_ID").context("this verb is only for the batch script of a session")?;
    let end = std::env::var("SLURM_JOB_END_TIME").ok().and_then(|end| end.parse::<u64>().ok());
    let mut warns_at = end.map(|end| end.saturating_sub(WARNING.as_secs()));
    let client = Client::with_timeout(limit::COMMAND);
    let (mut lifetime, mut clients) = (Lifetime::new(keep, Instant::now()), Clients::default());
    while let Some(pause) = lifetime.pause(Instant::now()) {
        clients.wait(pause);
        for step in clients.gone(&job) {
            // An interactive shell ignores SIGTERM.
            client.run("scancel", &["--signal=KILL".to_owned(), format!("{job}.{step}")]).unwrap_or_default();
            lifetime.set_killed(step, Instant::now());
        }
        if !lifetime.is_query_due(Instant::now()) {
            continue;
        }
        let steps = client.output("squeue", &["--steps", "--noheader", "--format=%i", "--jobs", &job]);
        let steps = steps.map(|steps| steps.lines().filter_map(number).collect());
        lifetime.set_steps(steps.as_ref().ok(), Instant::now());
        // A session without a terminal is warned as soon as it has one.
        if warns_at.is_some_and(|at| unix() >= at)
            && warn(&job, end.unwrap_or_default().saturating_sub(unix()).div_ceil(60))
        {
            warns_at = None;
        }
    }
    remove_files(Path::new("/tmp"), &job);
    Ok(())
}

/// Decides when the session ends, and when slurmctld is queried.
struct Lifetime {
    keep: Duration,
    deadline: Instant,
    query_at: Instant,
    is_used: bool,
    /// The steps that were killed because their client is gone, and when the last of them was killed (`None` if they have all ended).
    killed: BTreeSet<u32>,
    killed_at: Option<Instant>,
}

impl Lifetime {
    fn new(keep: Duration, now: Instant) -> Self {
        let (deadline, query_at) = (now + FIRST.max(keep), now + INTERVAL);
        Self { keep, deadline, query_at, is_used: false, killed: BTreeSet::new(), killed_at: None }
    }

    /// How long to wait before the next check; `None` if the session is over.
    fn pause(&self, now: Instant) -> Option<Duration> {
        // The job is not ended while a killed step is still ending: an ending job occupies its node until its last step
        // has ended.
        if self.killed_at.is_some_and(|at| now < at + ENDING) {
            return Some(CLIENT_INTERVAL);
        }
        let left = self.deadline.saturating_duration_since(now);
        (!left.is_zero()).then(|| CLIENT_INTERVAL.min(left))
    }

    fn set_killed(&mut self, step: u32, now: Instant) {
        if self.killed.insert(step) {
            (self.is_used, self.killed_at) = (true, Some(now));
        }
    }

    fn is_query_due(&mut self, now: Instant) -> bool {
        let is_due = now >= self.query_at.min(self.deadline) || self.killed_at.is_some();
        if is_due {
            self.query_at = now + INTERVAL;
        }
        is_due
    }

    /// Updates the deadline from the steps that slurmctld lists. `None` means no answer, and counts as use.
    fn set_steps(&mut self, steps: Option<&BTreeSet<u32>>, now: Instant) {
        if steps.is_none_or(|steps| !steps.is_subset(&self.killed)) {
            (self.deadline, self.is_used) = (now + self.keep.max(INTERVAL), true);
        } else if self.is_used {
            (self.deadline, self.is_used) = (now + self.keep, false);
        }
        if steps.is_some_and(|steps| steps.is_disjoint(&self.killed)) {
            self.killed_at = None;
        }
    }
}

/// The number of a step such as `7.0`; `None` for Slurm's own steps, such as `7.batch`.
fn number(step: &str) -> Option<u32> {
    step.trim().rsplit_once('.')?.1.parse().ok()
}

/// Writes a warning to the terminals of the job's processes. Returns whether there are any.
fn warn(job: &str, minutes: u64) -> bool {
    let text = format!("\r\nslurminit: job {job} reaches its time limit in {minutes} min; save your work\r\n");
    let terminals = terminals(job);
    for terminal in &terminals {
        let mut options = fs::OpenOptions::new();
        options.write(true).custom_flags((OFlag::O_NOCTTY | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW).bits());
        if let Ok(mut file) = options.open(terminal) {
            let _ = file.write_all(text.as_bytes());
        }
    }
    !terminals.is_empty()
}

/// The terminals of this user's processes that have the job's ID in their environment.
fn terminals(job: &str) -> Vec<PathBuf> {
    let own = nix::unistd::getuid().as_raw();
    let is_terminal = |path: &PathBuf| {
        let metadata = fs::symlink_metadata(path).ok();
        path.starts_with("/dev/pts") && metadata.is_some_and(|it| it.file_type().is_char_device() && it.uid() == own)
    };
    let inputs = processes(job, own).into_iter().filter_map(|(process, _)| fs::read_link(process.join("fd/0")).ok());
    let mut all: Vec<PathBuf> = inputs.filter(is_terminal).collect();
    all.sort();
    all.dedup();
    all
}

/// Removes the directories that killed servers left in `directory`.
fn remove_files(directory: &Path, job: &str) {
    let (own, prefix) = (nix::unistd::getuid().as_raw(), format!("{FILES}{job}-"));
    let is_own = |path: &PathBuf| fs::symlink_metadata(path).is_ok_and(|it| it.is_dir() && it.uid() == own);
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix));
    for path in named.map(|entry| entry.path()).filter(is_own) {
        let _ = fs::remove_dir_all(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_only_steps_that_are_not_slurms_own() {
        assert_eq!(["7.0", " 7.12\n", "7_3.0"].map(number), [Some(0), Some(12), Some(0)]);
        assert_eq!(["7.batch", "7.extern", "7.interactive", "7", ""].map(number), [None; 5]);
    }
    /// The lifetime of a new session, and a function that returns the instant a number of seconds after the session's start.
    fn session(keep: u64) -> (Lifetime, impl Fn(f64) -> Instant) {
        let start = Instant::now();
        (Lifetime::new(Duration::from_secs(keep), start), move |seconds| start + Duration::from_secs_f64(seconds))
    }

    fn pause(lifetime: &Lifetime, now: Instant) -> Option<f64> {
        lifetime.pause(now).map(|pause| pause.as_secs_f64())
    }

    #[test]
    fn session_waits_for_first_step_and_continues_after_last() {
        for (keep, first, used) in [(0, 10.0, 5.0), (60, 60.0, 60.0)] {
            let (mut lifetime, at) = session(keep);
            assert_eq!([0.0, first - 0.5, first].map(|now| pause(&lifetime, at(now))), [Some(1.0), Some(0.5), None]);
            lifetime.set_steps(Some(&BTreeSet::new()), at(8.0));
            assert_eq!(pause(&lifetime, at(first)), None, "{keep}");
            for steps in [Some(&BTreeSet::from([0])), None] {
                lifetime.set_steps(steps, at(9.0));
                assert_eq!([8.5, 9.0].map(|now| pause(&lifetime, at(used + now))), [Some(0.5), None], "{steps:?}");
            }
            for now in [9.5, 11.0] {
                lifetime.set_steps(Some(&BTreeSet::new()), at(now));
            }
            let end = f64::from(u32::try_from(keep).unwrap()) + 9.5;
            assert_eq!([end - 0.5, end].map(|now| pause(&lifetime, at(now))), [Some(0.5), None]);
        }
    }

    #[test]
    fn slurmctld_is_queried_every_five_seconds_and_at_the_end() {
        let (mut lifetime, at) = session(0);
        let due = [4.9, 5.0, 9.9, 10.0].map(|now| lifetime.is_query_due(at(now)));
        assert_eq!(due, [false, true, false, true]);
        lifetime.set_steps(Some(&BTreeSet::from([0])), at(10.0));
        lifetime.set_steps(Some(&BTreeSet::new()), at(11.0));
        assert!(lifetime.is_query_due(at(11.0)));
    }

    #[test]
    fn job_ends_once_its_killed_steps_have() {
        let (mut lifetime, at) = session(0);
        lifetime.set_killed(3, at(1.0));
        assert!(lifetime.is_query_due(at(1.0)));
        lifetime.set_steps(Some(&BTreeSet::from([3])), at(2.0));
        lifetime.set_killed(3, at(20.0));
        assert_eq!([2.0, 30.9, 31.0].map(|now| pause(&lifetime, at(now))), [Some(1.0), Some(1.0), None]);
        lifetime.set_steps(Some(&BTreeSet::new()), at(4.0));
        assert_eq!(pause(&lifetime, at(4.0)), None);
        assert!(!lifetime.is_query_due(at(1.5)));
        // Step 4 was not killed and is still running.
        lifetime.set_steps(Some(&BTreeSet::from([3, 4])), at(5.0));
        assert_eq!(pause(&lifetime, at(9.5)), Some(0.5));
    }

    /// Runs `test` while a process of the job has this standard input.
    #[expect(clippy::disallowed_methods, reason = "a test is not PID 1 and waits only for its own child")]
    fn with_process<T>(job: &str, input: impl Into<std::process::Stdio>, test: impl FnOnce() -> T) -> T {
        let mut process = std::process::Command::new("sleep");
        process.arg("60").env_clear().env("PATH", "/usr/bin:/bin").env("SLURM_JOB_ID", job);
        let mut process = process.stdin(input).spawn().unwrap();
        let outcome = test();
        process.kill().unwrap();
        process.wait().unwrap();
        outcome
    }

    #[test]
    fn warns_on_each_terminal_of_the_job_once() {
        use std::io::Read as _;
        let pty = nix::pty::openpty(None, None).unwrap();
        let name = nix::unistd::ttyname(&pty.slave).unwrap();
        let [one, other] = [0; 2].map(|_| pty.slave.try_clone().unwrap());
        let (null, job) = (fs::File::open("/dev/null").unwrap(), format!("4712{}", std::process::id()));
        with_process(&job, null, || {
            assert!(!warn(&job, 10), "no process has a terminal yet");
            with_process(&job, one, || {
                with_process(&job, other, || {
                    assert_eq!(terminals(&job), [name]);
                    assert!(warn(&job, 10));
                });
            });
        });
        // With the slave closed, a read fails if there is no text; otherwise it would block.
        drop(pty.slave);
        let mut text = [0; 200];
        let length = fs::File::from(pty.master).read(&mut text).unwrap();
        // The terminal writes a carriage return before each newline.
        let expected = format!("\r\r\nslurminit: job {job} reaches its time limit in 10 min; save your work\r\r\n");
        assert_eq!(String::from_utf8_lossy(&text[..length]), expected);
    }

    #[test]
    fn removes_directories_of_the_jobs_connections_only() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let (dead, another, file) = (path("slurminit-session-70-x"), path("slurminit-session-701-x"), path("kept"));
        fs::create_dir_all(dead.join("keys")).unwrap();
        fs::create_dir(&another).unwrap();
        fs::write(&file, "").unwrap();
        let link = path("slurminit-session-70-y");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        remove_files(directory.path(), "70");
        assert!(!dead.exists() && another.exists() && file.exists() && link.is_symlink());
    }
}
