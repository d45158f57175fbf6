//! `slurminit usage`: GPU and CPU hours of each user, from the accounting database.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::columns::{Column, format_table};
use super::report::{hours, percent, summary};
use faults::usage::JobRecord;
use slurm::client::{Client, limit};
use watch::agent::usage::jobstats;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Start of the period: 2026-11-01, now-7days, or another time accepted by sacct
    #[arg(long, value_name = "TIME", default_value = "now-30days")]
    since: String,
    /// End of the period
    #[arg(long, value_name = "TIME", default_value = "now")]
    until: String,
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
}

/// The usage of one user in one account.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct Usage {
    user: String,
    account: String,
    /// The number of jobs that ran in the queried period.
    jobs: u64,
    /// The allocated GPU time, in seconds.
    gpu_seconds: u64,
    /// The allocated CPU time, in seconds.
    cpu_seconds: u64,
    /// The mean GPU utilization, in percent, of the jobs that have a report; `None` if none was measured.
    gpu_use_percent: Option<f64>,
    /// The measured GPU time that was not used, in seconds.
    wasted_gpu_seconds: u64,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    // With `--truncate`, sacct counts only the time of jobs within this period. A requeued job has a record for each run, and sacct shows only the
    // last by default.
    let options = ["--allusers", "--allocations", "--duplicates", "--parsable2", "--noheader", "--truncate"];
    let (since, until) = (format!("--starttime={}", args.since), format!("--endtime={}", args.until));
    let format = "--format=JobIDRaw,User,Account,ElapsedRaw,AllocTRES,AdminComment";
    let output =
        Client::with_timeout(limit::HISTORY).output("sacct", &[&options[..], &[&since, &until, format]].concat());
    let output = output.map_err(|why| {
        anyhow::anyhow!("{why}; `slurminit usage` requires an accounting database; see docs/accounting.md")
    })?;
    let usages = sums(&output);
    super::print_value(args.json, &serde_json::json!({ "used": usages }), || table(&usages))
}

/// Sums sacct's output by user and account, sorted by GPU time, then CPU time, largest first. Jobs without TRES never started, and are skipped.
fn sums(output: &str) -> Vec<Usage> {
    let mut sums: BTreeMap<(String, String), Usage> = BTreeMap::new();
    let mut jobs = BTreeSet::new();
    let mut records: BTreeMap<(String, String), Vec<JobRecord>> = BTreeMap::new();
    for line in output.lines() {
        let mut fields = line.splitn(6, '|');
        let mut field = || fields.next().unwrap_or_default();
        let (job, user, account, seconds, tres, comment) =
            (field(), field().to_owned(), field().to_owned(), field().parse().unwrap_or(0), field(), field());
        if tres.is_empty() {
            continue;
        }
        let count =
            |name: &str| tres.split(',').find_map(|part| part.strip_prefix(name)?.parse::<u64>().ok()).unwrap_or(0);
        let key = (user.clone(), account.clone());
        let sum = sums.entry(key.clone()).or_insert(Usage { user, account, ..Usage::default() });
        sum.jobs += u64::from(jobs.insert(job));
        sum.gpu_seconds += seconds * count("gres/gpu=");
        sum.cpu_seconds += seconds * count("cpu=");
        records.entry(key).or_default().extend(jobstats::records(comment));
    }
    for (key, records) in records {
        let Some(sum) = sums.get_mut(&key) else { continue };
        let reports = summary::jobs(&records, 0, true);
        sum.gpu_use_percent = summary::use_percent(&reports);
        sum.wasted_gpu_seconds = reports.iter().map(|report| report.wasted_gpu_seconds).sum();
    }
    let mut usages: Vec<Usage> = sums.into_values().collect();
    usages.sort_by_key(|usage| std::cmp::Reverse((usage.gpu_seconds, usage.cpu_seconds)));
    usages
}

fn table(usages: &[Usage]) -> String {
    let columns = [
        Column::left("USER", 10, 32),
        Column::left("ACCOUNT", 10, 32),
        Column::right("JOBS", 8),
        Column::right("GPU HOURS", 12),
        Column::right("CPU HOURS", 12),
        Column::right("GPU USE", 7),
        Column::right("WASTED", 8),
    ];
    let row = |usage: &Usage| {
        let (gpu, cpu) = (hours(usage.gpu_seconds), hours(usage.cpu_seconds));
        let (used, wasted) = (percent(usage.gpu_use_percent), hours(usage.wasted_gpu_seconds));
        [usage.user.clone(), usage.account.clone(), usage.jobs.to_string(), gpu, cpu, used, wasted]
    };
    format_table(&columns, &usages.iter().map(row).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_seconds_per_gpu_and_user() {
        // Job 2 was requeued once.
        let output = "1|bob|lab|3600|billing=1,cpu=1,mem=1G,node=1\n2|alice|lab|1800|billing=4,cpu=4,gres/gpu=2,gres/gpu:nvidia=2,mem=1G\n\
                    2|alice|lab|1800|cpu=2,gres/gpu=1\n3|alice|lab|0|cpu=1\n4|alice|lab|0|\n";
        let usages = sums(output);
        assert_eq!(
            usages[0],
            Usage {
                user: "alice".to_owned(),
                account: "lab".to_owned(),
                jobs: 2,
                gpu_seconds: 5400,
                cpu_seconds: 10_800,
                ..Usage::default()
            }
        );
        assert_eq!((usages[1].user.as_str(), usages[1].gpu_seconds, usages[1].cpu_seconds), ("bob", 0, 3600));
        let table = table(&usages);
        assert!(table.contains("alice") && table.contains(" 1.5 ") && table.contains(" 3.0"), "{table}");
        let short = self::table(&sums("1|eve|lab|12|cpu=2,gres/gpu=1\n2|eve|lab|1|cpu=1\n"));
        assert!(short.contains(" 0.003 ") && short.contains(" 0.007"), "{short}");
    }
}
