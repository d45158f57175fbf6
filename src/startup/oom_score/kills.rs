//! Names the processes of jobs that the kernel killed because memory ran out.
//!
//! Without writable cgroups slurmstepd does not detect an OOM kill: the job may be COMPLETED although a program of its script was killed.
//! The kernel counts these kills in the container's cgroup but does not name the process, so the count is compared with the processes
//! that ended.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::pause;
use machine::node_report::OUR_REASON;
use model::message;
use model::oom_kill::{FILE, OomKill};
use model::printable;
use slurm::client::{Client, limit};
use sys::proc::{self, Process, Processes, parse};
use sys::report;
use sys::trusted_path;

/// The file with the count on cgroup v2, whose changes poll(2) reports.
const COUNT: &str = "/sys/fs/cgroup/memory.events";
/// The file with the count on cgroup v1. It is polled, because a notification of changes would require a writable cgroup.
const COUNT_V1: &str = "/sys/fs/cgroup/memory/memory.oom_control";
/// Minimum interval of reports about one job, or about kills without a known job: a user can cause kills all the time.
const REPORT_INTERVAL: Duration = Duration::from_secs(30);

/// Number and interval of the attempts to write a job's comment.
const COMMENT_TRIES: u32 = 10;
const COMMENT_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of kills recorded for `slurminit doctor`.
const MAX_RECORDED: usize = 20;

/// Maximum number of further scans while fewer victims than kills are found.
const MAX_RESCANS: u32 = 3;

/// Placeholder for the PID of a process that started and was killed between two scans.
const UNKNOWN_PID: i32 = 0;

/// A process of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
struct JobProcess {
    job: u32,
    name: String,
    resident_kib: u64,
    /// Whether SIGKILL is pending, or the process is a zombie. In [`Kills::processes`], true only if a kill was attributed to the process.
    is_ending: bool,
}

/// PID and start time.
type Key = (i32, u64);

/// The jobs' processes at the last scan, and the kernel's count at that time.
#[derive(Debug, Default)]
pub(super) struct Kills {
    run: PathBuf,
    file: Option<File>,
    has_event: bool,
    count: u64,
    jobs: BTreeSet<u32>,
    processes: BTreeMap<Key, JobProcess>,
    /// The number of scans, since the count changed, that found fewer victims than kills.
    rescans: u32,
    /// When the kills of a job were reported; the key is `None` for kills that were not attributed to a job.
    reported: BTreeMap<Option<u32>, Instant>,
}

impl Kills {
    /// Starts watching. `run` is the directory for the record.
    pub(super) fn watch(run: &Path) -> Self {
        let file = File::open(COUNT).ok();
        let has_event = file.is_some();
        let mut kills = Self {
            run: run.to_owned(),
            file: file.or_else(|| File::open(COUNT_V1).ok()),
            has_event,
            ..Self::default()
        };
        kills.count = kills.read_count();
        kills
    }

    /// The file with the count, if there is one. It becomes ready with POLLPRI when the count changes, unless `has_event` returns false.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(File::as_fd)
    }

    pub(super) fn has_event(&self) -> bool {
        self.has_event
    }

    pub(super) fn has_changed(&self) -> bool {
        self.read_count() != self.count
    }

    /// Reads the kernel's count of OOM kills.
    pub(super) fn read_count(&self) -> u64 {
        use std::os::unix::fs::FileExt as _;
        let mut text = [0; 512];
        let length = self.file.as_ref().and_then(|file| file.read_at(&mut text, 0).ok()).unwrap_or(0);
        parse_count(&String::from_utf8_lossy(text.get(..length).unwrap_or_default())).unwrap_or(0)
    }

    /// Updates the processes, and reports new kills once all victims are found, or after [`MAX_RESCANS`] further scans. `count` was read
    /// before the list of processes. Returns whether there are kills that were not reported before.
    pub(super) fn update(&mut self, count: u64, all: &Processes) -> bool {
        if self.file.is_none() {
            return false;
        }
        let has_kills = count > self.count;
        if let Some((victims, unknown)) = self.attribute(count, all.jobs(), job_processes(all)) {
            self.report(&victims, unknown);
        }
        has_kills
    }

    /// Returns the victims of the kills since the last scan, and the number of the other kills; `None` if the next scan may show more
    /// victims. The kernel counts a kill before it sends the signal (`__oom_kill_process`), so a victim may still look alive.
    fn attribute(
        &mut self,
        count: u64,
        jobs: BTreeSet<u32>,
        mut now: BTreeMap<Key, JobProcess>,
    ) -> Option<(Vec<(i32, JobProcess)>, usize)> {
        let kills = usize::try_from(count.saturating_sub(self.count)).unwrap_or(usize::MAX);
        let mut victims = victims(&self.processes, &now, kills);
        if victims.len() < kills && self.rescans < MAX_RESCANS {
            self.rescans += 1;
            return None;
        }
        if victims.is_empty() && kills > 0 {
            victims.extend(only_job(&self.jobs, &jobs).map(short_lived));
        }
        // A process that was killed after the count was read remains a candidate: its kill is part of the next count.
        for (key, process) in &mut now {
            let was_attributed = self.processes.get(key).is_some_and(|before| before.is_ending);
            process.is_ending &= was_attributed || victims.iter().any(|(pid, _)| *pid == key.0);
        }
        (self.count, self.jobs, self.processes, self.rescans) = (count, jobs, now, 0);
        let unknown = kills - victims.len();
        Some((victims, unknown))
    }

    fn report(&mut self, victims: &[(i32, JobProcess)], unknown: usize) {
        self.reported.retain(|_, at| at.elapsed() < REPORT_INTERVAL);
        for (pid, victim) in victims {
            if self.is_due(Some(victim.job)) {
                report(&self.run, *pid, victim);
            }
        }
        if unknown > 0 && self.is_due(None) {
            let kills = printable::count(unknown, "OOM kill");
            report::warn(message!("oom-kill", "cannot attribute {kills} to a job", kills));
        }
    }
}

impl Kills {
    /// The jobs whose kills were reported within the last [`REPORT_INTERVAL`].
    pub(super) fn recent_jobs(&self) -> impl Iterator<Item = u32> {
        self.reported.keys().filter_map(|job| *job)
    }

    fn is_due(&mut self, job: Option<u32>) -> bool {
        let is_new = !self.reported.contains_key(&job);
        self.reported.entry(job).or_insert_with(Instant::now);
        is_new
    }
}

fn parse_count(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

/// The `kills` largest of the processes that have ended since the last scan, or are ending: the kernel kills the largest.
fn victims(
    before: &BTreeMap<Key, JobProcess>,
    now: &BTreeMap<Key, JobProcess>,
    kills: usize,
) -> Vec<(i32, JobProcess)> {
    let largest = |key: &Key, process: &JobProcess| {
        let before = before.get(key).map_or(0, |process| process.resident_kib);
        JobProcess { resident_kib: process.resident_kib.max(before), ..process.clone() }
    };
    let gone = before.iter().filter(|(key, process)| !process.is_ending && !now.contains_key(key));
    let was_ending = |key: &Key| before.get(key).is_some_and(|process| process.is_ending);
    let ending = now.iter().filter(|(key, process)| process.is_ending && !was_ending(key));
    let mut all: Vec<(i32, JobProcess)> =
        gone.chain(ending).map(|(key, process)| (key.0, largest(key, process))).collect();
    all.sort_by_key(|(_, process)| std::cmp::Reverse(process.resident_kib));
    all.truncate(kills);
    all
}

/// The job that has a step now or had one at the last scan, if there is exactly one.
fn only_job(before: &BTreeSet<u32>, now: &BTreeSet<u32>) -> Option<u32> {
    let mut jobs = before.union(now);
    jobs.next().copied().filter(|_| jobs.next().is_none())
}

fn short_lived(job: u32) -> (i32, JobProcess) {
    (UNKNOWN_PID, JobProcess { job, name: "short-lived".to_owned(), resident_kib: 0, is_ending: true })
}

/// Adds the kill to the file that `slurminit doctor` reads.
fn record(run: &Path, kill: OomKill) -> anyhow::Result<()> {
    let run = trusted_path::open(Path::new("/"), run)?;
    run.require_ours()?;
    let mut kills: Vec<OomKill> =
        run.read(FILE).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
    kills.push(kill);
    kills.drain(..kills.len().saturating_sub(MAX_RECORDED));
    let new = format!("{FILE}.new");
    run.remove(&new)?;
    run.create(&new, 0o644)?.write_all(&serde_json::to_vec(&kills)?)?;
    Ok(run.rename(&new, FILE)?)
}

/// The description of a victim in messages.
fn description(pid: i32, victim: &JobProcess) -> String {
    match pid {
        UNKNOWN_PID => "a short-lived process".to_owned(),
        _ => format!("process {pid} ({}, {} MiB)", printable::line(&victim.name), victim.resident_kib / 1024),
    }
}

/// Removes the record of an earlier start.
pub(crate) fn clear_record(run: &Path) -> anyhow::Result<()> {
    Ok(trusted_path::open(Path::new("/"), run)?.remove(FILE)?)
}

fn report(run: &Path, pid: i32, victim: &JobProcess) {
    let JobProcess { job, name, resident_kib, .. } = victim;
    let description = description(pid, victim);
    let kill = OomKill { job: *job, process: printable::line(name).into_owned(), resident_mib: resident_kib / 1024 };
    if let Err(error) = record(run, kill) {
        report::warn(message!(
            "oom-kill-not-recorded",
            "`slurminit doctor` will not show the OOM kill of job {job}: {error}",
            job,
            error = format!("{error:#}")
        ));
    }
    report::warn(message!(
        "job-oom-kill",
        "OOM kill: {process} of job {job}; request more memory with --mem, or raise the container's limit (docker run --memory, limits.memory of a pod)",
        process = description,
        job
    ));
    let (job, note) = (job.to_string(), format!("OOM kill: {description}; request more memory with --mem"));
    // `scontrol notify` shows the note in a batch job's output, or at the job's srun or salloc, unless the job has already ended.
    // Without cgroups nothing sets the job's state to OUT_OF_MEMORY: slurmctld sets it only for the exit code SIG_OOM, which slurmstepd
    // sends if task/cgroup counted a kill (24.11 to 26.05, `_job_complete` and `_send_complete_batch_script_msg`).
    let notify = move || {
        let slurm = Client::with_timeout(limit::COMMAND);
        comment_on(&slurm, &job, &note);
        drop(slurm.run("scontrol", &["notify", &job, &note]));
    };
    let _ = thread::Builder::new().spawn(notify);
}

/// Writes the comment to the job's record. slurmctld rejects the change if the job has ended. slurmdbd, if there is one, accepts it
/// once slurmctld has sent the record, which takes seconds on a busy machine.
fn comment_on(slurm: &Client, job: &str, note: &str) {
    let (place, comment) = (format!("jobid={job}"), format!("admincomment={OUR_REASON}{note}"));
    for _ in 0..COMMENT_TRIES {
        let in_database = ["--immediate", "modify", "job", "where", &place, "set", &comment];
        if slurm.update_job(job, &[&comment]).is_ok() || slurm.run("sacctmgr", &in_database).is_ok() {
            return;
        }
        pause(COMMENT_INTERVAL);
    }
}

/// The jobs' processes.
fn job_processes(all: &Processes) -> BTreeMap<Key, JobProcess> {
    let job_process = |(process, job): (&Process, u32)| {
        let status = proc::status(process.pid).unwrap_or_default();
        let is_ending = process.is_dead || has_pending_kill(&status);
        (process.key(), JobProcess { job, resident_kib: resident_kib(&status), is_ending, name: process.name.clone() })
    };
    all.iter().filter_map(|process| Some((process, all.job(process)?))).map(job_process).collect()
}

/// Parses `VmRSS:     1234 kB`. A zombie has no such line.
fn resident_kib(status: &str) -> u64 {
    let number = |text: &str| text.strip_suffix("kB")?.trim().parse().ok();
    parse::field(status, "VmRSS").and_then(number).unwrap_or(0)
}

fn has_pending_kill(status: &str) -> bool {
    let mask = |key| parse::field(status, key).and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0);
    (mask("SigPnd") | mask("ShdPnd")) & (1 << (libc::SIGKILL - 1)) != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_slurm::FakeSlurm;
    use sys::proc::{Role, Step};

    fn process(job: u32, resident_kib: u64, is_ending: bool) -> JobProcess {
        JobProcess { job, name: "python3".to_owned(), resident_kib, is_ending }
    }

    #[test]
    fn reads_counts_of_both_cgroup_versions() {
        assert_eq!(parse_count("low 0\nhigh 0\nmax 96\noom 3\noom_kill 2\noom_group_kill 0\n"), Some(2));
        assert_eq!(parse_count("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"), Some(5));
        assert_eq!(parse_count(""), None);
    }

    #[test]
    fn count_has_changed_once_the_file_differs() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "oom 3\noom_kill 2\n").unwrap();
        let kills = Kills { file: File::open(file.path()).ok(), count: 2, ..Kills::default() };
        assert!(!kills.has_changed());
        std::fs::write(file.path(), "oom 3\noom_kill 3\n").unwrap();
        assert!(kills.has_changed());
        assert!(!Kills::default().has_changed(), "without a file");
    }

    #[test]
    fn names_largest_process_that_ended() {
        let before = BTreeMap::from([
            ((10, 1), process(5, 900, false)),
            ((11, 1), process(5, 100, false)),
            ((12, 1), process(6, 5000, false)),
            ((13, 1), process(7, 9000, true)),
        ]);
        let now = BTreeMap::from([
            ((11, 2), process(5, 0, false)),
            ((12, 1), process(6, 5000, false)),
            ((14, 3), process(8, 400, true)),
        ]);
        let jobs = |kills| victims(&before, &now, kills).iter().map(|(pid, one)| (*pid, one.job)).collect::<Vec<_>>();
        assert_eq!(jobs(0), []);
        assert_eq!(jobs(1), [(10, 5)]);
        assert_eq!(jobs(2), [(10, 5), (14, 8)]);
        assert_eq!(jobs(9), [(10, 5), (14, 8), (11, 5)]);
    }

    #[test]
    fn attributes_unseen_kill_to_only_job() {
        let jobs = |jobs: &[u32]| jobs.iter().copied().collect::<BTreeSet<_>>();
        assert_eq!(only_job(&jobs(&[5]), &jobs(&[])), Some(5));
        assert_eq!(only_job(&jobs(&[]), &jobs(&[5])), Some(5));
        assert_eq!(only_job(&jobs(&[5]), &jobs(&[5, 6])), None);
        assert_eq!(only_job(&jobs(&[]), &jobs(&[])), None);
    }

    #[test]
    fn finds_victim_that_looks_alive_when_its_kill_is_counted() {
        let alive = || BTreeMap::from([((10, 1), process(5, 900, false))]);
        let jobs = || BTreeSet::from([5]);
        let mut kills = Kills::default();
        assert_eq!(kills.attribute(0, jobs(), alive()), Some((vec![], 0)));
        assert_eq!(kills.attribute(1, jobs(), alive()), None);
        let dead = BTreeMap::from([((10, 1), process(5, 0, true))]);
        assert_eq!(kills.attribute(1, jobs(), dead), Some((vec![(10, process(5, 900, true))], 0)));
        // A process that was killed after the count was read.
        let killed = || BTreeMap::from([((11, 1), process(6, 700, true))]);
        assert_eq!(kills.attribute(1, jobs(), killed()), Some((vec![], 0)));
        assert_eq!(kills.attribute(2, jobs(), killed()), Some((vec![(11, process(6, 700, true))], 0)));
        assert_eq!(kills.attribute(2, jobs(), killed()), Some((vec![], 0)));
        // A kill of a process that was never seen.
        for _ in 0..MAX_RESCANS {
            assert_eq!(kills.attribute(4, jobs(), BTreeMap::new()), None);
        }
        assert_eq!(kills.attribute(4, jobs(), BTreeMap::new()), Some((vec![short_lived(5)], 1)));
        assert_eq!(kills.attribute(4, jobs(), BTreeMap::new()), Some((vec![], 0)));
    }

    #[test]
    fn keeps_size_of_process_that_is_ending() {
        let before = BTreeMap::from([((10, 1), process(5, 900, false))]);
        let now = BTreeMap::from([((10, 1), process(5, 0, true))]);
        assert_eq!(victims(&before, &now, 1), [(10, process(5, 900, true))]);
    }

    #[test]
    fn reads_size_and_pending_kill() {
        let status = "Name:\tpython3\nVmRSS:\t  204800 kB\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000100\n";
        assert_eq!((resident_kib(status), has_pending_kill(status)), (204_800, true));
        assert_eq!((resident_kib("Name:\tx\n"), has_pending_kill("ShdPnd:\t0000000000004000\n")), (0, false));
    }

    #[test]
    fn records_one_kill_of_each_job_in_interval() {
        let run = tempfile::tempdir().unwrap();
        let mut kills = Kills { run: run.path().to_owned(), ..Kills::default() };
        let size = 3 * 1024 + 512;
        let victims = [(10, process(5, size, true)), (11, process(5, size, true)), (12, process(6, 1023, true))];
        kills.report(&victims, 1);
        kills.report(&victims[..1], 0);
        let recorded: Vec<OomKill> = serde_json::from_slice(&std::fs::read(run.path().join(FILE)).unwrap()).unwrap();
        let kill = |job, resident_mib| OomKill { job, process: "python3".to_owned(), resident_mib };
        assert_eq!(recorded, [kill(5, 3), kill(6, 0)]);
        assert_eq!(kills.recent_jobs().collect::<Vec<_>>(), [5, 6]);
        clear_record(run.path()).unwrap();
        assert!(!run.path().join(FILE).exists());
    }

    #[test]
    fn comment_is_written_once_to_slurmctld_or_database() {
        for (scontrol, count) in [(Ok(""), 1), (Err("Job has already finished"), 2)] {
            let slurm = FakeSlurm::new(&[
                ("scontrol update jobid=5 admincomment=", scontrol),
                ("sacctmgr --immediate modify job", Ok("")),
            ]);
            comment_on(&Client::with_runner(&slurm.run()), "5", "OOM kill: x");
            let commands = slurm.commands("");
            assert_eq!(commands.len(), count, "{commands:?}");
            let comment = format!("admincomment={OUR_REASON}OOM kill: x");
            let database = format!("sacctmgr --immediate modify job where jobid=5 set {comment}");
            assert_eq!(commands, &[format!("scontrol update jobid=5 {comment}"), database][..count]);
        }
    }

    #[test]
    fn dead_process_of_job_is_ending() {
        let own = Process::read(nix::unistd::getpid().as_raw()).unwrap();
        let role = Role::Step(Some(Step { job: 5, name: "batch".to_owned() }));
        let step = Process { pid: -2, role, ..Process::default() };
        let zombie = Process { pid: -1, parent: -2, is_dead: true, ..Process::default() };
        let other = Process { pid: -3, ..Process::default() };
        let all: Processes = [Process { parent: -2, ..own.clone() }, zombie, step, other].into_iter().collect();
        let found = job_processes(&all);
        assert_eq!(found.keys().copied().collect::<Vec<_>>(), [(-1, 0), own.key()]);
        assert!(found[&(-1, 0)].is_ending && !found[&own.key()].is_ending && found[&own.key()].resident_kib > 0);
        assert_eq!((found[&own.key()].job, &found[&own.key()].name), (5, &own.name));
    }

    #[test]
    fn describes_victim_by_its_pid_unless_it_was_short_lived() {
        assert_eq!(description(10, &process(5, 3 * 1024 + 512, true)), "process 10 (python3, 3 MiB)");
        let (pid, victim) = short_lived(5);
        assert_eq!(description(pid, &victim), "a short-lived process");
    }
}
