//! The real binary as PID 1 of a PID namespace of its own: what docs/operations.md describes, seen from outside.
//!
//! Needs root or unprivileged user namespaces for `unshare`; a machine without them fails these tests, loudly.

#![expect(clippy::disallowed_methods, reason = "the tests are the parent that waits; the rule is PID 1's")]
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod cluster;
mod cmd;
mod control;
mod handover;
mod liveness;
mod logs;
mod reaping;
mod reload;

use std::fs;
use std::io::Read as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A slurminit that runs as PID 1.
struct Init {
    unshare: Child,
    pid: i32,
    _leaves_nothing: KillOnPanic,
}

/// A test that fails ends its PID 1, and with it everything in its namespace.
struct KillOnPanic(i32);

impl Drop for KillOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            kill(self.0, 9);
        }
    }
}

/// How it ended and what it said.
struct End {
    code: i32,
    stdout: String,
    stderr: String,
}

impl End {
    /// How often it logged an event of this kind, of this unit. The log must be JSON.
    fn logged(&self, kind: &str, unit: &str) -> usize {
        logged(&self.stderr, kind, unit)
    }
}

/// The name and value of the variable for a log of JSON lines.
const JSON_LOG: (&str, &str) = ("SLURMINIT_LOG_FORMAT", "json");

/// How often a log of JSON lines has an event of this kind, of this unit; one of no unit if that is empty.
fn logged(log: &str, kind: &str, unit: &str) -> usize {
    let lines = log.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    lines.filter(|line| line["kind"] == kind && line["unit"].as_str().unwrap_or_default() == unit).count()
}

/// What has not come after this time never comes. Nothing here is measured by it: a busy machine may be slow.
const PATIENCE: Duration = Duration::from_secs(60);

/// A deadline of slurminit's, in seconds, that lies beyond [`PATIENCE`]: a test that ends did not run into it.
const NEVER: u32 = 600;

fn slurminit() -> &'static str {
    harness::slurminit().to_str().expect("a path of ASCII characters")
}

/// `unshare ... slurminit run ARGS`, with both streams piped. What surrounds the tests may ignore signals (nohup does).
fn as_pid_1(args: &[&str]) -> Command {
    let surroundings = ["--default-signal", "unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "--"];
    let mut command = Command::new("env");
    command.args(surroundings).args([slurminit(), "run"]).args(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// CMD in the role `none`.
fn plain(cmd: &[&str]) -> Command {
    as_pid_1(&[&["--role", "none", "--"], cmd].concat())
}

fn sh(script: &str) -> Command {
    plain(&["sh", "-c", script])
}

impl Init {
    fn start(mut command: Command) -> Self {
        let unshare = command.spawn().expect("unshare(1) runs");
        let pid = wait_for("PID 1", || children(unshare.id()).first().copied());
        Self { unshare, pid, _leaves_nothing: KillOnPanic(pid) }
    }

    fn signal(&self, signal: i32) {
        kill(self.pid, signal);
    }

    /// The children of PID 1, by their pids outside.
    fn children(&self) -> Vec<i32> {
        children(u32::try_from(self.pid).unwrap())
    }

    fn end(self) -> End {
        end(self.unshare)
    }
}

fn run(mut command: impl std::borrow::BorrowMut<Command>) -> End {
    end(command.borrow_mut().spawn().expect("unshare(1) runs"))
}

fn end(mut child: Child) -> End {
    let (stdout, stderr) = (text_of(child.stdout.take()), text_of(child.stderr.take()));
    let status = exit(&mut child);
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap());
    End { code, stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() }
}

/// All that comes through a pipe, read beside whatever else is done.
fn text_of(pipe: Option<impl std::io::Read + Send + 'static>) -> JoinHandle<String> {
    let mut pipe = pipe.unwrap();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Waits for the end of a child, which is killed when that does not come: `unshare` takes its PID 1 with it.
fn exit(child: &mut Child) -> ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        let is_late = start.elapsed() >= PATIENCE;
        if is_late {
            child.kill().unwrap();
        }
        assert!(!is_late, "it did not end within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn children(pid: u32) -> Vec<i32> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

fn kill(pid: i32, signal: i32) {
    let status = Command::new("kill").args([format!("-{signal}"), pid.to_string()]).status().unwrap();
    assert!(status.success(), "kill -{signal} {pid}");
}

/// Polls, as the tests look at the program from outside, where there is no event.
fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(start.elapsed() < PATIENCE, "waited {PATIENCE:?} for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn wait_for_file(path: &Path) -> String {
    wait_for(&path.display().to_string(), || fs::read_to_string(path).ok().filter(|text| text.ends_with('\n')))
}

/// A field of `/proc/PID/status`.
fn status_field(pid: i32, field: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| Some(line.strip_prefix(field)?.strip_prefix(':')?.trim().to_owned()))
}

/// A size of `/proc/PID/status`.
fn kib(pid: i32, field: &str) -> u64 {
    status_field(pid, field).unwrap().trim_end_matches(" kB").parse().unwrap()
}

/// A directory in one of its own: slurminit watches the operator's directory and the one that this lies in, and what others
/// do in `/tmp` would wake it up.
fn scratch() -> (tempfile::TempDir, PathBuf) {
    let keep = tempfile::tempdir().unwrap();
    let directory = keep.path().join("scratch");
    fs::create_dir(&directory).unwrap();
    (keep, directory)
}
