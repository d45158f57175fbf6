//! `slurminit holders`: which processes have a socket.
//!
//! Without the capability SYS_PTRACE, which Docker does not give, root may not look at the descriptors of other users'
//! processes. Each user may look at their own. So this program is started as that user, and says which of their processes it is. What
//! it says is that user's to forge: [`find`] believes only numbers of processes that are that user's by the kernel's account.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use nix::libc;

use crate::exit_code;
use crate::supervise::sockets;

/// Its command line.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The numbers of the sockets
    #[arg(long)]
    inode: Vec<u32>,
    /// A TCP socket that the kernel's tables do not have: one that is bound, and neither listens nor is connected
    #[arg(long)]
    unlisted: bool,
    /// End all processes of this user instead
    #[arg(long)]
    end_all: bool,
}

/// A process that has one of the sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) pid: i32,
    /// What it calls itself, without anything that a terminal would obey.
    pub(super) name: String,
    /// Its session, which a unit's processes share.
    pub(super) session: i32,
}

/// Which sockets.
#[derive(Clone, Debug)]
pub(super) enum Which {
    /// Those of these numbers.
    Inodes(Vec<u32>),
    /// A TCP socket that the kernel's tables do not have.
    Unlisted,
}

/// How long a look may take: the user may stop whoever looks.
const PATIENCE: Duration = Duration::from_millis(800);
/// A user has one group, or a few.
const GROUPS: usize = 2;
/// More numbers do not fit into a command line, and one is enough to find its process.
const INODES: usize = 500;
/// As much as is read of the answer.
const ANSWER: u64 = 64 * 1024;

/// Does it. A user's processes may forbid each other to look at their descriptors (prctl(2), `PR_SET_DUMPABLE`): they are all
/// suspected.
pub fn run(args: Args) -> anyhow::Result<u8> {
    if args.end_all {
        // Only processes of this user can be hit. Root's would be all.
        anyhow::ensure!(!nix::unistd::Uid::effective().is_root(), "not as root");
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(-1), nix::sys::signal::Signal::SIGKILL);
        return Ok(exit_code::SUCCESS);
    }
    let own = nix::unistd::Uid::effective().as_raw();
    let wanted: BTreeSet<u32> = args.inode.into_iter().collect();
    let listed: Option<BTreeSet<u32>> =
        if args.unlisted { sockets::all().map(|all| all.iter().map(|tcp| tcp.inode).collect()) } else { None };
    let mut lines = String::new();
    for pid in processes().filter(|pid| user(*pid).is_some_and(|(uid, _)| uid == own)) {
        let has = match fs::read_dir(format!("/proc/{pid}/fd")) {
            Ok(entries) => entries.flatten().any(|entry| {
                let inode = fs::read_link(entry.path()).ok().and_then(|link| inode(link.to_str()?));
                inode.is_some_and(|inode| {
                    wanted.contains(&inode)
                        || listed.as_ref().is_some_and(|listed| !listed.contains(&inode) && is_tcp(&entry.path()))
                })
            }),
            Err(error) => error.kind() == std::io::ErrorKind::PermissionDenied,
        };
        if has && pid != nix::unistd::getpid().as_raw() {
            lines.push_str(&format!("{pid}\n"));
        }
    }
    std::io::stdout().lock().write_all(lines.as_bytes())?;
    Ok(exit_code::SUCCESS)
}

/// Which processes of this user have one of the sockets.
pub(super) fn find(uid: u32, which: &Which) -> Vec<Holder> {
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
        // Nobody can make somebody else's process their own.
        found.extend(
            pids.filter(|pid| user(*pid).is_some_and(|(of, _)| of == uid)).filter_map(|pid| Some((pid, holder(pid)?))),
        );
    }
    found.into_values().collect()
}

/// Ends all processes of this user, at once.
pub(super) fn end_all(uid: u32) {
    let gid = groups(uid).into_iter().next().unwrap_or(uid);
    ask(uid, gid, &["--end-all".to_owned()]);
}

/// All users of whom a process runs here.
pub(super) fn users() -> BTreeSet<u32> {
    processes().filter_map(|pid| Some(user(pid)?.0)).collect()
}

/// Whether this process is this user's.
pub(super) fn is_of(pid: i32, uid: u32) -> bool {
    user(pid).is_some_and(|(of, _)| of == uid)
}

/// `nobody (uid 65534)`.
pub(super) fn name_of(uid: u32) -> String {
    match nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid)) {
        Ok(Some(user)) => format!("{} (uid {uid})", plain(&user.name)),
        _ => format!("uid {uid}"),
    }
}

/// Runs this program as the user; returns what it wrote. One that does not end is killed.
#[expect(clippy::disallowed_methods, reason = "this is a child of PID 1, and waits for its own children only")]
fn ask(uid: u32, gid: u32, arguments: &[String]) -> String {
    let Ok(program) = std::env::current_exe() else { return String::new() };
    let child = Command::new(program)
        .arg("holders")
        .args(arguments)
        .uid(uid)
        .gid(gid)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = child else { return String::new() };
    let Some(stdout) = child.stdout.take() else { return String::new() };
    let (said, hear) = channel();
    std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = stdout.take(ANSWER).read_to_end(&mut text);
        let _ = said.send(text);
    });
    let text = hear.recv_timeout(PATIENCE).unwrap_or_default();
    let _ = child.kill();
    let _ = child.wait();
    String::from_utf8_lossy(&text).into_owned()
}

fn processes() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The groups as which this user's processes run: one may look only at those of the same.
fn groups(uid: u32) -> BTreeSet<u32> {
    let of = processes().filter_map(user).filter(|(of, _)| *of == uid);
    of.map(|(_, gid)| gid).take(GROUPS * GROUPS).collect::<BTreeSet<_>>().into_iter().take(GROUPS).collect()
}

/// The real user and group of a process.
fn user(pid: i32) -> Option<(u32, u32)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_ascii_whitespace().next()?.parse().ok()
    };
    Some((field("Uid:")?, field("Gid:")?))
}

fn holder(pid: i32) -> Option<Holder> {
    // `PID (NAME) STATE PARENT GROUP SESSION ...` (proc(5)).
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
    let session = rest.split_ascii_whitespace().nth(3)?.parse().ok()?;
    Some(Holder { pid, name: plain(name), session })
}

/// A user's text, for a line of the log.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' }).collect()
}

/// `socket:[123]`.
fn inode(link: &str) -> Option<u32> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// The kernel tells the protocol of a socket as an attribute of its file (`net/socket.c`).
#[expect(unsafe_code, reason = "nix has no getxattr")]
fn is_tcp(path: &std::path::Path) -> bool {
    use std::os::unix::ffi::OsStrExt as _;
    let Ok(path) = std::ffi::CString::new(path.as_os_str().as_bytes()) else { return false };
    let mut value = [0_u8; 16];
    // SAFETY: both strings end with a NUL, and the length is the buffer's.
    let length = unsafe {
        libc::getxattr(path.as_ptr(), c"system.sockprotoname".as_ptr(), value.as_mut_ptr().cast(), value.len())
    };
    let length = usize::try_from(length).unwrap_or_default();
    value.get(..length).is_some_and(|value| value.starts_with(b"TCP"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd as _;

    #[test]
    fn a_socket_is_known_by_its_link_and_its_protocol() {
        assert_eq!(inode("socket:[123]"), Some(123));
        assert_eq!(inode("pipe:[123]"), None);
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let unix = std::os::unix::net::UnixDatagram::unbound().unwrap();
        let path = |fd: i32| std::path::PathBuf::from(format!("/proc/self/fd/{fd}"));
        assert!(is_tcp(&path(tcp.as_raw_fd())));
        assert!(!is_tcp(&path(unix.as_raw_fd())));
    }

    #[test]
    fn a_process_is_known_by_its_user_its_name_and_its_session() {
        let own = nix::unistd::getpid().as_raw();
        assert_eq!(user(own).map(|(uid, _)| uid), Some(nix::unistd::Uid::current().as_raw()));
        let holder = holder(own).unwrap();
        assert_eq!(holder.session, nix::unistd::getsid(None).unwrap().as_raw());
        assert!(users().contains(&nix::unistd::Uid::current().as_raw()));
        assert_eq!(plain("a\x1b[1m\n"), "a?[1m?");
    }
}
