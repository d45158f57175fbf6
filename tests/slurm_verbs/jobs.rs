//! `slurminit jobs` and `slurminit test-job`: jobs of an earlier start, and the test job.

use std::fs;
use std::time::{Duration, Instant};

use super::fake::{Fake, columns, job, job_that};
use model::exit_code;

fn stderr(fake: &Fake, arguments: &[&str]) -> String {
    let output = fake.run(arguments);
    assert!(output.status.success(), "{output:?}\n{}", fake.calls("").join("\n"));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn start_requeues_jobs_of_earlier_start() {
    let notified = |id: &str, comment: &str| columns(&[(id, 16), (comment, 64)]);
    let jobs = job("70", "RUNNING") + &job("71", "RUNNING") + &job("72", "COMPLETING");
    let comments = notified("70", "slurminit: the container stopped while this job ran") + &notified("71", "my note");
    let recover = |report: &str, jobs: &str| {
        let fake = Fake::new()
            .config("")
            .reply("sinfo *", &[report])
            .reply("scontrol update *", &[""])
            .reply("squeue *--states=RUNNING,SUSPENDED --Format*", &[&comments])
            .reply("squeue *--states=all*", &[""])
            .reply("squeue *--states=RUNNING*", &[jobs]);
        stderr(&fake, &["jobs", "--node", "c1", "recover"]);
        fake.calls("scontrol update ")
    };
    let expected = |reason: &str| {
        let soon = ["70", "71", "72"].map(|id| format!("jobid={id} starttime=now+12"));
        let note = "jobid=71 admincomment=slurminit: the container ended while this job ran".to_owned();
        [vec![note, format!("nodename=c1 state=down reason={reason}")], soon.to_vec()].concat()
    };
    assert_eq!(recover("idle root|none", &jobs), expected("slurminit: jobs of the previous start were lost"));
    assert_eq!(recover("drained root|fan", &jobs), expected("fan"));
    assert_eq!(recover("idle root|none", ""), [""; 0]);
}

#[test]
fn cancels_once_only_job_that_had_started() {
    let row = |id: &str, requeue: &str, state: &str| {
        columns(&[(id, 16), (id, 16), ("N/A", 16), (requeue, 16), (state, 16), ("N/A", 24), ("", 16)])
    };
    let rows = row("70", "0", "PENDING")
        + &row("71", "1", "PENDING")
        + &row("72", "0", "PENDING")
        + &row("73", "0", "RUNNING");
    let fake = Fake::new()
        .config("")
        .reply("scontrol update *", &[""])
        .reply("scancel *", &[""])
        .reply("squeue *Requeue:16*", &[&rows])
        .reply("squeue --noheader --array --states=all *", &[&columns(&[("91", 16), ("91", 16)])]);
    fs::write(fake.path("state/slurminit.begun"), "70\n71\n73\n").unwrap();
    fs::write(fake.path("state/slurminit.scripts"), "90\n91\n").unwrap();
    let log = stderr(&fake, &["jobs", "--node", "c1", "account"]);
    assert_eq!(fake.calls("scancel "), ["70", "70"], "once in each pass");
    assert!(log.contains("lost jobs: 90"), "{log}");
    assert!(!fake.path("state/slurminit.scripts").exists());
}

#[test]
fn waits_for_jobs_that_can_still_run() {
    let held = job_that("72", "PENDING", "", "(null)", "JobHeldUser");
    let queues = [&*(job("70", "RUNNING") + &held), &job("71", "COMPLETING"), &held];
    // slurmctld does not respond to the first query.
    let fail_once = "[ -e \"$here/asked\" ] || { >\"$here/asked\"; exit 1; }";
    let fake = Fake::new().reply_after(fail_once, "squeue *", &queues);
    let log = stderr(&fake, &["jobs", "wait"]);
    assert_eq!(fake.calls("squeue").len(), 4);
    assert_eq!(log.matches("not waiting for job 72").count(), 1, "{log}");
}

/// Runs the test job on a node in these states, and returns the exit code and the updates of the node.
fn test_job(places: &[&str], srun: impl Fn(Fake) -> Fake) -> (Option<i32>, Vec<String>, usize) {
    let fake = srun(Fake::new().reply("sinfo *", places).reply("scontrol update *", &[""]));
    let output = fake.run(&["test-job", "--node", "c1", "--limit", "20"]);
    (output.status.code(), fake.calls("scontrol update nodename=c1 "), fake.calls("srun").len())
}

#[test]
fn failed_test_job_drains_node() {
    let failed = i32::from(exit_code::TEST_JOB_FAILED);
    let (idle, completing) = ("main*|up|8000|idle root|none\n", "main*|up|8000|completing root|none\n");
    assert_eq!(test_job(&[idle], |fake| fake.reply("srun *", &[""])), (Some(0), vec![], 1));
    let broken = "slurmstepd-c1: error: TaskProlog failed status=127";
    let drain = |why: &str| vec![format!("state=drain reason=slurminit: test job: {why}")];
    let outcome = test_job(&[idle], |fake| fake.fail("srun *", broken));
    assert_eq!(outcome, (Some(failed), drain("TaskProlog failed status=127"), 1));
    // The Epilog fails after srun has ended.
    let drained = "main*|up|8000|drained slurm|Epilog error\n";
    let outcome = test_job(&[idle, completing, drained], |fake| fake.reply("srun *", &[""]));
    assert_eq!(outcome, (Some(failed), drain("Epilog error"), 1));
}

#[test]
fn test_job_is_not_run_on_busy_node() {
    let (idle, busy) = ("main*|up|8000|idle root|none\n", "main*|up|8000|mixed root|none\n");
    assert_eq!(test_job(&[busy], |fake| fake), (Some(0), vec![], 0));
    let refused = "srun: error: Unable to allocate resources: Requested nodes are busy";
    assert_eq!(test_job(&[idle], |fake| fake.fail("srun *", refused)), (Some(0), vec![], 1));
}

#[test]
fn test_job_that_hangs_is_cancelled_and_drains_node_only_if_it_started() {
    let idle = "main*|up|8000|idle root|none\n";
    for (jobs, code, updates) in [(job("70", "RUNNING"), exit_code::TEST_JOB_FAILED, 1), (String::new(), 0, 0)] {
        let fake = Fake::new()
            .reply("sinfo *", &[idle])
            .reply("scontrol update *", &[""])
            .reply("scancel *", &[""])
            .reply("squeue *", &[&jobs])
            .hang("srun *");
        let begin = Instant::now();
        let output = fake.run(&["test-job", "--node", "c1", "--limit", "0.5"]);
        assert_eq!(output.status.code(), Some(code.into()), "{output:?}");
        assert!(begin.elapsed() < Duration::from_secs(60));
        assert_eq!(fake.calls("scancel "), ["--me --name=slurminit-test-c1"]);
        assert_eq!(fake.calls("scontrol update").len(), updates);
    }
}
