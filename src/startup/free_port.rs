//! Frees a unit's port that another process took while the unit was down.
//!
//! PID 1 runs this in a child. The port cannot be reserved across a restart, because Slurm binds it itself. A process is
//! killed only on proof that it has the port: one of its descriptors is the socket that the kernel lists for the port.
//!
//! A process can hide its descriptors from root without CAP_SYS_PTRACE, and no other interface of the kernel shows who has a
//! socket. If no process shows it, the user that the kernel lists for the socket has hidden it in one of the own processes: those that
//! hide something are stopped, and killed one after the other, the youngest first, until the port is free; the others are resumed. So
//! this can end other hidden processes of the user who holds the port, and no process of another user.
//!
//! If the same user takes the port again, or moved it from process to process during the search, this user's processes are
//! stopped (SIGSTOP) until the unit listens.
//!
//! Everything is done by root: a helper with the user's ID could be killed by the user.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use sys::open_files::{self, Process, SearchTarget};
use sys::sockets::{self, Tcp};
use sys::users;

use crate::stopped::{self, Stopped};
use model::message;
use sys::report;

/// Timeout of one attempt.
const TIMEOUT: Duration = Duration::from_secs(3);
/// A killed process usually releases its sockets within this time.
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
    /// The sessions of other units, which may keep the port.
    pub spared_sessions: &'a [i32],
}

/// Tries to free the port, and returns whether it is free now. `is_repeated`: the port was freed before and is taken again, so the
/// processes of its owner's user are stopped until the unit listens.
pub fn free(port: Port<'_>, is_repeated: bool) -> bool {
    let begin = Instant::now();
    let stopped = Stopped::until_listens(port.number);
    let mut attempt = Attempt {
        port,
        stops_users: is_repeated,
        stopped,
        reported_uids: BTreeSet::new(),
        has_reported_stopped: false,
    };
    let mut outcome = Outcome::Free;
    while is_taken(port.number) {
        if begin.elapsed() >= TIMEOUT {
            let Port { number, unit, .. } = port;
            report::warn(message!(
                "port-still-taken",
                "port {port} of {unit} is still taken after {seconds} s",
                port = number,
                unit = unit,
                seconds = TIMEOUT.as_secs()
            ));
            outcome = Outcome::Taken;
            break;
        }
        outcome = attempt.end_owners();
        if matches!(outcome, Outcome::Taken) {
            break;
        }
        pause();
    }
    attempt.stopped.finish();
    matches!(outcome, Outcome::Free)
}

enum Outcome {
    Free,
    Taken,
}

struct Attempt<'a> {
    port: Port<'a>,
    /// Whether the processes of the owner's user are stopped before the search.
    stops_users: bool,
    stopped: Stopped,
    reported_uids: BTreeSet<u32>,
    has_reported_stopped: bool,
}

/// The standard library sets the same socket option as Slurm.
fn is_taken(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_err_and(|error| error.kind() == ErrorKind::AddrInUse)
}

impl Attempt<'_> {
    /// Ends the processes that have the port.
    fn end_owners(&mut self) -> Outcome {
        let Port { number, unit, spared_sessions } = self.port;
        let bound = sockets::bound(number).unwrap_or_default();
        let (roots, others): (Vec<_>, Vec<_>) = bound.iter().filter(|tcp| tcp.inode != 0).partition(|tcp| tcp.uid == 0);
        if !roots.is_empty() {
            report::warn(message!(
                "port-taken",
                "port {port} of {unit} is taken by a process of root; see `ss -ltnp sport = :{port}`, or set another port",
                port = number,
                unit = unit
            ));
        }
        if others.is_empty() {
            if roots.is_empty() {
                report::warn(message!(
                    "port-taken",
                    "port {port} of {unit} is in use by a process that the kernel does not list; end it, or set another port",
                    port = number,
                    unit = unit
                ));
            }
            return Outcome::Taken;
        }
        let uids: BTreeSet<u32> = others.iter().map(|tcp| tcp.uid).collect();
        let sockets = SearchTarget::Sockets(others.iter().map(|tcp| tcp.inode).collect());
        let owner_users = uids.iter().map(|uid| users::display_name(*uid)).collect::<Vec<_>>().join(", ");
        let is_first = uids.iter().any(|uid| !self.reported_uids.contains(uid));
        self.stops_users |= !is_first;
        if self.stops_users {
            self.stopped.stop_all(&uids, spared_sessions);
        }
        let owners = open_files::find(open_files::user_processes(), &sockets);
        let (spared, proven): (Vec<_>, Vec<_>) =
            owners.proven.into_iter().partition(|process| spared_sessions.contains(&process.session));
        if let Some(owner) = spared.first() {
            report::warn(message!(
                "port-taken",
                "port {port} of {unit} is taken by another unit, process {pid} ({name}) of {user}; give one of them another port",
                port = number,
                unit = unit,
                pid = owner.pid,
                name = owner.name,
                user = owner_users
            ));
            return Outcome::Taken;
        }
        let ended = match proven.is_empty() {
            false => self.end_proven(proven, &uids, &sockets),
            true => self.end_hidden(owners.hidden, &others),
        };
        if ended.is_empty() {
            // It may have ended by itself, or have passed the socket on during the search.
            if !is_taken(number) || !std::mem::replace(&mut self.stops_users, true) {
                return Outcome::Free;
            }
            report::warn(message!(
                "port-taken",
                "port {port} of {unit} is taken by a process of {user} outside of this container; end it, or set another port",
                port = number,
                unit = unit,
                user = owner_users
            ));
            return Outcome::Taken;
        }
        if is_first {
            report::warn(message!(
                "port-owner-killed",
                "port {port} of {unit} was taken by {processes} of {user}; killed",
                port = number,
                unit = unit,
                processes = process_names(&ended),
                user = owner_users
            ));
        }
        if self.stops_users && !std::mem::replace(&mut self.has_reported_stopped, true) {
            report::warn(message!(
                "port-owner-stopped",
                "port {port} of {unit} was taken again by {user}: processes of that user are stopped until it listens",
                port = number,
                unit = unit,
                user = owner_users
            ));
        }
        self.reported_uids.extend(uids);
        Outcome::Free
    }

    /// Stops the processes, reads their descriptors again, and kills those that still have the socket. A user can pass a socket to a process
    /// of another user: such a process ends only if the socket's user has no process with it.
    fn end_proven(&mut self, owners: Vec<Process>, uids: &BTreeSet<u32>, sockets: &SearchTarget) -> Vec<Process> {
        let (of_uids, others): (Vec<_>, Vec<_>) = owners.into_iter().partition(|process| uids.contains(&process.uid));
        let handles = stopped::handles(if of_uids.is_empty() { others } else { of_uids });
        let _ = handles.iter().all(|(process, handle)| self.stopped.stop(process, handle));
        let holding = open_files::find(handles.iter().map(|(process, _)| process.clone()).collect(), sockets);
        for (process, handle) in &handles {
            if holding.proven.iter().any(|owner| owner.key() == process.key()) {
                handle.send(Signal::SIGKILL);
            } else if !process.is_stopped {
                self.stopped.resume(process, handle);
            }
        }
        holding.proven
    }

    /// Kills the hidden processes of the sockets' users one after the other until the port is free: the last one killed had it.
    fn end_hidden(&mut self, hidden: Vec<Process>, sockets: &[&Tcp]) -> Vec<Process> {
        // The kernel reports the socket's user, and with cgroup v2 its cgroup.
        let is_suspect = |process: &Process| {
            let cgroup = |tcp: &Tcp| tcp.cgroup.zip(process.cgroup);
            let created =
                |tcp: &Tcp| tcp.uid == process.uid && cgroup(tcp).is_none_or(|(socket, process)| socket == process);
            !self.port.spared_sessions.contains(&process.session) && sockets.iter().any(|tcp| created(tcp))
        };
        let mut suspects: Vec<Process> = hidden.into_iter().filter(is_suspect).collect();
        suspects.sort_by_key(|process| std::cmp::Reverse(process.start));
        let handles = stopped::handles(suspects);
        let _ = handles.iter().all(|(process, handle)| self.stopped.stop(process, handle));
        let mut ended = Vec::new();
        for (process, handle) in &handles {
            if is_taken(self.port.number) {
                handle.send(Signal::SIGKILL);
                ended.push(process.clone());
                stopped::await_end(handle);
                pause();
            } else if !process.is_stopped {
                self.stopped.resume(process, handle);
            }
        }
        ended
    }
}

/// The processes for a message, each with its pid.
pub fn process_names(owners: &[Process]) -> String {
    let mut names: Vec<String> =
        owners.iter().take(MAX_NAMED).map(|owner| format!("process {} ({})", owner.pid, owner.name)).collect();
    if owners.len() > MAX_NAMED {
        names.push(format!("{} more", owners.len() - MAX_NAMED));
    }
    names.join(", ")
}

#[expect(clippy::disallowed_methods, reason = "the kernel has no event for a free port")]
pub(crate) fn pause() {
    std::thread::sleep(POLL_INTERVAL);
}
