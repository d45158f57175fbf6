//! Writes the records of ended jobs into their AdminComment, if there is an accounting database. slurmctld cannot change a job that has
//! ended, but slurmdbd can, once it has the job's record.
//!
//! All nodes of a job write to the same text. Each node reads the text again, and rewrites its own part if it is missing, until two
//! consecutive reads have contained that part, or after [`MAX_TRIES`] reads.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::jobstats;
use super::jobstats::HostUse;
use crate::agent::slurm::mib_per_node;
use faults::usage::JobRecord;
use model::message;
use model::slurm_time;
use slurm::client::{Client, limit};
use sys::report;

const SLURM: Client = Client::with_timeout(limit::COMMAND);
/// The interval between attempts, and their maximum number for each job: slurmdbd may receive the record of a job only after some time.
const INTERVAL: Duration = Duration::from_secs(3);
const MAX_TRIES: u32 = 40;
/// The maximum number of jobs in one query.
const MAX_JOBS: usize = 200;

/// The thread that writes comments; it is started when the first record is queued.
#[derive(Debug, Default)]
pub(super) struct Comments(Option<Sender<JobRecord>>);

struct Pending {
    record: JobRecord,
    tries: u32,
    /// The number of consecutive reads in which the comment contained the record.
    confirmed: u32,
}

impl Comments {
    pub(super) fn queue(&mut self, records: Vec<JobRecord>) {
        if self.0.is_none() {
            let (sender, receiver) = channel();
            let thread = thread::Builder::new().name("comments".to_owned()).spawn(move || write(&receiver));
            self.0 = thread.is_ok().then_some(sender);
        }
        let Some(sender) = &self.0 else { return };
        // The end of a lost run is only an estimate, and sacct does not list the earlier runs of a requeued job.
        let ended = records.into_iter().filter(|record| !["LOST", "REQUEUED"].contains(&record.job.state.as_str()));
        ended.for_each(|record| drop(sender.send(record)));
    }
}

fn write(records: &Receiver<JobRecord>) {
    let mut pending: Vec<Pending> = Vec::new();
    let mut due = Instant::now();
    loop {
        let left = due.saturating_duration_since(Instant::now());
        let received = match pending.is_empty() {
            true => records.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => records.recv_timeout(left),
        };
        match received {
            Ok(record) => pending.push(Pending { record, tries: 0, confirmed: 0 }),
            Err(RecvTimeoutError::Timeout) => {
                round(&SLURM, &mut pending);
                due = Instant::now() + INTERVAL;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

impl Pending {
    /// Whether the last read did not contain the record either.
    fn has_failed(&self) -> bool {
        self.tries >= MAX_TRIES && self.confirmed == 0
    }
}

/// Reads the comments and writes those that do not contain their record yet.
fn round(slurm: &Client, pending: &mut Vec<Pending>) {
    match slurm.config() {
        Ok(config) if !config.has_accounting() => return pending.clear(),
        _ => {}
    }
    let now = pending.len().min(MAX_JOBS);
    let ids: Vec<String> = pending.iter().take(now).map(|one| one.record.job.job.to_string()).collect();
    let jobs = accounted(slurm, &ids);
    for (one, id) in pending.iter_mut().zip(&ids) {
        one.tries += 1;
        // slurmdbd does not have the job's end yet, or sacct failed.
        let Some(job) = jobs.get(id).filter(|job| job.has_ended) else { continue };
        let comment = &job.comment;
        if jobstats::has(comment, &one.record) {
            one.confirmed += 1;
            continue;
        }
        one.confirmed = 0;
        let Ok((merged, note)) = jobstats::merge(comment, &one.record, job.host_use()) else { continue };
        let place = format!("jobid={id}");
        let mut arguments = vec!["--immediate", "modify", "job", "where", &place, "set"];
        let (merged, kept) = (format!("admincomment={merged}"), format!("systemcomment={note}"));
        arguments.push(&merged);
        if !note.is_empty() {
            arguments.push(&kept);
        }
        let _ = slurm.run("sacctmgr", &arguments);
    }
    let failed: Vec<&str> =
        pending.iter().zip(&ids).filter(|(one, _)| one.has_failed()).map(|(_, id)| id.as_str()).collect();
    if !failed.is_empty() {
        report::warn(message!(
            "job-comments-not-written",
            "could not store GPU use in the AdminComment of jobs in the accounting database: {jobs}; \
             `slurminit report JOB` on this node still shows it",
            jobs = model::printable::short(&failed.join(", "), 200)
        ));
    }
    pending.retain(|one| one.confirmed < 2 && one.tries < MAX_TRIES);
    // Other jobs come first in the next round.
    let rotated = now.min(pending.len());
    pending.rotate_left(rotated);
}

/// A job of the database, with the CPU time of all its steps and the highest memory of a step.
#[derive(Clone, Debug, Default, PartialEq)]
struct Accounted {
    has_ended: bool,
    comment: String,
    nodes: u64,
    cpu_seconds: u64,
    memory_mib: u64,
}

impl Accounted {
    /// The mean over the job's nodes; `None` if Slurm has recorded no memory use.
    fn host_use(&self) -> Option<HostUse> {
        let nodes = self.nodes.max(1);
        let host = HostUse { cpu_seconds: self.cpu_seconds / nodes, memory_mib: self.memory_mib.div_ceil(nodes) };
        (host.memory_mib > 0).then_some(host)
    }
}

/// The jobs with these IDs that the accounting database contains, by ID; empty if sacct fails.
fn accounted(slurm: &Client, ids: &[String]) -> BTreeMap<String, Accounted> {
    let jobs = format!("--jobs={}", ids.join(","));
    let format = "--format=JobIDRaw,End,NNodes,TotalCPU,TRESUsageInTot,AdminComment";
    let options = ["--allusers", "--parsable2", "--noheader", format, &jobs];
    parse(&slurm.output("sacct", &options).unwrap_or_default())
}

fn parse(output: &str) -> BTreeMap<String, Accounted> {
    let mut jobs: BTreeMap<String, Accounted> = BTreeMap::new();
    for line in output.lines() {
        let mut fields = line.splitn(6, '|');
        let mut field = || fields.next().unwrap_or_default();
        let (id, end, nodes, cpu, usage, comment) = (field(), field(), field(), field(), field(), field());
        match id.split_once('.') {
            None => {
                let job = jobs.entry(id.to_owned()).or_default();
                (job.has_ended, job.nodes, job.comment) =
                    (end != "Unknown", nodes.parse().unwrap_or(1), comment.to_owned());
            }
            Some((id, _)) => {
                let job = jobs.entry(id.to_owned()).or_default();
                // `01:02.345` has minutes and seconds.
                let cpu = slurm_time::seconds(cpu.split('.').next().unwrap_or_default()).unwrap_or_default();
                job.cpu_seconds += cpu;
                job.memory_mib = job.memory_mib.max(mib_per_node(usage).unwrap_or_default());
            }
        }
    }
    jobs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_slurm::FakeSlurm;
    use faults::usage::Job;

    #[test]
    fn sums_the_steps_of_each_job() {
        let output = "7|2026-11-28T09:13:07|2|01:10.5||JS1:x| a|b\n\
            7.batch|2026-11-28T09:13:07|1|00:10.250|cpu=00:00:10,mem=2060K,vmem=0|\n\
            7.0|2026-11-28T09:13:07|2|01:01:00|cpu=01:01:00,mem=3G|\n8|Unknown|1|00:00:00||\n";
        let jobs = parse(output);
        let job = &jobs["7"];
        assert_eq!((job.has_ended, job.comment.as_str()), (true, "JS1:x| a|b"));
        assert_eq!(job.host_use(), Some(HostUse { cpu_seconds: 3670 / 2, memory_mib: 1536 }));
        assert_eq!((jobs["8"].has_ended, jobs["8"].host_use()), (false, None));
    }

    const ACCOUNTING: &str = "AccountingStorageType = accounting_storage/slurmdbd\n";

    fn pending(jobs: &[u64]) -> Vec<Pending> {
        let record = |job: &u64| {
            // Values of the live job that are not stored.
            let live =
                Job { nodes: 1, is_batch_host: true, comment: "a note".to_owned(), gpus: vec![0], ..Job::default() };
            JobRecord { job: Job { job: *job, ..live }, node: "c1".to_owned(), gpus: Vec::new() }
        };
        jobs.iter().map(|job| Pending { record: record(job), tries: 0, confirmed: 0 }).collect()
    }

    #[test]
    fn writes_comment_of_ended_job_until_it_was_read_twice() {
        let mut jobs = pending(&[7, 8]);
        let written = |jobs: &mut Vec<Pending>, sacct: &str| {
            let slurm = FakeSlurm::new(&[("scontrol", Ok(ACCOUNTING)), ("sacct ", Ok(sacct)), ("sacctmgr", Ok(""))]);
            round(&Client::with_runner(&slurm.run()), jobs);
            slurm.commands("sacctmgr")
        };
        let [write] =
            written(&mut jobs, "7|2026-11-28T09:13:07|1|01:10||a note\n8|Unknown|1|00:00||\n").try_into().unwrap();
        let start = "sacctmgr --immediate modify job where jobid=7 set admincomment=";
        let comment = write.strip_prefix(start).unwrap().strip_suffix(" systemcomment=a note").unwrap();
        let stored = format!("7|2026-11-28T09:13:07|1|01:10||{comment}\n");
        for left in [2, 1] {
            assert_eq!(written(&mut jobs, &stored), [""; 0]);
            assert_eq!(jobs.len(), left);
        }
        assert_eq!(jobs[0].record.job.job, 8);
    }

    #[test]
    fn gives_up_job_that_is_not_in_database() {
        let mut jobs = pending(&[7]);
        jobs[0].tries = MAX_TRIES - 2;
        let is_failed = |tries, confirmed| Pending { tries, confirmed, ..pending(&[7]).remove(0) }.has_failed();
        assert_eq!(
            [(MAX_TRIES - 1, 0), (MAX_TRIES, 0), (MAX_TRIES, 1)].map(|(tries, confirmed)| is_failed(tries, confirmed)),
            [false, true, false]
        );
        for left in [1, 0] {
            let slurm = FakeSlurm::new(&[("scontrol", Ok(ACCOUNTING)), ("sacct ", Ok(""))]);
            round(&Client::with_runner(&slurm.run()), &mut jobs);
            assert_eq!(jobs.len(), left);
        }
    }

    #[test]
    fn writes_no_comment_without_accounting() {
        let mut jobs = pending(&[7]);
        let slurm = FakeSlurm::new(&[("scontrol", Ok("AccountingStorageType = (null)\n"))]);
        round(&Client::with_runner(&slurm.run()), &mut jobs);
        assert_eq!((jobs.len(), slurm.commands("sacct")), (0, vec![]));
    }

    #[test]
    fn queries_other_jobs_in_next_round() {
        let mut jobs = pending(&(1..=300).collect::<Vec<_>>());
        let slurm = FakeSlurm::new(&[("scontrol", Ok(ACCOUNTING)), ("sacct ", Ok(""))]);
        round(&Client::with_runner(&slurm.run()), &mut jobs);
        let first = |jobs: &[Pending]| jobs[0].record.job.job;
        assert_eq!((jobs.len(), first(&jobs)), (300, 201));
    }
}
