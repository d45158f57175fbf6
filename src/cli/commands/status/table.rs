//! The status as a table.

use std::time::Duration;

use crate::commands::columns::{Column, dash, device, format_table, wrap};
use crate::commands::nodes::users;
use faults::report::GpuReport;
use machine::Status;
use machine::UnitSnapshot;
use model::prepared::Prepared;
use slurm::nodes::own::{NodeStatus, OwnGpu, OwnGpuState, OwnNode};

const DAEMONS: [Column; 6] = [
    Column::left("DAEMON", 12, 31),
    Column::left("STATE", 12, 12),
    Column::right("PID", 7),
    Column::right("SINCE", 8),
    Column::right("RESTARTS", 8),
    Column::right("MEMORY", 9),
];

const GPUS: [Column; 9] = [
    Column::right("GPU", 3),
    Column::left("DEVICE", 6, 12),
    Column::rest("MODEL"),
    Column::left("STATE", 5, 12),
    Column::left("USER", 4, 8),
    Column::right("USE", 5),
    Column::right("MEMORY", 11),
    Column::right("TEMP", 4),
    Column::right("POWER", 5),
];

/// `now_ms` is on the monotonic clock; `memory` returns a process's memory in KiB. `samples` are the agent's, if they are recent.
pub(super) fn table(
    status: &Status,
    now: &NodeStatus,
    samples: &[GpuReport],
    now_ms: u64,
    memory: impl Fn(i32) -> Option<u64>,
) -> String {
    let snapshot = &status.snapshot;
    let uptime_ms = now_ms.saturating_sub(status.started_ms);
    let mut text =
        wrap(&format!("slurminit {} · up {} · {}", status.version, age(uptime_ms), headline(status, now)), "") + "\n";
    let init_kib = memory(status.process.pid);
    let row = |unit: &UnitSnapshot| row(unit, uptime_ms, &memory);
    let init_row = [
        "slurminit".to_owned(),
        "running".to_owned(),
        status.process.pid.to_string(),
        age(uptime_ms),
        dash(),
        size(init_kib),
    ];
    let rows: Vec<_> = std::iter::once(init_row).chain(snapshot.units.iter().map(row)).collect();
    text += &format_table(&DAEMONS, &rows);
    let last_exits: String = snapshot.units.iter().filter_map(|unit| last_exit(unit, uptime_ms)).collect();
    if !last_exits.is_empty() {
        text += &format!("\n{last_exits}");
    }
    if let Some(prepared) = &snapshot.prepared {
        text += &format!("\n{}", wrap(&node(prepared, now), "  "));
        text += &gpus(&now.gpus, samples);
    }
    text
}

fn node(prepared: &Prepared, now: &NodeStatus) -> String {
    if prepared.node_name.is_empty() {
        let state = now.node.as_ref().map_or_else(
            |why| format!("state of the controller unknown: {why}"),
            |_| "the controller responds".to_owned(),
        );
        return format!("no local node; {state}");
    }
    let state = match &now.node {
        Ok(OwnNode { report, .. }) => format!("is {report}"),
        Err(why) => format!("has an unknown state ({why})"),
    };
    format!("node {} {state}: {}", prepared.node_name, prepared.summary)
}

fn gpus(gpus: &[OwnGpu], samples: &[GpuReport]) -> String {
    if gpus.is_empty() {
        return String::new();
    }
    let row = |gpu: &OwnGpu| {
        let (state, user) = match &gpu.state {
            OwnGpuState::Free => ("free".to_owned(), dash()),
            OwnGpuState::Allocated { job: Some(job), user } => {
                (format!("job {job}"), user.clone().unwrap_or_else(dash))
            }
            OwnGpuState::Allocated { job: None, .. } => ("in use".to_owned(), "?".to_owned()),
            OwnGpuState::Shared { jobs } => ("shared".to_owned(), users(jobs)),
            OwnGpuState::Unavailable => (dash(), dash()),
            OwnGpuState::Lost { .. } => ("lost".to_owned(), dash()),
            OwnGpuState::Unknown => ("?".to_owned(), "?".to_owned()),
        };
        let sample = samples.iter().find(|sample| sample.offered.contains(&gpu.slurm_index));
        let [percent, memory, celsius, watts] = sample.map_or_else(|| [(); 4].map(|()| dash()), readings);
        [gpu.index.to_string(), device(&gpu.file), gpu.model.clone(), state, user, percent, memory, celsius, watts]
    };
    let why = |gpu: &OwnGpu| match &gpu.state {
        OwnGpuState::Lost { why } => Some(wrap(&format!("GPU {}: {why}", gpu.index), "  ")),
        _ => None,
    };
    let lost: String = gpus.iter().filter_map(why).collect();
    format!("\n{}{lost}", format_table(&GPUS, &gpus.iter().map(row).collect::<Vec<_>>()))
}

/// Utilization, used and total memory, temperature and power draw.
fn readings(GpuReport { condition, readings, .. }: &GpuReport) -> [String; 4] {
    let with_unit = |value: Option<u64>, unit| value.map_or_else(dash, |value| format!("{value}{unit}"));
    let memory = condition.memory_mib.map(|(used, total)| format!("{}/{} GiB", used / 1024, total / 1024));
    [
        with_unit(condition.utilization.map(u64::from), " %"),
        memory.unwrap_or_else(dash),
        with_unit(condition.temperature.map(u64::from), " C"),
        with_unit(readings.power_mw.map(|mw| mw.saturating_add(500) / 1000), " W"),
    ]
}

fn row(unit: &UnitSnapshot, uptime_ms: u64, memory: impl Fn(i32) -> Option<u64>) -> [String; 6] {
    [
        unit.name.clone(),
        unit.state.to_string(),
        unit.pid.map_or_else(dash, |pid| pid.to_string()),
        unit.since_ms.map_or_else(dash, |since| age(uptime_ms.saturating_sub(since))),
        unit.restarts.to_string(),
        size(unit.pid.and_then(memory)),
    ]
}

fn last_exit(unit: &UnitSnapshot, uptime_ms: u64) -> Option<String> {
    let how = unit.last_exit.as_ref()?;
    let ago = unit.last_exit_ms.map(|at| format!(", {} ago", age(uptime_ms.saturating_sub(at)))).unwrap_or_default();
    let why = unit.last_exit_why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
    Some(wrap(&format!("{} {how}{ago}{why}", unit.name), "  "))
}

fn headline(status: &Status, now: &NodeStatus) -> String {
    let snapshot = &status.snapshot;
    if !snapshot.ready {
        return format!("{}: {}", snapshot.phase, snapshot.why);
    }
    now.closed_reason().map_or_else(|| "ready".to_owned(), |why| format!("not ready: {why}"))
}

fn size(kib: Option<u64>) -> String {
    match kib {
        None => dash(),
        Some(kib @ 0..10_240) => format!("{}.{} MiB", kib / 1024, kib % 1024 * 10 / 1024),
        Some(kib) => format!("{} MiB", kib / 1024),
    }
}

/// A duration in short form: `42s`, `3m 5s`, `2h 10m`, `9d 4h`.
pub(super) fn age(ms: u64) -> String {
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
    use crate::commands::columns::WIDTH;
    use machine::node_report::NodeReport;
    use machine::{LastExit, PhaseName, Snapshot, StopReason, UnitState};
    use model::inventory::{Condition, Readings};
    use model::process_id::ProcessId;

    fn node(line: &str) -> Result<OwnNode, String> {
        let report = NodeReport::parse(line).ok_or("no node")?;
        Ok(OwnNode { report, has_open_partition: true })
    }

    /// GPU 0 was released, so Slurm's first GPU is the driver's second.
    fn gpu(slurm_index: usize, model: &str, state: OwnGpuState) -> OwnGpu {
        let index = 1 + u32::try_from(slurm_index).unwrap();
        OwnGpu { index, slurm_index, model: model.to_owned(), file: format!("/dev/dri/renderD{}", 128 + index), state }
    }

    #[test]
    fn shows_units_ages_and_last_exits() {
        let ready = |name: &str, pid| UnitSnapshot {
            name: name.to_owned(),
            state: UnitState::Ready,
            since_ms: Some(90),
            pid: Some(pid),
            ..UnitSnapshot::default()
        };
        let restarted = |how: &str, why: Option<&str>| UnitSnapshot {
            restarts: 2,
            last_exit: Some(LastExit::Failure(how.to_owned())),
            last_exit_why: why.map(|why| StopReason::Silent(why.to_owned())),
            last_exit_ms: Some(3_600_000),
            ..ready("slurmctld", 40_017)
        };
        let given_up = UnitSnapshot {
            name: "a-service-of-a-long-name".to_owned(),
            state: UnitState::GivenUp,
            pid: None,
            since_ms: None,
            ..restarted("was killed by signal 9 (SIGKILL)", None)
        };
        let snapshot = Snapshot {
            phase: PhaseName::Ready,
            ready: true,
            why: "ready".to_owned(),
            units: vec![
                ready("munged", 17),
                restarted("was killed by signal 9 (SIGKILL)", Some("it did not answer (no answer within 3.0 s)")),
                given_up,
            ],
            prepared: Some(Prepared {
                node_name: "localhost".to_owned(),
                summary: "1 NVIDIA H200, 8 CPUs, 14374 MiB".to_owned(),
                ..Prepared::default()
            }),
            ..Snapshot::default()
        };
        let status = Status {
            version: "0.1.0".to_owned(),
            process: ProcessId { pid: 1, ..ProcessId::default() },
            started_ms: 1_000,
            snapshot,
        };
        let memory = |pid| {
            [(1, 1_224), (17, 10_239)].into_iter().find(|(of, _)| *of == pid).map_or(Some(20_480), |(_, kib)| Some(kib))
        };
        let allocated = |job: Option<&str>, user: Option<&str>| OwnGpuState::Allocated {
            job: job.map(str::to_owned),
            user: user.map(str::to_owned),
        };
        let gpus = vec![
            gpu(0, "NVIDIA H200", OwnGpuState::Free),
            gpu(1, "NVIDIA H200", allocated(Some("1207"), Some("alice"))),
            gpu(2, "NVIDIA A100-SXM4-80GB MIG 1g.10gb+me", allocated(None, None)),
            gpu(3, "NVIDIA H200", OwnGpuState::Lost { why: "/dev/dri/renderD132 is gone".to_owned() }),
        ];
        let node_status = NodeStatus {
            node: node("drained|fan broken, ask Eve about it before anybody touches the machine again"),
            gpus,
        };
        let sample = GpuReport {
            offered: vec![1],
            condition: Condition {
                utilization: Some(100),
                memory_mib: Some((33_934, 143_771)),
                temperature: Some(52),
                ..Condition::default()
            },
            readings: Readings { power_mw: Some(627_000), ..Readings::default() },
            ..GpuReport::default()
        };
        let text = table(&status, &node_status, &[sample], 3_726_090, memory);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        insta::assert_snapshot!(text);
    }

    #[test]
    fn unknown_gpu_state_is_not_shown_as_free() {
        let gpus = vec![gpu(0, "NVIDIA H200", OwnGpuState::Unknown)];
        let text = super::gpus(&gpus, &[]);
        assert!(text.lines().nth(2).is_some_and(|line| line.split_whitespace().nth(4) == Some("?")), "{text}");
    }

    #[test]
    fn gpu_of_drained_node_is_not_shown_as_free() {
        let text = super::gpus(&[gpu(0, "NVIDIA H200", OwnGpuState::Unavailable)], &[]);
        let words: Vec<&str> = text.lines().nth(2).unwrap_or_default().split_whitespace().collect();
        assert_eq!(words[..6], ["1", "renderD129", "NVIDIA", "H200", "-", "-"], "{text}");
    }
}
