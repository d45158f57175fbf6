//! Sample data: a node with a working, a lost and an AMD GPU, its cluster and its queue, as status files and output of
//! Slurm's commands.

use std::time::Duration;

use faults::fault::{FaultKind, Policy};
use faults::report::{Count, GpuReport, OpenFault, Report};
use faults::sample::Identity;
use faults::usage::UserUse;
use machine::{Part, Snapshot, Span, UnitSnapshot, UnitState};
use model::inventory::{
    Clocks, Condition, Ecc, GpuProcess, InstanceReadings, Pcie, PcieTraffic, Readings, RemappedRows, Vendor,
};
use model::queued_job::{OwnedJob, QueuedJob};
use slurm::nodes::ClusterNodes;
use slurm::scheduler::Scheduler;
use slurm::shares::FairShare;
use watch::overview::queue::Queue;
use watch::overview::{Files, Slurm};

pub(crate) const NOW: u64 = 1_790_000_000;

/// One of the two compute instances of a GPU instance.
fn instance(compute_instance: u32, memory_used: Option<u64>) -> InstanceReadings {
    InstanceReadings {
        uuid: Some(format!("MIG-FA4E-{compute_instance}")),
        gpu_instance: 9,
        compute_instance,
        profile: Some("1c.2g.35gb".to_owned()),
        memory_used,
        memory_free: memory_used.map(|used| (35 << 30) - used),
        sm_ppm: (compute_instance == 0).then_some(900_000),
        tensor_ppm: (compute_instance == 0).then_some(200_000),
    }
}

fn sample_readings() -> (Condition, Readings) {
    let condition = Condition {
        memory_mib: Some((33_934, 143_771)),
        memory_free_mib: Some(109_223),
        processes: Some(vec![
            GpuProcess { pid: 10_291, memory_mib: Some(2566) },
            GpuProcess { pid: 10_293, memory_mib: None },
        ]),
        temperature: Some(52),
        pcie: Some(Pcie { generation: 5, highest_generation: 5, lanes: 16, most_lanes: 16 }),
        ecc: Some(Ecc { is_on: true, uncorrected: Some(0) }),
        compute_mode: Some(model::inventory::ComputeMode::Exclusive),
        is_persistent: Some(true),
        utilization: Some(97),
        ..Condition::default()
    };
    let readings = Readings {
        memory_utilization: Some(7),
        power_mw: Some(627_400),
        power_limit_mw: Some(700_000),
        default_power_limit_mw: Some(700_000),
        set_power_limit_mw: Some(650_000),
        energy_mj: Some(123_456_789),
        fan_percent: Some(38),
        pstate: Some(0),
        clocks: Clocks { graphics: Some(1980), sm: Some(1980), memory: Some(3201), video: Some(1545) },
        highest_clocks: Clocks { graphics: Some(1980), sm: Some(1980), memory: Some(3201), video: None },
        clock_event_reasons: Some(0b0100_0100),
        ecc_corrected: Some(3),
        ecc_uncorrected: Some(1),
        remapped_rows: Some(RemappedRows { correctable: 1, uncorrectable: 2, is_pending: true, has_failed: false }),
        recovery_action: Some(1),
        nvlinks_down: Some(0),
        fabric_state: Some(3),
        tensor_ppm: Some(405_000),
        pcie_traffic: PcieTraffic { sent: Some(1_500_000), received: Some(2_000_000_000) },
        instances: vec![instance(0, Some(100 << 20)), instance(1, Some(100 << 20))],
        ras_uncorrected: None,
    };
    (condition, readings)
}

fn report() -> Report {
    let (condition, readings) = sample_readings();
    let fault = OpenFault {
        kind: FaultKind::Lost,
        policy: Policy::Drain,
        since: NOW - 60,
        what: "it fell off the bus".to_owned(),
        fix: "reboot the host".to_owned(),
    };
    let working = GpuReport {
        identity: Identity {
            index: 0,
            uuid: Some("GPU-1C67088E-9ecb-4564-bb97-6151ecc2ef64".to_owned()),
            pci_address: "0000:83:00.0".parse().ok(),
            model: Some("NVIDIA H200".to_owned()),
            file: Some("/dev/nvidia0".to_owned()),
            ..Identity::default()
        },
        offered: vec![0],
        jobs: vec![OwnedJob { job: 17, user: "alice".to_owned() }],
        since: NOW - 90,
        condition,
        readings,
        counts: [(FaultKind::Xid(31), Count { count: 2, last: NOW - 100 })].into(),
        ..GpuReport::default()
    };
    let lost = GpuReport {
        identity: Identity {
            index: 1,
            uuid: Some("GPU-2".to_owned()),
            model: Some("evil\"model\\\n\u{202e}".to_owned()),
            file: Some("/dev/nvidia1".to_owned()),
            ..Identity::default()
        },
        jobs: vec![OwnedJob { job: 18, user: "bo\"b\n# HELP x".to_owned() }],
        faults: vec![fault],
        counts: [
            (FaultKind::Xid(79), Count { count: 1, last: NOW - 60 }),
            (FaultKind::Lost, Count { count: 1, last: NOW - 60 }),
        ]
        .into(),
        is_out: true,
        ..GpuReport::default()
    };
    let amd = GpuReport {
        identity: Identity {
            vendor: Vendor::Amd,
            index: 0,
            pci_address: "0000:03:00.0".parse().ok(),
            model: Some("AMD Instinct MI300X".to_owned()),
            file: Some("/dev/dri/renderD128".to_owned()),
            ..Identity::default()
        },
        offered: vec![1],
        since: NOW - 5,
        condition: Condition { utilization: Some(0), memory_mib: Some((0, 196_592)), ..Condition::default() },
        readings: Readings { power_mw: Some(140_000), ras_uncorrected: Some(4), ..Readings::default() },
        ..GpuReport::default()
    };
    Report {
        process: sys::proc::own_id(),
        at: NOW - 3,
        interval_ms: 5000,
        gpus: vec![working, lost, amd],
        users: [("alice".to_owned(), UserUse { gpu_ms: 7_200_000, busy: 180_000_000, energy_mj: 900_000_000 })].into(),
        ..Report::default()
    }
}

pub(crate) fn files() -> Files {
    let unit = |name: &str, state, restarts| UnitSnapshot {
        name: name.to_owned(),
        state,
        restarts,
        essential: true,
        ..UnitSnapshot::default()
    };
    let span = |part, from_us, until_us| Span { part, from_us, until_us };
    let snapshot = Snapshot {
        ready: true,
        units: vec![unit("munged", UnitState::Ready, 0), unit("slurmd", UnitState::BackingOff, 3)],
        timeline: vec![
            span(Part::Prepare, 1000, Some(21_000)),
            span(Part::Unit("munged".to_owned()), 5000, Some(9000)),
            span(Part::Node, 30_000, Some(250_000)),
            span(Part::Jobs, 30_000, None),
        ],
        ..Snapshot::default()
    };
    Files { snapshot: Some(snapshot), uptime_ms: 61_500, report: Some(report()), now: NOW }
}

pub(crate) const NODES: &str = r#"{"nodes": [
  {"name": "c1", "state": ["MIXED"], "reason": "", "cpus": 8, "effective_cpus": 8, "alloc_cpus": 3, "real_memory": 16000, "alloc_memory": 4000,
   "partitions": ["main", "gpu"], "gres": "gpu:nvidia:2", "gres_used": "gpu:nvidia:1(IDX:0)"},
  {"name": "c2", "state": ["IDLE", "DRAIN"], "reason": "fan", "cpus": 4, "alloc_cpus": 0, "real_memory": 8000, "partitions": ["main"]},
  {"name": "c3", "state": ["IDLE", "MAINTENANCE", "RESERVED"], "reason": "", "cpus": 4, "real_memory": 8000, "partitions": ["main"]},
  {"name": "c4", "state": ["DOWN"], "reason": "x", "cpus": 4, "real_memory": 8000, "partitions": ["main"]}]}"#;
const JOBS: &str = r#"{"jobs": [{"job_id": 17, "user_name": "alice", "job_state": ["RUNNING"],
  "job_resources": {"nodes": {"allocation": [{"name": "c1"}]}}, "gres_detail": ["gpu:nvidia:1(IDX:0)"]}]}"#;
const QUEUE: &str = "17|17|RUNNING|3|1:02|gpu|alice|1|||||None|lab\n18|18|PENDING|2|0:00|main,gpu|bob|2|||||Dependency|(null)\n\
                     19|19|PENDING|2|0:00|main|bob|2|||||Resources|(null)\n16|16|FAILED|1|0:01|main|bob|2|||||NonZeroExitCode|(null)\n\
                     15|15|SUSPENDED|1|0:01|main|alice|1|||||None|lab\n";
const SDIAG: &str = "Server thread count:  3\nAgent queue size:     0\nAgent count:          0\nDBD Agent queue size: 0\n\n\
    Main schedule statistics (microseconds):\n\tLast cycle:   97\n\tMean cycle:   74\n\tCycles per minute: 63\n\n\
    Backfilling stats\n\tTotal backfilled jobs (since last slurm start): 111\n\tTotal backfilled jobs (since last stats cycle start): 7\n\
    \tTotal backfilled heterogeneous job components: 1\n\tLast cycle: 1942\n\tMean cycle: 1960\n\tDepth Mean: 29\n";

fn job(line: &str) -> QueuedJob {
    let (job, account) = QueuedJob::parse(line).unwrap();
    QueuedJob { account: account.to_owned(), ..job }
}

pub(crate) fn slurm() -> Slurm {
    Slurm {
        cluster: ClusterNodes::parse(NODES, JOBS).unwrap(),
        queue: Queue { jobs: QUEUE.lines().map(job).collect() },
        details: slurm::why::Details::default(),
        scheduler: Scheduler::parse(SDIAG),
        fair_shares: vec![FairShare { account: "lab".to_owned(), factor: 0.25 }],
        took: Duration::from_millis(40),
    }
}
