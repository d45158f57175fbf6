//! `slurminit status`: the daemons, the node, the GPUs.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;

use super::health::is_alive;
use super::load_config;
use crate::exit_code;
use crate::supervise::status::{self, Status};

/// Its command line.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
    /// The configuration; /config/slurminit.toml if there is one
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Does it.
pub fn run(args: Args) -> anyhow::Result<u8> {
    let directory = load_config::run_directory(args.config.as_deref());
    let status = status::read(&directory).with_context(|| {
        format!("{}: no slurminit runs here as PID 1 of a cluster", directory.join(status::FILE).display())
    })?;
    anyhow::ensure!(is_alive(status.pid), "slurminit (pid {}) is gone; the last status is of no use", status.pid);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&status)?);
    } else {
        print!("{}", table(&status, status::monotonic_ms()));
    }
    Ok(exit_code::SUCCESS)
}

/// The status for a person; `now_ms` is of the monotonic clock.
fn table(status: &Status, now_ms: u64) -> String {
    let snapshot = &status.snapshot;
    let mut text = String::new();
    let up = now_ms.saturating_sub(status.started_ms);
    // Writing to a String cannot fail.
    let _ = writeln!(text, "slurminit {} · up {} · {}", status.version, age(up), headline(status));
    let _ =
        writeln!(text, "\n{:<12} {:<12} {:>7} {:>8} {:>8}  LAST EXIT", "DAEMON", "STATE", "PID", "SINCE", "RESTARTS");
    for unit in &snapshot.units {
        let pid = unit.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
        let since = unit.since_ms.map_or_else(|| "-".to_owned(), |since| age(up.saturating_sub(since)));
        let last = unit.last_exit.as_deref().unwrap_or("-");
        let _ = writeln!(text, "{:<12} {:<12} {pid:>7} {since:>8} {:>8}  {last}", unit.name, unit.state, unit.restarts);
    }
    if let Some(prepared) = &snapshot.prepared {
        let state = snapshot.node.as_ref().map_or("unknown", |node| node.state.as_str());
        let reason = snapshot.node.as_ref().map(|node| node.reason.as_str()).filter(|reason| !reason.is_empty());
        let reason = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
        let _ = writeln!(text, "\nnode {} is {state}{reason}: {}", prepared.node_name, prepared.summary);
        for gpu in &prepared.gpus {
            let _ = writeln!(text, "  {gpu}");
        }
    }
    text
}

fn headline(status: &Status) -> String {
    let snapshot = &status.snapshot;
    if snapshot.ready { "ready".to_owned() } else { format!("{}: {}", snapshot.phase, snapshot.why) }
}

/// A duration as a person says it: `42s`, `3m 5s`, `2h 10m`, `9d 4h`.
fn age(ms: u64) -> String {
    let seconds = Duration::from_millis(ms).as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h {}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::machine::{Snapshot, UnitSnapshot};

    #[test]
    fn the_table_says_what_runs_since_when_and_what_died() {
        let unit = |name: &str, restarts, last_exit: Option<&str>| UnitSnapshot {
            name: name.to_owned(),
            state: "ready".to_owned(),
            since_ms: Some(90),
            pid: Some(17),
            restarts,
            last_exit: last_exit.map(str::to_owned),
        };
        let snapshot = Snapshot {
            phase: "ready".to_owned(),
            ready: true,
            why: "ready".to_owned(),
            units: vec![unit("munged", 0, None), unit("slurmd", 2, Some("exited with code 1"))],
            node: None,
            reload: crate::supervise::machine::ReloadSnapshot::default(),
            prepared: None,
        };
        let status = Status { version: "0.1.0".to_owned(), pid: 1, started_ms: 1_000, snapshot };
        insta::assert_snapshot!(table(&status, 3_726_090), @r"
        slurminit 0.1.0 · up 1h 2m · ready

        DAEMON       STATE            PID    SINCE RESTARTS  LAST EXIT
        munged       ready             17    1h 2m        0  -
        slurmd       ready             17    1h 2m        2  exited with code 1
        ");
    }
}
