//! `slurminit jobs quiesce`: the end of jobs at a stop.

use std::fs;

use super::fake::{Fake, job, job_that};
use model::exit_code;

/// Jobs that hold resources.
const HOLDING: &str = "squeue --noheader --states=RUNNING,*";
const DRAIN: &str = "scontrol update nodename=c1 state=drain reason=slurminit: the container stops";

fn note(jobs: &str) -> String {
    format!("scontrol update jobid={jobs} admincomment=slurminit: the container stopped while this job ran")
}

fn quiesce(fake: &Fake, grace: &str, on_stop: &str, options: &[&str]) -> Option<i32> {
    let fixed = ["jobs", "--node", "c1", "quiesce", "--grace", grace, "--on-stop", on_stop];
    fake.run(&[&fixed, options].concat()).status.code()
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
        .reply(HOLDING, &[&(plain + &signalled), &signalled, &signalled, ""])
        .reply("squeue --noheader --states=PENDING *", &[&waiting, &(waiting.clone() + &job("71", "PENDING"))])
        .reply("squeue --noheader --states=FAILED *", &[&job("71", "FAILED"), ""])
        .reply("squeue *", &[&(job("70", "RUNNING") + &signalled)]);
    assert_eq!(quiesce(&fake, "60", "requeue", &[]), Some(0));
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
        .reply(HOLDING, &[&running, &running, ""])
        .reply("squeue --noheader --states=PENDING *", &[""])
        .reply("squeue *", &[&running]);
    assert_eq!(quiesce(&fake, "60", "cancel", &[]), Some(0));
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
