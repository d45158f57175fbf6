//! The data of the page.
//!
//! Every text is one line that is safe for a terminal.

use std::collections::BTreeMap;

use serde::Serialize;

use super::queue::Queue;
use super::seen::{Files, Slurm};
use faults::report::{GpuReport, Report};
use faults::usage::{JobUse, sparkline};
use machine::{Snapshot, UnitSnapshot};
use model::prepared::{OfferedGpu, Prepared};
use model::printable;
use model::queued_job::{OwnedJob, QueuedJob};
use slurm::nodes::ClusterNode;

/// Maximum number of rows of the queue: jobs, and job arrays.
const MAX_ROWS: usize = 100;
/// Maximum number of listed tasks of a job array.
const MAX_TASKS: u64 = 20;
/// Maximum number of listed nodes.
const MAX_NODES: usize = 256;
/// Maximum length of a text other than a fault's line, in characters.
const MAX_TEXT: usize = 400;
/// Maximum length of a fault's line, which ends with the fix, in characters.
const MAX_FAULT: usize = 1200;

/// All data of the page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct State {
    /// The time, in seconds since 1970.
    pub at: u64,
    /// slurminit's version.
    pub version: &'static str,
    /// The node's name in Slurm; empty without a node.
    pub node: String,
    /// Whether the container is ready, and its node, if any, accepts jobs.
    pub is_ready: bool,
    /// `ready`, or why not, in one line.
    pub why: String,
    /// Whether one of `gpus` is simulated.
    pub is_simulated: bool,
    /// Number of simulated nodes; 0 for a real node.
    pub simulated_nodes: usize,
    /// The age of the agent's last sample in seconds; slurminit's uptime before the first sample; `None` without a report.
    pub report_age: Option<u64>,
    /// Whether the report is missing or too old, so that measurements are left out.
    pub is_stale: bool,
    /// How GPUs affect the node's state, in one line; `None` if they do not.
    pub notice: Option<String>,
    /// This container's GPUs.
    pub gpus: Vec<GpuView>,
    /// The most recent faults, the latest first.
    pub faults: Vec<FaultView>,
    /// The jobs that have GPUs of this node, or had some in the last day; empty if Slurm hides jobs.
    pub job_uses: Vec<JobUse>,
    /// The daemons and services.
    pub daemons: Vec<DaemonView>,
    /// slurmctld's answer, or why there is none.
    pub slurm: Result<SlurmView, String>,
}

/// A GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GpuView {
    /// The driver's index.
    pub index: u32,
    /// The device file.
    pub file: String,
    /// The model.
    pub model: String,
    /// The driver's identifier, or the PCI address.
    pub id: String,
    /// Used and total memory, in MiB.
    pub memory_mib: Option<(u64, u64)>,
    /// Utilization in percent.
    pub utilization: Option<u32>,
    /// Temperature in degrees Celsius.
    pub temperature: Option<u32>,
    /// Power draw in watts.
    pub watts: Option<u64>,
    /// Power limit in watts.
    pub watts_limit: Option<u64>,
    /// The utilization in the last hour, as bars of eight heights.
    pub last_hour: String,
    /// The jobs that have the GPU or a part of it.
    pub jobs: Vec<OwnedJob>,
    /// Seconds since the GPU was allocated or became free.
    pub for_seconds: Option<u64>,
    /// The current faults.
    pub faults: Vec<String>,
    /// Whether Slurm's configuration excludes the GPU from jobs.
    pub is_out: bool,
}

/// A reported fault.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FaultView {
    /// Age in seconds.
    pub age: u64,
    /// The log line.
    pub line: String,
}

/// A daemon or service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DaemonView {
    /// The daemon's or service's name.
    pub name: String,
    /// The state, in one word.
    pub state: String,
    /// Whether the daemon is ready.
    pub is_up: bool,
    /// Whether the container ends if the daemon cannot be kept alive.
    pub is_essential: bool,
    /// Number of restarts.
    pub restarts: u32,
    /// Seconds in this state, if known.
    pub for_seconds: Option<u64>,
    /// How its last process ended, if it was restarted or is down.
    pub last_exit: Option<String>,
}

/// The cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SlurmView {
    /// The first nodes; see `node_count`.
    pub nodes: Vec<ClusterNode>,
    /// Number of nodes.
    pub node_count: usize,
    /// Number of running jobs.
    pub running: u64,
    /// Number of pending jobs.
    pub pending: u64,
    /// The first jobs, and the first tasks of each array.
    pub jobs: Vec<QueuedJob>,
    /// The arrays of these jobs.
    pub arrays: Vec<ArrayView>,
    /// Number of jobs and arrays that are not in `jobs`.
    pub more: usize,
}

/// The tasks of a job array that have not ended, including those that are not listed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ArrayView {
    /// The array's ID: `20` of `20_3`.
    pub id: String,
    /// Number of tasks.
    pub tasks: u64,
    /// Number of tasks that hold resources.
    pub running: u64,
}

impl State {
    /// Builds the state from the collected data.
    pub fn of(files: &Files, slurm: Result<&Slurm, &str>) -> Self {
        let snapshot = files.snapshot.as_ref();
        let prepared = snapshot.and_then(|snapshot| snapshot.prepared.as_ref());
        let report = files.report.as_ref();
        let gpus = match report {
            Some(report) if !report.gpus.is_empty() => report.gpus.iter().map(|gpu| of_report(gpu, files)).collect(),
            _ => prepared.map(|prepared| offered(prepared, slurm.ok())).unwrap_or_default(),
        };
        let (is_ready, why) = readiness(snapshot, slurm);
        Self {
            at: files.now,
            version: env!("CARGO_PKG_VERSION"),
            node: prepared.map(|prepared| line(&prepared.node_name)).unwrap_or_default(),
            is_ready,
            why,
            is_simulated: gpus.iter().any(|gpu: &GpuView| gpu.model.contains("Simulated")),
            simulated_nodes: prepared.map_or(0, |prepared| prepared.simulated_nodes),
            report_age: files.report_age(),
            is_stale: files.is_stale(),
            notice: report.and_then(|report| report.node.as_deref()).map(line),
            gpus,
            faults: report.map(|report| faults(report, files.now)).unwrap_or_default(),
            job_uses: report.map(job_uses).unwrap_or_default(),
            daemons: snapshot
                .into_iter()
                .flat_map(|snapshot| &snapshot.units)
                .map(|unit| daemon(unit, files))
                .collect(),
            slurm: slurm.map(cluster).map_err(line),
        }
    }
}

/// Whether the container is ready and its node, if any, accepts jobs, and why not: from PID 1's status, then from slurmctld's answer.
fn readiness(snapshot: Option<&Snapshot>, slurm: Result<&Slurm, &str>) -> (bool, String) {
    let Some(snapshot) = snapshot else {
        return (false, "slurminit is not running in this container".to_owned());
    };
    let name = snapshot.prepared.as_ref().map_or("", |prepared| &prepared.node_name);
    let own = slurm.ok().and_then(|slurm| slurm.cluster.nodes.iter().find(|node| node.name == name));
    match (slurm, own) {
        _ if !snapshot.ready => (false, line(&snapshot.why)),
        (Err(why), _) => (false, line(why)),
        (Ok(_), Some(node)) if !node.accepts_jobs() => (false, line(&format!("the node is {}", node.closed_state()))),
        _ => (true, line(&snapshot.why)),
    }
}

fn line(text: &str) -> String {
    printable::short(text, MAX_TEXT)
}

fn of_report(gpu: &GpuReport, files: &Files) -> GpuView {
    let (condition, readings) = (&gpu.condition, &gpu.readings);
    let is_fresh = !files.is_stale();
    let address = || gpu.identity.pci_address.as_ref().map(ToString::to_string).unwrap_or_default();
    GpuView {
        index: gpu.identity.index,
        file: line(gpu.identity.file.as_deref().unwrap_or_default()),
        model: line(gpu.identity.model.as_deref().unwrap_or("unknown model")),
        id: line(&gpu.identity.uuid.clone().unwrap_or_else(address)),
        memory_mib: condition.memory_mib.filter(|_| is_fresh),
        utilization: condition.utilization.filter(|_| is_fresh),
        temperature: condition.temperature.filter(|_| is_fresh),
        watts: readings.power_mw.filter(|_| is_fresh).map(|mw| mw.saturating_add(500) / 1000),
        watts_limit: readings.power_limit_mw.map(|mw| mw / 1000),
        last_hour: sparkline(&gpu.last_hour),
        jobs: gpu.jobs.iter().map(|job| OwnedJob { job: job.job, user: line(&job.user) }).collect(),
        for_seconds: (gpu.since > 0).then(|| files.now.saturating_sub(gpu.since)),
        faults: gpu.faults.iter().map(|fault| line(&format!("{}: {}", fault.kind, fault.what))).collect(),
        is_out: gpu.is_out,
    }
}

/// The GPUs if the agent has reported none: from the result of the start and slurmctld's answer.
fn offered(prepared: &Prepared, slurm: Option<&Slurm>) -> Vec<GpuView> {
    if prepared.simulated_nodes > 0 {
        // The table of nodes shows the GPUs of each node.
        return Vec::new();
    }
    let own = |node: &&ClusterNode| node.name == prepared.node_name;
    let node = slurm.and_then(|slurm| slurm.cluster.nodes.iter().find(own));
    let view = |(index, gpu): (usize, &OfferedGpu)| GpuView {
        index: gpu.index,
        file: line(&gpu.file),
        model: line(&gpu.model),
        id: gpu.pci_address.map(|address| address.to_string()).unwrap_or_default(),
        jobs: node.and_then(|node| node.gpus.get(index)).map(|gpu| gpu.state.jobs().to_vec()).unwrap_or_default(),
        ..GpuView::default()
    };
    prepared.gpus.iter().enumerate().map(view).collect()
}

fn job_uses(report: &Report) -> Vec<JobUse> {
    report.job_uses.iter().map(|job| JobUse { user: line(&job.user), state: line(&job.state), ..job.clone() }).collect()
}

fn faults(report: &Report, now: u64) -> Vec<FaultView> {
    let view = |fault: &faults::report::ReportedFault| FaultView {
        age: now.saturating_sub(fault.at),
        line: printable::short(&fault.line, MAX_FAULT),
    };
    report.recent.iter().rev().map(view).collect()
}

fn daemon(unit: &UnitSnapshot, files: &Files) -> DaemonView {
    let is_up = unit.is_up();
    let shows_exit = unit.restarts > 0 || !is_up;
    DaemonView {
        name: line(&unit.name),
        state: unit.state.to_string(),
        is_up,
        is_essential: unit.essential,
        restarts: unit.restarts,
        for_seconds: unit.since_ms.map(|since| files.uptime_ms.saturating_sub(since) / 1000),
        last_exit: unit.last_exit.as_ref().filter(|_| shows_exit).map(|exit| line(&exit.to_string())),
    }
}

fn cluster(slurm: &Slurm) -> SlurmView {
    let nodes = &slurm.cluster.nodes;
    let (mut jobs, arrays, more) = rows(&slurm.queue);
    let situation = slurm.situation();
    jobs.iter_mut().for_each(|job| situation.describe(job));
    SlurmView {
        nodes: nodes.iter().take(MAX_NODES).cloned().collect(),
        node_count: nodes.len(),
        running: slurm.queue.count("RUNNING"),
        pending: slurm.queue.count("PENDING"),
        jobs,
        arrays,
        more,
    }
}

/// The listed jobs, their arrays, and the number of further rows. An array with thousands of tasks hides no other job.
fn rows(queue: &Queue) -> (Vec<QueuedJob>, Vec<ArrayView>, usize) {
    let (mut jobs, mut arrays, mut positions) = (Vec::new(), Vec::<ArrayView>::new(), BTreeMap::new());
    let mut count = 0;
    for job in queue.active() {
        let Some(id) = job.array() else {
            count += 1;
            if count <= MAX_ROWS {
                jobs.push(job.clone());
            }
            continue;
        };
        let position = *positions.entry(id).or_insert_with(|| {
            count += 1;
            let is_listed = count <= MAX_ROWS;
            is_listed.then(|| {
                arrays.push(ArrayView { id: id.to_owned(), ..ArrayView::default() });
                arrays.len() - 1
            })
        });
        if let Some(array) = position.and_then(|position| arrays.get_mut(position)) {
            array.tasks += 1;
            array.running += u64::from(!job.is_pending());
            if array.tasks <= MAX_TASKS {
                jobs.push(job.clone());
            }
        }
    }
    (jobs, arrays, count.saturating_sub(MAX_ROWS))
}

#[cfg(test)]
mod tests {
    use slurm::nodes::ClusterNodes;

    use super::*;

    #[test]
    fn array_is_one_row_and_does_not_displace_other_jobs() {
        let job = |id: String, state: &str| QueuedJob { id, state: state.to_owned(), ..QueuedJob::default() };
        let task = |number: u64| job(format!("20_{number}"), if number < 3 { "RUNNING" } else { "PENDING" });
        let mut all: Vec<QueuedJob> = (0..500).map(task).collect();
        all.extend((21..121).map(|number| job(number.to_string(), "PENDING")));
        let (jobs, arrays, more) = rows(&Queue { jobs: all });
        assert_eq!(arrays, [ArrayView { id: "20".to_owned(), tasks: 500, running: 3 }]);
        assert_eq!((jobs.len(), more), (20 + 99, 1));
        assert_eq!(jobs.last().map(|job| job.id.as_str()), Some("119"));
    }

    fn node(words: &[&str], reason: &str, used: &str) -> Slurm {
        let node =
            serde_json::json!({"name": "c1", "state": words, "reason": reason, "gres": "gpu:a:2", "gres_used": used});
        let job = serde_json::json!({"job_id": 7, "job_state": ["RUNNING"], "user_name": "alice",
            "gres_detail": ["gpu:a:1(IDX:1)"], "job_resources": {"nodes": {"allocation": [{"name": "c1"}]}}, "nodes": "c1"});
        let (nodes, jobs) = (serde_json::json!({"nodes": [node]}), serde_json::json!({"jobs": [job]}));
        Slurm { cluster: ClusterNodes::parse(&nodes.to_string(), &jobs.to_string()).unwrap(), ..Slurm::default() }
    }

    fn files(is_ready: bool) -> Files {
        let gpu = |index: u32| OfferedGpu { index, file: format!("/dev/nvidia{index}"), ..OfferedGpu::default() };
        let prepared = Prepared { node_name: "c1".to_owned(), gpus: vec![gpu(0), gpu(1)], ..Prepared::default() };
        let snapshot = Snapshot {
            ready: is_ready,
            why: "ready or why".to_owned(),
            prepared: Some(prepared),
            ..Snapshot::default()
        };
        Files { snapshot: Some(snapshot), uptime_ms: 100_000, now: 5000, ..Files::default() }
    }

    #[test]
    fn is_ready_if_pid_1_and_slurmctld_agree() {
        let idle = node(&["IDLE"], "", "");
        let drained = node(&["IDLE", "DRAIN"], "fan", "");
        for (files, slurm, expected) in [
            (files(true), Ok(&idle), (true, "ready or why")),
            (files(false), Ok(&idle), (false, "ready or why")),
            (files(true), Err("slurmctld is down"), (false, "slurmctld is down")),
            (files(true), Ok(&drained), (false, "the node is drained: fan")),
            (Files::default(), Ok(&idle), (false, "slurminit is not running in this container")),
        ] {
            let state = State::of(&files, slurm);
            assert_eq!((state.is_ready, state.why.as_str()), expected);
        }
    }

    #[test]
    fn gpus_without_report_have_jobs_of_slurmctld() {
        let state = State::of(&files(true), Ok(&node(&["MIXED"], "", "gpu:a:1(IDX:1)")));
        let jobs = |gpu: &GpuView| gpu.jobs.iter().map(|job| job.job).collect::<Vec<_>>();
        assert_eq!(state.gpus.iter().map(jobs).collect::<Vec<_>>(), [vec![], vec![7]]);
        let mut simulated = files(true);
        simulated
            .snapshot
            .iter_mut()
            .flat_map(|snapshot| &mut snapshot.prepared)
            .for_each(|prepared| prepared.simulated_nodes = 3);
        assert_eq!(State::of(&simulated, Err("")).gpus, []);
    }

    #[test]
    fn measurements_of_stale_report_are_left_out() {
        let gpu = GpuReport {
            condition: model::inventory::Condition {
                utilization: Some(40),
                temperature: Some(60),
                ..Default::default()
            },
            readings: model::inventory::Readings {
                power_mw: Some(99_500),
                power_limit_mw: Some(300_999),
                ..Default::default()
            },
            since: 4000,
            ..GpuReport::default()
        };
        let view = |at| {
            let report = Some(Report { at, interval_ms: 5000, gpus: vec![gpu.clone()], ..Report::default() });
            State::of(&Files { report, ..files(true) }, Err("")).gpus.remove(0)
        };
        let fresh = view(5000);
        assert_eq!((fresh.utilization, fresh.temperature, fresh.watts), (Some(40), Some(60), Some(100)));
        assert_eq!((fresh.watts_limit, fresh.for_seconds), (Some(300), Some(1000)));
        let stale = view(4900);
        assert_eq!((stale.utilization, stale.temperature, stale.watts), (None, None, None));
    }

    #[test]
    fn faults_are_shown_latest_first_with_age() {
        let fault = |at, line: &str| faults::report::ReportedFault {
            at,
            gpu: 0,
            kind: faults::fault::FaultKind::Xid(79),
            policy: faults::fault::Policy::Warn,
            jobs: Vec::new(),
            line: line.to_owned(),
        };
        let report = Some(Report { at: 5000, recent: vec![fault(4000, "a"), fault(4990, "b")], ..Report::default() });
        let state = State::of(&Files { report, ..files(true) }, Err(""));
        let shown: Vec<_> = state.faults.iter().map(|fault| (fault.age, fault.line.as_str())).collect();
        assert_eq!(shown, [(10, "b"), (1000, "a")]);
    }

    #[test]
    fn daemon_shows_last_exit_if_restarted_or_down() {
        let exit = || Some(machine::LastExit::Failure("exited with code 1".to_owned()));
        for (restarts, state, is_shown) in [
            (0, machine::UnitState::Ready, false),
            (1, machine::UnitState::Ready, true),
            (0, machine::UnitState::BackingOff, true),
        ] {
            let unit =
                UnitSnapshot { restarts, state, since_ms: Some(60_000), last_exit: exit(), ..UnitSnapshot::default() };
            let view = daemon(&unit, &files(true));
            assert_eq!((view.last_exit.is_some(), view.for_seconds), (is_shown, Some(40)), "{state:?}");
        }
    }
}
