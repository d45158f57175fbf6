//! Finds the processes that have a socket open.
//!
//! Without SYS_PTRACE, which Docker withholds, root may not read the descriptors of other users' processes, but each
//! user may read their own. So this program is started as that user and lists the user's processes. The user could
//! forge its output, so [`find`] only accepts PIDs that belong to that user according to the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use sys::proc;
use sys::proc::parse;
use sys::sockets;
use sys::system_calls::get_xattr;
use sys::tool::Running;

/// A process that has one of the sockets open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketOwner {
    /// The PID.
    pub pid: i32,
    /// The process name, without control characters.
    pub name: String,
    /// The session ID, which a unit's processes share.
    pub session: i32,
}

/// The sockets to search for.
#[derive(Clone, Debug)]
pub enum Which {
    /// Sockets with these inodes.
    Inodes(Vec<u32>),
    /// A TCP socket that is missing from the kernel's tables.
    Unlisted,
}

/// Timeout of the search: the user may stop the searching process.
const PATIENCE: Duration = Duration::from_millis(800);
/// A user usually has one group, or a few.
const GROUPS: usize = 2;
/// More inodes do not fit into a command line, and one is enough to find its process.
const INODES: usize = 500;
const ANSWER: usize = 64 * 1024;

/// This user's processes that have one of the sockets open. Processes may hide their descriptors from each other
/// (prctl(2), `PR_SET_DUMPABLE`): then all of these are suspected.
pub fn own(which: &Which) -> Vec<i32> {
    let uid = nix::unistd::Uid::effective().as_raw();
    let listed = || sockets::all().map(|all| all.iter().map(|tcp| tcp.inode).collect::<BTreeSet<_>>());
    let listed = if matches!(which, Which::Unlisted) { listed() } else { None };
    let is_wanted = |path: &Path, inode: u32| match which {
        Which::Inodes(wanted) => wanted.contains(&inode),
        Which::Unlisted => listed.as_ref().is_some_and(|listed| !listed.contains(&inode)) && is_tcp(path),
    };
    let has = |pid: &i32| match fs::read_dir(format!("/proc/{pid}/fd")) {
        Ok(entries) => entries.flatten().any(|entry| {
            let inode = fs::read_link(entry.path()).ok().and_then(|link| inode(link.to_str()?));
            inode.is_some_and(|inode| is_wanted(&entry.path(), inode))
        }),
        Err(error) => error.kind() == std::io::ErrorKind::PermissionDenied,
    };
    let others = proc::pids().filter(|pid| *pid != nix::unistd::getpid().as_raw() && is_of(*pid, uid));
    others.filter(has).collect()
}

/// Kills all processes of this user, including this one.
pub fn end_own() -> anyhow::Result<()> {
    // For an ordinary user this hits only their own processes; for root it would hit all.
    anyhow::ensure!(!nix::unistd::Uid::effective().is_root(), "not as root");
    let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(-1), nix::sys::signal::Signal::SIGKILL);
    Ok(())
}

/// The processes of this user that have one of the sockets open.
pub fn find(uid: u32, which: &Which) -> Vec<SocketOwner> {
    let mut arguments = Vec::new();
    match which {
        Which::Unlisted => arguments.push("--unlisted".to_owned()),
        Which::Inodes(inodes) => {
            arguments.extend(inodes.iter().take(INODES).map(|inode| format!("--inode={inode}")));
        }
    }
    let mut found = BTreeMap::new();
    for gid in groups(uid) {
        let said = ask(uid, gid, &arguments);
        let pids = said.lines().filter_map(|line| line.trim().parse().ok());
        // The kernel decides who owns a process, so a user cannot claim another user's.
        found.extend(
            pids.filter(|pid| user(*pid).is_some_and(|(of, _)| of == uid))
                .filter_map(|pid| Some((pid, socket_owner(pid)?))),
        );
    }
    found.into_values().collect()
}

/// Kills all processes of this user at once.
pub fn end_all(uid: u32) {
    let gid = groups(uid).into_iter().next().unwrap_or(uid);
    ask(uid, gid, &["--end-all".to_owned()]);
}

/// All users with a process here.
pub fn users() -> BTreeSet<u32> {
    proc::pids().filter_map(|pid| Some(user(pid)?.0)).collect()
}

/// Whether this process belongs to this user.
pub fn is_of(pid: i32, uid: u32) -> bool {
    user(pid).is_some_and(|(of, _)| of == uid)
}

/// User name and ID for messages, such as `daemon (uid 1)`.
pub fn name_of(uid: u32) -> String {
    match nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid)) {
        Ok(Some(user)) => format!("{} (uid {uid})", plain(&user.name)),
        _ => format!("uid {uid}"),
    }
}

/// Runs this program as the user and returns its output. It is killed if it does not end.
fn ask(uid: u32, gid: u32, arguments: &[String]) -> String {
    let Ok(program) = std::env::current_exe() else { return String::new() };
    let mut command = Command::new(program);
    let as_user = command.arg("holders").args(arguments).uid(uid).gid(gid).current_dir("/");
    let said = Running::start(as_user, b"").and_then(|child| child.finish(PATIENCE, ANSWER));
    said.map(|said| String::from_utf8_lossy(&said.stdout).into_owned()).unwrap_or_default()
}

/// The groups of this user's processes: only a process of the same group may read them.
fn groups(uid: u32) -> BTreeSet<u32> {
    let of = proc::pids().filter_map(user).filter(|(of, _)| *of == uid);
    of.map(|(_, gid)| gid).take(GROUPS * GROUPS).collect::<BTreeSet<_>>().into_iter().take(GROUPS).collect()
}

/// The real user and group ID of a process.
fn user(pid: i32) -> Option<(u32, u32)> {
    let status = proc::status(pid)?;
    let ([uid], [gid]) = (parse::numbers(&status, "Uid")?, parse::numbers(&status, "Gid")?);
    Some((uid, gid))
}

fn socket_owner(pid: i32) -> Option<SocketOwner> {
    proc::stat(pid).map(|stat| SocketOwner { pid, name: plain(&stat.name), session: stat.session })
}

/// Makes a user's text safe for a log line.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' }).collect()
}

/// `socket:[123]`.
fn inode(link: &str) -> Option<u32> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// The kernel exposes the protocol of a socket as an attribute of its file (`net/socket.c`).
fn is_tcp(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    let mut value = [0; 16];
    let length = get_xattr(&path, c"system.sockprotoname", &mut value).unwrap_or_default();
    value.get(..length).is_some_and(|value| value.starts_with(b"TCP"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd as _;

    #[test]
    fn recognizes_sockets_by_link_and_protocol() {
        assert_eq!(inode("socket:[123]"), Some(123));
        assert_eq!(inode("pipe:[123]"), None);
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let unix = std::os::unix::net::UnixDatagram::unbound().unwrap();
        let path = |fd: i32| std::path::PathBuf::from(format!("/proc/self/fd/{fd}"));
        assert!(is_tcp(&path(tcp.as_raw_fd())));
        assert!(!is_tcp(&path(unix.as_raw_fd())));
    }

    #[test]
    fn reads_user_name_and_session_of_process() {
        let own = nix::unistd::getpid().as_raw();
        assert_eq!(user(own).map(|(uid, _)| uid), Some(nix::unistd::Uid::current().as_raw()));
        let holder = socket_owner(own).unwrap();
        assert_eq!(holder.session, nix::unistd::getsid(None).unwrap().as_raw());
        assert!(users().contains(&nix::unistd::Uid::current().as_raw()));
        assert_eq!(plain("a\x1b[1m\n"), "a?[1m?");
    }
}
