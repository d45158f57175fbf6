//! `slurminit drain`, `resume` and `power`.

use super::fake::{Fake, job_that};

/// The node `c1` in JSON, with a job if `gres_used` names a GPU.
fn node(words: &str, reason: &str) -> String {
    format!(r#"{{"nodes": [{{"name": "c1", "state": {words}, "reason": "{reason}"}}]}}"#)
}

fn cluster(nodes: &[&str], jobs: &[&str]) -> Fake {
    Fake::new()
        .config("MaxNodeCount = 10")
        .reply("scontrol show hostnames *", &["c1\n"])
        .reply("scontrol --details --json show node", nodes)
        .reply("scontrol update *", &[""])
        .reply("scontrol delete *", &[""])
        .reply("squeue *--json*", jobs)
}

const NO_JOBS: &str = r#"{"jobs": []}"#;
const JOB: &str = r#"{"jobs": [{"job_id": 70, "job_state": ["RUNNING"], "user_name": "alice",
    "job_resources": {"nodes": {"allocation": [{"name": "c1"}]}}, "nodes": "c1"}]}"#;
const IDLE: &str = r#"["IDLE"]"#;

#[test]
fn drains_node_with_reason() {
    let fake = cluster(&[&node(IDLE, "")], &[NO_JOBS]);
    fake.succeed(&["drain", "c1", "--reason", "fan"]);
    assert_eq!(fake.changes(), ["scontrol update nodename=c1 state=drain reason=fan"]);
    let fake = cluster(&[&node(r#"["IDLE", "DRAIN"]"#, "disk")], &[NO_JOBS]);
    fake.succeed(&["drain", "c1", "--reason", "fan"]);
    assert_eq!(fake.changes(), [""; 0]);
    assert!(!cluster(&[&node(IDLE, "")], &[NO_JOBS]).run(&["drain", "c1;x"]).status.success());
}

#[test]
fn drain_waits_for_jobs_until_timeout() {
    let fake = cluster(&[&node(IDLE, "")], &[JOB, JOB, NO_JOBS]);
    let output = fake.succeed(&["drain", "c1", "--wait", "60"]);
    assert!(output.ends_with("no jobs left on c1\n"), "{output}");
    let output = cluster(&[&node(IDLE, "")], &[JOB]).run(&["drain", "c1", "--wait", "1"]);
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && why.contains("70 of alice"), "{output:?}");
}

#[test]
fn deletes_drained_node_only_if_no_job_names_it() {
    for (nodes, is_deleted) in [("", true), ("c1", false)] {
        let fake = cluster(&[&node(IDLE, "")], &[NO_JOBS])
            .reply("scontrol --oneliner show node c1", &["NodeName=c1 State=IDLE+DRAIN"])
            .reply("squeue *", &[&job_that("80", "PENDING", nodes, "", "None")]);
        let output = fake.run(&["drain", "c1", "--delete"]);
        assert_eq!(output.status.success(), is_deleted, "{output:?}");
        assert_eq!(fake.calls("scontrol delete nodename=c1").len(), usize::from(is_deleted));
    }
}

#[test]
fn resume_waits_until_node_accepts_jobs() {
    let (drained, silent) = (node(r#"["IDLE", "DRAIN"]"#, "fan"), node(r#"["UNKNOWN"]"#, ""));
    let fake = cluster(&[&drained, &silent, &node(IDLE, "")], &[NO_JOBS]);
    fake.succeed(&["resume", "c1"]);
    let updates = ["scontrol update nodename=c1 state=resume", "scontrol update nodename=c1 reason=none"];
    assert_eq!(fake.changes(), updates);
    assert_eq!(fake.calls("scontrol --details").len(), 3);
    // Without a response there is nothing to wait for.
    let silent = node(r#"["DOWN", "DRAIN", "NOT_RESPONDING"]"#, "fan");
    let fake = cluster(&[&silent], &[NO_JOBS]);
    fake.succeed(&["resume", "c1"]);
    assert_eq!((fake.changes().len(), fake.calls("scontrol --details").len()), (2, 1));
    assert!(
        !cluster(&[&node(r#"["DOWN", "NOT_RESPONDING"]"#, "")], &[NO_JOBS]).run(&["resume", "c1"]).status.success()
    );
}

#[test]
fn failed_power_command_changes_node() {
    let power = |action: &str, fake: Fake| {
        let fake = fake.reply("scontrol show hostnames *", &["c1\nc2\n"]).reply("scontrol update *", &[""]);
        let output = fake.run(&["power", action, "--limit", "20", "c[1-2]", "--", "start-node", "--now"]);
        (output.status.success(), fake.changes(), fake.calls("start-node "))
    };
    let calls = vec!["--now c1 c2".to_owned()];
    let works = || Fake::new().reply("start-node *", &[""]);
    let fails = || Fake::new().fail("start-node *", "no quota");
    assert_eq!(power("resume", works()), (true, vec![], calls.clone()));
    let change = |state: &str, advice: &str| {
        vec![format!(
            "scontrol update nodename=c[1-2] state={state} reason=slurminit: start-node failed (exit status: 1): no quota{advice}"
        )]
    };
    assert_eq!(power("resume", fails()), (false, change("power_down_force", ""), calls.clone()));
    let advice = "; the node may still be running: stop it by hand, then run `slurminit resume NODE`";
    assert_eq!(power("suspend", fails()), (false, change("drain", advice), calls));
}

#[test]
fn suspended_node_that_missed_its_resume_timeout_is_resumed() {
    let short = "slurminit: it has less than [autoscale] promises: CPUs=1 of 2";
    for (state, reason, is_resumed) in [
        ("DOWN+CLOUD", "ResumeTimeout reached", true),
        ("IDLE+CLOUD", "ResumeTimeout reached", false),
        ("DOWN+CLOUD", "Not responding", false),
        ("DOWN+CLOUD", &format!("{short} ResumeTimeout reached"), false),
    ] {
        let record = format!("NodeName=c1 State={state} Reason={reason} [slurm@2026-11-28T09:00:00]\n");
        let fake = Fake::new()
            .reply("start-node *", &[""])
            .reply("scontrol show hostnames *", &["c1\n"])
            .reply("scontrol --oneliner show node c1", &[&record])
            .reply("scontrol update *", &[""]);
        fake.succeed(&["power", "suspend", "--limit", "20", "c1", "--", "start-node"]);
        let expected = if is_resumed { vec!["scontrol update nodename=c1 state=resume"] } else { vec![] };
        assert_eq!(fake.changes(), expected, "{state} {reason}");
    }
    let record =
        |name: &str| format!("NodeName={name} State=DOWN Reason=ResumeTimeout reached [slurm@2026-11-28T09:00:00]\n");
    let fake = Fake::new()
        .reply("start-node *", &[""])
        .reply("scontrol show hostnames *", &["c1\nc2\n"])
        .reply("scontrol --oneliner show node c1", &[&record("c1")])
        .reply("scontrol --oneliner show node c2", &[&record("c2")])
        .fail("scontrol update nodename=c1 *", "Socket timed out")
        .reply("scontrol update nodename=c2 *", &[""]);
    let output = fake.run(&["power", "suspend", "--limit", "20", "c[1-2]", "--", "start-node"]);
    assert!(!output.status.success());
    assert_eq!(fake.changes(), ["c1", "c2"].map(|name| format!("scontrol update nodename={name} state=resume")));
}
