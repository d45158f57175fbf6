//! The signal that a batch job requested for the time before its end: `#SBATCH --signal=[R][B][:]SIGNAL[@SECONDS]`.
//!
//! slurmctld sends it before the time limit, and no command of Slurm prints it (24.11 to 26.05: `slurm_job_info_t` has no field
//! for it). So the signal is read from the script, as sbatch reads it. A signal requested on sbatch's command line is not detected. The text
//! is untrusted, but the signal goes only to the user's own job.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr as _;
use std::time::Instant;

use nix::sys::signal::Signal;

use super::super::SLURM;
use model::message;
use model::queued_job::QueuedJob;
use sys::report;

/// Maximum number of scripts that are requested from slurmctld at the same time, each in a thread.
const MAX_CONCURRENT: usize = 16;
/// The highest signal number of Linux.
const MAX_SIGNAL: i32 = 64;

/// A requested signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RequestedSignal {
    number: i32,
    /// Whether the batch script gets the signal (`B:`); otherwise the steps get it.
    to_script: bool,
}

/// The jobs that got the signal that they requested.
#[derive(Debug, Default)]
pub(super) struct SignalledJobs {
    /// Jobs whose script got the signal, so that the exit code shows how the script handled it.
    pub(super) by_script: BTreeSet<String>,
    /// Jobs whose steps got the signal.
    pub(super) by_steps: BTreeSet<String>,
}

impl SignalledJobs {
    pub(super) fn contains(&self, job: &str) -> bool {
        self.by_script.contains(job) || self.by_steps.contains(job)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.by_script.iter().chain(&self.by_steps).map(String::as_str)
    }
}

/// Sends each of these jobs the signal that it requested. No more scripts are requested after `until`, because the other jobs are
/// waiting; a job whose script was not read gets no signal here.
pub(super) fn send(running: &[&QueuedJob], until: Instant) -> SignalledJobs {
    let mut groups: BTreeMap<RequestedSignal, Vec<&str>> = BTreeMap::new();
    for (job, signal) in requests(running, until) {
        groups.entry(signal).or_default().push(job);
    }
    let mut signalled = SignalledJobs::default();
    for (signal, jobs) in groups {
        let name = Signal::try_from(signal.number).map(Signal::as_str);
        let name = name.map_or_else(|_| signal.number.to_string(), |name| name.replacen("SIG", "", 1));
        report::info(message!(
            "jobs-signalled",
            "sending {signal} to jobs {jobs}, as they requested with --signal",
            signal = name,
            jobs = jobs.join(",")
        ));
        let number = format!("--signal={}", signal.number);
        let options = if signal.to_script { &["--batch", &number][..] } else { &[&*number] };
        // If a job ends at this moment scancel fails, but only after it has signalled the others.
        let _ = SLURM.run("scancel", &[options, jobs.as_slice()].concat());
        let kind = if signal.to_script { &mut signalled.by_script } else { &mut signalled.by_steps };
        kind.extend(jobs.into_iter().map(str::to_owned));
    }
    signalled
}

/// The jobs whose script requests a signal. An allocation without a script requests none.
fn requests<'a>(jobs: &[&'a QueuedJob], until: Instant) -> Vec<(&'a str, RequestedSignal)> {
    let request = |job: &'a QueuedJob| {
        let script = SLURM.output("scontrol", &["write", "batch_script", &job.number.to_string(), "-"]).ok()?;
        Some((job.id.as_str(), parse_script(&script)?))
    };
    let read_chunk = |chunk: &[&'a QueuedJob]| {
        std::thread::scope(|scope| {
            // If no thread can be created, the job gets only the usual notice.
            let start = |job: &&'a QueuedJob| {
                let job = *job;
                std::thread::Builder::new().spawn_scoped(scope, move || request(job)).ok()
            };
            let threads: Vec<_> = chunk.iter().filter_map(start).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok().flatten()).collect::<Vec<_>>()
        })
    };
    jobs.chunks(MAX_CONCURRENT).take_while(|_| Instant::now() < until).flat_map(read_chunk).collect()
}

/// The signal that a script requests. sbatch reads `#SBATCH` lines until the first command, and the last request applies. In a
/// heterogeneous job only the lines of the first component apply (Slurm 24.11, `sbatch/opt.c`).
fn parse_script(script: &str) -> Option<RequestedSignal> {
    let mut signal = None;
    for line in script.lines() {
        let Some(options) = line.strip_prefix("#SBATCH") else {
            match line.trim_start() {
                rest if rest.is_empty() || rest.starts_with('#') => continue,
                _ => break,
            }
        };
        let mut words = options.split_whitespace().take_while(|word| !word.starts_with('#')).peekable();
        if words.peek().is_some_and(|word| ["hetjob", "packjob"].contains(word)) {
            break;
        }
        while let Some(word) = words.next() {
            let value = match word.strip_prefix("--signal") {
                Some("") => words.next(),
                Some(rest) => rest.strip_prefix('='),
                None => None,
            };
            signal = value.map(|value| value.trim_matches(['"', '\''])).and_then(parse).or(signal);
        }
    }
    signal
}

/// Parses `B:USR1@90` (`get_signal_opts` in `proc_args.c`).
fn parse(value: &str) -> Option<RequestedSignal> {
    let signal = value.split('@').next()?.to_ascii_uppercase();
    // Only these two letters may precede the signal's name, and no signal name that sbatch accepts begins with them.
    let name = signal.trim_start_matches(['R', 'B']);
    let to_script = signal.strip_suffix(name)?.contains('B');
    let name = name.strip_prefix(':').unwrap_or(name);
    let number = match name.parse() {
        Ok(number) => number,
        Err(_) => Signal::from_str(&format!("SIG{}", name.strip_prefix("SIG").unwrap_or(name))).ok()? as i32,
    };
    (1..=MAX_SIGNAL).contains(&number).then_some(RequestedSignal { number, to_script })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_values_as_sbatch_does() {
        let parsed = |value| parse(value).map(|signal| (signal.number, signal.to_script));
        for (value, expected) in [
            ("USR2@90", (12, false)),
            ("B:USR1", (10, true)),
            ("B:usr1@60", (10, true)),
            ("RB:SIGINT@5", (2, true)),
            ("BR:10", (10, true)),
            ("R:TERM@60", (15, false)),
            ("R12@60", (12, false)),
            ("64", (64, false)),
        ] {
            assert_eq!(parsed(value), Some(expected), "{value}");
        }
        for other in ["", "B:", "@90", "65", "0", "-1", "USR3", "9x", "X:USR1"] {
            assert_eq!(parsed(other), None, "{other}");
        }
    }

    #[test]
    fn reads_script_until_first_command() {
        let number = |script: &str| parse_script(script).map(|signal| signal.number);
        let head = "#!/bin/bash\n# A comment\n\n#SBATCH --job-name=a --time=1:00:00 # --signal=1\n";
        assert_eq!(number(&format!("{head}#SBATCH --signal=USR2@90\nsrun ./train\n")), Some(12));
        assert_eq!(number(&format!("{head}#SBATCH --signal \"B:USR1@90\"\n#SBATCH -n 2\nsrun ./train\n")), Some(10));
        assert_eq!(number(&format!("{head}#SBATCH --signal=USR2\n#SBATCH --signal=INT -n2\n")), Some(2));
        assert_eq!(number(&format!("{head}cat <<END\n#SBATCH --signal=USR2@90\nEND\n")), None);
        assert_eq!(number(&format!("{head}#SBATCH hetjob\n#SBATCH --signal=USR2@90\n")), None);
        assert_eq!(number(&format!("{head}##SBATCH --signal=USR2@90\n #SBATCH --signal=USR2\n")), None);
        assert_eq!(number(&format!("{head}#SBATCH --signals=USR2\n#SBATCH --signal")), None);
    }
}
