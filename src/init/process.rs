//! Starts processes. This is the only place where PID 1 forks.
//!
//! Nothing here blocks: the child reports a failed exec through a pipe, which is read when the child is reaped.
//! If a program is on a disk that hangs, only the child hangs, not PID 1.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::stat::umask;
use nix::unistd::{
    Gid, Pid, Uid, dup2_stderr, dup2_stdin, dup2_stdout, pipe2, setgid, setgroups, setpgid, setsid, setuid, write,
};

use super::limits::LimitCounts;
use machine::{ExternalCause, SpawnFailure};
use model::exit_code::{CMD_NOT_EXECUTABLE, CMD_NOT_FOUND, FAILURE};
use model::message::REPORTS;
use sys::inherited::{Inherited, UMASK, block_all, set_mask};
use sys::init_task::SEARCH_PATH;
use sys::proc;
use sys::system_calls::{fork, kill, pidfd_open, pidfd_send_signal};
use sys::users::User;

/// The size of a pipe for at least 64 messages, in bytes.
const MESSAGE_PIPE_BYTES: libc::c_int = 64 * 4096;

/// The child's exit code if its exec failed. [`exec_failure`] returns the reason.
const EXEC_FAILED: i32 = 127;

/// The destination of a child's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Output {
    /// Both streams into one pipe, for the log.
    Log,
    /// Like `Log`, but each write is one message. A user's text in a daemon's message cannot imitate a separate message.
    Messages,
    /// Standard output into a pipe that slurminit reads; standard error into the log.
    Captured,
    /// slurminit's own streams.
    Inherited,
}

/// A program to execute, and the settings of its process.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) argv: Vec<Vec<u8>>,
    /// The whole environment, `NAME=value`.
    pub(super) env: Vec<Vec<u8>>,
    /// The user to switch to; `None` keeps the current one.
    pub(super) user: Option<User>,
    pub(super) output: Output,
    /// Standard input, as a file of this text; `None` for /dev/null.
    pub(super) input: Option<Vec<u8>>,
    /// Whether this is the container's command, which keeps standard input and gets the terminal.
    pub(super) is_cmd: bool,
    /// Whether to mark the process and all its descendants permanently (see [`leftovers`](sys::leftovers)).
    pub(super) is_marked: bool,
    /// Whether the program is slurminit and sends [reports](model::message::Report).
    pub(super) reports: bool,
}

impl Program {
    /// Adds the variable that requests reports, if the program is slurminit. The container's command does not get the
    /// variable, because its messages are for the user.
    pub(super) fn with_reports(mut self) -> Self {
        self.reports &= !self.is_cmd;
        if self.reports {
            self.env.push(format!("{REPORTS}=1").into_bytes());
        }
        self
    }
}

/// A process that was started.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) pid: Pid,
    /// The process group that the process created. A successor remains in this group.
    pub(super) group: Pid,
    /// A pidfd, which cannot refer to a reused PID; `None` before Linux 5.3, or if it cannot be opened.
    pub(super) handle: Option<OwnedFd>,
    /// A pipe from which four bytes of `errno` can be read if the exec failed.
    pub(super) failure: OwnedFd,
    /// The reading end of the log pipe.
    pub(super) log: Option<OwnedFd>,
    /// Whether a read from the log pipe returns one write, or a piece of one, but never parts of several.
    pub(super) is_packet_mode: bool,
    /// The reading end of the captured output.
    pub(super) captured: Option<OwnedFd>,
    pub(super) uid: Uid,
    /// The limit counters at the start of the process; 0 if the process is not a unit's.
    pub(super) limits: LimitCounts,
}

/// Everything that the child needs, allocated before the fork.
struct ChildSetup<'fd> {
    argv: Vec<CString>,
    envp: Vec<CString>,
    candidates: Vec<CString>,
    user: Option<Credentials>,
    is_cmd: bool,
    is_marked: bool,
    stdin: Option<OwnedFd>,
    stdout: Option<BorrowedFd<'fd>>,
    stderr: Option<BorrowedFd<'fd>>,
    failure: BorrowedFd<'fd>,
}

/// The user that a child becomes.
struct Credentials {
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
}

impl Credentials {
    fn of(user: &User) -> Self {
        let groups = user.groups.iter().map(|group| Gid::from_raw(*group)).collect();
        Self { uid: Uid::from_raw(user.uid), gid: Gid::from_raw(user.gid), groups }
    }
}

/// Starts `program`.
///
/// # Errors
/// A pipe, the standard input or the process cannot be created. [`exec_failure`] returns an error of the exec.
pub(super) fn start(program: &Program, inherited: &Inherited) -> Result<Started, SpawnFailure> {
    let name = program.argv.first().map(|name| String::from_utf8_lossy(name).into_owned()).unwrap_or_default();
    let failed = |action: &str| {
        let action = action.to_owned();
        move |errno: nix::Error| SpawnFailure {
            code: FAILURE,
            message: format!("{action}: {}", errno.desc()),
            shortage: shortage(errno),
        }
    };
    let pipe = || pipe2(OFlag::O_CLOEXEC).map_err(failed(&format!("cannot create a pipe for `{name}`")));
    let (failure, failure_in_child) = pipe()?;
    let packet_pipe = if program.output == Output::Messages { packet_mode_pipe() } else { None };
    let is_packet_mode = packet_pipe.is_some();
    let log = match packet_pipe {
        Some(log) => Some(log),
        None => (program.output != Output::Inherited).then(pipe).transpose()?,
    };
    let captured = (program.output == Output::Captured).then(pipe).transpose()?;
    let stdin = (!program.is_cmd)
        .then(|| stdin_file(program.input.as_deref()))
        .transpose()
        .map_err(failed(&format!("cannot create standard input for `{name}`")))?;
    let uid = program.user.as_ref().map_or_else(Uid::effective, |user| Uid::from_raw(user.uid));
    let log_in_child = log.as_ref().map(|(_, write)| write.as_fd());
    let setup = ChildSetup {
        argv: program.argv.iter().map(|word| c_string(word)).collect(),
        envp: program.env.iter().map(|word| c_string(word)).collect(),
        candidates: candidates(program),
        user: program.user.as_ref().map(Credentials::of),
        is_cmd: program.is_cmd,
        is_marked: program.is_marked,
        stdin,
        stdout: captured.as_ref().map(|(_, write)| write.as_fd()).or(log_in_child),
        stderr: log_in_child,
        failure: failure_in_child.as_fd(),
    };
    match fork_child(&setup, inherited) {
        Err(errno) => Err(failed(&format!("cannot start `{name}`"))(errno)),
        Ok(pid) => {
            let read_end = |pipe: Option<(OwnedFd, OwnedFd)>| pipe.map(|(read, _)| read);
            set_nonblocking(&failure);
            let (handle, log, captured) = (pidfd_open(pid.as_raw()), read_end(log), read_end(captured));
            let limits = LimitCounts::default();
            Ok(Started { pid, group: pid, handle, failure, log, is_packet_mode, captured, uid, limits })
        }
    }
}

/// Standard input of a child: a memory file with this text, or /dev/null.
fn stdin_file(text: Option<&[u8]>) -> nix::Result<OwnedFd> {
    let Some(text) = text else {
        return nix::fcntl::open("/dev/null", OFlag::O_RDONLY | OFlag::O_CLOEXEC, nix::sys::stat::Mode::empty());
    };
    let mut file = File::from(memfd_create("slurminit input", MFdFlags::MFD_CLOEXEC)?);
    let written = file.write_all(text).and_then(|()| file.rewind());
    written.map_err(|error| nix::Error::from_raw(error.raw_os_error().unwrap_or(libc::EIO)))?;
    Ok(file.into())
}

/// A pipe in packet mode (pipe(2)): a read returns one write, or a piece of it of at most 4096 bytes. `None` if
/// the pipe cannot be created.
fn packet_mode_pipe() -> Option<(OwnedFd, OwnedFd)> {
    let pipe = pipe2(OFlag::O_CLOEXEC | OFlag::O_DIRECT).ok()?;
    // Each write occupies a page. If the pipe cannot grow, 16 pages must suffice.
    let _ = fcntl(&pipe.0, FcntlArg::F_SETPIPE_SZ(MESSAGE_PIPE_BYTES));
    Some(pipe)
}

/// The error that prevented the child from executing the program, if the child reported one.
pub(super) fn exec_failure(started: &Started, program: &Program) -> Option<SpawnFailure> {
    let mut errno = [0; 4];
    if nix::unistd::read(&started.failure, &mut errno) != Ok(errno.len()) {
        return None;
    }
    let errno = nix::Error::from_raw(i32::from_ne_bytes(errno));
    let name = program.argv.first().map(|name| String::from_utf8_lossy(name).into_owned()).unwrap_or_default();
    let (code, reason) = match errno {
        nix::Error::ENOENT => (CMD_NOT_FOUND, "not found (no such file, not in PATH, or its interpreter is missing)"),
        nix::Error::EPERM => (
            CMD_NOT_EXECUTABLE,
            "not permitted (a switch to another user requires root with the capabilities SETUID and SETGID; \
             a program with file capabilities requires a container that has all of them)",
        ),
        errno => (CMD_NOT_EXECUTABLE, errno.desc()),
    };
    let message = format!("`{name}` cannot be executed: {reason}");
    Some(SpawnFailure { code, message, shortage: exec_shortage(errno) })
}

/// The shortage that an error of setuid(2) or execve(2) indicates. These calls fail with EAGAIN only because of RLIMIT_NPROC; a limit of
/// the container makes the fork fail.
fn exec_shortage(errno: nix::Error) -> Option<ExternalCause> {
    if errno == nix::Error::EAGAIN { Some(ExternalCause::UserProcesses) } else { shortage(errno) }
}

/// The resource shortage that an error indicates; `None` for errors of other kinds.
fn shortage(errno: nix::Error) -> Option<ExternalCause> {
    match errno {
        nix::Error::EAGAIN => Some(ExternalCause::Processes),
        nix::Error::ENOMEM => Some(ExternalCause::Memory),
        nix::Error::EMFILE | nix::Error::ENFILE => Some(ExternalCause::Descriptors),
        _ => None,
    }
}

/// Sends a signal to exactly this process. A zombie ignores it.
pub(super) fn signal_process(started: &Started, signal: i32) {
    match &started.handle {
        Some(handle) => pidfd_send_signal(handle, signal),
        None => kill(started.pid.as_raw(), signal),
    }
}

/// Sends SIGCONT to a stopped process (STOP, Ctrl-Z). A process that is not stopped receives no signal, because it may
/// catch SIGCONT.
pub(super) fn continue_if_stopped(started: &Started) {
    if proc::stat(started.pid.as_raw()).is_some_and(|stat| stat.state == 'T') {
        signal_process(started, libc::SIGCONT);
    }
}

/// Sends a signal to the process group. The process has not been reaped yet, so the group ID is still valid.
pub(super) fn signal_group(started: &Started, signal: i32) {
    kill(-started.group.as_raw(), signal);
    // The child may not have created its group yet.
    signal_process(started, signal);
}

/// The paths to try, as in `execvp`. Unlike in `execvp`, a file of unknown format is an error and not run as a shell script.
fn candidates(program: &Program) -> Vec<CString> {
    let Some(name) = program.argv.first() else { return Vec::new() };
    if name.contains(&b'/') || name.is_empty() {
        return vec![c_string(name)];
    }
    let path = program.env.iter().find_map(|pair| pair.strip_prefix(b"PATH="));
    let path = path.unwrap_or(SEARCH_PATH.as_bytes());
    std::env::split_paths(OsStr::from_bytes(path))
        .map(|directory| c_string(directory.join(OsStr::from_bytes(name)).as_os_str().as_bytes()))
        .collect()
}

/// Converts a string for execve(2). TOML strings can contain a NUL, but C strings cannot, so the string is cut at the first NUL.
fn c_string(bytes: &[u8]) -> CString {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    CString::new(bytes.get(..end).unwrap_or_default()).unwrap_or_default()
}

fn fork_child(setup: &ChildSetup<'_>, inherited: &Inherited) -> nix::Result<Pid> {
    // Until its exec the child must not run this process's handlers, which would swallow a signal sent to the child.
    let mask = block_all();
    // `fork` requires a process with a single thread. PID 1 has only one.
    let forked = fork(|| {
        let errno = become_program(setup, inherited) as i32;
        let _ = write(setup.failure, &errno.to_ne_bytes());
        EXEC_FAILED
    });
    set_mask(mask);
    let child = forked?;
    if setup.is_cmd {
        // Parent and child both do this, because either may run first.
        let _ = setpgid(child, child);
    }
    Ok(child)
}

/// Turns this child into the program. Returns only on failure.
fn become_program(setup: &ChildSetup<'_>, inherited: &Inherited) -> nix::Error {
    match set_up(setup) {
        Ok(()) => {
            inherited.restore();
            if !setup.is_cmd {
                umask(UMASK);
            }
            execute(setup)
        }
        Err(errno) => errno,
    }
}

fn set_up(setup: &ChildSetup<'_>) -> nix::Result<()> {
    if setup.is_cmd {
        setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
        take_terminal();
    } else {
        setsid()?;
    }
    // The copies of the descriptors are not closed at the exec.
    setup.stdin.as_ref().map_or(Ok(()), dup2_stdin)?;
    setup.stdout.map_or(Ok(()), dup2_stdout)?;
    setup.stderr.map_or(Ok(()), dup2_stderr)?;
    if setup.is_marked {
        mark();
    }
    if let Some(user) = &setup.user {
        setgroups(&user.groups)?;
        setgid(user.gid)?;
        setuid(user.uid)?;
    }
    Ok(())
}

/// Marks a process by lowering RLIMIT_LOCKS, a hard limit that Linux has not enforced since 2.4 (setrlimit(2)). All
/// descendants inherit it, anyone can read it, and raising it again takes CAP_SYS_RESOURCE. If it cannot be lowered,
/// the process stays unmarked.
fn mark() {
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_LOCKS) {
        let lower = hard.saturating_sub(1);
        let _ = setrlimit(Resource::RLIMIT_LOCKS, lower, lower);
    }
}

/// Tries each candidate. The most specific error wins, as with `execvp`.
fn execute(setup: &ChildSetup<'_>) -> nix::Error {
    let mut error = nix::Error::ENOENT;
    for file in &setup.candidates {
        let Err(errno) = nix::unistd::execve(file, &setup.argv, &setup.envp);
        match errno {
            nix::Error::ENOENT | nix::Error::ENOTDIR => {}
            nix::Error::EACCES => error = errno,
            errno => return errno,
        }
    }
    error
}

/// Makes this process's group the terminal's foreground group, if there is a terminal.
fn take_terminal() {
    if nix::unistd::isatty(std::io::stdin()).unwrap_or(false) {
        // Until this call succeeds, the process is in the background, and the kernel would stop it for the attempt. SIGTTOU is already ignored here.
        let _ = nix::unistd::tcsetpgrp(std::io::stdin(), nix::unistd::getpid());
    }
}

fn set_nonblocking(fd: &OwnedFd) {
    let _ = nix::fcntl::fcntl(fd, nix::fcntl::FcntlArg::F_SETFL(OFlag::O_NONBLOCK));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exec_error_shows_which_resource_is_short() {
        assert_eq!(exec_shortage(nix::Error::EAGAIN), Some(ExternalCause::UserProcesses));
        assert_eq!(shortage(nix::Error::EAGAIN), Some(ExternalCause::Processes), "a fork");
        assert_eq!(exec_shortage(nix::Error::ENOMEM), Some(ExternalCause::Memory));
        for errno in [nix::Error::EMFILE, nix::Error::ENFILE] {
            assert_eq!(exec_shortage(errno), Some(ExternalCause::Descriptors));
        }
        assert_eq!(exec_shortage(nix::Error::ENOENT), None);
    }

    #[test]
    fn word_of_command_line_ends_at_nul() {
        assert_eq!(c_string(b"--name=\0rest").as_bytes(), b"--name=");
        assert_eq!(c_string(b"whole").as_bytes(), b"whole");
    }
}
