//! Starts a cluster in a container with another PID 1: `slurminit run` without a terminal or pipes, with its log in a file.
//!
//! This is for `docker exec`, which waits until its pipes are closed, and which may kill a shell's background processes when it ends.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::Context as _;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::health::{self, Readiness};
use control::status;
use machine::Status;
use model::exit_code;
use sys::proc::Handle;
use sys::system_calls::{pidfd_open, pidfd_send_signal};
use sys::trusted_path;

/// The log of the last start, readable only by root.
pub const LOG: &str = "/var/log/slurminit.log";
const LOG_DIRECTORY: &str = "/var/log";
const LOG_NAME: &str = "slurminit.log";
/// Maximum number of lines to show from the end of the log.
const MAX_LINES: usize = 20;
/// Maximum number of bytes to read from the end of the log for these lines.
const TAIL_BYTES: u64 = 16 << 10;
/// How much longer than its own deadline a stop may take on a busy machine.
const MARGIN: Duration = Duration::from_secs(10);

/// Outcome of a start.
#[derive(Debug)]
pub enum Outcome {
    /// Jobs can run.
    Ready(Box<Status>),
    /// slurminit has ended with this exit code, which is 128+n after signal n.
    Ended(u8),
    /// The cluster was not ready in time, or slurminit exited just after the cluster was ready. Contains the reason, and whether a late cluster
    /// was stopped.
    Late(String),
}

enum StartEvent {
    Ready(bool, String),
    Ended(std::io::Result<ExitStatus>),
}

/// Starts `slurminit run` with these arguments, and waits at most `limit` until the cluster of this run directory is ready. `stop`: the
/// timeout for stopping the cluster.
///
/// # Errors
/// slurminit cannot be started or waited for, or its log cannot be created.
pub fn start(arguments: &[OsString], directory: &Path, limit: Duration, stop: Duration) -> anyhow::Result<Outcome> {
    let log = new_log().with_context(|| {
        format!("cannot write {LOG}; run `slurminit up` as root, with {LOG_DIRECTORY} writable by root only")
    })?;
    // The directory must exist to be watched. If this fails, slurminit itself reports the reason.
    let _ = trusted_path::make(Path::new("/"), directory, &mut Vec::new());
    let child = spawn(arguments, log).context("cannot start `slurminit run`")?;
    let handle = i32::try_from(child.id()).ok().and_then(pidfd_open);
    let (sender, receiver) = mpsc::channel();
    watch(child, directory.to_owned(), limit, sender);
    Ok(match receiver.recv()? {
        StartEvent::Ready(true, _) => match status::of_running_slurminit(directory) {
            Some(status) => Outcome::Ready(Box::new(status)),
            None => Outcome::Late("slurminit exited just after the cluster was ready".to_owned()),
        },
        StartEvent::Ended(status) => Outcome::Ended(exit_code::of(status?)),
        StartEvent::Ready(false, why) => {
            if let Some(handle) = &handle {
                pidfd_send_signal(handle, libc::SIGTERM);
            }
            let end = match receiver.recv_timeout(stop + MARGIN) {
                Ok(_) => "so the cluster was stopped",
                Err(_) => "and the cluster is still running; run `slurminit stop`",
            };
            let (seconds, why) = (limit.as_secs_f64(), model::printable::line(&why));
            Outcome::Late(format!("not ready within {seconds} s ({why}), {end}"))
        }
    })
}

#[expect(clippy::disallowed_methods, reason = "this process is not PID 1 and may have children")]
fn spawn(arguments: &[OsString], log: File) -> std::io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["run", "--detached"]).args(arguments);
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()
}

/// Reports the child's end and the cluster's readiness, each from its own thread. The threads are not joined: they end with this process at
/// the latest.
#[expect(clippy::disallowed_methods, reason = "this process is not PID 1 and waits only for its own child")]
fn watch(mut child: Child, directory: PathBuf, limit: Duration, sender: mpsc::Sender<StartEvent>) {
    let end_sender = sender.clone();
    // Sending fails only if the receiver no longer exists.
    std::thread::spawn(move || end_sender.send(StartEvent::Ended(child.wait())));
    std::thread::spawn(move || {
        let (ready, why) = health::check_readiness(&directory, Readiness { wait: limit, ..Readiness::default() });
        sender.send(StartEvent::Ready(ready, why))
    });
}

/// Creates an empty file: the log of an earlier start is not kept, and a link in its place is not followed.
fn new_log() -> std::io::Result<File> {
    let directory = trusted_path::open(Path::new("/"), Path::new(LOG_DIRECTORY))?;
    directory.require_ours()?;
    let create = || directory.remove(LOG_NAME).and_then(|()| directory.create(LOG_NAME, 0o600));
    // A concurrent `slurminit up` may create the file between the removal and the creation.
    (0..9).find_map(|_| create().ok()).map_or_else(create, Ok)
}

/// The last lines of the log.
pub fn last_lines() -> Vec<String> {
    let read = || {
        let mut file = trusted_path::open(Path::new("/"), Path::new(LOG_DIRECTORY))?.open_file(LOG_NAME)?;
        let begin = file.metadata()?.len().saturating_sub(TAIL_BYTES);
        file.seek(SeekFrom::Start(begin))?;
        let mut tail = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut tail)?;
        std::io::Result::Ok(String::from_utf8_lossy(&tail).into_owned())
    };
    let text = read().unwrap_or_default();
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines[lines.len().saturating_sub(MAX_LINES)..].to_vec()
}

/// Waits until a slurminit that is not PID 1 has ended, and returns whether it has. Waits at most for `stop`, the timeout for stopping the
/// cluster, plus a margin.
pub fn wait_for_end(status: &Status, stop: Duration) -> bool {
    let Some(handle) = Handle::of(status.process.pid, status.process.start_ticks) else { return true };
    let timeout = PollTimeout::try_from(stop + MARGIN).unwrap_or(PollTimeout::MAX);
    if let Some(descriptor) = handle.descriptor() {
        // An interrupted poll only makes the caller's message less precise.
        let _ = poll(&mut [PollFd::new(descriptor, PollFlags::POLLIN)], timeout);
    }
    !status::is_process_alive(status)
}

/// Detaches this process from the parent's session, working directory and file descriptors. The standard streams are already redirected.
pub fn detach() {
    // setsid fails only for a session leader.
    let _ = nix::unistd::setsid();
    let _ = nix::unistd::chdir("/");
    let numbers = |entry: std::io::Result<std::fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    let open: Vec<i32> = std::fs::read_dir("/proc/self/fd").into_iter().flatten().filter_map(numbers).collect();
    for descriptor in open.into_iter().filter(|descriptor| *descriptor > libc::STDERR_FILENO) {
        // This process has not opened any descriptors yet. The descriptor of the list itself is closed already.
        let _ = nix::unistd::close(descriptor);
    }
}
