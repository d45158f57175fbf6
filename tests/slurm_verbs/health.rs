//! `slurminit health` and `status`: whether jobs can run, from the status of PID 1 and the answers of slurmctld.

use std::fs;

use super::fake::Fake;
use machine::{PhaseName, Snapshot, Status, UnitSnapshot, UnitState};
use model::prepared::Prepared;

const QUERY: &str = "sinfo *--nodes c1 *";
const IDLE: &str = "up|idle root|none\n";

/// A container whose slurminit is this process, and started this long ago.
pub(crate) fn container(seconds: u64, change: impl Fn(&mut Status)) -> Fake {
    let fake = Fake::new();
    let snapshot = Snapshot {
        phase: PhaseName::Ready,
        ready: true,
        why: "ready".to_owned(),
        prepared: Some(Prepared { node_name: "c1".to_owned(), ..Prepared::default() }),
        ..Snapshot::default()
    };
    let started_ms = sys::monotonic_ms().saturating_sub(seconds * 1000);
    let mut status = Status { version: "0.1.0".to_owned(), process: sys::proc::own_id(), started_ms, snapshot };
    change(&mut status);
    fs::write(fake.path("run/status.json"), serde_json::to_string(&status).unwrap()).unwrap();
    fake
}

/// The exit code and the printed line.
fn health(fake: &Fake, options: &[&str]) -> (Option<i32>, String) {
    let output = fake.run(&[&["health"], options].concat());
    (output.status.code(), String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[test]
fn node_is_ready_if_it_accepts_jobs() {
    let ready = (Some(0), "ready".to_owned());
    assert_eq!(health(&container(0, |_| {}).reply(QUERY, &[IDLE]), &[]), ready);
    for (answer, option, why) in [
        ("up|drained root|fan\n", "--ready", "the node is drained (fan)"),
        ("up|drained root|fan\n", "--allow-draining", "the node is drained (fan)"),
        ("up|draining root|fan\n", "--ready", "the node is draining (fan)"),
        ("inact|idle root|none\n", "--ready", "all partitions of the node are closed"),
        ("up|idle* root|none\n", "--ready", "has not responded"),
        ("", "--ready", "node c1 is in no partition"),
    ] {
        let (code, line) = health(&container(0, |_| {}).reply(QUERY, &[answer]), &[option]);
        assert!(code == Some(1) && line.contains(why), "{answer} {option}: {line}");
    }
    let draining = container(0, |_| {}).reply(QUERY, &["up|draining root|fan\n"]);
    assert_eq!(health(&draining, &["--allow-draining"]), ready, "a job is running on the node");
}

#[test]
fn container_is_not_ready_before_pid_1_reports_it() {
    let starting = container(0, |status| {
        (status.snapshot.ready, status.snapshot.why) = (false, "slurmd is starting".to_owned());
    });
    assert_eq!(health(&starting, &[]), (Some(1), "slurmd is starting".to_owned()));
    assert_eq!(starting.calls(""), [""; 0]);
    let (code, line) = health(&Fake::new(), &[]);
    assert!(code == Some(1) && line.contains("no cluster is running in this container"), "{line}");
    let (code, line) = health(&container(0, |status| status.process.start_ticks += 1), &[]);
    assert!(code == Some(1) && line.contains("is not running"), "{line}");
}

#[test]
fn container_is_live_until_essential_daemon_is_given_up() {
    let unit = |essential| UnitSnapshot {
        name: "munged".to_owned(),
        essential,
        state: UnitState::GivenUp,
        ..UnitSnapshot::default()
    };
    for (essential, code) in [(true, 1), (false, 0)] {
        let fake = container(0, |status| status.snapshot.units = vec![unit(essential)]);
        assert_eq!(health(&fake, &["--live"]).0, Some(code));
    }
    assert_eq!(health(&Fake::new(), &["--live"]).0, Some(1));
}

#[test]
fn waits_until_node_is_ready_or_time_is_over() {
    let drained = "up|drained root|fan\n";
    let fake = container(0, |_| {}).reply(QUERY, &[drained, drained, IDLE]);
    assert_eq!(health(&fake, &["--wait", "60"]).0, Some(0));
    assert_eq!(fake.calls("sinfo").len(), 3);
    let fake = container(0, |_| {}).reply(QUERY, &[drained]);
    let (code, line) = health(&fake, &["--wait", "2.5"]);
    assert!(code == Some(1) && line.contains("fan"), "{line}");
}

#[test]
fn holds_only_cluster_that_has_been_ready_as_long() {
    for (seconds, hold, queries) in [(0, "10", 1), (60, "0.2", 2)] {
        let fake = container(seconds, |_| {}).reply(QUERY, &[IDLE]);
        assert_eq!(health(&fake, &["--hold", hold]).0, Some(0));
        assert_eq!(fake.calls("sinfo").len(), queries, "{seconds}");
    }
    let fake = container(60, |_| {}).reply(QUERY, &[IDLE, "up|drained root|fan\n"]);
    let (code, line) = health(&fake, &["--hold", "0.2"]);
    assert!(code == Some(1) && line.contains("fan"), "{line}");
}

#[test]
fn status_shows_node_that_closed_since_last_report_of_pid_1() {
    for (answer, is_ready, state) in [(IDLE, true, "idle"), ("up|drained root|fan\n", false, "drained")] {
        let fake = container(0, |_| {}).reply("sinfo *", &[answer]);
        let json: serde_json::Value = serde_json::from_str(&fake.succeed(&["status", "--json"])).unwrap();
        assert_eq!((&json["ready"], &json["node"]["state"]), (&is_ready.into(), &state.into()), "{answer}");
        assert!(json["memory_kib"].as_u64().is_some_and(|kib| kib > 100));
    }
    assert!(!Fake::new().run(&["status"]).status.success());
}
