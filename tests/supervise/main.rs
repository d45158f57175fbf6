//! The real binary as PID 1 of a PID namespace: tests the behaviour that docs/operations.md describes.
//!
//! These tests need root. For an ordinary user, docker/test runs them with `as-root`: slurminit trusts no path below a directory of
//! another user, so the script creates a user namespace whose root owns `/`.

#![expect(clippy::disallowed_methods, reason = "a test is not PID 1, so it may wait for the commands it runs")]
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod agent;
mod cluster;
mod cmd;
mod control;
mod free_port;
mod gpu_handover;
mod handover;
mod launches;
mod leftovers;
mod liveness;
mod logs;
mod oci;
mod reaping;
mod reload;
mod token;
mod up;

use std::fs;
use std::io::Read as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A running slurminit with PID 1.
struct Init {
    unshare: Child,
    pid: i32,
    _kill_on_panic: KillOnPanic,
}

/// Kills PID 1 of a failed test, and with it every process in its namespace.
struct KillOnPanic(i32);

impl Drop for KillOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            kill(self.0, 9);
        }
    }
}

/// Exit code and output of a process.
struct End {
    code: i32,
    stdout: String,
    stderr: String,
}

impl End {
    /// The number of logged events of this kind and unit. The log must be JSON.
    fn logged(&self, kind: &str, unit: &str) -> usize {
        logged(&self.stderr, kind, unit)
    }
}

/// The environment variable that selects a log of JSON lines, and its value.
const JSON_LOG: (&str, &str) = ("SLURMINIT_LOG_FORMAT", "json");

/// The number of events of this kind and unit in a JSON log. An empty `unit` matches events without a unit.
fn logged(log: &str, kind: &str, unit: &str) -> usize {
    let lines = log.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    lines.filter(|line| line["kind"] == kind && line["unit"].as_str().unwrap_or_default() == unit).count()
}

/// The timeout of each wait. No assertion measures it, so that slow machines do not fail.
const PATIENCE: Duration = Duration::from_secs(60);

/// A slurminit timeout in seconds that exceeds [`PATIENCE`], so that no passing test reaches it.
const NEVER: u32 = 600;

fn slurminit() -> &'static str {
    harness::slurminit().to_str().expect("a path of ASCII characters")
}

thread_local! {
    /// PID 1 of the cluster that this test started last.
    static PID_1: std::cell::Cell<i32> = const { std::cell::Cell::new(0) };
}

/// A command that runs in the container of this test's cluster, if there is one: the status identifies its writer by a PID of that
/// container and its start time.
fn in_container(program: &str) -> Command {
    let pid = PID_1.get();
    if pid == 0 || !Path::new(&format!("/proc/{pid}")).exists() {
        return Command::new(program);
    }
    let mut command = Command::new("nsenter");
    command.args(["--target", &pid.to_string(), "--pid", "--mount", "--", program]);
    command
}

/// slurminit, for a verb such as `status`.
fn verb_command() -> Command {
    in_container(slurminit())
}

/// `unshare ... slurminit run ARGS` with piped output. The test runner may ignore signals (nohup does); reset them.
fn as_pid_1(args: &[&str]) -> Command {
    let wrapper = ["--default-signal", "unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "--"];
    let mut command = Command::new("env");
    command.args(wrapper).args([slurminit(), "run"]).args(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs CMD with the role `none`.
fn plain(cmd: &[&str]) -> Command {
    as_pid_1(&[&["--role", "none", "--"], cmd].concat())
}

fn sh(script: &str) -> Command {
    plain(&["sh", "-c", script])
}

/// The shell runs the script as PID 1, in its own mount namespace. `$0` is slurminit, and `$1` this directory.
fn container_script(shell: &str, script: &str, directory: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args([
        "--mount",
        "--pid",
        "--fork",
        "--mount-proc",
        "--kill-child",
        "--",
        shell,
        "-c",
        script,
        slurminit(),
    ]);
    command.arg(directory).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

impl Init {
    fn start(mut command: Command) -> Self {
        let unshare = command.spawn().expect("unshare(1) runs");
        let pid = wait_for("PID 1", || children(unshare.id()).first().copied());
        PID_1.set(pid);
        Self { unshare, pid, _kill_on_panic: KillOnPanic(pid) }
    }

    fn signal(&self, signal: i32) {
        kill(self.pid, signal);
    }

    /// The PIDs of the children of PID 1 in the outer namespace.
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

/// Reads a pipe to its end in a thread.
fn text_of(pipe: Option<impl std::io::Read + Send + 'static>) -> JoinHandle<String> {
    let mut pipe = pipe.unwrap();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Waits for a child to exit and kills it after [`PATIENCE`]; `unshare` then kills its PID 1.
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
        assert!(!is_late, "the process did not exit within {PATIENCE:?}");
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

/// Polls until `probe` returns a value: the tests observe the program from outside, where no event is available.
fn wait_for<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = probe() {
            return value;
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

/// A size in `/proc/PID/status`, in KiB.
fn kib(pid: i32, field: &str) -> u64 {
    status_field(pid, field).unwrap().trim_end_matches(" kB").parse().unwrap()
}

/// A directory inside a temporary directory: slurminit watches the operator's directory and its parent, and other
/// programs' changes in `/tmp` would wake it up.
fn scratch() -> (tempfile::TempDir, PathBuf) {
    let keep = tempfile::tempdir().unwrap();
    let directory = keep.path().join("scratch");
    fs::create_dir(&directory).unwrap();
    (keep, directory)
}
