//! Watches the container's memory, and the space of its limited directories, and applies the decisions of the guard.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use ::slurm::client::Client;

use super::slurm;
use crate::memory_guard::{self, Action, Guard, JobMemory};
use crate::memory_use::{self, MemoryUse, ProcessMemory, UserMemory};
use config::{DirectoryLimit, Memory, Victim};
use machine::node_report::{DIRECTORY_REASON, MEMORY_REASON, OUR_REASON};
use model::message;
use probe::memory::{self, MemoryState};
use sys::report;
use sys::users;

/// Measuring takes at most 1/`PART` of the time.
const PART: u32 = 50;

/// A resource that can run short.
pub(super) enum Resource {
    Memory,
    Directory {
        path: PathBuf,
        mib: u64,
        /// The bytes at the last measurement, by user.
        bytes: Option<BTreeMap<u32, u64>>,
        /// The MiB that were added between the last two measurements, by user.
        growth: BTreeMap<u32, u64>,
        /// Whether it was logged that the directory cannot be measured.
        is_failure_reported: bool,
    },
}

impl Resource {
    pub(super) fn directory(DirectoryLimit { path, mib }: &DirectoryLimit) -> Self {
        let (path, growth) = (path.clone(), BTreeMap::new());
        Self::Directory { path, mib: *mib, bytes: None, growth, is_failure_reported: false }
    }

    /// The prefix of the drain reasons for this resource.
    fn reason(&self) -> String {
        match self {
            Self::Memory => MEMORY_REASON.to_owned(),
            Self::Directory { path, .. } => format!("{DIRECTORY_REASON}{} ", path.display()),
        }
    }

    /// The text after the prefix of a drain reason, with these numbers.
    fn describe(&self, numbers: &str) -> String {
        let state = match self {
            Self::Memory => "is low",
            Self::Directory { .. } => "is nearly full",
        };
        format!("{state}: {numbers}")
    }

    fn sample(&mut self) -> Option<MemoryState> {
        let Self::Directory { path, mib, bytes, growth, is_failure_reported } = self else {
            return memory::sample(Path::new("/"));
        };
        let Some(now) = memory_use::of_directory(path) else {
            if !std::mem::replace(is_failure_reported, true) {
                report::warn(message!(
                    "directory-not-measured",
                    "cannot measure {directory}: it does not exist, or has too many files; jobs that fill it will not be cancelled",
                    directory = path.display()
                ));
            }
            return None;
        };
        let used = now.values().sum::<u64>() >> 20;
        // Files from before the start of this agent are not attributed to current jobs.
        let before = bytes.replace(now.clone()).unwrap_or_else(|| now.clone());
        let added =
            |(uid, new): (u32, u64)| (uid, new.saturating_sub(before.get(&uid).copied().unwrap_or_default()) >> 20);
        *growth = now.into_iter().map(added).collect();
        // A nearly full directory that does not grow harms no job.
        let pressure = if growth.values().any(|mib| *mib > 0) { 100.0 } else { 0.0 };
        Some(MemoryState { free_mib: mib.saturating_sub(used), usable_mib: *mib, pressure: Some(pressure) })
    }
}

/// The levels for directories, in percent. Unlike the memory of processes, the space is not released when a job ends: its files remain.
pub(super) fn directory_levels() -> Memory {
    Memory { guard: true, close_below: 20, cancel_below: 10, open_above: 25, cancel: Victim::Youngest }
}

/// Starts a thread that watches a resource until the agent ends. The agent's main thread must not wait for a measurement or for Slurm,
/// which can take a long time.
pub(super) fn watch(resource: Resource, levels: Memory, interval: Duration, node: &str) -> io::Result<()> {
    let node = node.to_owned();
    let mut watch =
        Watch { resource, levels, node, guard: Guard::default(), is_node_known: false, is_other_drain_reported: false };
    let began = Instant::now();
    let body = move || {
        loop {
            let begin = Instant::now();
            let sample = watch.resource.sample();
            let rest = rest(interval, begin.elapsed());
            if let Some(sample) = sample {
                watch.step(&slurm::SLURM, u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX), &sample);
            }
            pause(rest);
        }
    };
    thread::Builder::new().name("guard".to_owned()).spawn(body).map(drop)
}

/// The pause after a measurement: at least `interval`, and [`PART`] times the duration of the measurement.
fn rest(interval: Duration, measurement: Duration) -> Duration {
    interval.max(measurement * PART)
}

#[expect(clippy::disallowed_methods, reason = "free memory and space are polled; this thread does nothing else")]
fn pause(time: Duration) {
    thread::sleep(time);
}

struct Watch {
    resource: Resource,
    levels: Memory,
    node: String,
    guard: Guard,
    /// Whether the state of the node was read: `false` at the start, because an earlier agent may have drained the node, and after an action
    /// that failed.
    is_node_known: bool,
    /// Whether it was logged that the node already accepts no jobs, for another reason, while the resource is low.
    is_other_drain_reported: bool,
}

impl Watch {
    fn step(&mut self, client: &Client, now_ms: u64, sample: &MemoryState) {
        if !self.is_node_known {
            let Some(is_closed) = slurm::is_drained_for(client, &self.node, &self.resource.reason()) else { return };
            (self.guard.is_closed, self.is_node_known) = (is_closed, true);
        }
        for action in self.guard.step(now_ms, sample, &self.levels) {
            if let Err(why) = self.apply(client, action) {
                report::warn(message!(
                    "guard-action-failed",
                    "could not drain or resume the node, or cancel a job: {why}; will retry",
                    why
                ));
                self.is_node_known = false;
            }
        }
    }

    fn apply(&mut self, client: &Client, action: Action) -> Result<(), String> {
        let (node, prefix) = (&self.node, self.resource.reason());
        let subject = prefix.trim_start_matches(OUR_REASON).trim_end();
        match action {
            Action::Drain(numbers) => {
                let state = self.resource.describe(&numbers);
                let is_drained = slurm::drain_for(client, node, &prefix, &state)?;
                let kind = self.kind("memory-low", "directory-full");
                if is_drained {
                    report::warn(message!(
                        kind,
                        "{subject} {state}; node drained until more than {percent} % is free",
                        subject,
                        state,
                        percent = self.levels.open_above
                    ));
                } else if !self.is_other_drain_reported {
                    report::warn(message!(
                        kind,
                        "{subject} {state}; the node already accepts no jobs, for another reason",
                        subject,
                        state
                    ));
                }
                // A drain for another reason can end before the resource is free.
                (self.guard.is_closed, self.is_other_drain_reported) = (is_drained, !is_drained);
            }
            Action::Resume => {
                let kind = self.kind("memory-recovered", "directory-recovered");
                match slurm::resume_from(client, node, &prefix)? {
                    true => report::info(message!(kind, "{subject} recovered; node resumed", subject)),
                    false => report::info(message!(
                        kind,
                        "{subject} recovered; node not resumed: it is no longer drained for that reason",
                        subject
                    )),
                }
            }
            Action::Cancel(which, numbers) => {
                let why = format!("{subject} {}", self.resource.describe(&numbers));
                match &self.resource {
                    Resource::Memory => cancel_for_memory(client, node, which, &why, memory_use::read())?,
                    Resource::Directory { path, bytes, growth, .. } => {
                        let bytes = bytes.iter().flatten();
                        cancel_for_directory(client, node, which, &why, path, bytes, growth)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The message kind for this resource.
    fn kind(&self, memory: &'static str, directory: &'static str) -> &'static str {
        if matches!(self.resource, Resource::Memory) { memory } else { directory }
    }
}

/// Cancels the job that [`memory_guard::victim`] chooses, if any, and logs the users with the most memory.
fn cancel_for_memory(
    client: &Client,
    node: &str,
    which: Victim,
    why: &str,
    MemoryUse { processes, users }: MemoryUse,
) -> Result<(), String> {
    let mut jobs = slurm::running(client, node)?;
    for job in &mut jobs {
        // A process can claim to belong to another user's job.
        let belongs_to_job = |process: &&ProcessMemory| process.job == Some(job.job) && process.uid == job.uid;
        job.used = processes.iter().filter(belongs_to_job).map(|process| process.bytes).sum::<u64>() >> 20;
    }
    let mib_by_user = users.iter().map(|(uid, memory)| (*uid, memory.sum() >> 20)).collect();
    let users = memory_use::describe_users(&users, users::display_name);
    match memory_guard::victim(&jobs, &mib_by_user, which) {
        Some(JobMemory { job, requested, used, .. }) => {
            slurm::cancel(client, job, &format!("cancelled, because the node's {why}"))?;
            report::warn(match requested {
                Some(requested) => message!(
                    "job-cancelled-for-memory",
                    "{why}; cancelled job {job}, which uses {used} MiB and requested {requested} MiB; \
                     users with the most memory: {users}",
                    why,
                    job,
                    used,
                    requested,
                    users
                ),
                None => message!(
                    "job-cancelled-for-memory",
                    "{why}; cancelled job {job}, which uses {used} MiB and has no memory allocation; users with the most memory: {users}",
                    why,
                    job,
                    used,
                    users
                ),
            });
        }
        None => report::warn(message!(
            "no-job-cancelled-for-memory",
            "{why}; no job cancelled: the user with the most unrequested memory has no job that exceeds its request; users with the most memory: {users}",
            why,
            users
        )),
    }
    Ok(())
}

/// Cancels a job of the user whose files grew most, if any, and logs the users with the most data.
fn cancel_for_directory<'a>(
    client: &Client,
    node: &str,
    which: Victim,
    why: &str,
    directory: &Path,
    bytes: impl Iterator<Item = (&'a u32, &'a u64)>,
    growth: &BTreeMap<u32, u64>,
) -> Result<(), String> {
    let mut jobs = slurm::running(client, node)?;
    for job in &mut jobs {
        // Jobs request no directory space, and a user's files cannot be attributed to one of the user's jobs.
        (job.requested, job.used) = (Some(0), growth.get(&job.uid).copied().unwrap_or_default());
    }
    let growth = growth.iter().map(|(uid, mib)| (Some(*uid), *mib)).collect();
    let users = bytes.map(|(uid, bytes)| (Some(*uid), UserMemory::of_files(directory, *bytes))).collect();
    let users = memory_use::describe_users(&users, users::display_name);
    match memory_guard::victim(&jobs, &growth, which) {
        Some(JobMemory { job, .. }) => {
            slurm::cancel(client, job, &format!("cancelled, because the node's {why}"))?;
            report::warn(message!(
                "job-cancelled-for-directory",
                "{why}; cancelled job {job} of the user whose files grew most; users with the most data: {users}",
                why,
                job,
                users
            ));
        }
        None => report::warn(message!(
            "no-job-cancelled-for-directory",
            "{why}; no job cancelled: the user whose files grew most has no running job on this node; users with the most data: {users}",
            why,
            users
        )),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_slurm::FakeSlurm;

    #[test]
    fn only_growth_since_first_measurement_is_pressure() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, mib: usize| std::fs::write(directory.path().join(name), vec![1; mib << 20]).unwrap();
        let mut resource = Resource::directory(&DirectoryLimit { path: directory.path().to_owned(), mib: 10 });
        let mut sample = || resource.sample().map(|state| (state.free_mib, state.usable_mib, state.pressure)).unwrap();
        write("before", 6);
        assert_eq!(sample(), (4, 10, Some(0.0)));
        write("after", 3);
        assert_eq!(sample(), (1, 10, Some(100.0)));
        assert_eq!(sample(), (1, 10, Some(0.0)));
        write("beyond", 3);
        assert_eq!(sample(), (0, 10, Some(100.0)));
    }

    /// A sample with this much free memory, in percent.
    fn free(percent: u64) -> MemoryState {
        MemoryState { free_mib: percent, usable_mib: 100, pressure: None }
    }

    fn watch(resource: Resource) -> Watch {
        Watch {
            resource,
            levels: directory_levels(),
            node: "c1".to_owned(),
            guard: Guard::default(),
            is_node_known: false,
            is_other_drain_reported: false,
        }
    }

    #[test]
    fn drains_and_resumes_node_for_directory() {
        let directory = DirectoryLimit { path: PathBuf::from("/scratch"), mib: 100 };
        let drained = "drained root|slurminit: directory /scratch is nearly full: 15 of 100 MiB free (15 %)";
        let mut watch = watch(Resource::directory(&directory));
        let mut step = |report: &str, percent: u64| {
            let slurm = FakeSlurm::new(&[("sinfo", Ok(report)), ("scontrol update", Ok(""))]);
            watch.step(&Client::with_runner(&slurm.run()), 0, &free(percent));
            slurm.commands("scontrol")
        };
        assert_eq!(step("", 15), [""; 0], "slurmctld does not report the node");
        let drain = "scontrol update nodename=c1 state=drain reason=slurminit: directory /scratch is nearly full: 15 of 100 MiB free (15 %)";
        assert_eq!(step("idle root|none", 15), [drain]);
        assert_eq!(step(drained, 15), [""; 0]);
        assert_eq!(step(drained, 30), ["scontrol update nodename=c1 state=undrain"]);
    }

    #[test]
    fn retries_drain_after_failure_and_after_drain_for_another_reason() {
        let mut watch = watch(Resource::Memory);
        let mut step = |report: &str, update: Result<&'static str, &'static str>| {
            let slurm = FakeSlurm::new(&[("sinfo", Ok(report)), ("scontrol update", update)]);
            watch.step(&Client::with_runner(&slurm.run()), 0, &free(15));
            (slurm.commands("scontrol").len(), watch.guard.is_closed, watch.is_other_drain_reported)
        };
        assert_eq!(step("drained root|fan", Ok("")), (0, false, true));
        let (updates, ..) = step("idle root|none", Err("slurmctld is down"));
        assert_eq!(updates, 1);
        assert_eq!(step("idle root|none", Ok("")), (1, true, false));
    }

    #[test]
    fn continues_drain_of_earlier_agent() {
        // After a resume or a restart of slurmctld, the node does not respond for a moment.
        for report in ["drained root|slurminit: memory is low", "draining* root|slurminit: memory is low"] {
            let mut watch = watch(Resource::Memory);
            let slurm = FakeSlurm::new(&[("sinfo", Ok(report)), ("scontrol update", Ok(""))]);
            watch.step(&Client::with_runner(&slurm.run()), 0, &free(80));
            assert_eq!(slurm.commands("scontrol"), ["scontrol update nodename=c1 state=undrain"], "{report}");
        }
    }

    #[test]
    fn measures_for_a_fiftieth_of_the_time() {
        let rest = |measurement| rest(Duration::from_secs(5), Duration::from_millis(measurement)).as_millis();
        assert_eq!([0, 100, 101, 60_000].map(rest), [5_000, 5_000, 5_050, 3_000_000]);
    }

    #[test]
    fn cancels_job_that_exceeds_its_request_by_its_own_processes() {
        // The last one started last.
        let jobs: String = [(7, 1501), (8, 1502), (9, 1501)]
            .map(|(job, uid)| format!("{job:<30}{uid:<30}{:<1000}\n", "cpu=1,mem=1G,node=1"))
            .concat();
        let process = |uid, job, mib: u64| ProcessMemory { uid, job: Some(job), bytes: mib << 20 };
        let cancelled = |mib_of_users: [u64; 2]| {
            let slurm = FakeSlurm::new(&[("squeue", Ok(&jobs)), ("scontrol", Ok("")), ("scancel", Ok(""))]);
            let users = [1501, 1502].map(Some).into_iter().zip(mib_of_users);
            let memory = MemoryUse {
                // Another user's process claims to belong to job 9.
                processes: vec![
                    process(1501, 7, 1000),
                    process(1501, 7, 500),
                    process(1501, 9, 500),
                    process(1502, 9, 3000),
                ],
                users: users.map(|(uid, mib)| (uid, UserMemory::of_files(Path::new("/dev/shm"), mib << 20))).collect(),
            };
            cancel_for_memory(&Client::with_runner(&slurm.run()), "c1", Victim::Youngest, "is low", memory).unwrap();
            slurm.commands("scancel")
        };
        assert_eq!(cancelled([9000, 3000]), ["scancel 7"]);
        assert_eq!(cancelled([4000, 3500]), [""; 0], "user 1502 requested 1 GiB, and user 1501 requested 2 GiB");
    }

    #[test]
    fn cancels_youngest_job_of_user_whose_files_grew() {
        let jobs: String = [(7, 1501), (8, 1502), (9, 1501)]
            .map(|(job, uid)| format!("{job:<30}{uid:<30}{:<1000}\n", "cpu=1,mem=1G,node=1"))
            .concat();
        let cancelled = |growth: &BTreeMap<u32, u64>| {
            let slurm = FakeSlurm::new(&[("squeue", Ok(&jobs)), ("scontrol", Ok("")), ("scancel", Ok(""))]);
            let run = slurm.run();
            let client = Client::with_runner(&run);
            let (path, bytes) = (Path::new("/scratch"), BTreeMap::from([(1501, 1 << 30)]));
            cancel_for_directory(&client, "c1", Victim::Youngest, "is full", path, bytes.iter(), growth).unwrap();
            slurm.commands("scancel")
        };
        assert_eq!(cancelled(&BTreeMap::from([(1501, 5), (1502, 3)])), ["scancel 9"]);
        assert_eq!(cancelled(&BTreeMap::from([(1501, 5), (1502, 30)])), ["scancel 8"]);
        assert_eq!(cancelled(&BTreeMap::from([(1503, 5)])), [""; 0]);
        assert_eq!(cancelled(&BTreeMap::new()), [""; 0]);
    }
}
