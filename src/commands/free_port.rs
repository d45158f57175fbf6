//! `slurminit free-port`: gets a unit's port back from whoever took it while the unit did not run.
//!
//! PID 1 runs it as a child. The port cannot be kept across a restart: Slurm binds it anew, and whatever holds it in between holds
//! it against Slurm too. So a process of an ordinary user that has it is ended, and all of that user's if they take it again.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::holders::{self, Holder, Which};
use crate::exit_code;
use crate::supervise::sockets;

/// Its command line.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The port
    #[arg(long)]
    port: u16,
    /// Whose it is
    #[arg(long)]
    unit: String,
    /// A session that keeps it, if it has it: another unit's
    #[arg(long)]
    spare: Vec<i32>,
    /// It was taken before, so all processes of whoever has it are ended
    #[arg(long)]
    again: bool,
}

/// How long it is tried.
const PATIENCE: Duration = Duration::from_secs(3);
/// A killed process lets go of its sockets within this time, mostly.
const LOOK: Duration = Duration::from_millis(20);
/// So many processes are named.
const NAMED: usize = 3;

/// Does it; the code says whether the port is free.
pub fn run(args: Args) -> anyhow::Result<u8> {
    let begin = Instant::now();
    let mut seen = BTreeSet::new();
    while is_taken(args.port) {
        if begin.elapsed() >= PATIENCE {
            eprintln!("warning: port {} of {} is still taken after {} s", args.port, args.unit, PATIENCE.as_secs());
            return Ok(exit_code::FAILURE);
        }
        if !free(&args, &mut seen) {
            return Ok(exit_code::FAILURE);
        }
        pause();
    }
    Ok(exit_code::SUCCESS)
}

/// Slurm binds with the same option as the standard library does.
fn is_taken(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_err_and(|error| error.kind() == ErrorKind::AddrInUse)
}

/// Ends whoever has the port; returns whether there is hope.
fn free(args: &Args, seen: &mut BTreeSet<u32>) -> bool {
    let Args { port, unit, .. } = args;
    let bound = sockets::bound(*port).unwrap_or_default();
    let mut users: BTreeSet<u32> = bound.iter().filter(|tcp| tcp.inode != 0).map(|tcp| tcp.uid).collect();
    let which = if users.is_empty() {
        // Bound without listening: the kernel's tables do not tell of it.
        users = holders::users().into_iter().filter(|uid| *uid != 0).collect();
        Which::Unlisted
    } else {
        Which::Inodes(bound.iter().map(|tcp| tcp.inode).collect())
    };
    let mut hope = false;
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
            found.into_iter().partition(|holder| args.spare.contains(&holder.session));
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
        (hope, ended) = (true, true);
        let first = seen.insert(uid);
        end(&strangers, uid);
        let names = named(&strangers);
        if !first || args.again {
            holders::end_all(uid);
        }
        if first {
            let all = if args.again { "all processes of that user were ended" } else { "it was ended" };
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
    hope
}

/// Only processes that are still this user's: the number may have become another's.
fn end(holders: &[Holder], uid: u32) {
    for holder in holders.iter().filter(|holder| holders::is_of(holder.pid, uid)) {
        let _ = nix::sys::signal::kill(Pid::from_raw(holder.pid), Signal::SIGKILL);
    }
}

pub(super) fn named(holders: &[Holder]) -> String {
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
