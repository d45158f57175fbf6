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

use sys::open_files::{self, Process, Wanted};
use sys::sockets::{self, Tcp};
use sys::users;

use crate::stopped::{self, Stopped};
use model::message;
use sys::report;

/// Timeout of one attempt.
const PATIENCE: Duration = Duration::from_secs(3);
/// A killed process usually releases its sockets within this time.
const LOOK: Duration = Duration::from_millis(20);
/// Maximum number of processes named in a message.
const NAMED: usize = 3;

/// The port of a unit.
#[derive(Clone, Copy, Debug)]
pub struct Port<'a> {
    /// The number.
    pub number: u16,
    /// The unit that needs the port.
    pub unit: &'a str,
    /// The sessions of other units, which may keep the port.
    pub spare: &'a [i32],
}

/// Tries to free the port, and returns whether it is free now. With `again`, the processes of its owner's user are stopped
/// until the unit listens.
pub fn free(port: Port<'_>, again: bool) -> bool {
    let begin = Instant::now();
    let stopped = Stopped::until_listens(port.number);
    let mut attempt =
        Attempt { port, stops: again, stopped, reported_uids: BTreeSet::new(), has_reported_stopped: false };
    let mut outcome = Outcome::Free;
    while is_taken(port.number) {
        if begin.elapsed() >= PATIENCE {
            let Port { number, unit, .. } = port;
            report::warn(message!(
                "port-still-taken",
                "port {port} of {unit} is still taken after {seconds} s",
                port = number,
                unit = unit,
                seconds = PATIENCE.as_secs()
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
    stops: bool,
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
        let Port { number, unit, spare } = self.port;
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
        let sockets = Wanted::Sockets(others.iter().map(|tcp| tcp.inode).collect());
        let who = uids.iter().map(|uid| users::shown(*uid)).collect::<Vec<_>>().join(", ");
        let is_first = uids.iter().any(|uid| !self.reported_uids.contains(uid));
        self.stops |= !is_first;
        if self.stops {
            self.stopped.stop_all(&uids, spare);
        }
        let owners = open_files::find(open_files::processes(), &sockets);
        let (spared, proven): (Vec<_>, Vec<_>) =
            owners.proven.into_iter().partition(|one| spare.contains(&one.session));
        if let Some(owner) = spared.first() {
            report::warn(message!(
                "port-taken",
                "port {port} of {unit} is taken by another unit, process {pid} ({name}) of {user}; give one of them another port",
                port = number,
                unit = unit,
                pid = owner.pid,
                name = owner.name,
                user = who
            ));
            return Outcome::Taken;
        }
        let ended = match proven.is_empty() {
            false => self.end_proven(proven, &uids, &sockets),
            true => self.end_hidden(owners.hidden, &others),
        };
        if ended.is_empty() {
            // It may have ended by itself, or have passed the socket on during the search.
            if !is_taken(number) || !std::mem::replace(&mut self.stops, true) {
                return Outcome::Free;
            }
            report::warn(message!(
                "port-taken",
                "port {port} of {unit} is taken by a process of {user} outside of this container; end it, or set another port",
                port = number,
                unit = unit,
                user = who
            ));
            return Outcome::Taken;
        }
        if is_first {
            report::warn(message!(
                "port-owner-killed",
                "port {port} of {unit} was taken by {processes} of {user}; killed",
                port = number,
                unit = unit,
                processes = named(&ended),
                user = who
            ));
        }
        if self.stops && !std::mem::replace(&mut self.has_reported_stopped, true) {
            report::warn(message!(
                "port-owner-stopped",
                "port {port} of {unit} was taken again by {user}: processes of that user are stopped until it listens",
                port = number,
                unit = unit,
                user = who
            ));
        }
        self.reported_uids.extend(uids);
        Outcome::Free
    }

    /// Stops these, reads again what they have open, and kills those that still have the socket. A user can pass a socket to a process
    /// of another user: such a process ends only if the socket's user has no process with it.
    fn end_proven(&mut self, owners: Vec<Process>, uids: &BTreeSet<u32>, sockets: &Wanted) -> Vec<Process> {
        let (own, others): (Vec<_>, Vec<_>) = owners.into_iter().partition(|one| uids.contains(&one.uid));
        let handles = stopped::handles(if own.is_empty() { others } else { own });
        let _ = handles.iter().all(|(one, handle)| self.stopped.stop(one, handle));
        let again = open_files::find(handles.iter().map(|(one, _)| one.clone()).collect(), sockets);
        for (one, handle) in &handles {
            if again.proven.iter().any(|owner| owner.key() == one.key()) {
                handle.send(Signal::SIGKILL);
            } else if !one.is_stopped {
                self.stopped.resume(one, handle);
            }
        }
        again.proven
    }

    /// Kills those of the sockets' users one after the other until the port is free: by then, the last one had it.
    fn end_hidden(&mut self, hidden: Vec<Process>, sockets: &[&Tcp]) -> Vec<Process> {
        // The kernel reports the socket's user, and with cgroup v2 its cgroup.
        let is_suspect = |one: &Process| {
            let cgroup = |tcp: &Tcp| tcp.cgroup.zip(one.cgroup);
            let created =
                |tcp: &Tcp| tcp.uid == one.uid && cgroup(tcp).is_none_or(|(socket, process)| socket == process);
            !self.port.spare.contains(&one.session) && sockets.iter().any(|tcp| created(tcp))
        };
        let mut suspects: Vec<Process> = hidden.into_iter().filter(is_suspect).collect();
        suspects.sort_by_key(|one| std::cmp::Reverse(one.start));
        let handles = stopped::handles(suspects);
        let _ = handles.iter().all(|(one, handle)| self.stopped.stop(one, handle));
        let mut ended = Vec::new();
        for (one, handle) in &handles {
            if is_taken(self.port.number) {
                handle.send(Signal::SIGKILL);
                ended.push(one.clone());
                stopped::await_end(handle);
                pause();
            } else if !one.is_stopped {
                self.stopped.resume(one, handle);
            }
        }
        ended
    }
}

/// The processes for a message, each with its pid.
pub fn named(owners: &[Process]) -> String {
    let mut names: Vec<String> =
        owners.iter().take(NAMED).map(|owner| format!("process {} ({})", owner.pid, owner.name)).collect();
    if owners.len() > NAMED {
        names.push(format!("{} more", owners.len() - NAMED));
    }
    names.join(", ")
}

#[expect(clippy::disallowed_methods, reason = "the kernel has no event for a free port")]
pub(crate) fn pause() {
    std::thread::sleep(LOOK);
}
