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

/// A process may have given itself a name that is no UTF-8.
fn text(pid: i32, file: &str) -> Option<String> {
    Some(String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/{file}")).ok()?).into_owned())
}
