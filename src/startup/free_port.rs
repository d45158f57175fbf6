//! Gets a unit's port back from a process that took it while the unit was down.
//!
//! PID 1 runs this in a child. The port cannot be reserved across a restart, because Slurm binds it itself. So if
//! a process of an ordinary user has it, that process is killed, and all processes of that user if they take it again.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::holders::{self, Holder, Which};
use sys::sockets;

/// How long to try.
const PATIENCE: Duration = Duration::from_secs(3);
/// A killed process usually releases its sockets within this time.
const LOOK: Duration = Duration::from_millis(20);
/// How many processes are named.
const NAMED: usize = 3;

/// Tries to free the port of this unit, and returns whether it is free now. `spare` are the sessions of other units.
/// With `again`, all processes of the thief's user are killed.
pub fn free(port: u16, unit: &str, spare: &[i32], again: bool) -> bool {
    let begin = Instant::now();
    let mut seen = BTreeSet::new();
    while is_taken(port) {
        if begin.elapsed() >= PATIENCE {
            eprintln!("warning: port {port} of {unit} is still taken after {} s", PATIENCE.as_secs());
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

/// The users who may have the port, and what to look for in their processes.
fn suspects(port: u16) -> (BTreeSet<u32>, Which) {
    let bound = sockets::bound(port).unwrap_or_default();
    let users: BTreeSet<u32> = bound.iter().filter(|tcp| tcp.inode != 0).map(|tcp| tcp.uid).collect();
    if users.is_empty() {
        // The port is bound without listening, which the kernel's tables do not show.
        return (holders::users().into_iter().filter(|uid| *uid != 0).collect(), Which::Unlisted);
    }
    (users, Which::Inodes(bound.iter().map(|tcp| tcp.inode).collect()))
}

/// Ends whoever has the port; returns whether there is hope.
fn end_holders(port: u16, unit: &str, spare: &[i32], again: bool, seen: &mut BTreeSet<u32>) -> bool {
    let (users, which) = suspects(port);
    let mut ended = false;
    for uid in users {
        let who = holders::name_of(uid);
        if uid == 0 {
            eprintln!(
                "warning: port {port} of {unit} is taken by a process of root's; `ss -ltnp sport = :{port}` on the host or in the \
                 container shows it. End it, or set another port under [slurm]"
            );
            continue;
        }
        let found = holders::find(uid, &which);
        let (spared, strangers): (Vec<Holder>, Vec<Holder>) =
            found.into_iter().partition(|holder| spare.contains(&holder.session));
        if let Some(holder) = spared.first() {
            eprintln!(
                "warning: port {port} of {unit} is taken by process {} ({}) of {who}, which is another unit of this container; give \
                 one of them another port",
                holder.pid, holder.name
            );
            continue;
        }
        if strangers.is_empty() {
            if matches!(which, Which::Inodes(_)) {
                eprintln!(
                    "warning: port {port} of {unit} is taken by a process of {who} outside of this container (the network is shared \
                     with it); end it there, give the container a network of its own (no `--network host`), or set another port \
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
            holders::end_all(uid);
        }
        if first {
            let all = if again { "all processes of that user were ended" } else { "it was ended" };
            eprintln!("warning: port {port} of {unit} was taken by {names} of {who}; {all}");
        } else if seen.len() == 1 {
            eprintln!("warning: port {port} of {unit} was taken again by {who}; all processes of that user were ended");
        }
    }
    if !ended && matches!(which, Which::Unlisted) {
        eprintln!(
            "warning: port {port} of {unit} is taken and no process has it: a connection that was closed keeps it for a minute, \
             or a process outside of this container has it"
        );
    }
    ended
}

/// Kills only processes that still belong to this user, because a PID may have been reused.
fn end(holders: &[Holder], uid: u32) {
    for holder in holders.iter().filter(|holder| holders::is_of(holder.pid, uid)) {
        let _ = nix::sys::signal::kill(Pid::from_raw(holder.pid), Signal::SIGKILL);
    }
}

/// The processes for a message, each with its pid.
pub fn named(holders: &[Holder]) -> String {
    let mut names: Vec<String> =
        holders.iter().take(NAMED).map(|holder| format!("process {} ({})", holder.pid, holder.name)).collect();
    if holders.len() > NAMED {
        names.push(format!("{} more", holders.len() - NAMED));
    }
    names.join(", ")
}

#[expect(clippy::disallowed_methods, reason = "the kernel tells nobody when a port is free")]
fn pause() {
    std::thread::sleep(LOOK);
}
