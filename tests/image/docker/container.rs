//! A running container.

use std::collections::HashMap;
use std::process::{Command, Stdio};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Outcome, docker, is_of_a_busy_machine, records};

/// Executes a command in the container. With SLURMINIT_TEST_RUNC (the state directory of the engine's runc), calls runc
/// directly: the client, daemons and shim behind `docker exec` use as much CPU time as runc, and the tests execute
/// thousands of commands.
fn exec(container: &str, command: &[&str]) -> Outcome {
    static IDS: LazyLock<Mutex<HashMap<String, String>>> = LazyLock::new(Mutex::default);
    let Some(root) = std::env::var_os("SLURMINIT_TEST_RUNC") else {
        return docker(["exec", container].iter().chain(command));
    };
    let cached = IDS.lock().unwrap_or_else(PoisonError::into_inner).get(container).cloned();
    let id = cached.unwrap_or_else(|| {
        let id = docker(["inspect", "--format", "{{.Id}}", container]).ok().trim().to_owned();
        IDS.lock().unwrap_or_else(PoisonError::into_inner).insert(container.to_owned(), id.clone());
        id
    });
    let mut runc = Command::new("runc");
    runc.arg("--root").arg(root).args(["exec", &id]).args(command).stdin(Stdio::null());
    Outcome::of(&runc.output().expect("runc is installed"))
}

/// Sets a unique comment on a node and a job and waits until it appears in both state files of slurmctld.
const SAVED: &str = r#"word=saved-$(date +%s%N); state=/var/lib/slurm/slurmctld
scontrol update nodename="$(sinfo --noheader --Node --format=%N | head -n 1)" comment="$word" || exit
job=$(squeue --noheader --format=%A | head -n 1)
# A job that has just ended is not saved any more.
[ -z "$job" ] || scontrol update jobid="$job" comment="$word" || { squeue --noheader --jobs="$job" 2>/dev/null | grep -q . && exit 1; job=; }
tries=0
until grep -q "$word" $state/node_state && { [ -z "$job" ] || grep -q "$word" $state/job_state; }; do
    [ $((tries += 1)) -lt 1200 ] || exit 1; sleep 0.05
done"#;

/// Wraps scontrol in a script that counts the liveness checks. The replacement is atomic, so no check finds scontrol
/// missing.
const COUNT_ROUNDS: &str = r#"[ -e /run/scontrol ] || {
    cp "$(readlink -f /usr/bin/scontrol)" /run/scontrol
    printf '#!/bin/sh\ngrep -qa liveness "/proc/$PPID/cmdline" && echo >>/run/rounds\nexec /run/scontrol "$@"\n' >/run/counting
    chmod 755 /run/counting && mv /run/counting /usr/bin/scontrol
}
: >/run/rounds"#;

/// A container that is removed on drop.
#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) name: String,
}

impl Container {
    pub(crate) fn exec(&self, command: &[&str]) -> Outcome {
        exec(&self.name, command)
    }

    /// Runs a shell line in the container. Returns its standard output without trailing white space.
    #[track_caller]
    pub(crate) fn sh(&self, line: &str) -> String {
        self.exec(&["sh", "-c", line]).ok().trim_end().to_owned()
    }

    #[track_caller]
    pub(crate) fn wait_until_healthy(&self) {
        let outcome = self.exec(&["slurminit", "health", "--wait", "180"]);
        assert_eq!(outcome.code, 0, "not ready: {}{}\n{}", outcome.stdout, outcome.stderr, self.log());
    }

    /// Waits until PID 1 blocks or catches SIGTERM; before that the kernel drops it. Checks the process name because
    /// runc, which executes PID 1, also catches SIGTERM.
    #[track_caller]
    pub(crate) fn wait_for_handlers(&self) {
        let pid = docker(["inspect", "--format", "{{.State.Pid}}", &self.name]).ok();
        let status = format!("/proc/{}/status", pid.trim());
        let deadline = Instant::now() + Duration::from_secs(120);
        let has_term = |line: &str| {
            let mask = line.strip_prefix("SigBlk:").or_else(|| line.strip_prefix("SigCgt:"));
            mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask >> 14 & 1 == 1)
        };
        let is_ready = |text: String| text.starts_with("Name:\tslurminit") && text.lines().any(has_term);
        while !std::fs::read_to_string(&status).is_ok_and(is_ready) {
            assert!(Instant::now() < deadline, "{status} shows no handler for SIGTERM");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until a shell condition holds in the container. The code is 124 after the timeout.
    pub(crate) fn wait_until(&self, seconds: u32, condition: &str) -> Outcome {
        let line = "until eval \"$0\"; do sleep 0.2; done";
        self.exec(&["timeout", &seconds.to_string(), "sh", "-c", line, condition])
    }

    /// Waits until a shell condition holds in the container. Panics after three minutes.
    #[track_caller]
    pub(crate) fn until(&self, condition: &str) {
        let outcome = self.wait_until(180, condition);
        assert_eq!(outcome.code, 0, "{condition}: {outcome:?}\n{}", self.log());
    }

    /// Waits until the log contains this text and returns how long that took. Panics after two minutes. Only for
    /// messages of Slurm and other programs. slurminit's messages can change: use `until_logged` or the status.
    #[track_caller]
    pub(crate) fn until_said(&self, words: &str) -> Duration {
        let begin = Instant::now();
        self.until_log(words, |log| log.contains(words));
        begin.elapsed()
    }

    /// Waits until the log satisfies the condition. Panics after two minutes.
    #[track_caller]
    pub(crate) fn until_log(&self, what: &str, condition: impl Fn(&str) -> bool) {
        let begin = Instant::now();
        while !condition(&self.log()) {
            assert!(begin.elapsed() < Duration::from_secs(120), "never logged: {what}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits until slurminit has logged an event of this kind and unit; returns how long that took. Requires
    /// `Image::json_log`.
    #[track_caller]
    pub(crate) fn until_logged(&self, kind: &str, unit: Option<&str>) -> Duration {
        let begin = Instant::now();
        let matches = |record: &Value| record["kind"] == kind && unit.is_none_or(|unit| record["unit"] == unit);
        self.until_log(kind, |log| records(log).iter().any(matches));
        begin.elapsed()
    }

    /// slurminit's records of this kind. Requires `Image::json_log`.
    pub(crate) fn records(&self, kind: &str) -> Vec<Value> {
        records(&self.log()).into_iter().filter(|record| record["kind"] == kind).collect()
    }

    /// Warnings and errors from all sources, except those that a busy machine alone can cause. Requires
    /// `Image::json_log`.
    pub(crate) fn warnings(&self) -> Vec<Value> {
        let is_warning = |record: &Value| record["level"] == "warn" || record["level"] == "error";
        records(&self.log()).into_iter().filter(|record| is_warning(record) && !is_of_a_busy_machine(record)).collect()
    }

    /// `slurminit status --json`.
    #[track_caller]
    pub(crate) fn status(&self) -> Value {
        serde_json::from_str(&self.sh("slurminit status --json")).expect("the status is JSON")
    }

    /// The daemon or service with this name in the status.
    #[track_caller]
    pub(crate) fn unit(&self, name: &str) -> Value {
        let status = self.status();
        let units = status["units"].as_array().cloned().unwrap_or_default();
        let unit = units.into_iter().find(|unit| unit["name"] == name);
        assert!(unit.is_some(), "no unit {name}: {status:#}");
        unit.unwrap_or_default()
    }

    /// Waits until slurmctld has saved its current nodes and jobs (every 5 s).
    #[track_caller]
    pub(crate) fn until_saved(&self) {
        self.sh(SAVED);
    }

    /// Waits for complete rounds of liveness checks by counting slurminit's `scontrol ping` calls.
    #[track_caller]
    pub(crate) fn until_liveness_rounds(&self, rounds: u32) {
        self.sh(COUNT_ROUNDS);
        // The last round may still be in progress, so wait for one more.
        self.until(&format!("[ \"$(wc -l </run/rounds)\" -gt {rounds} ]"));
    }

    /// The output of the container.
    pub(crate) fn log(&self) -> String {
        let outcome = docker(["logs", &self.name]);
        outcome.stdout + &outcome.stderr
    }

    /// `docker stop`; returns the container's exit code. Docker sends SIGKILL (code 137) only after two minutes: on a
    /// busy machine, a stop can take longer than the default of 10 s.
    #[track_caller]
    pub(crate) fn stop(&self) -> i32 {
        docker(["stop", "--time", "120", &self.name]).ok();
        self.exit_code()
    }

    /// Waits for the end of the container and returns its exit code.
    #[track_caller]
    pub(crate) fn exit_code(&self) -> i32 {
        docker(["wait", &self.name]).ok().trim().parse().expect("docker wait prints a number")
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // libtest shows the output of failed tests only.
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            println!("the last lines of {}:\n{}", self.name, lines[lines.len().saturating_sub(60)..].join("\n"));
        }
        // `docker run --rm` has usually removed it already.
        docker(["rm", "--force", "--volumes", &self.name]);
    }
}
