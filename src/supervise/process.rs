//! Starting a process. The only place that forks for PID 1.
//!
//! EDGE. Nothing here waits: whether the program could be executed is written by the child into a pipe, and read when
//! the child is reaped. A program on a disk that hangs costs its own child, and PID 1 nothing.

use std::ffi::{CString, OsStr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;

use nix::fcntl::OFlag;
use nix::libc;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{ForkResult, Gid, Pid, Uid, User, fork, getgrouplist, pipe2};

use super::limits::Counts;
use super::machine::{Fault, SpawnFailure};
use super::signals::Inherited;
use crate::exit_code::{CMD_NOT_EXECUTABLE, CMD_NOT_FOUND, FAILURE};

/// Where a child's output goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Output {
    /// Both streams into one pipe, for the log.
    Log,
    /// Standard output into a pipe that slurminit reads; standard error into the log.
    Captured,
    /// Slurminit's own.
    Inherited,
}

/// What to execute, and how.
#[derive(Clone, Debug)]
pub(super) struct Program {
    /// Program and arguments.
    pub(super) argv: Vec<Vec<u8>>,
    /// The whole environment, `NAME=value`.
    pub(super) env: Vec<Vec<u8>>,
    /// The user to become; `None` stays.
    pub(super) user: Option<String>,
    /// Its output.
    pub(super) output: Output,
    /// Whether it is the container's command: it keeps standard input and gets the terminal.
    pub(super) is_cmd: bool,
    /// Whether all that descends from it is marked, for good ([`leftovers`](crate::leftovers)).
    pub(super) is_marked: bool,
}

/// A process that was started.
#[derive(Debug)]
pub(super) struct Started {
    /// Its process id.
    pub(super) pid: Pid,
    /// Its process group, made by the process that was started; a successor of that one stays in it.
    pub(super) group: Pid,
    /// A handle that cannot come to mean another process; `None` before Linux 5.3.
    pub(super) handle: Option<OwnedFd>,
    /// Holds four bytes of `errno` if the program could not be executed.
    pub(super) failure: OwnedFd,
    /// The end of its log pipe.
    pub(super) log: Option<OwnedFd>,
    /// The end of its captured output.
    pub(super) captured: Option<OwnedFd>,
    /// The user that it runs as.
    pub(super) uid: Uid,
    /// The counts of the container's limits at its start.
    pub(super) limits: Counts,
}

struct Credentials {
    uid: Uid,
    gid: Gid,
    groups: Vec<libc::gid_t>,
}

/// Everything that the child needs, made before the fork.
struct Prepared {
    argv: Vec<CString>,
    envp: Vec<CString>,
    candidates: Vec<CString>,
    credentials: Option<Credentials>,
    is_cmd: bool,
    is_marked: bool,
    stdin: Option<OwnedFd>,
    stdout: Option<RawFd>,
    stderr: Option<RawFd>,
    failure: RawFd,
}

/// Starts `program`.
///
/// # Errors
/// What can be known before it is executed: no such user, no process or descriptor left.
pub(super) fn start(program: &Program, inherited: &Inherited) -> Result<Started, SpawnFailure> {
    let name = program.argv.first().map(|name| String::from_utf8_lossy(name).into_owned()).unwrap_or_default();
    let failed = |what: &str| {
        let what = what.to_owned();
        move |errno: nix::Error| SpawnFailure {
            code: FAILURE,
            message: format!("{what}: {}", errno.desc()),
            fault: fault(errno),
        }
    };
    let credentials = program.user.as_deref().map(credentials).transpose()?.flatten();
    let pipe = || pipe2(OFlag::O_CLOEXEC).map_err(failed(&format!("no pipe for `{name}`")));
    let (failure, failure_in_child) = pipe()?;
    let log = (program.output != Output::Inherited).then(pipe).transpose()?;
    let captured = (program.output == Output::Captured).then(pipe).transpose()?;
    let null = (!program.is_cmd)
        .then(|| nix::fcntl::open("/dev/null", OFlag::O_RDONLY | OFlag::O_CLOEXEC, nix::sys::stat::Mode::empty()))
        .transpose()
        .map_err(failed("/dev/null"))?;
    let uid = credentials.as_ref().map_or_else(Uid::effective, |credentials| credentials.uid);
    let log_in_child = log.as_ref().map(|(_, write)| write.as_raw_fd());
    let prepared = Prepared {
        argv: program.argv.iter().map(|word| c_string(word)).collect(),
        envp: program.env.iter().map(|word| c_string(word)).collect(),
        candidates: candidates(program),
        credentials,
        is_cmd: program.is_cmd,
        is_marked: program.is_marked,
        stdin: null,
        stdout: captured.as_ref().map(|(_, write)| write.as_raw_fd()).or(log_in_child),
        stderr: log_in_child,
        failure: failure_in_child.as_raw_fd(),
    };
    match fork_child(&prepared, inherited) {
        Err(errno) => Err(failed(&format!("cannot start `{name}`"))(errno)),
        Ok(pid) => {
            let ours = |pipe: Option<(OwnedFd, OwnedFd)>| pipe.map(|(read, _)| read);
            set_nonblocking(&failure);
            let (handle, log, captured) = (pidfd_open(pid), ours(log), ours(captured));
            Ok(Started { pid, group: pid, handle, failure, log, captured, uid, limits: Counts::default() })
        }
    }
}

/// What the child wrote into its failure pipe, if it did.
pub(super) fn failure_of(started: &Started, program: &Program) -> Option<SpawnFailure> {
    let mut errno = [0; 4];
    if nix::unistd::read(&started.failure, &mut errno) != Ok(errno.len()) {
        return None;
    }
    let errno = nix::Error::from_raw(i32::from_ne_bytes(errno));
    let name = program.argv.first().map(|name| String::from_utf8_lossy(name).into_owned()).unwrap_or_default();
    let (code, what) = match errno {
        nix::Error::ENOENT => (CMD_NOT_FOUND, "not found (no such file, or none of that name in PATH)"),
        nix::Error::EPERM => (
            CMD_NOT_EXECUTABLE,
            "not permitted (to become the daemon's user slurminit must be root, with the capabilities SETUID and SETGID)",
        ),
        errno => (CMD_NOT_EXECUTABLE, errno.desc()),
    };
    Some(SpawnFailure { code, message: format!("`{name}` cannot be executed: {what}"), fault: fault(errno) })
}

/// What of the surroundings an error tells of; any other is the program's own.
fn fault(errno: nix::Error) -> Option<Fault> {
    match errno {
        nix::Error::EAGAIN => Some(Fault::Processes),
        nix::Error::ENOMEM => Some(Fault::Memory),
        nix::Error::EMFILE | nix::Error::ENFILE => Some(Fault::Descriptors),
        _ => None,
    }
}

/// Sends a signal to exactly this process. One that has ended and is not reaped yet takes it without effect.
pub(super) fn send(started: &Started, signal: i32) {
    match &started.handle {
        Some(handle) => pidfd_send_signal(handle, signal),
        None => kill(started.pid.as_raw(), signal),
    }
}

/// Sends a signal to its whole process group. The caller has not reaped it, so the number is still its own.
pub(super) fn send_group(started: &Started, signal: i32) {
    kill(-started.group.as_raw(), signal);
    // Before the child has made its group there is none.
    send(started, signal);
}

fn credentials(name: &str) -> Result<Option<Credentials>, SpawnFailure> {
    let unknown = |why: String, fault| SpawnFailure { code: FAILURE, message: format!("user `{name}` {why}"), fault };
    let user = User::from_name(name)
        .map_err(|errno| unknown(format!("cannot be looked up: {}", errno.desc()), fault(errno)))?
        .ok_or_else(|| unknown("does not exist in this container; create it or set `user`".to_owned(), None))?;
    if user.uid == Uid::effective() {
        return Ok(None);
    }
    let groups = getgrouplist(&c_string(name.as_bytes()), user.gid)
        .map_err(|errno| unknown(format!("has no readable groups: {}", errno.desc()), fault(errno)))?;
    Ok(Some(Credentials { uid: user.uid, gid: user.gid, groups: groups.iter().map(|gid| gid.as_raw()).collect() }))
}

/// The files to try, as `execvp` would; but a file of no known format is an error, not a shell script.
fn candidates(program: &Program) -> Vec<CString> {
    let Some(name) = program.argv.first() else { return Vec::new() };
    if name.contains(&b'/') || name.is_empty() {
        return vec![c_string(name)];
    }
    let path = program.env.iter().find_map(|pair| pair.strip_prefix(b"PATH="));
    let path = path.unwrap_or(b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    std::env::split_paths(OsStr::from_bytes(path))
        .map(|directory| c_string(directory.join(OsStr::from_bytes(name)).as_os_str().as_bytes()))
        .collect()
}

/// A word with a NUL inside cannot come from a command line; from TOML it can, and is cut there.
fn c_string(bytes: &[u8]) -> CString {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    CString::new(bytes.get(..end).unwrap_or_default()).unwrap_or_default()
}

#[expect(unsafe_code, reason = "fork")]
fn fork_child(prepared: &Prepared, inherited: &Inherited) -> nix::Result<Pid> {
    // SAFETY: slurminit has one thread, so the child may do anything that the parent may.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => {
            if prepared.is_cmd {
                // Both sides do it, so that it is done whoever comes first.
                let _ = nix::unistd::setpgid(child, child);
            }
            Ok(child)
        }
        ForkResult::Child => {
            let errno = become_program(prepared, inherited) as i32;
            // SAFETY: plain system calls on a descriptor that is open; nothing of the parent's is run at the end.
            unsafe {
                libc::write(prepared.failure, errno.to_ne_bytes().as_ptr().cast(), 4);
                libc::_exit(127)
            }
        }
    }
}

/// Turns this child into the program; returns only to say why not.
#[expect(unsafe_code, reason = "dup2 onto the standard descriptors, and execve with arrays made before the fork")]
fn become_program(prepared: &Prepared, inherited: &Inherited) -> nix::Error {
    let own_group = if prepared.is_cmd {
        nix::unistd::setpgid(Pid::from_raw(0), Pid::from_raw(0)).map(|()| take_terminal())
    } else {
        nix::unistd::setsid().map(drop)
    };
    if let Err(errno) = own_group {
        return errno;
    }
    let wanted = [(prepared.stdin.as_ref().map(AsRawFd::as_raw_fd), 0), (prepared.stdout, 1), (prepared.stderr, 2)];
    for (from, to) in wanted {
        // SAFETY: both are plain descriptors of this process; the copy has no close-on-exec.
        if from.is_some_and(|from| unsafe { libc::dup2(from, to) } < 0) {
            return nix::Error::last();
        }
    }
    if prepared.is_marked {
        mark();
    }
    if let Some(Credentials { uid, gid, groups }) = &prepared.credentials {
        // SAFETY: the pointer and the length are of the same vector.
        if unsafe { libc::setgroups(groups.len(), groups.as_ptr()) } != 0 {
            return nix::Error::last();
        }
        if let Err(errno) = nix::unistd::setgid(*gid).and_then(|()| nix::unistd::setuid(*uid)) {
            return errno;
        }
    }
    inherited.restore();
    execute(prepared)
}

/// Lowers a hard limit that Linux has not heeded since 2.4 (RLIMIT_LOCKS, setrlimit(2)): whoever descends from this process
/// has it, in the sight of all, and nobody can raise it again without CAP_SYS_RESOURCE. Where it cannot be lowered, nothing
/// is marked.
fn mark() {
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_LOCKS) {
        let lower = hard.saturating_sub(1);
        let _ = setrlimit(Resource::RLIMIT_LOCKS, lower, lower);
    }
}

/// Tries each candidate; the most telling error wins, as with `execvp`.
fn execute(prepared: &Prepared) -> nix::Error {
    let mut last = nix::Error::ENOENT;
    for file in &prepared.candidates {
        let Err(errno) = nix::unistd::execve(file, &prepared.argv, &prepared.envp);
        match errno {
            nix::Error::ENOENT | nix::Error::ENOTDIR => {}
            nix::Error::EACCES => last = errno,
            errno => return errno,
        }
    }
    last
}

/// Makes this process's group the terminal's foreground group, if there is a terminal.
fn take_terminal() {
    if nix::unistd::isatty(std::io::stdin()).unwrap_or(false) {
        // In the background until it has worked: the kernel would stop us for trying. SIGTTOU is ignored here already.
        let _ = nix::unistd::tcsetpgrp(std::io::stdin(), nix::unistd::getpid());
    }
}

fn set_nonblocking(fd: &OwnedFd) {
    let _ = nix::fcntl::fcntl(fd, nix::fcntl::FcntlArg::F_SETFL(OFlag::O_NONBLOCK));
}

#[expect(unsafe_code, reason = "nix has no pidfd")]
pub(super) fn pidfd_open(pid: Pid) -> Option<OwnedFd> {
    // SAFETY: a system call without pointers; the descriptor it returns is new and nobody else's.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0);
        i32::try_from(fd).ok().filter(|fd| *fd >= 0).map(|fd| OwnedFd::from_raw_fd(fd))
    }
}

#[expect(unsafe_code, reason = "nix has no pidfd")]
fn pidfd_send_signal(handle: &OwnedFd, signal: i32) {
    // SAFETY: a null siginfo asks the kernel to fill it in as kill() does.
    unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, handle.as_raw_fd(), signal, std::ptr::null::<libc::siginfo_t>(), 0)
    };
}

#[expect(unsafe_code, reason = "nix's kill takes no real-time signal")]
pub(super) fn kill(pid: libc::pid_t, signal: i32) {
    // SAFETY: a system call without pointers. A process that is gone is no error.
    unsafe { libc::kill(pid, signal) };
}
