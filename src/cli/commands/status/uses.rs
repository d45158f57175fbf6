//! The utilization of each GPU in the last hour, and the GPU use of running jobs and of jobs that ended in the last day.

use crate::commands::columns::{Column, dash, format_table};
use faults::report::Report;
use faults::usage::{JobUse, sparkline};

/// The maximum number of jobs that are shown; `slurminit report` lists all.
const MAX_JOBS: usize = 10;

const JOBS: [Column; 6] = [
    Column::left("JOB", 6, 12),
    Column::left("USER", 8, 20),
    Column::left("STATE", 9, 12),
    Column::right("GPUS", 4),
    Column::right("TIME", 8),
    Column::right("MEAN USE", 8),
];

/// Empty if there are neither samples nor jobs. `now` is in seconds since 1970.
pub(super) fn uses(report: &Report, now: u64, age: impl Fn(u64) -> String) -> String {
    let hour = |gpu: &faults::report::GpuReport| {
        let bars = sparkline(&gpu.last_hour);
        (!bars.trim().is_empty()).then(|| format!("{:>3} {bars}\n", gpu.identity.index))
    };
    let hours: String = report.gpus.iter().filter_map(hour).collect();
    let hours = if hours.is_empty() { hours } else { format!("\nGPU LAST HOUR\n{hours}") };
    let row = |job: &JobUse| {
        [
            job.job.to_string(),
            job.user.clone(),
            job.state.to_ascii_lowercase(),
            job.gpus.to_string(),
            age(job.end.unwrap_or(now).saturating_sub(job.start) * 1000),
            job.percent.map_or_else(dash, |percent| format!("{percent} %")),
        ]
    };
    let rows: Vec<_> = report.job_uses.iter().take(MAX_JOBS).map(row).collect();
    if rows.is_empty() { hours } else { format!("{hours}\n{}", format_table(&JOBS, &rows)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use faults::report::GpuReport;

    #[test]
    fn shows_last_hour_of_gpus_and_mean_use_of_jobs() {
        let age = |ms: u64| format!("{}s", ms / 1000);
        assert_eq!(uses(&Report { gpus: vec![GpuReport::default()], ..Report::default() }, 9, age), "");
        let running = JobUse { job: 17, user: "alice".to_owned(), start: 50, percent: Some(91), ..JobUse::default() };
        let ended = JobUse { job: 12, state: "COMPLETED".to_owned(), end: Some(70), percent: None, ..running.clone() };
        let gpu = GpuReport { last_hour: vec![Some(100), None, Some(0)], ..GpuReport::default() };
        let text = uses(&Report { gpus: vec![gpu], job_uses: vec![running, ended], ..Report::default() }, 100, age);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[2], ["0", "▁", "█"], "{text}");
        assert_eq!(lines[5][lines[5].len() - 3..], ["50s", "91", "%"], "{text}");
        assert!(lines[6].contains(&"completed") && lines[6].ends_with(&["20s", "-"]), "{text}");
    }
}
