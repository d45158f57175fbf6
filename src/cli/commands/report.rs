//! `slurminit report`: shows what jobs did with their GPUs.

pub(super) mod summary;

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;

use super::columns::{Column, dash, format_table, wrap};
use super::period::parse_period;
use super::{Configuration, json, print};
use crate::output::error_line;
use faults::usage::JobRecord;
use install::load_config;
use model::printable;
use slurm::client::{Client, limit};
use summary::{JobReport, UserReport};
use watch::agent;

const SLURM: Client = Client::with_timeout(limit::STATUS);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only these jobs: 17, or 17_3 for a task of an array [default: all jobs of the period]
    #[arg(value_name = "JOB", value_parser = parse_job)]
    jobs: Vec<JobName>,
    /// Only jobs of this user
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Only jobs that ran in the last TIME: 90m, 12h, 7d; ignored if JOB is given
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = parse_period)]
    since: Duration,
    /// Print everything as JSON
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Print one line for each job, with comma-separated values
    #[arg(long)]
    csv: bool,
}

/// A job or an array, or a task of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct JobName {
    id: u64,
    task: Option<u64>,
}

impl JobName {
    fn matches(self, record: &JobRecord) -> bool {
        match (self.task, record.job.array) {
            (Some(task), array) => array == Some((self.id, task)),
            (None, array) => record.job.job == self.id || array.is_some_and(|(id, _)| id == self.id),
        }
    }
}

fn parse_job(text: &str) -> Result<JobName, String> {
    let (id, task) = text.split_once('_').map_or((text, None), |(id, task)| (id, Some(task)));
    let number = |text: &str| text.parse().map_err(|_| "not a job ID such as 17 or 17_3".to_owned());
    Ok(JobName { id: number(id)?, task: task.map(number).transpose()? })
}

#[derive(Debug, Serialize)]
struct Reports {
    jobs: Vec<JobReport>,
    users: Vec<UserReport>,
}

pub(crate) fn run(args: Args, configuration: &Configuration) -> anyhow::Result<()> {
    let now = agent::unix();
    let mut records = records(&args, configuration)?;
    let from = now.saturating_sub(args.since.as_secs());
    records.retain(|record| {
        let is_wanted = args.jobs.iter().any(|job| job.matches(record));
        let is_recent = args.jobs.is_empty() && record.job.end.is_none_or(|end| end >= from);
        (is_wanted || is_recent) && args.user.as_ref().is_none_or(|user| record.job.user == *user)
    });
    let jobs = summary::jobs(&records, now, args.jobs.iter().any(|job| job.task.is_some()));
    let users = summary::users(&jobs);
    let text = match (args.json, args.csv) {
        (true, _) => json(&Reports { jobs, users })?,
        (_, true) => csv(&jobs),
        _ => text(&jobs, &users),
    };
    print(&text)?;
    let is_missing = |job: &JobName| !records.iter().any(|record| job.matches(record));
    let missing = args.jobs.iter().filter(|job| is_missing(job)).count();
    anyhow::ensure!(
        missing == 0,
        "no report for {}: only jobs with GPUs have a report, and jobs of other users may be hidden",
        printable::count(missing, "job")
    );
    Ok(())
}

/// The records of this node, and those of the other nodes from the accounting database. Root reads the node's files directly, which works without a
/// running agent.
fn records(args: &Args, configuration: &Configuration) -> anyhow::Result<Vec<JobRecord>> {
    let is_root = nix::unistd::Uid::effective().is_root();
    let own = match is_root {
        true => agent::usage::read(&configuration.load()?.paths.state),
        false => agent::usage::ask(&load_config::run_directory(configuration.file())?),
    };
    let accounted = match SLURM.config() {
        Ok(config) if config.has_accounting() => Some(accounted(args, is_root)),
        _ => None,
    };
    let mut records = match (own, &accounted) {
        (Ok(own), _) => own,
        // For example, this container runs no node. The records of the database are enough.
        (Err(_), Some(Ok(_))) => Vec::new(),
        (Err(error), _) => return Err(error),
    };
    match accounted {
        Some(Ok(accounted)) => {
            let key = |record: &JobRecord| (record.job.job, record.job.start, record.node.clone());
            let known: BTreeSet<_> = records.iter().map(key).collect();
            records.extend(accounted.into_iter().filter(|record| !known.contains(&key(record))));
        }
        Some(Err(error)) => error_line(format_args!("jobs of other nodes are missing: {error:#}")),
        None => {}
    }
    records.sort_by_key(|record| (record.job.end.is_none(), record.job.end));
    Ok(records)
}

/// The records in the AdminComment of jobs. Slurm decides which users' jobs this user may see.
fn accounted(args: &Args, is_root: bool) -> anyhow::Result<Vec<JobRecord>> {
    let which = match args.jobs.as_slice() {
        [] => format!("--starttime=now-{}seconds", args.since.as_secs()),
        jobs => format!("--jobs={}", jobs.iter().map(|job| job.id.to_string()).collect::<Vec<_>>().join(",")),
    };
    let options = ["--allocations", "--parsable2", "--noheader", "--format=AdminComment", &which];
    let options = options.into_iter().chain(is_root.then_some("--allusers")).collect::<Vec<_>>();
    let output = Client::with_timeout(limit::HISTORY).output("sacct", &options)?;
    Ok(output.lines().flat_map(agent::usage::jobstats::records).collect())
}

fn text(jobs: &[JobReport], users: &[UserReport]) -> String {
    if jobs.is_empty() {
        return "no jobs with GPUs found\n".to_owned();
    }
    let columns = [
        Column::left("JOB", 4, 14),
        Column::left("USER", 6, 12),
        Column::left("STATE", 7, 10),
        Column::right("GPUS", 4),
        Column::right("HOURS", 8),
        Column::right("USE", 6),
        Column::right("MEMORY GIB", 11),
        Column::right("ENERGY", 9),
        Column::right("WASTED", 7),
    ];
    let rows: Vec<_> = jobs.iter().map(job_row).collect();
    let mut text = format_table(&columns, &rows);
    for job in jobs {
        for hint in &job.hints {
            text += &wrap(&format!("{}: {hint}", job.job), "    ");
        }
    }
    let columns = [
        Column::left("USER", 10, 32),
        Column::right("JOBS", 6),
        Column::right("GPU HOURS", 10),
        Column::right("USE", 5),
        Column::right("ENERGY", 10),
        Column::right("WASTED", 10),
    ];
    let row = |user: &UserReport| {
        let [gpu, wasted] = [user.gpu_seconds, user.wasted_gpu_seconds].map(hours);
        [user.user.clone(), user.jobs.to_string(), gpu, percent(user.use_percent), energy(user.energy_wh), wasted]
    };
    text + "\n" + &format_table(&columns, &users.iter().map(row).collect::<Vec<_>>())
}

fn job_row(job: &JobReport) -> [String; 9] {
    let memory = match (job.peak_memory_mib, job.gpu_memory_mib) {
        (Some(used), Some(total)) => format!("{}/{}", gib(used), gib(total)),
        (Some(used), None) => gib(used),
        _ => dash(),
    };
    [
        job.job.clone(),
        job.user.clone(),
        job.state.to_ascii_lowercase(),
        job.gpus.len().to_string(),
        hours(job.gpu_seconds),
        job.use_percent
            .map_or_else(|| if job.is_shared { "shared".to_owned() } else { dash() }, |_| percent(job.use_percent)),
        memory,
        energy(job.energy_wh),
        hours(job.wasted_gpu_seconds),
    ]
}

fn csv(jobs: &[JobReport]) -> String {
    let mut text = "job,user,account,state,runs,tasks,gpus,gpu_seconds,measured_gpu_seconds,use_percent,peak_percent,\
                    peak_memory_mib,gpu_memory_mib,energy_wh,throttled_percent,errors,wasted_gpu_seconds\n"
        .to_owned();
    let number = |number: Option<f64>| number.map(|number| format!("{number:.2}")).unwrap_or_default();
    let whole = |number: Option<u64>| number.map(|number| number.to_string()).unwrap_or_default();
    // The name of a user or account could be a spreadsheet formula, or end the field.
    let name = |text: &str| text.chars().filter(|c| c.is_alphanumeric() || "_-.@".contains(*c)).collect::<String>();
    for job in jobs {
        let fields = [
            name(&job.job),
            name(&job.user),
            name(&job.account),
            name(&job.state),
            job.runs.to_string(),
            job.tasks.to_string(),
            job.gpus.len().to_string(),
            job.gpu_seconds.to_string(),
            job.measured_gpu_seconds.to_string(),
            number(job.use_percent),
            whole(job.peak_percent.map(u64::from)),
            whole(job.peak_memory_mib),
            whole(job.gpu_memory_mib),
            number(job.energy_wh),
            number(job.throttled_percent),
            job.errors.to_string(),
            job.wasted_gpu_seconds.to_string(),
        ];
        text += &(fields.join(",") + "\n");
    }
    text
}

pub(super) fn percent(percent: Option<f64>) -> String {
    percent.map_or_else(dash, |percent| format!("{percent:.0} %"))
}

#[expect(clippy::cast_precision_loss, reason = "it is shown with one decimal place at most")]
fn gib(mib: u64) -> String {
    let gib = mib as f64 / 1024.0;
    if gib < 10.0 { format!("{gib:.1}") } else { format!("{gib:.0}") }
}

fn energy(wh: Option<f64>) -> String {
    match wh {
        None => dash(),
        Some(wh) if wh < 1000.0 => format!("{wh:.1} Wh"),
        Some(wh) => format!("{:.1} kWh", wh / 1000.0),
    }
}

/// Formats seconds as hours. One second is not rounded to 0.
#[expect(clippy::cast_precision_loss, reason = "it is shown with three decimal places at most")]
pub(super) fn hours(seconds: u64) -> String {
    match seconds {
        0 => "0".to_owned(),
        1..3600 => format!("{:.3}", (seconds as f64 / 3600.0).max(0.001)),
        _ => format!("{:.1}", seconds as f64 / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(id: u64, array: Option<(u64, u64)>) -> JobRecord {
        JobRecord { job: faults::usage::Job { job: id, array, ..Default::default() }, ..JobRecord::default() }
    }

    #[test]
    fn job_name_selects_job_array_or_task() {
        let records = [job(17, None), job(18, Some((17, 3))), job(19, Some((17, 4))), job(3, None)];
        for (name, expected) in [("17", &[17, 18, 19][..]), ("17_3", &[18]), ("18", &[18]), ("17_5", &[]), ("3", &[3])]
        {
            let name = parse_job(name).unwrap();
            let found: Vec<u64> =
                records.iter().filter(|record| name.matches(record)).map(|record| record.job.job).collect();
            assert_eq!(found, expected, "{name:?}");
        }
        assert!(["", "x", "17_", "17_x", "_3"].iter().all(|name| parse_job(name).is_err()));
    }

    #[test]
    fn units_keep_small_values_readable() {
        assert_eq!([0, 1, 3599, 3600, 36_000].map(hours), ["0", "0.001", "1.000", "1.0", "10.0"]);
        assert_eq!([512, 10_239, 10_240, 81_920].map(gib), ["0.5", "10.0", "10", "80"]);
        assert_eq!([None, Some(0.25), Some(999.9), Some(1000.0)].map(energy), ["-", "0.2 Wh", "999.9 Wh", "1.0 kWh"]);
        assert_eq!([None, Some(49.6)].map(percent), ["-", "50 %"]);
    }

    #[test]
    fn csv_has_no_formula_and_no_extra_field() {
        let report = JobReport {
            job: "17_3".to_owned(),
            user: "=cmd|' /C calc'!A0,x\n".to_owned(),
            use_percent: Some(12.345),
            peak_memory_mib: Some(700),
            ..JobReport::default()
        };
        let text = csv(&[report]);
        let [header, line] = text.lines().collect::<Vec<_>>().try_into().unwrap();
        assert_eq!(header.split(',').count(), line.split(',').count());
        assert!(line.starts_with("17_3,cmdCcalcA0x,,,0,0,0,0,0,12.35,,700,,,,0,0"), "{line}");
    }

    #[test]
    fn text_has_row_and_hints_per_job_and_row_per_user() {
        let report = |job: &str, is_shared| JobReport {
            job: job.to_owned(),
            user: "alice".to_owned(),
            state: "COMPLETED".to_owned(),
            gpu_seconds: 7200,
            is_shared,
            peak_memory_mib: Some(700),
            hints: vec![format!("hint {job}")],
            ..JobReport::default()
        };
        let with_memory = JobReport { gpu_memory_mib: Some(40_960), use_percent: Some(50.0), ..report("18", false) };
        let user = UserReport { user: "alice".to_owned(), jobs: 3, ..UserReport::default() };
        let text = text(&[report("17", true), with_memory], &[user]);
        let row = |start: &str| {
            let line = text.lines().find(|line| line.starts_with(start)).unwrap_or_default();
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(row("17 "), "17 alice completed 0 2.0 shared 0.7 - 0");
        assert_eq!(row("18 "), "18 alice completed 0 2.0 50 % 0.7/40 - 0");
        assert_eq!((row("17:").as_str(), row("18:").as_str()), ("17: hint 17", "18: hint 18"));
        assert_eq!(row("alice"), "alice 3 0 - - 0");
        assert!(self::text(&[], &[]).starts_with("no job"));
    }
}
