//! Frees a unit's port that another process took while the unit was down.
//!
//! PID 1 runs this in a child. The port cannot be reserved across a restart, because Slurm binds it itself. A process is
//! killed only on proof that it has the port: one of its descriptors is the socket that the kernel lists for the port.
//!
//! Without CAP_SYS_PTRACE, root cannot read the descriptors of a process that hides them, and no other kernel interface shows which process
//! has a socket. In that case nothing is killed: the user that the kernel lists for the socket is reported, and PID 1 tries again.
//!
//! All of this runs as root: a user could kill a helper that runs with the user's ID.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use model::message;
use sys::open_files::{self, SearchTarget};
use sys::proc::Process;
use sys::{report, sockets, users};

use crate::stopped;

/// Timeout of one attempt.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Pause between two checks. A killed process usually releases its sockets within this time.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum number of processes named in a message.
const MAX_NAMED: usize = 3;

/// The port of a unit.
#[derive(Clone, Copy, Debug)]
pub struct Port<'a> {
    /// The number.
    pub number: u16,
    /// The unit that needs the port.
    pub unit: &'a str,
    /// The sessions of other units, whose processes are not killed.
    pub spared_sessions: &'a [i32],
}

/// Tries to free the port, and returns whether it is free now.
pub fn free(port: Port<'_>) -> bool {
    let begin = Instant::now();
    let mut attempt = Attempt { port, reported_uids: BTreeSet::new(), was_unproven: false };
    while is_taken(port.number) {
        if begin.elapsed() >= TIMEOUT {
            let Port { number, unit, .. } = port;
            report::warn(message!(
                "port-still-taken",
                "port {port} of {unit} is still taken after {seconds} s",
                port = number,
                unit,
                seconds = TIMEOUT.as_secs()
            ));
            return false;
        }
        if !attempt.end_owners() {
            return false;
        }
        pause();
    }
    true
}

/// Whether the port is taken. Like Slurm, the standard library sets SO_REUSEADDR.
fn is_taken(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_err_and(|error| error.kind() == ErrorKind::AddrInUse)
}

struct Attempt<'a> {
    port: Port<'a>,
    /// The users who created sockets whose owners were killed and reported.
    reported_uids: BTreeSet<u32>,
    /// Whether the last search found no process that has the port.
    was_unproven: bool,
}

impl Attempt<'_> {
    /// Kills the processes that provably have the port, unless they belong to root or to another unit. Returns whether to check the port
    /// again.
    fn end_owners(&mut self) -> bool {
        let Port { number, unit, spared_sessions } = self.port;
        let bound = sockets::bound(number).unwrap_or_default();
        let (roots, others): (Vec<_>, Vec<_>) = bound.iter().filter(|tcp| tcp.inode != 0).partition(|tcp| tcp.uid == 0);
        if !roots.is_empty() {
            report::warn(message!(
                "port-taken",
                "port {port} of {unit} is taken by a process of root; find it with `ss -tanp sport = :{port}`, or set another port",
                port = number,
                unit
            ));
        }
        if others.is_empty() {
            if roots.is_empty() {
                report::warn(message!(
                    "port-taken",
                    "port {port} of {unit} is in use, but no process was found that has a socket on it; if this persists, set another port",
                    port = number,
                    unit
                ));
            }
            return false;
        }
        let uids: BTreeSet<u32> = others.iter().map(|tcp| tcp.uid).collect();
        let owner_users = uids.iter().map(|uid| users::display_name(*uid)).collect::<Vec<_>>().join(", ");
        let sockets = SearchTarget::Sockets(others.iter().map(|tcp| tcp.inode).collect());
        let owners = open_files::find(open_files::user_processes(), &sockets);
        let (spared, proven): (Vec<_>, Vec<_>) =
            owners.proven.into_iter().partition(|process| spared_sessions.contains(&process.session));
        if let Some(owner) = spared.first() {
            report::warn(message!(
                "port-taken",
                "port {port} of {unit} is taken by another unit, process {pid} ({name}) of {user}; give one of the two units another port",
                port = number,
                unit,
                pid = owner.pid,
                name = owner.name,
                user = owner_users
            ));
            return false;
        }
        if proven.is_empty() {
            // The first failed search is repeated: the owner may have ended by itself, or have passed the socket on meanwhile.
            if !std::mem::replace(&mut self.was_unproven, true) {
                return true;
            }
            let suspects: Vec<Process> =
                owners.hidden.into_iter().filter(|process| uids.contains(&process.uid)).collect();
            report::warn(message!(
                "port-taken",
                "port {port} of {unit} is taken by {user}: {owner}, or set another port",
                port = number,
                unit = unit,
                user = owner_users,
                owner = match suspects.as_slice() {
                    [] =>
                        "a process outside of this container, or one to which the socket was passed; end it".to_owned(),
                    suspects => format!(
                        "a process whose open files cannot be read, possibly {}; end all processes of this user (pkill -KILL -U {})",
                        process_names(suspects),
                        uids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
                    ),
                }
            ));
            return false;
        }
        self.was_unproven = false;
        let ended = kill(proven, &uids);
        if uids.iter().any(|uid| !self.reported_uids.contains(uid)) {
            report::warn(message!(
                "port-owner-killed",
                "port {port} of {unit} was taken by {processes}, with a socket of {user}; killed",
                port = number,
                unit,
                processes = process_names(&ended),
                user = owner_users
            ));
        }
        self.reported_uids.extend(uids);
        true
    }
}

/// Kills the owners of sockets that these users created, and returns them. A user can pass a socket to a process of another user. Such a
/// process is killed only if no process of these users has one of the sockets.
fn kill(owners: Vec<Process>, uids: &BTreeSet<u32>) -> Vec<Process> {
    let (of_uids, others): (Vec<_>, Vec<_>) = owners.into_iter().partition(|process| uids.contains(&process.uid));
    let ended = if of_uids.is_empty() { others } else { of_uids };
    for handle in ended.iter().filter_map(Process::handle) {
        handle.send(Signal::SIGKILL);
        stopped::await_end(&handle);
    }
    ended
}

/// The processes for a message, each with its pid.
fn process_names(owners: &[Process]) -> String {
    let mut names: Vec<String> =
        owners.iter().take(MAX_NAMED).map(|owner| format!("process {} ({})", owner.pid, owner.name)).collect();
    if owners.len() > MAX_NAMED {
        names.push(format!("{} more", owners.len() - MAX_NAMED));
    }
    names.join(", ")
}

#[expect(clippy::disallowed_methods, reason = "the kernel has no event for a free port")]
fn pause() {
    std::thread::sleep(POLL_INTERVAL);
}
