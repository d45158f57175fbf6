//! Appends the report of an ended batch job to its output file, as the job's user: the user chose the path and needs the right to write
//! there.

use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use faults::usage::{GpuUse, JobRecord};
use model::printable;
use slurm::client::{Client, limit};
use sys::tool;

const SLURM: Client = Client::with_timeout(limit::COMMAND);
/// The timeout of a write: the file may be on a file system that hangs.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Appends only to an existing regular file: not to a pipe, which may have no reader, nor to a file that the user has removed.
const APPEND: &str = r#"[ ! -f "$0" ] || printf '%s\n' "$@" >>"$0""#;

/// The thread that writes reports; it is started when the first record is queued.
#[derive(Debug, Default)]
pub(super) struct Outputs(Option<Sender<JobRecord>>);

impl Outputs {
    pub(super) fn queue(&mut self, records: &[JobRecord]) {
        if self.0.is_none() {
            let (sender, receiver) = channel();
            let thread = thread::Builder::new().name("outputs".to_owned()).spawn(move || write(&receiver));
            self.0 = thread.is_ok().then_some(sender);
        }
        let Some(sender) = &self.0 else { return };
        records.iter().filter(|record| record.job.is_batch_host).for_each(|record| drop(sender.send(record.clone())));
    }
}

/// Writes the reports. Skips a job that slurmctld no longer has, that has no output file, or whose user cannot write to the file.
fn write(records: &Receiver<JobRecord>) {
    for record in records {
        let Ok(shown) = SLURM.output("scontrol", &["show", "job", &record.job.job.to_string()]) else { continue };
        let (Some(path), Ok(program)) = (output_file(&shown), std::env::current_exe()) else { continue };
        let mut command = Command::new(program);
        command
            .args(["as-user", &record.job.user, "--", "sh", "-c", APPEND, path])
            .args(lines(&record).map(|line| format!("slurminit: {line}")));
        let _ = tool::output(&mut command, TIMEOUT);
    }
}

/// The output file in a record of `scontrol show job`. An earlier line of this form may be text chosen by the user, so the last one counts.
fn output_file(record: &str) -> Option<&str> {
    let path = record.lines().filter_map(|line| line.trim_start().strip_prefix("StdOut=")).next_back();
    path.filter(|path| path.starts_with('/'))
}

/// The report of a job, in two lines.
pub(super) fn lines(record: &JobRecord) -> [String; 2] {
    let job = &record.job;
    let seconds = job.end.unwrap_or(job.start).saturating_sub(job.start);
    // The values of a shared GPU include the use by other jobs.
    let own = || record.gpus.iter().filter(|gpu| !gpu.is_shared);
    let sum = |of: fn(&GpuUse) -> u64| own().map(of).fold(0, u64::saturating_add);
    let unknown = if own().next().is_none() { "unknown (shared)" } else { "unknown" };
    let used = sum(|gpu| gpu.busy).checked_div(sum(|gpu| gpu.percent_ms));
    let used = used.map_or(unknown.to_owned(), |percent| format!("{percent} %"));
    let fullest = own().filter(|gpu| gpu.memory_ms > 0).max_by_key(|gpu| gpu.peak_memory_mib);
    let memory = fullest.map_or(String::new(), |gpu| {
        let total = gpu.part.memory_mib.map(|total| format!(" of {total}")).unwrap_or_default();
        format!(", memory at most {}{total} MiB", gpu.peak_memory_mib)
    });
    let has_energy = own().any(|gpu| gpu.energy_mj.is_some());
    let wh = sum(|gpu| gpu.energy_mj.unwrap_or_default()) / 3_600_000;
    let energy = if has_energy { format!(", energy {wh} Wh") } else { String::new() };
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let gpus = printable::count(record.gpus.len(), "GPU");
    [
        format!("{gpus} of {} for {hours}:{minutes:02}:{seconds:02}: mean use {used}{memory}{energy}", record.node),
        format!("`slurminit report {}` shows hints; with --json, also the values of each GPU", job.job),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use faults::usage::{Job, Part};

    #[test]
    fn output_file_is_last_absolute_path_of_record() {
        let record = |path: &str| format!("JobId=7 JobName=x\n   StdOut=/etc/passwd\n   StdErr=/e\n   StdOut={path}\n");
        assert_eq!(output_file(&record("/home/alice/7.out")), Some("/home/alice/7.out"));
        for path in ["", "(null)", "7.out"] {
            assert_eq!(output_file(&record(path)), None, "{path}");
        }
        assert_eq!(output_file("JobId=7\n"), None);
    }

    #[test]
    fn report_has_time_use_memory_and_energy_of_own_gpus() {
        let gpu = |busy, peak_memory_mib, is_shared| GpuUse {
            part: Part { memory_mib: Some(1024), ..Part::default() },
            percent_ms: 2,
            busy,
            memory_ms: 1,
            peak_memory_mib,
            is_shared,
            energy_mj: Some(5_400_000),
            ..GpuUse::default()
        };
        let line = |gpus: Vec<GpuUse>| {
            let job = Job { job: 7, start: 100, end: Some(100 + 3 * 3600 + 25 * 60 + 45), ..Job::default() };
            lines(&JobRecord { job, node: "c1".to_owned(), gpus })[0].clone()
        };
        assert_eq!(
            line(vec![gpu(40, 300, false), gpu(100, 700, false), gpu(200, 900, true)]),
            "3 GPUs of c1 for 3:25:45: mean use 35 %, memory at most 700 of 1024 MiB, energy 3 Wh"
        );
        assert_eq!(line(vec![gpu(200, 900, true)]), "1 GPU of c1 for 3:25:45: mean use unknown (shared)");
        assert_eq!(line(vec![GpuUse::default()]), "1 GPU of c1 for 3:25:45: mean use unknown");
    }
}
