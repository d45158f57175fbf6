//! Frees a unit's port that another process took while the unit was down.
//!
//! PID 1 runs this in a child. The port cannot be reserved across a restart, because Slurm binds it itself. A process is
//! killed only on proof that it has the port: one of its descriptors is the socket that the kernel lists for the port. If
//! no process shows the socket, those of the socket's user that hide their descriptors are killed one after the other, the
//! youngest first, until the port is free. If the same user takes the port again, this user's processes are stopped
//! (SIGSTOP) until the unit listens.
//!
//! Everything is done by root: a helper with the user's ID could be killed by the user.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use sys::leftovers::{Handle, printable};
use sys::socket_owners::{self, Process};
use sys::sockets::{self, Tcp};

/// Timeout of one attempt.
const PATIENCE: Duration = Duration::from_secs(3);
/// A killed process usually releases its sockets within this time.
const LOOK: Duration = Duration::from_millis(20);
/// Maximum number of processes named in a message.
const NAMED: usize = 3;
/// How often the processes are listed to stop those that were created meanwhile.
const PASSES: usize = 50;
/// How long processes are stopped at most: the longest pause before the unit's restart, and its start.
const STOPPED: Duration = Duration::from_secs(6);

/// The port of a unit.
#[derive(Clone, Copy, Debug)]
pub struct Port<'a> {
    /// The number.
    pub number: u16,
    /// The unit that needs it.
    pub unit: &'a str,
    /// The sessions of other units, which may keep the port.
    pub spare: &'a [i32],
}

/// Tries to free the port, and returns whether it is free now. With `again`, the processes of its owner's user are stopped
/// until the unit listens.
pub fn free(port: Port<'_>, again: bool) -> bool {
    let begin = Instant::now();
    let mut said = BTreeSet::new();
    let (mut stopped, mut has_said_stopped) = (Vec::new(), false);
    let mut outcome = Outcome::Free;
    while is_taken(port.number) {
        if begin.elapsed() >= PATIENCE {
            let Port { number, unit, .. } = port;
            eprintln!("warning: port {number} of {unit} is still taken after {} s", PATIENCE.as_secs());
            outcome = Outcome::Taken;
            break;
        }
        outcome = end_owners(port, again, &mut stopped, &mut said, &mut has_said_stopped);
        if matches!(outcome, Outcome::Taken) {
            break;
        }
        pause();
    }
    resume_later(port.number, &stopped);
    matches!(outcome, Outcome::Free)
}

enum Outcome {
    Free,
    Taken,
}

/// The standard library sets the same socket option as Slurm.
fn is_taken(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_err_and(|error| error.kind() == ErrorKind::AddrInUse)
}

/// Ends the processes that have the port.
fn end_owners(
    port: Port<'_>,
    again: bool,
    stopped: &mut Vec<Process>,
    said: &mut BTreeSet<u32>,
    has_said_stopped: &mut bool,
) -> Outcome {
    let Port { number, unit, spare } = port;
    let bound = sockets::bound(number).unwrap_or_default();
    let (roots, users): (Vec<_>, Vec<_>) = bound.iter().filter(|tcp| tcp.inode != 0).partition(|tcp| tcp.uid == 0);
    if !roots.is_empty() {
        eprintln!(
            "warning: port {number} of {unit} is taken by a process of root's; `ss -ltnp sport = :{number}` on the host or in the \
             container shows it. End it, or set another port under [slurm]"
        );
    }
    if users.is_empty() {
        if roots.is_empty() {
            eprintln!(
                "warning: port {number} of {unit} is in use, and the kernel lists no socket for it: a process that binds it without \
                 listening (listed since Linux 6.8), or one outside of this container. End it, or set another port under [slurm]"
            );
        }
        return Outcome::Taken;
    }
    let uids: BTreeSet<u32> = users.iter().map(|tcp| tcp.uid).collect();
    let inodes: BTreeSet<u32> = users.iter().map(|tcp| tcp.inode).collect();
    let who = uids.iter().map(|uid| name_of(*uid)).collect::<Vec<_>>().join(", ");
    let is_first = uids.iter().any(|uid| !said.contains(uid));
    let stops = again || !is_first;
    if stops {
        stop_all(&uids, spare, stopped);
    }
    let owners = socket_owners::find(socket_owners::processes(), &inodes);
    let (spared, proven): (Vec<_>, Vec<_>) = owners.proven.into_iter().partition(|one| spare.contains(&one.session));
    if let Some(owner) = spared.first() {
        eprintln!(
            "warning: port {number} of {unit} is taken by process {} ({}) of {who}, which is another unit of this container; give \
             one of them another port",
            owner.pid, owner.name
        );
        return Outcome::Taken;
    }
    // The kernel reports the socket's user, and with cgroup v2 its cgroup. If no process whose descriptors can be read has the socket,
    // one of this user's that hide them has it.
    let is_suspect = |one: &Process| {
        let cgroup = |tcp: &Tcp| tcp.cgroup.zip(one.cgroup);
        let created = |tcp: &Tcp| tcp.uid == one.uid && cgroup(tcp).is_none_or(|(socket, process)| socket == process);
        !spare.contains(&one.session) && users.iter().any(|tcp| created(tcp))
    };
    let mut hidden: Vec<Process> = owners.hidden.into_iter().filter(is_suspect).collect();
    hidden.sort_by_key(|one| std::cmp::Reverse(one.start));
    let ended = match proven.is_empty() {
        false => end_proven(&proven, &inodes),
        true => end_hidden(&hidden, number),
    };
    if ended.is_empty() {
        // It may have ended by itself.
        if !is_taken(number) {
            return Outcome::Free;
        }
        eprintln!(
            "warning: port {number} of {unit} is taken by a process of {who} outside of this container (the network is shared with \
             it); end it there, give the container a network of its own (no `--network host`), or set another port under [slurm]"
        );
        return Outcome::Taken;
    }
    if is_first {
        eprintln!("warning: port {number} of {unit} was taken by {} of {who}; killed", named(&ended));
    }
    if stops && !std::mem::replace(has_said_stopped, true) {
        eprintln!(
            "warning: port {number} of {unit} was taken again by {who}: processes of that user are stopped until it listens"
        );
    }
    said.extend(uids);
    Outcome::Free
}

/// Stops these, reads again what they have open, and kills those that still have the socket.
fn end_proven(owners: &[Process], inodes: &BTreeSet<u32>) -> Vec<Process> {
    let handles: Vec<(&Process, Handle)> = owners.iter().filter_map(|one| Some((one, one.handle()?))).collect();
    handles.iter().for_each(|(_, handle)| handle.send(Signal::SIGSTOP));
    let again = socket_owners::find(handles.iter().map(|(one, _)| (*one).clone()).collect(), inodes);
    for (one, handle) in &handles {
        if again.proven.iter().any(|owner| (owner.pid, owner.start) == (one.pid, one.start)) {
            handle.send(Signal::SIGKILL);
        } else if !one.is_stopped {
            handle.send(Signal::SIGCONT);
        }
    }
    again.proven
}

/// Kills these one after the other until the port is free: by then, the last one had it.
fn end_hidden(suspects: &[Process], port: u16) -> Vec<Process> {
    let handles: Vec<(&Process, Handle)> = suspects.iter().filter_map(|one| Some((one, one.handle()?))).collect();
    handles.iter().for_each(|(_, handle)| handle.send(Signal::SIGSTOP));
    let mut ended = Vec::new();
    for (one, handle) in &handles {
        if is_taken(port) {
            handle.send(Signal::SIGKILL);
            ended.push((*one).clone());
            pause();
        } else if !one.is_stopped {
            handle.send(Signal::SIGCONT);
        }
    }
    ended
}

/// Stops all processes of these users, also those that are created meanwhile.
fn stop_all(uids: &BTreeSet<u32>, spare: &[i32], stopped: &mut Vec<Process>) {
    for _ in 0..PASSES {
        let runs = |one: &Process| uids.contains(&one.uid) && !one.is_stopped && !spare.contains(&one.session);
        let running: Vec<Process> = socket_owners::processes().into_iter().filter(runs).collect();
        if running.is_empty() {
            return;
        }
        for one in running {
            let _ = one.handle().map(|handle| handle.send(Signal::SIGSTOP));
            if !stopped.contains(&one) {
                stopped.push(one);
            }
        }
    }
}

/// Starts a process that resumes these once the unit listens: the unit starts only after this process has ended.
#[expect(clippy::disallowed_methods, reason = "PID 1 reaps it: this process ends before it")]
fn resume_later(port: u16, stopped: &[Process]) {
    if stopped.is_empty() {
        return;
    }
    let list = stopped.iter().map(|one| format!("{}:{}", one.pid, one.start)).collect::<Vec<_>>().join(",");
    let start = || {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["free-port", "--port", &port.to_string(), "--unit", "", "--resume", &list]);
        command.env_clear().process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).spawn()
    };
    if start().is_err() {
        resume(&list);
    }
}

/// Waits until a daemon listens on the port, at most for [`STOPPED`], and resumes the processes of this list of `PID:START`.
pub fn resume_once_it_listens(port: u16, list: &str) {
    let begin = Instant::now();
    let slurm = sys::users::local("slurm").map(|user| user.uid);
    let is_daemons = |uid: u32| uid == 0 || Some(uid) == slurm;
    let listens = || sockets::listeners(port).is_some_and(|found| found.iter().any(|tcp| is_daemons(tcp.uid)));
    while begin.elapsed() < STOPPED && !listens() {
        pause();
    }
    resume(list);
}

fn resume(list: &str) {
    for one in list.split(',') {
        let handle = one.split_once(':').and_then(|(pid, start)| Handle::of(pid.parse().ok()?, start.parse().ok()?));
        let _ = handle.map(|handle| handle.send(Signal::SIGCONT));
    }
}

/// `nobody (uid 65534)`.
pub fn name_of(uid: u32) -> String {
    match nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid)) {
        Ok(Some(user)) => format!("{} (uid {uid})", printable(&user.name)),
        _ => format!("uid {uid}"),
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
fn pause() {
    std::thread::sleep(LOOK);
}
