//! What the kernel tells of processes in /proc: proc(5). EDGE.

pub mod parse;

use std::fs;

pub use parse::Stat;

/// All processes of this container.
pub fn pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// What it is, where it is not gone. A dead one is there until it is reaped.
pub fn stat(pid: i32) -> Option<Stat> {
    Stat::parse(&text(pid, "stat")?)
}

/// Its `status`.
pub fn status(pid: i32) -> Option<String> {
    text(pid, "status")
}

/// Its command line, or what it has put in its place; empty for one that is dead.
pub fn title(pid: i32) -> Option<String> {
    text(pid, "cmdline")
}

/// Whether its real user is root, whatever rights it has for the moment: a slurmstepd takes on its user's to open files.
pub fn is_roots(pid: i32) -> bool {
    status(pid).and_then(|status| parse::numbers(&status, "Uid")).is_some_and(|[real]| real == 0)
}

/// The title of a slurmstepd. Anybody can give a process of their own such a title and name, but not root's user.
pub fn step_title(stat: &Stat) -> Option<String> {
    (stat.name == "slurmstepd" && is_roots(stat.pid)).then(|| title(stat.pid)).flatten()
}

/// A process may have given itself a name that is no UTF-8.
fn text(pid: i32, file: &str) -> Option<String> {
    Some(String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/{file}")).ok()?).into_owned())
}
