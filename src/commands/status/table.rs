//! The status as a table for a person.

use std::fmt::Write as _;
use std::time::Duration;

use crate::printable::line;
use crate::supervise::machine::UnitSnapshot;
use crate::supervise::status::Status;

const HEAD: [&str; 7] = ["DAEMON", "STATE", "PID", "SINCE", "RESTARTS", "MEMORY", "LAST EXIT"];
/// Numbers stand at the right, below each other.
const RIGHT: [bool; 7] = [false, false, true, true, true, true, false];
const NARROWEST: [usize; 7] = [12, 12, 7, 8, 8, 9, 0];

/// `now_ms` is of the monotonic clock; `memory` gives the KiB of a process.
pub(super) fn table(status: &Status, now_ms: u64, memory: impl Fn(i32) -> Option<u64>) -> String {
    let snapshot = &status.snapshot;
    let up = now_ms.saturating_sub(status.started_ms);
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(text, "slurminit {} · up {} · {}\n", status.version, age(up), headline(status));
    let own = i32::try_from(status.pid).ok().and_then(&memory);
    let mut rows = vec![HEAD.map(str::to_owned)];
    rows.push([
        "slurminit".to_owned(),
        "running".to_owned(),
        status.pid.to_string(),
        age(up),
        dash(),
        size(own),
        dash(),
    ]);
    rows.extend(snapshot.units.iter().map(|unit| row(unit, up, &memory)));
    text += &align(&rows);
    if let Some(prepared) = &snapshot.prepared {
        let state = snapshot.node.as_ref().map_or("unknown", |node| node.state.as_str());
        let reason = snapshot.node.as_ref().map(|node| node.reason.as_str()).filter(|reason| !reason.is_empty());
        let reason = reason.map(|reason| format!(" ({})", line(reason))).unwrap_or_default();
        let _ = writeln!(text, "\nnode {} is {state}{reason}: {}", prepared.node_name, prepared.summary);
        for gpu in &prepared.gpus {
            let _ = writeln!(text, "  {gpu}");
        }
    }
    text
}

fn row(unit: &UnitSnapshot, up: u64, memory: impl Fn(i32) -> Option<u64>) -> [String; 7] {
    [
        unit.name.clone(),
        unit.state.clone(),
        unit.pid.map_or_else(dash, |pid| pid.to_string()),
        unit.since_ms.map_or_else(dash, |since| age(up.saturating_sub(since))),
        unit.restarts.to_string(),
        size(unit.pid.and_then(memory)),
        last_exit(unit, up),
    ]
}

fn last_exit(unit: &UnitSnapshot, up: u64) -> String {
    let Some(how) = &unit.last_exit else { return dash() };
    let ago = unit.last_exit_ms.map(|at| format!(", {} ago", age(up.saturating_sub(at)))).unwrap_or_default();
    let why = unit.last_exit_why.as_ref().map(|why| format!(": {}", line(why))).unwrap_or_default();
    format!("{how}{ago}{why}")
}

fn align(rows: &[[String; 7]]) -> String {
    let mut widths = NARROWEST;
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row).take(6) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |row: &[String; 7]| {
        let cells = row.iter().zip(widths).zip(RIGHT).map(|((cell, width), right)| match right {
            true => format!("{cell:>width$}"),
            false => format!("{cell:<width$}"),
        });
        cells.collect::<Vec<_>>().join(" ") + "\n"
    };
    rows.iter().map(line).collect()
}

fn headline(status: &Status) -> String {
    let snapshot = &status.snapshot;
    if snapshot.ready { "ready".to_owned() } else { format!("{}: {}", snapshot.phase, snapshot.why) }
}

fn dash() -> String {
    "-".to_owned()
}

fn size(kib: Option<u64>) -> String {
    match kib {
        None => dash(),
        Some(kib @ 0..10_240) => format!("{}.{} MiB", kib / 1024, kib % 1024 * 10 / 1024),
        Some(kib) => format!("{} MiB", kib / 1024),
    }
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
    use crate::report::Prepared;
    use crate::supervise::machine::Snapshot;
    use crate::supervise::node::NodeReport;

    #[test]
    fn the_table_says_what_runs_since_when_and_what_died() {
        let ready = |name: &str, pid| UnitSnapshot {
            name: name.to_owned(),
            state: "ready".to_owned(),
            since_ms: Some(90),
            pid: Some(pid),
            ..UnitSnapshot::default()
        };
        let died = |how: &str, why: Option<&str>| UnitSnapshot {
            restarts: 2,
            last_exit: Some(how.to_owned()),
            last_exit_why: why.map(str::to_owned),
            last_exit_ms: Some(3_600_000),
            ..ready("slurmctld", 40_017)
        };
        let given_up = UnitSnapshot {
            name: "a-service-of-a-long-name".to_owned(),
            state: "given up".to_owned(),
            pid: None,
            since_ms: None,
            ..died("was killed by signal 9 (SIGKILL)", None)
        };
        let snapshot = Snapshot {
            phase: "ready".to_owned(),
            ready: true,
            why: "ready".to_owned(),
            units: vec![ready("munged", 17), died("exited with code 0", Some("a restart was asked for")), given_up],
            node: NodeReport::parse("drained|fan broken"),
            prepared: Some(Prepared {
                node_name: "localhost".to_owned(),
                summary: "1 NVIDIA H200, 8 CPUs, 14374 MiB".to_owned(),
                gpus: vec!["/dev/nvidia0: nvidia 0, NVIDIA H200".to_owned()],
                ..Prepared::default()
            }),
            timeline: vec![],
            ..Snapshot::default()
        };
        let status = Status { version: "0.1.0".to_owned(), pid: 1, started_ms: 1_000, snapshot };
        let memory = |pid| {
            [(1, 1_224), (17, 10_239)].into_iter().find(|(of, _)| *of == pid).map_or(Some(20_480), |(_, kib)| Some(kib))
        };
        insta::assert_snapshot!(table(&status, 3_726_090, memory));
    }
}
