//! Turns the records of runs into reports of jobs and users. A job has one report for all its runs and nodes. An array has one report, or one
//! for each task.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use faults::usage::{GpuUse, JobRecord};
use model::printable;

/// The minimum measured GPU time, in seconds, of a job that gets hints about its use of the GPUs.
const MIN_HINT_SECONDS: u64 = 300;
/// Below this mean utilization, in percent, a job gets a hint.
const LOW_PERCENT: f64 = 15.0;

/// The report of a job, array or task. A value is `None` if it was not measured; `end` is `None` if the job is running.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(in crate::commands) struct JobReport {
    /// The job's name: `17`, `17_3` for a task, `17_*` for an array.
    pub(in crate::commands) job: String,
    pub(in crate::commands) user: String,
    pub(in crate::commands) account: String,
    /// The state of the last run: the one that is running, or else the one that ended last.
    pub(in crate::commands) state: String,
    pub(in crate::commands) start: u64,
    pub(in crate::commands) end: Option<u64>,
    /// The number of starts of all tasks: more than `tasks` if a task was requeued.
    pub(in crate::commands) runs: usize,
    /// The number of tasks with a record: 1 if the job is not an array.
    pub(in crate::commands) tasks: usize,
    pub(in crate::commands) nodes: BTreeSet<String>,
    /// The allocated GPU time, in seconds. A part of a GPU counts in proportion to its size.
    pub(in crate::commands) gpu_seconds: u64,
    /// Whether the job had parts of GPUs (shards, MPS). The use, memory and energy of the parts are unknown, so the values below, except
    /// `errors` and `gpus`, do not include them.
    pub(in crate::commands) is_shared: bool,
    /// For how long the job's GPUs were sampled, in seconds, summed over its whole GPUs.
    pub(in crate::commands) measured_gpu_seconds: u64,
    /// The mean utilization, in percent.
    pub(in crate::commands) use_percent: Option<f64>,
    pub(in crate::commands) peak_percent: Option<u32>,
    /// The share of time with a utilization below 5 %, in percent.
    pub(in crate::commands) idle_percent: Option<f64>,
    /// The highest memory use of any one GPU, and the total memory of that GPU, in MiB.
    pub(in crate::commands) peak_memory_mib: Option<u64>,
    pub(in crate::commands) gpu_memory_mib: Option<u64>,
    pub(in crate::commands) energy_wh: Option<f64>,
    pub(in crate::commands) throttled_percent: Option<f64>,
    /// Errors that the driver reported.
    pub(in crate::commands) errors: u64,
    /// The measured GPU time that was not used, in seconds: the time multiplied by (1 - utilization).
    pub(in crate::commands) wasted_gpu_seconds: u64,
    /// The integral of the utilization, in percent times ms, and the time for which the utilization is known, in ms.
    #[serde(skip)]
    pub(in crate::commands) busy: (u64, u64),
    /// Hints that help the job's user to use the GPUs better.
    pub(in crate::commands) hints: Vec<String>,
    /// One report for each GPU of each node and run.
    pub(in crate::commands) gpus: Vec<GpuReport>,
}

/// The report of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(in crate::commands) struct GpuReport {
    node: String,
    index: u32,
    id: String,
    model: String,
    /// Whether the GPU was shared, so that the values include all jobs that used it.
    is_shared: bool,
    seconds: u64,
    measured_seconds: f64,
    use_percent: Option<f64>,
    peak_percent: Option<u32>,
    mean_memory_mib: Option<u64>,
    peak_memory_mib: Option<u64>,
    memory_mib: Option<u64>,
    energy_wh: Option<f64>,
    errors: u64,
}

/// The report of a user.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(in crate::commands) struct UserReport {
    pub(in crate::commands) user: String,
    pub(in crate::commands) jobs: usize,
    pub(in crate::commands) gpu_seconds: u64,
    pub(in crate::commands) measured_gpu_seconds: u64,
    pub(in crate::commands) use_percent: Option<f64>,
    pub(in crate::commands) energy_wh: Option<f64>,
    pub(in crate::commands) wasted_gpu_seconds: u64,
    #[serde(skip)]
    pub(in crate::commands) busy: (u64, u64),
}

/// The reports of jobs, in the order of their first records. `now`, in seconds since 1970, is taken as the end of running jobs. `each_task`:
/// each task of an array has its own report.
pub(in crate::commands) fn jobs(records: &[JobRecord], now: u64, each_task: bool) -> Vec<JobReport> {
    let mut groups: Vec<(String, Vec<&JobRecord>)> = Vec::new();
    for record in records {
        let job = match record.job.array {
            Some((array, task)) if each_task => format!("{array}_{task}"),
            Some((array, _)) => format!("{array}_*"),
            None => record.job.job.to_string(),
        };
        match groups.iter_mut().find(|(name, _)| *name == job) {
            Some((_, records)) => records.push(record),
            None => groups.push((job, vec![record])),
        }
    }
    groups.into_iter().map(|(name, records)| report(name, &records, now)).collect()
}

fn report(name: String, records: &[&JobRecord], now: u64) -> JobReport {
    let last = records.iter().max_by_key(|record| (record.job.end.is_none(), record.job.end, record.job.start));
    let Some(last) = last.map(|record| &record.job) else { return JobReport::default() };
    let seconds = |record: &JobRecord| record.job.end.unwrap_or(now).saturating_sub(record.job.start);
    let pairs: Vec<(&JobRecord, &GpuUse)> =
        records.iter().flat_map(|record| record.gpus.iter().map(|gpu| (*record, gpu))).collect();
    // The use of a shared GPU by other jobs does not belong to this job.
    let own: Vec<&GpuUse> = pairs.iter().map(|(_, gpu)| *gpu).filter(|gpu| !gpu.is_shared).collect();
    let sum = |of: &dyn Fn(&GpuUse) -> u64| own.iter().map(|gpu| of(gpu)).fold(0, u64::saturating_add);
    let (measured, known, busy) = (sum(&|gpu| gpu.measured_ms), sum(&|gpu| gpu.percent_ms), sum(&|gpu| gpu.busy));
    let fullest = own.iter().filter(|gpu| gpu.memory_ms > 0).max_by_key(|gpu| gpu.peak_memory_mib);
    let has_energy = own.iter().any(|gpu| gpu.energy_mj.is_some());
    let mut report = JobReport {
        job: name,
        user: last.user.clone(),
        account: last.account.clone(),
        state: last.state.clone(),
        start: records.iter().map(|record| record.job.start).min().unwrap_or_default(),
        end: last.end,
        runs: records.iter().map(|record| (record.job.job, record.job.start)).collect::<BTreeSet<_>>().len(),
        tasks: records.iter().map(|record| record.job.job).collect::<BTreeSet<_>>().len(),
        nodes: records.iter().map(|record| record.node.clone()).collect(),
        gpu_seconds: pairs.iter().map(|(record, gpu)| gpu.share_of(seconds(record))).sum(),
        is_shared: pairs.len() > own.len(),
        measured_gpu_seconds: measured / 1000,
        use_percent: ratio(busy, known),
        peak_percent: own.iter().filter(|gpu| gpu.percent_ms > 0).map(|gpu| gpu.peak_percent).max(),
        idle_percent: ratio(sum(&|gpu| gpu.idle_ms).saturating_mul(100), known),
        peak_memory_mib: fullest.map(|gpu| gpu.peak_memory_mib),
        gpu_memory_mib: fullest.and_then(|gpu| gpu.part.memory_mib),
        energy_wh: has_energy.then(|| watt_hours(sum(&|gpu| gpu.energy_mj.unwrap_or_default()))),
        throttled_percent: ratio(sum(&|gpu| gpu.throttled_ms).saturating_mul(100), measured),
        errors: pairs.iter().map(|(_, gpu)| gpu.errors).fold(0, u64::saturating_add),
        wasted_gpu_seconds: (known.saturating_mul(100).saturating_sub(busy)) / 100_000,
        busy: (busy, known),
        hints: Vec::new(),
        gpus: pairs.iter().map(|(record, gpu)| gpu_report(record, gpu, seconds(record))).collect(),
    };
    report.hints = hints(&report);
    report
}

fn gpu_report(record: &JobRecord, gpu: &GpuUse, seconds: u64) -> GpuReport {
    GpuReport {
        node: record.node.clone(),
        index: gpu.part.index,
        id: gpu.part.id.clone(),
        model: printable::short(&gpu.part.model, 100),
        is_shared: gpu.is_shared,
        seconds,
        measured_seconds: ratio(gpu.measured_ms, 1000).unwrap_or_default(),
        use_percent: gpu.mean_percent(),
        peak_percent: (gpu.percent_ms > 0).then_some(gpu.peak_percent),
        mean_memory_mib: gpu.mean_memory_mib(),
        peak_memory_mib: (gpu.memory_ms > 0).then_some(gpu.peak_memory_mib),
        memory_mib: gpu.part.memory_mib,
        energy_wh: gpu.energy_mj.map(watt_hours),
        errors: gpu.errors,
    }
}

fn hints(report: &JobReport) -> Vec<String> {
    let mut hints = Vec::new();
    if report.errors > 0 {
        hints.push(format!(
            "the driver reported {} of the job's GPUs; see `slurminit status`",
            printable::count(report.errors, "error")
        ));
    }
    if report.measured_gpu_seconds < MIN_HINT_SECONDS {
        return hints;
    }
    let distinct: BTreeMap<(&str, &str), bool> = report.gpus.iter().fold(BTreeMap::new(), |mut all, gpu| {
        *all.entry((gpu.node.as_str(), gpu.id.as_str())).or_default() |= gpu.peak_percent.is_none_or(|peak| peak > 0);
        all
    });
    let unused = distinct.values().filter(|is_used| !**is_used).count();
    let is_shared = report.is_shared;
    match report.use_percent {
        _ if is_shared => {}
        Some(_) if unused == distinct.len() => hints.push(match unused {
            1 => "the job never used its GPU; does its program run on the CPU?".to_owned(),
            _ => format!("the job never used its {unused} GPUs; does its program run on the CPU?"),
        }),
        Some(_) if unused > 0 => {
            // The runs of a requeued job or an array may have used different GPUs.
            let advice = if report.runs == 1 { "; request fewer" } else { "" };
            hints.push(format!("the job used {} of its {} GPUs{advice}", distinct.len() - unused, distinct.len()));
        }
        Some(percent) if percent < LOW_PERCENT => hints.push(format!(
            "the GPUs were in use {percent:.0} % of the time; CPUs, data loading or waiting may limit the job"
        )),
        _ => {}
    }
    if let (Some(used), Some(total), true) = (report.peak_memory_mib, report.gpu_memory_mib, unused < distinct.len()) {
        if used < total / 4 && !is_shared {
            let (used, total) = (used.div_ceil(1024), total / 1024);
            hints.push(format!(
                "at most {used} of {total} GiB of GPU memory in use; a GPU or MIG instance with less memory is enough"
            ));
        }
    }
    if let Some(throttled) = report.throttled_percent.filter(|percent| *percent >= 10.0) {
        hints.push(format!("heat or the power supply slowed the GPUs {throttled:.0} % of the time"));
    }
    hints
}

/// The reports of users, the one with the most GPU time first.
pub(in crate::commands) fn users(jobs: &[JobReport]) -> Vec<UserReport> {
    let mut users: BTreeMap<&str, UserReport> = BTreeMap::new();
    for job in jobs {
        let user =
            users.entry(&job.user).or_insert_with(|| UserReport { user: job.user.clone(), ..UserReport::default() });
        user.jobs += job.tasks;
        user.gpu_seconds += job.gpu_seconds;
        user.measured_gpu_seconds += job.measured_gpu_seconds;
        user.wasted_gpu_seconds += job.wasted_gpu_seconds;
        user.busy = (user.busy.0.saturating_add(job.busy.0), user.busy.1 + job.busy.1);
        user.use_percent = ratio(user.busy.0, user.busy.1);
        user.energy_wh = job.energy_wh.map(|energy| energy + user.energy_wh.unwrap_or_default()).or(user.energy_wh);
    }
    let mut users: Vec<UserReport> = users.into_values().collect();
    users.sort_by_key(|user| std::cmp::Reverse(user.gpu_seconds));
    users
}

/// The mean GPU utilization of all jobs, in percent; `None` if it was not measured.
pub(in crate::commands) fn use_percent(jobs: &[JobReport]) -> Option<f64> {
    ratio(jobs.iter().fold(0, |sum, job| job.busy.0.saturating_add(sum)), jobs.iter().map(|job| job.busy.1).sum())
}

#[expect(clippy::cast_precision_loss, reason = "a report needs no more digits")]
fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// Converts the driver's energy counter, in mJ, to Wh.
fn watt_hours(mj: u64) -> f64 {
    ratio(mj, 3_600_000).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use faults::usage::{Job, Part};

    /// A run of an hour with one GPU of 80 GiB.
    fn record(job: u64, node: &str, percent: u64, peak_memory_mib: u64) -> JobRecord {
        let part = Part { id: format!("GPU-{node}"), memory_mib: Some(81_920), ..Part::default() };
        let ms = 3_600_000;
        let gpu = GpuUse {
            part,
            measured_ms: ms,
            percent_ms: ms,
            busy: percent * ms,
            peak_percent: u32::try_from(percent).unwrap(),
            memory_ms: ms,
            peak_memory_mib,
            energy_mj: Some(3_600_000),
            ..GpuUse::default()
        };
        let job = Job {
            job,
            user: "alice".to_owned(),
            start: 100,
            end: Some(3700),
            state: "COMPLETED".to_owned(),
            ..Job::default()
        };
        JobRecord { job, node: node.to_owned(), gpus: vec![gpu] }
    }

    #[test]
    fn merges_nodes_runs_and_array_tasks() {
        let mut requeued = record(7, "c1", 0, 0);
        (requeued.job.start, requeued.job.end) = (10, Some(60));
        let mut task = record(9, "c1", 50, 0);
        task.job.array = Some((8, 1));
        let mut other = record(10, "c1", 50, 0);
        other.job.array = Some((8, 2));
        let records = [requeued, record(7, "c1", 100, 0), record(7, "c2", 50, 0), task, other];
        let reports = jobs(&records, 0, false);
        let [job, array] = reports.as_slice() else { panic!("{reports:?}") };
        assert_eq!((job.job.as_str(), job.runs, job.nodes.len(), job.gpu_seconds), ("7", 2, 2, 50 + 7200));
        assert_eq!((job.use_percent, job.wasted_gpu_seconds, job.energy_wh), (Some(50.0), 5400, Some(3.0)));
        assert_eq!((array.job.as_str(), array.tasks, array.use_percent), ("8_*", 2, Some(50.0)));
        let users = users(&reports);
        assert_eq!((users.len(), users[0].jobs, users[0].use_percent), (1, 3, Some(50.0)));
        let sum = |of: fn(&JobReport) -> u64| reports.iter().map(of).sum::<u64>();
        let user = (users[0].gpu_seconds, users[0].measured_gpu_seconds, users[0].wasted_gpu_seconds);
        let jobs_of_user =
            (sum(|job| job.gpu_seconds), sum(|job| job.measured_gpu_seconds), sum(|job| job.wasted_gpu_seconds));
        assert!(user == jobs_of_user && user.1 > 0 && user.2 > 0, "{user:?} {jobs_of_user:?}");
        assert_eq!(jobs(&records[3..], 0, true).len(), 2);
    }

    #[test]
    fn hints_name_the_cause_and_the_change() {
        let hints = |record: JobRecord| jobs(&[record], 0, false)[0].hints.join("; ");
        assert!(hints(record(1, "c1", 0, 0)).contains("never used its GPU"));
        assert!(hints(record(1, "c1", 90, 6_144)).contains("at most 6 of 80 GiB"));
        assert!(hints(record(1, "c1", 10, 70_000)).contains("in use 10 %"));
        assert_eq!(hints(record(1, "c1", 90, 70_000)), "");
        let mut short = record(1, "c1", 0, 0);
        short.gpus[0].measured_ms = 10_000;
        assert_eq!(hints(short), "");
        let mut shared = record(1, "c1", 0, 0);
        shared.gpus[0].is_shared = true;
        assert_eq!(hints(shared), "");
    }

    #[test]
    fn excludes_use_of_shared_gpu_from_job_report() {
        let mut record = record(1, "c1", 90, 6_144);
        (record.gpus[0].is_shared, record.gpus[0].share_ppm) = (true, Some(250_000));
        let job = &jobs(&[record.clone()], 0, false)[0];
        assert_eq!((job.is_shared, job.gpu_seconds, job.use_percent, job.peak_memory_mib), (true, 900, None, None));
        assert_eq!((job.energy_wh, job.wasted_gpu_seconds), (None, 0));
        // If the job also has a whole GPU, the use of the whole GPU is known.
        let mut whole = record.gpus[0].clone();
        (whole.is_shared, whole.share_ppm, whole.busy) = (false, None, 30 * whole.percent_ms);
        record.gpus.push(whole);
        let job = &jobs(&[record], 0, false)[0];
        assert_eq!((job.gpu_seconds, job.use_percent), (4500, Some(30.0)));
    }
}
