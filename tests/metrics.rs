//! The text of `/metrics`, from files and answers as they come: a golden file, Prometheus's rules, and what known dashboards ask for.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

use machine::{Part, Snapshot, Span, UnitSnapshot, UnitState};
use model::faults::fault::{FaultKind, Policy};
use model::faults::look::Identity;
use model::faults::report::{Count, GpuReport, OpenFault, Report};
use model::inventory::{
    Clocks, Condition, Ecc, InstanceReadings, Pcie, PcieTraffic, Process, Readings, RemappedRows, Vendor,
};
use model::prepared::Prepared;
use model::queued_job::{OwnedJob, QueuedJob};
use slurm::nodes::ClusterNodes;
use slurm::scheduler::Scheduler;
use slurm::shares::FairShare;
use watch::metrics;
use watch::overview::queue::Queue;
use watch::overview::{Allocations, Files, Slurm, State};

const NOW: u64 = 1_790_000_000;

/// Both compute instances of one GPU instance.
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

fn measured() -> (Condition, Readings) {
    let condition = Condition {
        memory_mib: Some((33_934, 143_771)),
        memory_free_mib: Some(109_223),
        processes: Some(vec![
            Process { pid: 10_291, memory_mib: Some(2566) },
            Process { pid: 10_293, memory_mib: None },
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
    let (condition, readings) = measured();
    let fault = OpenFault {
        kind: FaultKind::Lost,
        policy: Policy::Drain,
        since: NOW - 60,
        what: "it fell off the bus".to_owned(),
        repair: "reboot the host".to_owned(),
    };
    let whole = GpuReport {
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
    Report { pid: 1, at: NOW - 3, interval_ms: 5000, gpus: vec![whole, lost, amd], ..Report::default() }
}

fn files() -> Files {
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

const NODES: &str = r#"{"nodes": [
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

fn slurm() -> Slurm {
    Slurm {
        cluster: ClusterNodes::parse(NODES, JOBS).unwrap(),
        queue: Queue { jobs: QUEUE.lines().map(job).collect() },
        scheduler: Scheduler::parse(SDIAG),
        fair_shares: vec![FairShare { account: "lab".to_owned(), factor: 0.25 }],
        took: Duration::from_millis(40),
    }
}

fn text() -> String {
    metrics::text(&files(), Ok(&slurm()), Some("host"))
}

#[test]
fn everything_is_told_as_the_golden_file_has_it() {
    insta::assert_snapshot!(text());
}

/// The families with their types, and the names of all series. Panics where a line is not what Prometheus takes.
fn parsed(text: &str) -> BTreeMap<String, (String, BTreeSet<String>)> {
    let is_name = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let mut families: BTreeMap<String, (String, BTreeSet<String>)> = BTreeMap::new();
    let (mut helped, mut current) = (String::new(), String::new());
    assert!(text.ends_with('\n'));
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').expect(line);
            assert!(!help.is_empty() && is_name(name) && !families.contains_key(name), "{line}");
            helped = name.to_owned();
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').expect(line);
            assert!(name == helped && ["counter", "gauge", "untyped"].contains(&kind), "{line}");
            assert!(families.insert(name.to_owned(), (kind.to_owned(), BTreeSet::new())).is_none(), "{line} twice");
            current = name.to_owned();
        } else {
            let (series, value) = line.rsplit_once(' ').expect(line);
            assert!(value.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            assert_eq!(name, current, "{line}");
            check_labels(labels.strip_suffix('}').expect(line), &is_name);
            assert!(families.get_mut(name).unwrap().1.insert(series.to_owned()), "{line} twice");
        }
    }
    families
}

fn check_labels(mut labels: &str, is_name: &impl Fn(&str) -> bool) {
    while !labels.is_empty() {
        let (name, rest) = labels.split_once("=\"").expect(labels);
        assert!(is_name(name), "{labels}");
        let mut is_escaped = false;
        let end = rest.find(|c: char| {
            let ends = c == '"' && !is_escaped;
            assert!(!is_escaped || "\\\"n".contains(c), "{labels}");
            is_escaped = c == '\\' && !is_escaped;
            ends
        });
        let end = end.expect(labels);
        assert!(!rest[..end].chars().any(char::is_control), "{labels}");
        labels = rest[end + 1..].strip_prefix(',').unwrap_or(&rest[end + 1..]);
    }
}

/// The rules of `promtool check metrics`, for names that are not NVIDIA's.
#[test]
fn every_line_is_valid_and_every_name_fits_its_type() {
    for text in [
        text(),
        metrics::text(&Files::default(), Err("away"), None),
        metrics::text(&files(), Err("away"), Some("host")),
    ] {
        for (name, (kind, series)) in parsed(&text) {
            assert!(!series.is_empty(), "{name}");
            if name.starts_with("DCGM_") {
                continue;
            }
            assert_eq!(name, name.to_lowercase());
            assert!(kind != "counter" || name.ends_with("_total"), "{name}");
            assert!(kind == "counter" || kind == "untyped" || !name.ends_with("_total"), "{name}");
            assert!(!["_count", "_sum", "_bucket"].iter().any(|end| name.ends_with(end)), "{name}");
        }
    }
}

#[test]
fn omits_unknown_facts_with_reason() {
    let away = metrics::text(&files(), Err("slurmctld is away"), None);
    assert!(away.contains("\nslurminit_slurm_up 0\n") && !away.contains("\nslurm_"), "{away}");
    assert!(!away.contains("DCGM_"));
    let stale = Files { now: NOW + 60, ..files() };
    let stale = metrics::text(&stale, Ok(&slurm()), Some("host"));
    for gone in ["nvidia_smi_temperature_gpu", "DCGM_FI_DEV_GPU_TEMP", "nvidia_smi_compute_apps"] {
        assert!(!stale.contains(gone), "{gone}");
    }
    for kept in [
        "slurminit_gpu_report_age_seconds 63\n",
        "nvidia_smi_last_collect_success 0\n",
        "nvidia_smi_index{",
        "slurminit_gpu_faults_total{",
    ] {
        assert!(stale.contains(kept), "{kept}");
    }
    let none = metrics::text(&Files::default(), Err("away"), Some("host"));
    assert!(none.contains("slurminit_build_info") && !none.contains("uuid="), "{none}");
}

/// Only the info series has a job or a user of a GPU: a label on each would make new series with each job.
#[test]
fn jobs_are_the_label_of_one_family() {
    for (name, (_, series)) in parsed(&text()) {
        let has_job = series.iter().any(|series| series.contains("slurmjobid="));
        assert_eq!(has_job, name == "slurminit_gpu_job_info", "{name}");
        assert!(!series.iter().any(|series| series.contains("{job=") || series.contains(",job=")), "{name}");
    }
}

fn page() -> std::path::PathBuf {
    harness::root().join("docs/reference/metrics.md")
}

/// A table for each kind of name, made of the text itself. `UPDATE=1` writes it.
#[test]
fn page_has_every_metric() {
    let (told, text) = (parsed(&text()), text());
    let mut page = fs::read_to_string(page()).unwrap();
    let old = page.clone();
    for start in ["slurminit_", "nvidia_smi_", "DCGM_", "slurm_"] {
        let helps = text.lines().filter_map(|line| line.strip_prefix("# HELP ")?.split_once(' '));
        let helps = helps.filter(|(name, _)| name.starts_with(start));
        let rows = helps.map(|(name, help)| {
            let (kind, series) = &told[name];
            format!("| `{name}` | {kind} | {} | {} |\n", labels(start, series), help.trim_end_matches('.'))
        });
        let table = format!("| metric | type | labels | is |\n|---|---|---|---|\n{}", rows.collect::<String>());
        let (before, rest) = page.split_once(&format!("<!-- metrics: {start} -->\n")).expect(start);
        let (_, after) = rest.split_once("<!-- end -->").expect(start);
        page = format!("{before}<!-- metrics: {start} -->\n{table}<!-- end -->{after}");
    }
    if std::env::var_os("UPDATE").is_some() {
        fs::write(self::page(), &page).unwrap();
    } else {
        assert_eq!(old, page, "UPDATE=1 cargo test --test metrics writes docs/reference/metrics.md");
    }
}

/// The names of the labels, in their order; DCGM's are all the same.
fn labels(start: &str, series: &BTreeSet<String>) -> String {
    let mut names: Vec<String> = Vec::new();
    for name in series.iter().flat_map(|series| series.split("=\"")).filter(|_| start != "DCGM_") {
        let name = name.rsplit(['{', ',', '"']).next().unwrap_or_default();
        let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        if is_name && series.iter().all(|series| series.contains('{')) && !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
    names.join(", ")
}

/// tests/metrics/asked has the names in the dashboards' expressions, extracted from each dashboard's JSON (for 4323 from its exporter's sources) with
/// `grep -ohE '\b(nvidia_smi|DCGM|slurm)_[A-Za-z0-9_]+' dashboard.json | sort -u`.
#[test]
fn dashboards_use_existing_metrics() {
    let told = parsed(&text());
    for dashboard in ["14574", "25547", "12239", "4323"] {
        let file = harness::root().join(format!("tests/metrics/asked/{dashboard}.txt"));
        let asked = fs::read_to_string(file).unwrap();
        assert!(asked.lines().count() > 5);
        for name in asked.lines() {
            // The start of a name, in a pattern.
            let is_there =
                told.contains_key(name) || (name.ends_with('_') && told.keys().any(|told| told.starts_with(name)));
            assert!(is_there, "{dashboard} asks for {name}");
        }
    }
}

#[test]
fn dashboard_and_alert_rules_use_metrics_that_exist() {
    let exported = parsed(&text());
    for (file, least) in [("slurminit.json", 15), ("alerts.yaml", 5)] {
        let used = fs::read_to_string(harness::root().join("docker/grafana").join(file)).unwrap();
        let words = used.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let used: BTreeSet<&str> = words
            .filter(|word| ["slurminit_", "nvidia_smi_", "slurm_"].iter().any(|start| word.starts_with(start)))
            .collect();
        assert!(used.len() > least, "{file}: {used:?}");
        let missing: Vec<_> = used.iter().filter(|name| !exported.contains_key(**name)).collect();
        assert!(missing.is_empty(), "{file}: {missing:?}");
    }
}

/// Another vendor's GPU under NVIDIA's names would be counted by a dashboard of theirs.
#[test]
fn only_nvidias_gpus_have_nvidias_names() {
    let mut files = files();
    let of_amd = |text: &str| {
        let lines = text.lines().filter(|line| line.contains("uuid=\"0000:03:00.0-renderd128\""));
        lines.map(|line| line.split('{').next().unwrap().to_owned()).collect::<BTreeSet<_>>()
    };
    let names = of_amd(&metrics::text(&files, Ok(&slurm()), Some("host")).to_lowercase());
    assert!(names.iter().all(|name| name.starts_with("slurminit_gpu_")), "{names:?}");
    for name in ["info", "utilization_ratio", "memory_total_bytes", "power_watts", "memory_errors_uncorrected"] {
        assert!(names.contains(&format!("slurminit_gpu_{name}")), "{name}: {names:?}");
    }
    files.report.as_mut().unwrap().gpus.retain(|gpu| gpu.identity.vendor == Vendor::Amd);
    let text = metrics::text(&files, Ok(&slurm()), Some("host"));
    assert!(!text.contains("nvidia_smi_") && text.contains("slurminit_gpu_info{"), "{text}");
    let dashboard = fs::read_to_string(harness::root().join("docker/grafana/slurminit.json")).unwrap();
    assert!(!dashboard.contains("nvidia_smi_"), "the dashboard is for all vendors");
}

/// The agent knows only jobs whose GPUs work.
#[test]
fn slurmctld_reports_gpu_user_and_queue_time() {
    let mut files = files();
    let prepared = Prepared { node_name: "c1".to_owned(), ..Prepared::default() };
    files.snapshot.as_mut().unwrap().prepared = Some(prepared);
    files.report.as_mut().unwrap().gpus[0].jobs.clear();
    let mut allocations = Allocations::default();
    let seen = |files: &Files| {
        let gpus = &files.report.as_ref().unwrap().gpus;
        gpus.iter().map(|gpu| (gpu.jobs.len(), files.now - gpu.since)).collect::<Vec<_>>()
    };
    allocations.apply(&mut files, Ok(&slurm()));
    assert_eq!(seen(&files), [(1, 62), (0, 0), (0, 0)]);
    files.now += 30;
    allocations.apply(&mut files, Ok(&slurm()));
    assert_eq!(seen(&files), [(1, 62), (0, 30), (0, 30)]);
    let free = Slurm {
        cluster: ClusterNodes::parse(&NODES.replace("(IDX:0)", "(IDX:N/A)"), r#"{"jobs": []}"#).unwrap(),
        ..slurm()
    };
    files.now += 30;
    allocations.apply(&mut files, Ok(&free));
    assert_eq!(seen(&files)[0], (0, 30));
    allocations.apply(&mut files, Err("away"));
    assert_eq!(seen(&files)[0], (0, 30));
}

#[test]
fn page_has_safe_texts_and_no_old_measurements() {
    let state = State::of(&files(), Ok(&slurm()));
    assert_eq!((state.gpus.len(), state.is_stale, state.report_age), (3, false, Some(3)));
    assert_eq!((state.gpus[0].watts, state.gpus[0].for_seconds), (Some(627), Some(90)));
    assert_eq!(state.gpus[1].faults, ["lost: it fell off the bus"]);
    assert_eq!(state.gpus[2].id, "0000:03:00.0");
    let json = serde_json::to_string(&state).unwrap();
    assert!(!json.contains('\u{202e}') && !json.contains("\\n"), "{json}");
    let known = state.slurm.as_ref().unwrap();
    assert_eq!((known.running, known.pending, known.node_count), (1, 2, 4));
    let ids: Vec<&str> = known.jobs.iter().map(|job| job.id.as_str()).collect();
    assert_eq!(ids, ["17", "15", "18", "19"]);
    let old = State::of(&Files { now: NOW + 600, ..files() }, Err("away"));
    assert!(old.is_stale && old.gpus[0].utilization.is_none() && old.gpus[0].jobs.len() == 1);
    assert_eq!(old.slurm, Err("away".to_owned()));
    let none = State::of(&Files::default(), Err("away"));
    assert!(!none.is_ready && none.gpus.is_empty() && none.why.contains("not running"));
}

#[test]
fn node_that_accepts_no_jobs_is_not_ready_with_reason() {
    let on = |name: &str, slurm: Result<&Slurm, &str>| {
        let mut files = files();
        let snapshot = files.snapshot.as_mut().unwrap();
        snapshot.ready = true;
        snapshot.prepared = Some(Prepared { node_name: name.to_owned(), ..Prepared::default() });
        let state = State::of(&files, slurm);
        (state.is_ready, state.why)
    };
    let why = |name: &str| match on(name, Ok(&slurm())) {
        (false, why) => why,
        (true, why) => panic!("{name} is ready: {why}"),
    };
    assert!(on("c1", Ok(&slurm())).0);
    assert_eq!(why("c2"), "the node is drained: fan");
    assert_eq!(on("c1", Err("no answer")), (false, "no answer".to_owned()));
}
