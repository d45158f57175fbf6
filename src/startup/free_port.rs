//! Frees a unit's port that another process took while the unit was down.
//!
//! PID 1 runs this in a child. The port cannot be reserved across a restart, because Slurm binds it itself. So if
//! a process of an ordinary user has it, that process is killed, and all processes of that user if they take it again.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::socket_owners::{self, SocketOwner, Which};
use sys::sockets;

/// Timeout of one attempt.
const PATIENCE: Duration = Duration::from_secs(3);
/// A killed process usually releases its sockets within this time.
const LOOK: Duration = Duration::from_millis(20);
/// Maximum number of processes named in a message.
const NAMED: usize = 3;

/// Tries to free the port of this unit, and returns whether it is free now. `spare` are the sessions of other units.
/// With `again`, all processes of the thief's user are killed.
pub fn free(port: u16, unit: &str, spare: &[i32], again: bool) -> bool {
    let begin = Instant::now();
    let mut seen = BTreeSet::new();
    while is_taken(port) {
        if begin.elapsed() >= PATIENCE {
            eprintln!("warning: port {port} of {unit} is still in use after {} s", PATIENCE.as_secs());
            return false;
        }
        if !end_holders(port, unit, spare, again, &mut seen) {
            return false;
        }
        pause();
    }
    true
}

/// The standard library sets the same socket option as Slurm.
fn is_taken(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_err_and(|error| error.kind() == ErrorKind::AddrInUse)
}

/// The users who may own the port, and the sockets to search for in their processes.
fn suspects(port: u16) -> (BTreeSet<u32>, Which) {
    let bound = sockets::bound(port).unwrap_or_default();
    let users: BTreeSet<u32> = bound.iter().filter(|tcp| tcp.inode != 0).map(|tcp| tcp.uid).collect();
    if users.is_empty() {
        // The port is bound without listening, which the kernel's tables do not show.
        return (socket_owners::users().into_iter().filter(|uid| *uid != 0).collect(), Which::Unlisted);
    }
    (users, Which::Inodes(bound.iter().map(|tcp| tcp.inode).collect()))
}

/// Kills the processes that own the port. Returns whether any was killed.
fn end_holders(port: u16, unit: &str, spare: &[i32], again: bool, seen: &mut BTreeSet<u32>) -> bool {
    let (users, which) = suspects(port);
    let mut ended = false;
    for uid in users {
        let who = socket_owners::name_of(uid);
        if uid == 0 {
            eprintln!(
                "warning: port {port} of {unit} is in use by a root process; find it with `ss -ltnp sport = :{port}` on the host or in the \
                 container, and stop it, or set another port under [slurm]"
            );
            continue;
        }
        let found = socket_owners::find(uid, &which);
        let (spared, strangers): (Vec<SocketOwner>, Vec<SocketOwner>) =
            found.into_iter().partition(|owner| spare.contains(&owner.session));
        if let Some(owner) = spared.first() {
            eprintln!(
                "warning: port {port} of {unit} is in use by another unit of this container: process {} ({}) of {who}; give one of \
                 them another port",
                owner.pid, owner.name
            );
            continue;
        }
        if strangers.is_empty() {
            if matches!(which, Which::Inodes(_)) {
                eprintln!(
                    "warning: port {port} of {unit} is in use by a process of {who} outside this container (shared network); \
                     stop it there, give the container a network of its own (no `--network host`), or set another port \
                     under [slurm]"
                );
            }
            continue;
        }
        ended = true;
        let first = seen.insert(uid);
        end(&strangers, uid);
        let names = named(&strangers);
        if !first || again {
            socket_owners::end_all(uid);
        }
        if first {
            let all = if again { "killed all processes of that user" } else { "killed it" };
            eprintln!("warning: port {port} of {unit} was taken by {names} of {who}; {all}");
        } else if seen.len() == 1 {
            eprintln!("warning: port {port} of {unit} was taken again by {who}; killed all processes of that user");
        }
    }
    if !ended && matches!(which, Which::Unlisted) {
        eprintln!(
            "warning: port {port} of {unit} is in use, owner not found: a recently closed connection keeps it for up to a minute, \
             or a process outside this container owns it"
        );
    }
    ended
}

/// Kills only processes that still belong to this user, because a PID may have been reused.
fn end(owners: &[SocketOwner], uid: u32) {
    for owner in owners.iter().filter(|owner| socket_owners::is_of(owner.pid, uid)) {
        let _ = nix::sys::signal::kill(Pid::from_raw(owner.pid), Signal::SIGKILL);
    }
}

/// The processes for a message, each with its pid.
pub fn named(owners: &[SocketOwner]) -> String {
    let mut names: Vec<String> =
        owners.iter().take(NAMED).map(|owner| format!("process {} ({})", owner.pid, owner.name)).collect();
    if owners.len() > NAMED {
        names.push(format!("{} more", owners.len() - NAMED));
    }
    names.join(", ")
}

#[expect(clippy::disallowed_methods, reason = "the kernel has no event for a free port")]
fn pause() {
    std::thread::sleep(LOOK);
}
