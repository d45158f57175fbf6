//! Finds the processes that have a socket or a file open.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::proc::{self, Process, Stat, parse};

/// The time limit for reading all descriptors.
const DEADLINE: Duration = Duration::from_millis(800);

/// The sockets or files to search for.
#[derive(Clone, Debug)]
pub enum SearchTarget {
    /// Sockets with these inodes.
    Sockets(BTreeSet<u32>),
    /// Files with these paths, even if they are only mapped.
    Files(BTreeSet<String>),
}

impl SearchTarget {
    fn matches(&self, link: &str) -> bool {
        match self {
            Self::Sockets(inodes) => inode(link).is_some_and(|inode| inodes.contains(&inode)),
            Self::Files(paths) => paths.contains(link),
        }
    }
}

/// The processes that have a searched socket or file open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owners {
    /// Processes that have one of them open.
    pub proven: Vec<Process>,
    /// Processes that may have one of them open: see `Evidence::Hidden` and [`find`].
    pub hidden: Vec<Process>,
}

/// Whether the descriptors of a process include a searched socket or file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Evidence {
    /// A searched socket or file is open.
    Proven,
    /// The descriptors cannot be read: the process has other privileges than its user, or is not dumpable (prctl(2), `PR_SET_DUMPABLE`). Or
    /// one of the descriptors can hold files that have no descriptor of their own.
    Hidden,
    /// No searched socket or file is open.
    Nothing,
}

/// The processes among these that have the target open. A process with too many descriptors to be read in time is returned
/// as hidden.
pub fn find(mut processes: Vec<Process>, target: &SearchTarget) -> Owners {
    let until = Instant::now() + DEADLINE;
    // Processes with few descriptors come first, so that a process with a million of them delays no other.
    processes.sort_by_key(|process| process.slots);
    let target = target.clone();
    let found = proc::read_as_owner(&processes, until, move |pid| evidence(pid, &target));
    let mut owners = Owners::default();
    for (process, found) in processes.into_iter().zip(found) {
        match found.unwrap_or(Evidence::Hidden) {
            Evidence::Proven => owners.proven.push(process),
            Evidence::Hidden => owners.hidden.push(process),
            Evidence::Nothing => {}
        }
    }
    owners
}

/// Checks the descriptors of all threads: each thread can have its own (clone(2) without `CLONE_FILES`), and the first one, whose
/// descriptors `/proc/PID/fd` shows, may have ended.
fn evidence(pid: i32, target: &SearchTarget) -> Evidence {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut found = match target {
        SearchTarget::Files(_) => evidence_of_maps(pid, target),
        SearchTarget::Sockets(_) => Evidence::Nothing,
    };
    if found == Evidence::Proven {
        return found;
    }
    for thread in threads {
        match evidence_of_thread(&thread.path(), target) {
            Evidence::Proven => return Evidence::Proven,
            Evidence::Hidden => found = Evidence::Hidden,
            Evidence::Nothing => {}
        }
    }
    found
}

/// Checks the mappings too, because a mapping outlives its descriptor.
fn evidence_of_maps(pid: i32, target: &SearchTarget) -> Evidence {
    match fs::read_to_string(format!("/proc/{pid}/maps")) {
        Ok(maps) => match maps
            .lines()
            .filter_map(|line| line.find('/').and_then(|at| line.get(at..)))
            .any(|path| target.matches(path))
        {
            true => Evidence::Proven,
            false => Evidence::Nothing,
        },
        Err(error) => evidence_of_error(&error),
    }
}

/// A process that denies access may have the target open. Other errors mean that the process has ended or has closed the descriptor.
fn evidence_of_error(error: &std::io::Error) -> Evidence {
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => Evidence::Hidden,
        _ => Evidence::Nothing,
    }
}

fn evidence_of_thread(thread: &Path, target: &SearchTarget) -> Evidence {
    let descriptors = match fs::read_dir(thread.join("fd")) {
        Ok(descriptors) => descriptors,
        Err(error) => return evidence_of_error(&error),
    };
    let mut found = Evidence::Nothing;
    for descriptor in descriptors.flatten() {
        let link = match fs::read_link(descriptor.path()) {
            Ok(link) => link,
            Err(error) => match evidence_of_error(&error) {
                Evidence::Nothing => continue,
                hidden => return hidden,
            },
        };
        let info = || fs::read_to_string(thread.join("fdinfo").join(descriptor.file_name())).unwrap_or_default();
        match link.to_str() {
            Some(link) if target.matches(link) => return Evidence::Proven,
            Some(link) if may_hold_files(link, info) => found = Evidence::Hidden,
            _ => {}
        }
    }
    found
}

/// Whether a descriptor may hold files that have no descriptor of their own: a Unix socket with unread descriptors in its queue
/// (`SCM_RIGHTS`), or an io_uring with registered files (io_uring_register(2)).
fn may_hold_files(link: &str, info: impl FnOnce() -> String) -> bool {
    link == "anon_inode:[io_uring]"
        || link.starts_with("socket:") && parse::field(&info(), "scm_fds").is_some_and(|count| count != "0")
}

/// All living processes of this container that do not belong to root.
pub fn user_processes() -> Vec<Process> {
    living(|uid| uid != 0)
}

/// All living processes of this container.
pub fn container_processes() -> Vec<Process> {
    living(|_| true)
}

/// The living processes of this container whose real user satisfies `is_included`.
fn living(is_included: impl Fn(u32) -> bool) -> Vec<Process> {
    let living = proc::pids().filter_map(Process::read);
    living.filter(|process| !process.is_dead && is_included(process.uid)).collect()
}

/// Whether the process is stopped by a signal (SIGSTOP) or a debugger. A process whose first thread has ended
/// counts as stopped if all its other threads are stopped.
pub fn is_stopped(process: &Process) -> bool {
    if process.state != 'Z' {
        return matches!(process.state, 'T' | 't');
    }
    let threads = fs::read_dir(format!("/proc/{}/task", process.pid)).into_iter().flatten().flatten();
    let states = threads.filter_map(|thread| {
        let text = fs::read(thread.path().join("stat")).ok()?;
        Some(Stat::parse(&String::from_utf8_lossy(&text))?.state)
    });
    states.filter(|state| *state != 'Z').all(|state| matches!(state, 'T' | 't'))
}

/// Parses `socket:[123]`.
fn inode(link: &str) -> Option<u32> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sockets;

    fn process_with_pid(pid: i32) -> Process {
        container_processes().into_iter().find(|process| process.pid == pid).unwrap()
    }

    #[test]
    fn finds_process_with_open_device() {
        let has = |path: &str| {
            let own = process_with_pid(i32::try_from(std::process::id()).unwrap());
            !find(vec![own], &SearchTarget::Files(BTreeSet::from([path.to_owned()]))).proven.is_empty()
        };
        let file = fs::File::open("/dev/full").unwrap();
        assert!(has("/dev/full") && !has("/dev/nvidia0"));
        drop(file);
        assert!(!has("/dev/full"));
        // The program's file is mapped but not open.
        assert!(has(std::env::current_exe().unwrap().to_str().unwrap()));
    }

    #[test]
    fn only_denied_access_hides_files() {
        let found = [nix::Error::EACCES, nix::Error::EPERM, nix::Error::ENOENT, nix::Error::ESRCH]
            .map(|error| evidence_of_error(&error.into()));
        assert_eq!(found, [Evidence::Hidden, Evidence::Hidden, Evidence::Nothing, Evidence::Nothing]);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test, in which nothing else reaps")]
    fn process_whose_first_thread_has_ended_is_stopped_if_its_other_threads_are() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        // The state that the kernel shows for such a process.
        let zombie = || Process { state: 'Z', ..process_with_pid(pid) };
        assert!(!is_stopped(&process_with_pid(pid)) && !is_stopped(&zombie()));
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGSTOP).unwrap();
        while process_with_pid(pid).state != 'T' {
            std::thread::yield_now();
        }
        assert!(is_stopped(&process_with_pid(pid)) && is_stopped(&zombie()));
        child.kill().and_then(|()| child.wait()).unwrap();
    }

    #[test]
    fn parses_inode_of_sockets_only() {
        assert_eq!(inode("socket:[123]"), Some(123));
        assert_eq!(inode("pipe:[123]"), None);
    }

    #[test]
    fn finds_only_process_that_owns_socket() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let inodes: BTreeSet<u32> = sockets::bound(port).unwrap().iter().map(|tcp| tcp.inode).collect();
        let own = process_with_pid(i32::try_from(std::process::id()).unwrap());
        let among = vec![own.clone(), process_with_pid(nix::unistd::getppid().as_raw())];
        assert_eq!(find(among.clone(), &SearchTarget::Sockets(inodes)).proven, [own]);
        assert_eq!(find(among, &SearchTarget::Sockets(BTreeSet::from([1]))).proven, []);
    }

    #[test]
    fn detects_descriptors_that_can_hold_other_files() {
        let info = |count: &str| format!("pos:\t0\nflags:\t02\nscm_fds:\t{count}\n");
        assert!(may_hold_files("socket:[7]", || info("1")) && may_hold_files("anon_inode:[io_uring]", String::new));
        assert!(!may_hold_files("socket:[7]", || info("0")) && !may_hold_files("socket:[7]", String::new));
        assert!(!may_hold_files("pipe:[7]", || info("1")) && !may_hold_files("/dev/null", || info("1")));
    }

    #[test]
    fn socket_in_transit_over_another_socket_is_hidden() {
        use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
        use std::os::fd::AsRawFd as _;
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let inodes: BTreeSet<u32> =
            sockets::bound(socket.local_addr().unwrap().port()).unwrap().iter().map(|tcp| tcp.inode).collect();
        let target = SearchTarget::Sockets(inodes);
        let (sender, _receiver) = std::os::unix::net::UnixStream::pair().unwrap();
        let (files, text) = ([socket.as_raw_fd()], [std::io::IoSlice::new(b"x")]);
        sendmsg::<()>(sender.as_raw_fd(), &text, &[ControlMessage::ScmRights(&files)], MsgFlags::empty(), None)
            .unwrap();
        let own = process_with_pid(i32::try_from(std::process::id()).unwrap());
        assert_eq!(find(vec![own.clone()], &target).proven, vec![own.clone()]);
        drop(socket);
        assert_eq!(find(vec![own.clone()], &target), Owners { hidden: vec![own], ..Owners::default() });
    }
}
