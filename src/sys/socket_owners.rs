//! Finds the processes that have a socket open.
//!
//! Root without CAP_SYS_PTRACE, which Docker withholds, may not read the descriptors of other users' processes; a process
//! of that user may. So a thread takes on that user and group for file access (setfsuid(2)) and keeps root's other IDs: no
//! signal of the user reaches it, and the user cannot forge what it reads.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nix::unistd::{Gid, Uid, setfsgid, setfsuid};

use crate::leftovers::{Handle, printable};
use crate::proc::{self, parse};

/// The limit for reading all descriptors.
const DEADLINE: Duration = Duration::from_millis(800);
/// The inode of the host's cgroup namespace (`PROC_CGROUP_INIT_INO`, `linux/proc_ns.h`).
const HOST_CGROUP_NAMESPACE: &str = "cgroup:[4026531835]";

/// A living process of a user other than root.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process {
    /// The PID.
    pub pid: i32,
    /// The start time in clock ticks, to detect a reused PID.
    pub start: u64,
    /// The real user ID.
    pub uid: u32,
    gid: u32,
    /// The name that the process chose, in printable characters.
    pub name: String,
    /// The session ID, which a unit's processes share.
    pub session: i32,
    /// Whether it is stopped.
    pub is_stopped: bool,
    /// The inode of its cgroup (version 2).
    pub cgroup: Option<u64>,
}

impl Process {
    /// `None` if it has ended.
    pub fn handle(&self) -> Option<Handle> {
        Handle::of(self.pid, self.start)
    }
}

/// The processes that have the sockets open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owners {
    /// One of their descriptors is one of the sockets.
    pub proven: Vec<Process>,
    /// Their descriptors cannot be read: they have other rights than their user, or chose it (prctl(2), `PR_SET_DUMPABLE`).
    pub hidden: Vec<Process>,
}

/// The processes among these that have one of the sockets open.
pub fn find(among: Vec<Process>, inodes: &BTreeSet<u32>) -> Owners {
    let until = Instant::now() + DEADLINE;
    let (tell, told) = mpsc::channel();
    let inodes = inodes.clone();
    let is_root = Uid::effective().is_root();
    // If the thread hangs, it ends with the program.
    let thread = std::thread::Builder::new().spawn(move || {
        for process in among {
            if is_root {
                setfsgid(Gid::from_raw(process.gid));
                setfsuid(Uid::from_raw(process.uid));
            }
            let has = has_one(process.pid, &inodes);
            if tell.send((process, has)).is_err() {
                return;
            }
        }
    });
    let mut owners = Owners::default();
    if thread.is_ok() {
        while let Ok((process, has)) = told.recv_timeout(until.saturating_duration_since(Instant::now())) {
            match has {
                Some(true) => owners.proven.push(process),
                Some(false) => {}
                None => owners.hidden.push(process),
            }
        }
    }
    owners
}

/// `None` if the descriptors cannot be read.
fn has_one(pid: i32, inodes: &BTreeSet<u32>) -> Option<bool> {
    match fs::read_dir(format!("/proc/{pid}/fd")) {
        Ok(entries) => {
            let mut links = entries.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
            Some(links.any(|link| link.to_str().and_then(inode).is_some_and(|inode| inodes.contains(&inode))))
        }
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => None,
        Err(_) => Some(false),
    }
}

/// All living processes of this container of users other than root.
pub fn processes() -> Vec<Process> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let namespace = fs::read_link("/proc/self/ns/cgroup").unwrap_or_default();
    let is_hosts = namespace.as_os_str() == HOST_CGROUP_NAMESPACE;
    let is_here = |process: &Process| {
        let other = fs::read_to_string(format!("/proc/{}/cgroup", process.pid));
        other.is_ok_and(|other| is_same_container(&own, &other, is_hosts))
    };
    proc::pids().filter_map(process).filter(|process| process.uid != 0).filter(is_here).collect()
}

fn process(pid: i32) -> Option<Process> {
    let stat = proc::stat(pid).filter(|stat| !stat.is_dead())?;
    let status = proc::status(pid)?;
    // The real user, and the effective group.
    let ([uid], [_, gid]) = (parse::numbers(&status, "Uid")?, parse::numbers(&status, "Gid")?);
    let (start, session, is_stopped) = (stat.start, stat.session, matches!(stat.state, 'T' | 't'));
    Some(Process { pid, start, uid, gid, name: printable(&stat.name), session, is_stopped, cgroup: cgroup(pid) })
}

/// The socket of a process has the inode of the process's cgroup (`INET_DIAG_CGROUP_ID`).
fn cgroup(pid: i32) -> Option<u64> {
    let lines = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let path = lines.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let unified = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
    let found = unified.iter().find(|root| root.join("cgroup.procs").exists())?.join(path);
    (!path.starts_with("..")).then(|| fs::metadata(found).ok().map(|found| found.ino())).flatten()
}

/// Compares `/proc/PID/cgroup` of two processes: with a shared PID namespace, processes of other containers are visible.
/// Those are outside the root of the own cgroup namespace, or outside the own cgroup where the namespace is the host's.
fn is_same_container(own: &str, other: &str, is_hosts: bool) -> bool {
    fn split(line: &str) -> Option<(&str, &str)> {
        let (hierarchy, rest) = line.split_once(':')?;
        Some((hierarchy, rest.split_once(':')?.1))
    }
    let is_outside = |(hierarchy, path): (&str, &str)| {
        let own = own.lines().filter_map(split).find(|(name, _)| *name == hierarchy).map_or("/", |(_, path)| path);
        let below = path.strip_prefix(own.trim_end_matches('/'));
        let is_below = below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        path == "/.." || path.starts_with("/../") || is_hosts && !is_below
    };
    !other.lines().filter_map(split).any(is_outside)
}

/// `socket:[123]`.
fn inode(link: &str) -> Option<u32> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sockets;

    #[test]
    fn reads_the_inode_of_a_socket_only() {
        assert_eq!(inode("socket:[123]"), Some(123));
        assert_eq!(inode("pipe:[123]"), None);
    }

    #[test]
    fn finds_the_process_that_has_the_socket_and_no_other() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let inodes: BTreeSet<u32> = sockets::bound(port).unwrap().iter().map(|tcp| tcp.inode).collect();
        let own = process(i32::try_from(std::process::id()).unwrap()).unwrap();
        let among = vec![own.clone(), process(nix::unistd::getppid().as_raw()).unwrap()];
        assert_eq!(find(among.clone(), &inodes).proven, [own]);
        assert_eq!(find(among, &BTreeSet::from([1])), Owners::default());
    }

    #[test]
    fn a_process_of_another_container_is_recognized_by_its_cgroup() {
        let same = |own, other| is_same_container(own, other, false);
        assert!(same("0::/\n", "0::/\n") && same("0::/init\n", "0::/system.slice/job_1\n"));
        assert!(!same("0::/\n", "0::/../other\n") && !same("0::/\n", "0::/..\n"));
        assert!(same("4:memory:/\n0::/\n", "4:memory:/\n0::/\n") && same("", ""));
        assert!(!same("4:memory:/\n0::/\n", "4:memory:/../b\n0::/\n"));
        let host = |other| is_same_container("0::/docker/a\n", other, true);
        assert!(host("0::/docker/a\n") && host("0::/docker/a/job\n"));
        assert!(!host("0::/docker/ab\n") && !host("0::/user.slice\n") && !host("0::/\n"));
    }
}
