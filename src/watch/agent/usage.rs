//! Records how jobs use their GPUs: saves the state of [`faults::usage`] on disk, and decides when to query slurmctld.
//!
//! A container that is killed loses the samples since the last round. Each user may read the records of their own jobs; root and Slurm's
//! user may read all, so Slurm's PrivateData cannot be circumvented here. The files belong to root; other users receive their records from
//! the `socket`.

mod comments;
pub mod jobstats;
mod output;
mod records;
mod socket;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use config::Config;
use faults::report::Report;
use faults::sample::{GpuSample, Identity, Key};
use faults::usage::{IdleAction, IdleJob, IdlePolicy, Job, JobRecord, JobUse, Usage};
use model::inventory::Vendor;
use model::message;
use model::prepared::{OfferedGpu, Prepared};
use model::printable;
use sys::report;

use super::notify::JobEvent;
use super::unix_ms;
use comments::Comments;
use output::Outputs;

pub use records::read;
pub use socket::ask;

/// The intervals between queries while jobs have GPUs, and while no job has one; an [`IdlePolicy`] can shorten the first. slurmd creates and
/// removes a socket in its directory for each step, and such a change causes a query after the next sampling round. Only a change of an
/// allocation without steps waits for the interval.
const BUSY_INTERVAL: Duration = Duration::from_secs(60);
const IDLE_INTERVAL: Duration = Duration::from_secs(300);

/// How long an ended job is shown, in seconds, and the maximum number of such jobs.
const SHOWN: u64 = 86_400;
const MAX_SHOWN: usize = 50;

#[derive(Debug)]
pub(super) struct Keeper {
    usage: Usage,
    state: PathBuf,
    offered: Vec<OfferedGpu>,
    listed: Vec<Identity>,
    /// slurmd's spool directories; `changed` is the last modification time of each.
    spools: Vec<PathBuf>,
    changed: Vec<Option<SystemTime>>,
    asked: Option<Instant>,
    is_pending: bool,
    /// Whether slurmd's directories changed just before or during the last query. slurmctld may have recorded the change only after the
    /// query, so the query is repeated.
    repeats: bool,
    has_warned: bool,
    /// Whether the saved state has jobs.
    has_saved_jobs: bool,
    comments: Comments,
    /// The ended jobs to show, the most recent first.
    shown: VecDeque<JobUse>,
    /// The end events of jobs whose first node is this one and whose users requested mail.
    ends: Vec<JobEvent>,
    /// Whether Slurm's PrivateData hides jobs; true before the first answer.
    hides_jobs: bool,
    policy: IdlePolicy,
    /// `None` if no report is appended to the output files of jobs.
    outputs: Option<Outputs>,
}

impl Keeper {
    pub(super) fn new(config: &Config, prepared: &Prepared, interval_ms: u64) -> Self {
        let paths = &config.paths;
        let former = records::read_state(&paths.state);
        let has_saved_jobs = former.as_ref().is_some_and(Usage::has_jobs);
        if let Err(error) = socket::serve(paths) {
            report::warn(message!(
                "reports-not-served",
                "cannot serve job reports to users: {error}; `slurminit report` shows them only jobs in the accounting database",
                error = format!("{error:#}")
            ));
        }
        Self {
            usage: Usage::new(former, &prepared.node_name, interval_ms),
            state: paths.state.clone(),
            offered: prepared.gpus.clone(),
            listed: Vec::new(),
            spools: prepared.spool_directories.clone(),
            changed: Vec::new(),
            asked: None,
            is_pending: false,
            repeats: false,
            has_warned: false,
            has_saved_jobs,
            comments: Comments::default(),
            shown: shown(&paths.state),
            ends: Vec::new(),
            hides_jobs: true,
            policy: config.gpu.idle.clone(),
            outputs: config.report.output.then(Outputs::default),
        }
    }

    /// Sets the GPUs that a vendor's driver lists.
    pub(super) fn set_listed(&mut self, vendor: Vendor, gpus: &[Identity]) {
        self.listed.retain(|gpu| gpu.vendor != vendor);
        self.listed.extend_from_slice(gpus);
        self.usage.set_offered(&self.offered, &self.listed);
    }

    pub(super) fn set_offered(&mut self, offered: &[OfferedGpu]) {
        if self.offered != offered {
            self.offered = offered.to_vec();
            self.usage.set_offered(&self.offered, &self.listed);
        }
    }

    pub(super) fn add_sample(&mut self, gpu: &Key, seen: &GpuSample) {
        if seen.trouble.is_none() {
            self.usage.add_sample(unix_ms(), &gpu.to_string(), seen);
        }
    }

    pub(super) fn add_error(&mut self, gpu: Option<&Key>) {
        if let Some(gpu) = gpu {
            self.usage.add_error(&gpu.to_string());
        }
    }

    /// Saves the state after a round of samples. Returns whether slurmctld is to be queried.
    pub(super) fn end_round(&mut self, now: Instant) -> bool {
        if self.usage.has_jobs() || self.has_saved_jobs {
            self.save();
        }
        let changed =
            self.spools.iter().map(|spool| spool.metadata().and_then(|spool| spool.modified()).ok()).collect();
        let has_changed = std::mem::replace(&mut self.changed, changed) != self.changed;
        let interval = match self.usage.has_jobs() {
            true if self.policy.action != IdleAction::Off => BUSY_INTERVAL.min(self.policy.after / 4),
            true => BUSY_INTERVAL,
            false => IDLE_INTERVAL,
        };
        let is_due = self.asked.is_none_or(|asked| now.saturating_duration_since(asked) >= interval);
        if self.is_pending || self.offered.is_empty() || !(has_changed || self.repeats || is_due) {
            self.repeats |= has_changed;
            return false;
        }
        (self.repeats, self.asked, self.is_pending) = (has_changed, Some(now), true);
        true
    }

    /// Applies slurmctld's answer, and returns the jobs that do not use their GPUs and for which an action is due. Without an answer, the
    /// samples are kept for the next answer.
    pub(super) fn update(&mut self, asked: u64, jobs: Result<Vec<Job>, String>, hides_jobs: bool) -> Vec<IdleJob> {
        (self.is_pending, self.hides_jobs) = (false, hides_jobs);
        let Ok(jobs) = jobs else { return Vec::new() };
        let ended = self.usage.update(asked, jobs);
        if !ended.is_empty() {
            // The record is written before the state: a record that is written twice is read only once.
            self.warn(records::append(&self.state, &ended));
            self.save();
            ended.iter().for_each(|run| self.shown.push_front(JobUse::from(run)));
            self.shown.truncate(MAX_SHOWN);
            self.ends
                .extend(ended.iter().filter(|run| run.job.is_first_node && run.job.is_mail_requested()).map(end_event));
            self.outputs.iter_mut().for_each(|outputs| outputs.queue(&ended));
            self.comments.queue(ended);
        }
        self.usage.idle(&self.policy, asked / 1000)
    }

    /// Takes the collected end events.
    pub(super) fn take_ends(&mut self) -> Vec<JobEvent> {
        std::mem::take(&mut self.ends)
    }

    /// The use of a running job.
    pub(super) fn job_use(&self, job: u64) -> Option<JobUse> {
        self.usage.running(unix_ms()).iter().find(|run| run.job.job == job).map(JobUse::from)
    }

    /// The marks of this node to set or to remove in the AdminComment of jobs on several nodes.
    pub(super) fn idle_marks(&self) -> Vec<(u64, Option<u64>)> {
        self.usage.idle_marks(&self.policy, unix_ms() / 1000)
    }

    /// Adds the data that all users may see to the report.
    pub(super) fn describe(&self, report: &mut Report) {
        let now = unix_ms();
        report.users = self.usage.users();
        for gpu in &mut report.gpus {
            gpu.last_hour = self.usage.history(&gpu.identity.key().to_string(), now);
        }
        if !self.hides_jobs {
            let running = self.usage.running(now);
            let is_recent = |job: &&JobUse| job.end.is_some_and(|end| end + SHOWN > now / 1000);
            let ended = self.shown.iter().filter(is_recent).cloned();
            report.job_uses = running.iter().map(JobUse::from).chain(ended).collect();
        }
    }

    pub(super) fn save(&mut self) {
        self.warn(records::write_state(&self.state, &self.usage));
        self.has_saved_jobs = self.usage.has_jobs();
    }

    fn warn(&mut self, outcome: anyhow::Result<()>) {
        let Err(error) = outcome else { return self.has_warned = false };
        if !std::mem::replace(&mut self.has_warned, true) {
            report::warn(message!(
                "job-reports-not-written",
                "cannot record in {directory} how jobs use GPUs: {error}; `slurminit report` may omit recent jobs",
                directory = self.state.display(),
                error = format!("{error:#}")
            ));
        }
    }
}

fn end_event(run: &JobRecord) -> JobEvent {
    let (job, user) = (JobUse::from(run), printable::short(&run.job.user, 100));
    let state = printable::short(&job.state, 100).to_lowercase();
    let [report, _] = output::lines(run);
    let line = format!("job {} of {user} {state}: {report}", job.job);
    JobEvent { at: job.end.unwrap_or_default(), kind: "job-end", job, line }
}

/// The most recent ended jobs that earlier agents recorded, in reverse order of their ends.
fn shown(state: &Path) -> VecDeque<JobUse> {
    let records = records::read(state).unwrap_or_default();
    let ended = records.iter().rev().filter(|record| record.job.end.is_some());
    ended.take(MAX_SHOWN).map(JobUse::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::path::Path;

    fn keeper(state: &Path, toml: &str) -> Keeper {
        let text = format!("[paths]\nstate = {state:?}\nrun = {state:?}\n{toml}");
        let config = Config::parse(&text, Path::new("slurminit.toml")).unwrap();
        let gpu = OfferedGpu { file: "/dev/nvidia0".to_owned(), ..OfferedGpu::default() };
        let spool = state.join("spool");
        let prepared = Prepared {
            node_name: "c1".to_owned(),
            gpus: vec![gpu],
            spool_directories: vec![spool],
            ..Prepared::default()
        };
        Keeper::new(&config, &prepared, 5000)
    }

    fn job(job: u64, end: Option<u64>) -> Job {
        let state = if end.is_some() { "COMPLETED" } else { "RUNNING" }.to_owned();
        Job { job, start: 100, end, state, gpus: vec![0], is_first_node: true, ..Job::default() }
    }

    #[test]
    fn queries_slurm_at_interval_and_after_change_of_spool() {
        let state = tempfile::tempdir().unwrap();
        fs::create_dir(state.path().join("spool")).unwrap();
        let (mut keeper, begin) = (keeper(state.path(), ""), Instant::now());
        let round = |keeper: &mut Keeper, seconds: u64| keeper.end_round(begin + Duration::from_secs(seconds));
        assert!(round(&mut keeper, 0) && !round(&mut keeper, 1), "the first query has not ended");
        keeper.update(0, Ok(Vec::new()), false);
        assert!(round(&mut keeper, 2), "the spool was seen for the first time");
        keeper.update(0, Ok(Vec::new()), false);
        assert!(!round(&mut keeper, 301) && round(&mut keeper, 302), "no job has a GPU");
        keeper.update(0, Ok(vec![job(7, None)]), false);
        assert!(!round(&mut keeper, 361) && round(&mut keeper, 362), "a job has a GPU");
        keeper.update(0, Ok(vec![job(7, None)]), false);
        File::create(state.path().join("spool/new")).unwrap();
        File::options()
            .read(true)
            .open(state.path().join("spool"))
            .unwrap()
            .set_modified(SystemTime::UNIX_EPOCH)
            .unwrap();
        assert!(round(&mut keeper, 363));
        keeper.update(0, Ok(vec![job(7, None)]), false);
        assert!(round(&mut keeper, 364), "slurmctld may have recorded the change later");
        keeper.update(0, Ok(vec![job(7, None)]), false);
        assert!(!round(&mut keeper, 365));
        keeper.offered.clear();
        assert!(!round(&mut keeper, 9999), "the node has no GPU");
    }

    #[test]
    fn ended_job_is_recorded_and_shown_unless_slurm_hides_jobs() {
        let state = tempfile::tempdir().unwrap();
        let mut keeper = keeper(state.path(), "");
        let now = unix_ms() / 1000;
        keeper.update(now * 1000, Ok(vec![job(7, None)]), false);
        assert_eq!(keeper.job_use(7).map(|job| job.end), Some(None));
        let mailed = |number| Job { mail: vec!["END".to_owned()], ..job(number, Some(now)) };
        keeper.update(now * 1000, Ok(vec![mailed(7)]), false);
        assert_eq!(records::read(state.path()).unwrap().iter().map(|record| record.job.job).collect::<Vec<_>>(), [7]);
        assert_eq!((keeper.job_use(7), keeper.take_ends().len(), keeper.take_ends().len()), (None, 1, 0));
        let shown = |keeper: &Keeper| {
            let mut report = Report::default();
            keeper.describe(&mut report);
            report.job_uses.iter().map(|job| job.job).collect::<Vec<_>>()
        };
        assert_eq!(shown(&keeper), [7]);
        keeper.update(now * 1000, Err("slurmctld is down".to_owned()), true);
        assert_eq!(shown(&keeper), [0; 0]);
        let old = JobUse { end: Some(now - SHOWN - 60), ..keeper.shown[0].clone() };
        keeper.hides_jobs = false;
        keeper.shown = [old].into();
        assert_eq!(shown(&keeper), [0; 0], "it ended more than a day ago");
    }

    #[test]
    fn error_of_driver_is_counted_for_job_on_gpu() {
        let state = tempfile::tempdir().unwrap();
        let mut keeper = keeper(state.path(), "");
        let gpu = Identity { file: Some("/dev/nvidia0".to_owned()), ..Identity::default() };
        keeper.set_listed(gpu.vendor, std::slice::from_ref(&gpu));
        let now = unix_ms();
        let job = |end| Job { start: now / 1000 - 60, ..job(7, end) };
        keeper.update(now - 1000, Ok(vec![job(None)]), false);
        keeper.add_error(Some(&gpu.key()));
        keeper.add_error(None);
        keeper.add_sample(&gpu.key(), &GpuSample::default());
        keeper.update(unix_ms() + 1000, Ok(vec![job(Some(now / 1000 + 60))]), false);
        let records = records::read(state.path()).unwrap();
        assert_eq!(records[0].gpus.iter().map(|gpu| gpu.errors).collect::<Vec<_>>(), [1], "{records:?}");
    }

    #[test]
    fn user_reads_own_records_from_socket() {
        let state = tempfile::tempdir().unwrap();
        let mut keeper = keeper(state.path(), "");
        keeper.update(200_000, Ok(vec![job(7, None)]), false);
        keeper.update(200_000, Ok(vec![Job { uid: 1501, ..job(7, Some(200)) }]), false);
        let is_root = nix::unistd::geteuid().is_root();
        let jobs: Vec<_> = ask(state.path()).unwrap().iter().map(|record| record.job.job).collect();
        assert_eq!(jobs, if is_root { vec![7] } else { vec![] });
    }
}
