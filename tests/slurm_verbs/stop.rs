//! `slurminit jobs quiesce`: the end of jobs at a stop.

use std::fs;
use std::time::{Duration, Instant};

use super::fake::{Fake, job, job_that, slurmstepd};
use model::exit_code;

/// Jobs that hold resources.
const HOLDING: &str = "squeue --noheader --states=RUNNING,*";
const DRAIN: &str = "scontrol update nodename=c1 state=drain reason=slurminit: the container stops";

fn note(jobs: &str) -> String {
    format!("scontrol update jobid={jobs} admincomment=slurminit: the container stopped while this job ran")
}

fn quiesce(fake: &Fake, grace: &str, on_stop: &str, options: &[&str]) -> Option<i32> {
    quiesce_and_log(fake, grace, on_stop, options).0
}

/// The exit code and the log.
fn quiesce_and_log(fake: &Fake, grace: &str, on_stop: &str, options: &[&str]) -> (Option<i32>, String) {
    let fixed = ["jobs", "--node", "c1", "quiesce", "--grace", grace, "--on-stop", on_stop];
    let output = fake.run(&[&fixed, options].concat());
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// A cluster that accepts all changes.
fn cluster() -> Fake {
    Fake::new()
        .config("")
        .reply("sinfo *", &["idle root|none\n"])
        .reply("scontrol requeue *", &[""])
        .reply("scontrol update *", &[""])
        .reply("scancel *", &[""])
}

#[test]
fn stop_without_jobs_records_next_id() {
    let fake = Fake::new().config("").reply("squeue *", &[""]);
    assert_eq!(quiesce(&fake, "1", "requeue", &[]), Some(0));
    assert_eq!(fake.changes(), [""; 0]);
    assert_eq!(fs::read_to_string(fake.path("state/slurminit.next_job_id")).unwrap(), "100\n");
}

#[test]
fn stop_waits_for_completing_job_without_drain() {
    let fake = Fake::new().config("").reply("squeue *", &[&job("70", "COMPLETING"), &job("70", "COMPLETING"), ""]);
    assert_eq!(quiesce(&fake, "60", "requeue", &[]), Some(0));
    assert_eq!(fake.changes(), [""; 0]);
    assert!(fake.path("state/slurminit.next_job_id").exists());
}

#[test]
fn stop_requeues_jobs_and_restores_dependencies() {
    let (plain, signalled) = (job("70", "RUNNING"), job("71", "RUNNING"));
    let waiting = job_that("80", "PENDING", "", "afterok:71(unfulfilled)", "Dependency");
    let fake = Fake::new()
        .config("")
        .reply("sinfo *", &["idle root|none\n"])
        .reply("scontrol write batch_script 71 -", &["#!/bin/sh\n#SBATCH --signal=B:USR1@60\n"])
        .reply("scontrol write *", &["#!/bin/sh\n"])
        .reply("scontrol requeue *", &[""])
        .reply("scontrol update *", &[""])
        .reply("scancel *", &[""])
        .reply(HOLDING, &[&(plain + &signalled), &signalled, &signalled, &signalled, &signalled, ""])
        .reply("squeue --noheader --states=PENDING *", &[&waiting, &(waiting.clone() + &job("71", "PENDING"))])
        .reply("squeue --noheader --states=FAILED *", &[&job("71", "FAILED"), ""])
        .reply("squeue *", &[&(job("70", "RUNNING") + &signalled)]);
    let begin = Instant::now();
    assert_eq!(quiesce(&fake, "60", "requeue", &[]), Some(0));
    assert!(begin.elapsed() < Duration::from_secs(30), "all jobs have ended");
    let expected = [
        DRAIN,
        &note("70,71"),
        "scancel --batch --signal=10 71",
        "scontrol requeue incomplete 70",
        "scontrol requeue 71",
        "scontrol update jobid=80 dependency=afterok:71",
        "scontrol update jobid=70 starttime=now+1",
        "scontrol update jobid=71 starttime=now+1",
    ];
    assert_eq!(fake.changes(), expected);
}

#[test]
fn stop_cancels_by_term_and_does_not_requeue() {
    let running = job("70", "RUNNING");
    let fake = Fake::new()
        .config("")
        .reply("sinfo *", &["drained root|fan\n"])
        .reply("scontrol update *", &[""])
        .reply("scontrol write *", &[""])
        .reply("scancel *", &[""])
        .reply(HOLDING, &[&running, &running, &running, &running, ""])
        .reply("squeue --noheader --states=PENDING *", &[""])
        .reply("squeue *", &[&running]);
    let begin = Instant::now();
    assert_eq!(quiesce(&fake, "60", "cancel", &[]), Some(0));
    assert!(begin.elapsed() < Duration::from_secs(30), "the job has ended");
    assert_eq!(fake.changes(), [&*note("70"), "scancel --full --signal=TERM 70"], "the drain of root stays");
}

#[test]
fn job_that_outlasts_grace_period_is_left_for_next_start() {
    let (running, requeued) = (job("70", "RUNNING"), "scontrol requeue incomplete 70");
    for (on_stop, changes) in [
        ("requeue", vec![requeued, "scancel --full --signal=TERM 70", requeued]),
        ("cancel", vec!["scancel --full --signal=TERM 70", "scancel 70"]),
    ] {
        let fake = Fake::new()
            .config("")
            .reply("sinfo *", &["idle root|none\n"])
            .fail("scontrol requeue *", "Only batch jobs are accepted")
            .reply("scontrol update *", &[""])
            .reply("scancel *", &[""])
            .reply("squeue --noheader --states=PENDING *", &[""])
            .reply("squeue *", &[&running]);
        assert_eq!(quiesce(&fake, "0", on_stop, &[]), Some(exit_code::JOBS_LEFT.into()), "{on_stop}");
        assert_eq!(fake.changes()[2..], changes, "{on_stop}");
    }
}

#[test]
fn node_leaves_cluster_only_if_no_job_names_it() {
    const DOWN: &str = "state=down reason=slurminit: the container stops";
    let dynamic = "NodeName=c1 State=IDLE+DYNAMIC_NORM";
    let cloud = |flags: &str| format!("NodeName=c1 State=IDLE+CLOUD{flags}");
    let short = cloud("") + " Reason=slurminit: it has less than [autoscale] promises: CPUs=1 of 2 [root@2026]";
    for (record, report, jobs, changes) in [
        (dynamic, "idle root|none", job("80", "PENDING"), vec![DOWN, "delete"]),
        (dynamic, "idle root|none", job_that("80", "PENDING", "c1", "", "None"), vec![DOWN]),
        (dynamic, "drained root|fan", String::new(), vec![]),
        (
            &cloud(""),
            "idle root|none",
            String::new(),
            vec!["state=power_down_force reason=slurminit: the container stops"],
        ),
        (&cloud("+POWERING_DOWN"), "idle root|none", String::new(), vec![]),
        (&cloud("+POWERING_DOWN+DRAIN"), "idle root|none", String::new(), vec!["state=undrain"]),
        (&short, "idle root|none", String::new(), vec![]),
    ] {
        let fake = Fake::new()
            .config("")
            .reply("sinfo *", &[report])
            .reply("scontrol --oneliner show node c1", &[record])
            .reply("scontrol update *", &[""])
            .reply("scontrol delete *", &[""])
            .reply(HOLDING, &[""])
            .reply("squeue *", &[&jobs]);
        assert_eq!(quiesce(&fake, "60", "requeue", &["--leave"]), Some(0), "{record}");
        let made: Vec<String> = fake.changes().into_iter().filter(|change| change != DRAIN).collect();
        let expected: Vec<String> = changes
            .iter()
            .map(|change| match *change {
                "delete" => "scontrol delete nodename=c1".to_owned(),
                change => format!("scontrol update nodename=c1 {change}"),
            })
            .collect();
        assert_eq!(made, expected, "{record} {report}");
        assert!(!fake.path("state/slurminit.next_job_id").exists());
    }
}

#[test]
fn node_with_controller_stays_and_records_next_id() {
    let fake = Fake::new()
        .config("")
        .reply("sinfo *", &["idle root|none"])
        .reply("scontrol update *", &[""])
        .reply("squeue *", &[""]);
    assert_eq!(quiesce(&fake, "60", "requeue", &["--leave", "--with-controller"]), Some(0));
    assert_eq!(fake.changes(), [DRAIN]);
    assert!(fake.path("state/slurminit.next_job_id").exists());
}

#[test]
fn signalled_jobs_are_requeued_as_each_ends() {
    let [first, second] = ["71", "72"].map(|id| job(id, "RUNNING"));
    let pending = ["71", "72", "99"].map(|id| job(id, "PENDING")).concat();
    let fake = cluster()
        .reply("scontrol write batch_script 71 -", &["#!/bin/sh\n#SBATCH --signal=B:USR1\n"])
        .reply("scontrol write *", &["#!/bin/sh\n#SBATCH --signal=USR2@60\n"])
        .reply(HOLDING, &[&(first.clone() + &second), &(first + &second), &second, ""])
        .reply("squeue --noheader --states=PENDING *", &["", &pending])
        .reply("squeue --noheader --states=FAILED *", &[&job("71", "FAILED"), ""])
        .reply("squeue --noheader --states=FAILED,COMPLETED *", &[&job("72", "COMPLETED"), ""])
        .reply("squeue *", &[&job("71", "RUNNING")]);
    assert_eq!(quiesce(&fake, "60", "requeue", &[]), Some(0));
    let poll = HOLDING.trim_end_matches('*');
    let steps = ["scancel", "scontrol requeue", poll, "scontrol update jobid"];
    let calls = fake.calls("").into_iter().filter(|call| steps.iter().any(|step| call.starts_with(step)));
    let calls: Vec<_> = calls.map(|call| if call.starts_with(poll) { "poll".to_owned() } else { call }).collect();
    let expected = [
        "poll",
        &note("71,72"),
        "scancel --batch --signal=10 71",
        "scancel --signal=12 72",
        "poll",
        "poll",
        "scontrol requeue 71",
        "poll",
        "scontrol requeue 72",
        "poll",
        "scontrol update jobid=71 starttime=now+1",
        "scontrol update jobid=72 starttime=now+1",
    ];
    assert_eq!(calls, expected);
}

#[test]
fn only_running_job_that_slurm_cannot_requeue_gets_term() {
    let before = ["70", "72", "73"].map(|id| job(id, "RUNNING")).concat();
    let after = job("70", "RUNNING") + &job("72", "COMPLETING") + &job("79", "RUNNING");
    let fake = cluster()
        .reply("scontrol write *", &["#!/bin/sh\n"])
        .reply(HOLDING, &[&before, &after, &after, ""])
        .reply("squeue --noheader --states=PENDING *", &[""])
        .reply("squeue --noheader --states=FAILED *", &[&(job("70", "FAILED") + &job("73", "FAILED"))])
        .reply("squeue *", &[&before]);
    let (code, log) = quiesce_and_log(&fake, "60", "requeue", &[]);
    assert_eq!(code, Some(0));
    assert!(log.contains("jobs 72,73 requeued;") && log.contains("sending SIGTERM to jobs 70;"), "{log}");
    let soon = ["72", "73", "70"].map(|id| format!("scontrol update jobid={id} starttime=now+1"));
    let changes = ["scontrol requeue incomplete 70,72,73", "scancel --full --signal=TERM 70", "scontrol requeue 70"];
    assert_eq!(fake.changes()[2..], [&changes.map(str::to_owned)[..], &soon].concat());
}

#[test]
fn stop_waits_for_end_of_killed_job() {
    let (running, completing) = (job("70", "RUNNING"), job("70", "COMPLETING"));
    let fake = cluster()
        .reply(HOLDING, &[&running, &running, &running, &running, &completing, &completing, &completing, ""])
        .reply("squeue --noheader --states=PENDING *", &[""])
        .reply("squeue *", &[&running]);
    let (code, log) = quiesce_and_log(&fake, "0", "requeue", &[]);
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("jobs 70 did not end in time; killing their processes"), "{log}");
    assert_eq!(fake.changes().last().unwrap(), "scontrol update jobid=70 starttime=now+1");
}

#[test]
fn script_that_ignores_term_is_killed_after_grace_period() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let fake = cluster().reply("squeue *", &[&job("970001", "RUNNING")]);
    let mut step = slurmstepd(&fake, "970001.batch", "trap '' TERM; echo started; exec sleep 60");
    let (code, log) = quiesce_and_log(&fake, "0", "requeue", &[]);
    assert_eq!(step.wait().unwrap().code(), Some(128 + 9), "{log}");
    assert_eq!(code, Some(exit_code::JOBS_LEFT.into()));
    let changes = ["scancel --full --signal=TERM 970001", "scontrol requeue incomplete 970001"];
    assert_eq!(fake.changes()[2..], changes, "the script may write a checkpoint before it is requeued");
}

#[test]
fn leaving_node_ends_only_its_own_jobs() {
    let fake = cluster()
        .reply("scontrol --oneliner show node c1", &["NodeName=c1 State=IDLE+CLOUD"])
        .reply("squeue *--nodelist=c1 *", &[&job("70", "RUNNING")])
        .reply("squeue --noheader --states=PENDING *", &[""])
        .reply("squeue *", &[&(job("70", "RUNNING") + &job("71", "RUNNING"))]);
    let (code, log) = quiesce_and_log(&fake, "0", "cancel", &["--leave"]);
    assert_eq!(code, Some(exit_code::JOBS_LEFT.into()));
    assert!(log.contains("jobs still ending: 70; the controller requeues those that are still running"), "{log}");
    let power_down = "scontrol update nodename=c1 state=power_down_force reason=slurminit: the container stops";
    assert_eq!(fake.changes()[1..], [&*note("70"), "scancel --full --signal=TERM 70", "scancel 70", power_down]);
}

#[test]
fn end_of_command_warns_about_unfinished_jobs() {
    let (running, waiting, ending) = (job("70", "RUNNING"), job("71", "PENDING"), job("72", "COMPLETING"));
    for (queue, counts) in [
        (running + &waiting, Some("(1 running, 1 waiting)")),
        (waiting, Some("(0 running, 1 waiting)")),
        (ending, None),
    ] {
        let fake = cluster().reply(HOLDING, &[""]).reply("squeue *", &[&queue, ""]);
        let (code, log) = quiesce_and_log(&fake, "60", "requeue", &["--after-command"]);
        assert_eq!(code, Some(0), "{log}");
        let warning = log.lines().find(|line| line.contains("stopping with jobs in the queue"));
        assert!(warning.is_some() == counts.is_some() && log.contains(counts.unwrap_or_default()), "{log}");
    }
}
