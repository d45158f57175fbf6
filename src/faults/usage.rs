//! Records how each job used its GPUs: turns samples and slurmctld's answers into a record of each job that has ended.
//!
//! A sample covers the time since the previous sample. slurmctld's answers arrive later than the samples, so samples are kept until an answer shows
//! whether the job was still running. Unconfirmed samples are shown in views, but are not part of any record.

mod gpu_use;
mod idle;
mod view;

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::sample::{GpuSample, Identity};
use model::inventory::Slowdown;
use model::prepared::OfferedGpu;

pub use gpu_use::GpuUse;
use idle::Window;
pub use idle::{IdleAction, IdleJob, IdlePolicy, with_mark, without_marks};
use view::History;
pub use view::{JobUse, sparkline};

/// The maximum number of kept samples of a GPU: 10 minutes at one sample every 5 s.
const MAX_SAMPLES: usize = 120;
/// The maximum number of runs in [`Usage::ended`].
const MAX_ENDED: usize = 256;

/// A sample of a GPU, or of a part of it. A value is `None` if the driver does not report it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// The time, in ms since 1970.
    pub at: u64,
    /// The utilization, in percent.
    pub percent: Option<u32>,
    /// The memory in use, in MiB.
    pub memory_mib: Option<u64>,
    /// The power draw, in mW.
    pub power_mw: Option<u64>,
    /// The driver's energy counter, in mJ.
    pub energy_mj: Option<u64>,
    /// Whether heat, or the machine's power supply, limits the clocks.
    pub is_throttled: bool,
    /// The number of errors that the driver reported since the previous sample.
    #[serde(default)]
    pub errors: u32,
}

/// A GPU or MIG instance that Slurm offers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The UUID, or another key of the samples.
    pub id: String,
    /// The driver's index of the GPU.
    pub index: u32,
    /// The GPU's model; for a MIG instance, also its profile. Untrusted text.
    pub model: String,
    /// The memory, in MiB.
    pub memory_mib: Option<u64>,
}

/// A job that has GPUs of this node, as slurmctld reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Job {
    /// The job ID.
    pub job: u64,
    /// The ID of the array and the number of the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub array: Option<(u64, u64)>,
    /// The user's ID.
    pub uid: u32,
    /// The user's name; untrusted text.
    pub user: String,
    /// The Slurm account that the job is charged to.
    pub account: String,
    /// The partition in which the job runs.
    pub partition: String,
    /// The QOS of the job.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub qos: String,
    /// The number of nodes of the job.
    #[serde(skip)]
    pub nodes: u64,
    /// The CPUs on this node.
    pub cpus: u64,
    /// The memory on this node, in MiB.
    pub memory_mib: u64,
    /// The state in capitals: `RUNNING`.
    pub state: String,
    /// The start, in seconds since 1970.
    pub start: u64,
    /// The end, in seconds since 1970; `None` while the job holds its GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<u64>,
    /// Whether its batch script runs on this node.
    #[serde(skip)]
    pub is_batch_host: bool,
    /// Whether this is the first node of its allocation.
    #[serde(skip)]
    pub is_first_node: bool,
    /// The events for which its user requested mail, in capitals: `END`, `FAIL`.
    #[serde(skip)]
    pub mail: Vec<String>,
    /// The job's AdminComment.
    #[serde(skip)]
    pub comment: String,
    /// Slurm's indices of its GPUs on this node; slurmctld reports them only while the job has them.
    #[serde(skip)]
    pub gpus: Vec<usize>,
    /// Slurm's indices of the GPUs of which the job has a part (shards, MPS), and the size of each part in ppm.
    #[serde(skip)]
    pub shared: Vec<(usize, u32)>,
}

impl Job {
    /// The job ID and the start, which identify a run: a requeued job starts again under the same ID.
    const fn run(&self) -> (u64, u64) {
        (self.job, self.start)
    }

    /// Whether the job has ended, and its user requested mail about such an end. The rules are slurmctld's.
    pub fn is_mail_requested(&self) -> bool {
        let has = |event: &str| self.mail.iter().any(|wanted| wanted == event);
        self.end.is_some() && (has("END") || (self.state != "COMPLETED" && has("FAIL")))
    }

    fn is_suspended(&self) -> bool {
        self.state == "SUSPENDED"
    }
}

/// One run of a job on one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRecord {
    /// The job, as slurmctld last reported it.
    #[serde(flatten)]
    pub job: Job,
    /// The node's name.
    pub node: String,
    /// The use of each GPU of the job on this node.
    pub gpus: Vec<GpuUse>,
}

/// The GPU use of a user's jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UserUse {
    /// The measured GPU time, in ms.
    pub gpu_ms: u64,
    /// The integral of the utilization: percent times ms.
    pub busy: u64,
    /// The energy in mJ.
    pub energy_mj: u64,
}

impl UserUse {
    /// Adds the use of a GPU. For a part of a GPU, adds that part's share of the GPU's time, use and energy.
    fn add(&mut self, gpu: &GpuUse) {
        self.gpu_ms = self.gpu_ms.saturating_add(gpu.share_of(gpu.measured_ms));
        self.busy = self.busy.saturating_add(gpu.share_of(gpu.busy));
        self.energy_mj = self.energy_mj.saturating_add(gpu.share_of(gpu.energy_mj.unwrap_or_default()));
    }
}

/// The state that must survive a restart of the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    node: String,
    /// The sampling interval, in ms.
    interval_ms: u64,
    runs: Vec<JobRecord>,
    samples: BTreeMap<String, VecDeque<Sample>>,
    /// The use of each user's ended runs.
    users: BTreeMap<String, UserUse>,
    /// The measurement window of each run.
    windows: Vec<Window>,
    /// The runs whose records were returned most recently. Their records are not returned again.
    ended: VecDeque<(u64, u64)>,
    /// The GPUs for jobs, in Slurm's order.
    #[serde(skip)]
    offered: Vec<Part>,
    /// The utilization of each GPU in the last hour.
    #[serde(skip)]
    histories: BTreeMap<String, History>,
    /// The number of errors that the driver reported since the last sample of each GPU.
    #[serde(skip)]
    errors: BTreeMap<String, u32>,
}

impl Usage {
    /// The state of an agent that starts; `former` is the state that the previous agent saved. If the container had another name then, slurmctld
    /// does not report the former runs for this node, so its next answer ends them.
    pub fn new(former: Option<Self>, node: &str, interval_ms: u64) -> Self {
        Self { node: node.to_owned(), interval_ms, ..former.unwrap_or_default() }
    }

    /// Sets the GPUs and MIG instances for jobs. `gpus` are those that the driver lists.
    pub fn set_offered(&mut self, offered: &[OfferedGpu], gpus: &[Identity]) {
        let part = |offered: &OfferedGpu| {
            let identity = Identity::from(offered);
            let key = gpus.iter().find(|gpu| gpu.is_same_gpu(&identity)).unwrap_or(&identity).key().to_string();
            let id = offered.instance.clone().unwrap_or(key);
            Part { id, index: offered.index, model: offered.model.clone(), memory_mib: offered.memory_mib }
        };
        self.offered = offered.iter().map(part).collect();
    }

    /// Counts an error that the driver reported.
    pub fn add_error(&mut self, gpu: &str) {
        let count = self.errors.entry(gpu.to_owned()).or_default();
        *count = count.saturating_add(1);
    }

    /// Adds a sample of a GPU, and of its MIG instances. `at` is in ms since 1970.
    pub fn add_sample(&mut self, at: u64, gpu: &str, seen: &GpuSample) {
        let (condition, readings) = (&seen.condition, &seen.readings);
        let is_throttled = condition.slowdowns.iter().flatten().any(|slowdown| *slowdown != Slowdown::PowerCap);
        let errors = self.errors.remove(gpu).unwrap_or_default();
        if let Some(percent) = condition.utilization {
            self.histories.entry(gpu.to_owned()).or_default().add(at, percent);
        }
        for instance in &readings.instances {
            let Some(uuid) = &instance.uuid else { continue };
            let sample = Sample {
                at,
                percent: instance.sm_ppm.map(|ppm| (ppm + 5_000) / 10_000),
                memory_mib: instance.memory_used.map(|bytes| bytes >> 20),
                is_throttled,
                errors,
                ..Sample::default()
            };
            self.push(uuid, sample);
        }
        let sample = Sample {
            at,
            percent: condition.utilization,
            memory_mib: condition.memory_mib.map(|(used, _)| used),
            power_mw: readings.power_mw,
            energy_mj: readings.energy_mj,
            is_throttled,
            errors,
        };
        self.push(gpu, sample);
    }

    fn push(&mut self, id: &str, sample: Sample) {
        // GPUs that are not offered have no jobs.
        if !self.offered.iter().any(|part| part.id == id) {
            return;
        }
        let samples = self.samples.entry(id.to_owned()).or_default();
        // The clock was set back.
        if samples.back().is_some_and(|last| last.at >= sample.at) {
            samples.clear();
        }
        samples.push_back(sample);
        if samples.len() > MAX_SAMPLES {
            samples.pop_front();
        }
    }

    /// Whether a job is known to have GPUs.
    pub fn has_jobs(&self) -> bool {
        !self.runs.is_empty()
    }

    /// Applies slurmctld's answer: the jobs of this node, including those that ended in the last few minutes. `asked` is the time of the
    /// query, in ms since 1970. Returns the records of the runs that have ended.
    pub fn update(&mut self, asked: u64, jobs: Vec<Job>) -> Vec<JobRecord> {
        for job in &jobs {
            let is_known = self.runs.iter().any(|run| run.job.run() == job.run()) || self.ended.contains(&job.run());
            let has_gpus = !job.gpus.is_empty() || !job.shared.is_empty();
            if has_gpus && !is_known {
                self.runs.push(self.begin(job));
            }
        }
        let mut ended = Vec::new();
        for mut run in std::mem::take(&mut self.runs) {
            let now = jobs.iter().find(|job| job.run() == run.job.run());
            let has_ended = now.is_none_or(|job| job.end.is_some());
            match now {
                Some(job) => {
                    (run.job.state, run.job.end) = (job.state.clone(), job.end);
                    (run.job.nodes, run.job.is_batch_host) = (job.nodes, job.is_batch_host);
                    (run.job.is_first_node, run.job.comment) = (job.is_first_node, job.comment.clone());
                    run.job.mail.clone_from(&job.mail);
                }
                // The job was requeued, or slurmctld no longer reports it, so the end of this run is estimated.
                None => {
                    let is_requeued = jobs.iter().any(|job| job.job == run.job.job);
                    run.job.state = if is_requeued { "REQUEUED" } else { "LOST" }.to_owned();
                    let next = jobs.iter().filter(|job| job.job == run.job.job && job.start > run.job.start);
                    let last_sample = self.last_sample(&run).map(|at| at / 1000);
                    let end = next.map(|job| job.start).chain(last_sample).min();
                    run.job.end = Some(end.unwrap_or(run.job.start).max(run.job.start));
                }
            }
            self.fold(&mut run, asked);
            if has_ended {
                self.ended.push_back(run.job.run());
                let user = self.users.entry(run.job.user.clone()).or_default();
                run.gpus.iter().for_each(|gpu| user.add(gpu));
                ended.push(run);
            } else {
                self.runs.push(run);
            }
        }
        while self.ended.len() > MAX_ENDED {
            self.ended.pop_front();
        }
        // The answer contains each job that had started by the time of the query, so older samples are no longer needed.
        self.samples.values_mut().for_each(|samples| samples.retain(|sample| sample.at > asked));
        self.samples.retain(|_, samples| !samples.is_empty());
        ended
    }

    fn begin(&self, job: &Job) -> JobRecord {
        let part = |(index, share_ppm): (usize, Option<u32>)| {
            let part = self.offered.get(index)?.clone();
            Some(GpuUse { part, is_shared: share_ppm.is_some(), share_ppm, ..GpuUse::default() })
        };
        let whole = job.gpus.iter().map(|index| (*index, None));
        let shared = job.shared.iter().map(|(index, ppm)| (*index, Some(*ppm)));
        JobRecord { job: job.clone(), node: self.node.clone(), gpus: whole.chain(shared).filter_map(part).collect() }
    }

    fn last_sample(&self, run: &JobRecord) -> Option<u64> {
        let unconfirmed = |gpu: &GpuUse| self.samples.get(&gpu.part.id)?.back().copied();
        run.gpus.iter().filter_map(|gpu| unconfirmed(gpu).or(gpu.last)).map(|sample| sample.at).max()
    }

    /// Adds samples to the record of a run: those up to its end, or up to `until` (ms since 1970) if it has not ended.
    fn fold(&self, run: &mut JobRecord, until: u64) {
        let (start, end) = (run.job.start * 1000, run.job.end.map(|end| end * 1000));
        let is_suspended = run.job.is_suspended();
        for gpu in &mut run.gpus {
            let samples = self.samples.get(&gpu.part.id).into_iter().flatten();
            gpu.add(samples, start, end.unwrap_or(until), self.interval_ms * 3, is_suspended);
            if let Some(end) = end.filter(|_| !is_suspended) {
                gpu.extend(start, end, self.interval_ms * 3);
            }
        }
    }

    /// This node's marks to set in, or to remove from, the AdminComment of jobs that run on several nodes. `now` is in seconds since 1970.
    pub fn idle_marks(&self, policy: &IdlePolicy, now: u64) -> Vec<(u64, Option<u64>)> {
        let mark = |run: &JobRecord| {
            let window = self.windows.iter().find(|window| window.run == run.job.run())?;
            Some((run.job.job, window.mark(run, policy, now)?))
        };
        self.runs.iter().filter_map(mark).collect()
    }

    /// The jobs that have not used their GPUs, each with the action that is due now. Call this after each answer of slurmctld. `now` is in
    /// seconds since 1970.
    pub fn idle(&mut self, policy: &IdlePolicy, now: u64) -> Vec<IdleJob> {
        let runs = &self.runs;
        self.windows.retain(|window| runs.iter().any(|run| run.job.run() == window.run));
        let mut idle = Vec::new();
        for run in runs {
            if !self.windows.iter().any(|window| window.run == run.job.run()) {
                self.windows.push(Window::new(run.job.run()));
            }
            let window = self.windows.iter_mut().find(|window| window.run == run.job.run());
            idle.extend(window.and_then(|window| window.step(run, policy, now)));
        }
        idle
    }

    /// The mean utilization of a GPU in each part of the last hour, in percent, the most recent part first. `now` is in ms since 1970.
    pub fn history(&self, gpu: &str, now: u64) -> Vec<Option<u32>> {
        self.histories.get(gpu).map(|history| history.means(now)).unwrap_or_default()
    }

    /// The use of each user's jobs since the state directory was first used, up to slurmctld's last answer. It only grows.
    pub fn users(&self) -> BTreeMap<String, UserUse> {
        let mut users = self.users.clone();
        for run in &self.runs {
            let user = users.entry(run.job.user.clone()).or_default();
            run.gpus.iter().for_each(|gpu| user.add(gpu));
        }
        users
    }

    /// The jobs that have GPUs now, with the samples that slurmctld has not confirmed yet. `now` is in ms since 1970.
    pub fn running(&self, now: u64) -> Vec<JobRecord> {
        let view = |run: &JobRecord| {
            let mut run = run.clone();
            self.fold(&mut run, now);
            run
        };
        self.runs.iter().map(view).collect()
    }
}

#[cfg(test)]
mod tests;
