//! The output of `/metrics` from sample files and Slurm output: golden file, Prometheus naming rules and the names that
//! known dashboards use.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod sample;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use faults::report::Report;
use model::inventory::Vendor;
use model::prepared::Prepared;
use slurm::nodes::ClusterNodes;
use watch::metrics;
use watch::overview::{Allocations, Files, Slurm, State};

use sample::{NODES, NOW, files, slurm};

fn text() -> String {
    metrics::text(&files(), Ok(&slurm()), Some("host"))
}

#[test]
fn metrics_match_the_golden_file() {
    insta::assert_snapshot!(text());
}

/// The type and the series names of each metric family. Panics on a line that is not valid exposition format.
fn parse_metrics(text: &str) -> BTreeMap<String, (String, BTreeSet<String>)> {
    let is_name = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let mut families: BTreeMap<String, (String, BTreeSet<String>)> = BTreeMap::new();
    let (mut help_name, mut current) = (String::new(), String::new());
    assert!(text.ends_with('\n'));
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').expect(line);
            assert!(!help.is_empty() && is_name(name) && !families.contains_key(name), "{line}");
            help_name = name.to_owned();
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').expect(line);
            assert!(name == help_name && ["counter", "gauge", "untyped"].contains(&kind), "{line}");
            assert!(families.insert(name.to_owned(), (kind.to_owned(), BTreeSet::new())).is_none(), "duplicate {line}");
            current = name.to_owned();
        } else {
            let (series, value) = line.rsplit_once(' ').expect(line);
            assert!(value.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            assert_eq!(name, current, "{line}");
            check_labels(labels.strip_suffix('}').expect(line), &is_name);
            assert!(families.get_mut(name).unwrap().1.insert(series.to_owned()), "duplicate {line}");
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

/// The rules of `promtool check metrics`. DCGM names are exempt: NVIDIA defined them.
#[test]
fn every_line_is_valid_and_every_name_fits_its_type() {
    for text in [
        text(),
        metrics::text(&Files::default(), Err("away"), None),
        metrics::text(&files(), Err("away"), Some("host")),
    ] {
        for (name, (kind, series)) in parse_metrics(&text) {
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
fn omits_unavailable_and_stale_metrics() {
    let away = metrics::text(&files(), Err("slurmctld is away"), None);
    assert!(away.contains("\nslurminit_slurm_up 0\n") && !away.contains("\nslurm_"), "{away}");
    assert!(!away.contains("DCGM_"));
    let unsampled = files().report.map(|report| Report { at: 0, gpus: Vec::new(), ..report });
    let unsampled = Files { report: unsampled, uptime_ms: 7_900, ..files() };
    assert!(metrics::text(&unsampled, Ok(&slurm()), None).contains("\nslurminit_gpu_report_age_seconds 7\n"));
    let stale = Files { now: NOW + 60, ..files() };
    let stale = metrics::text(&stale, Ok(&slurm()), Some("host"));
    for omitted in ["nvidia_smi_temperature_gpu", "DCGM_FI_DEV_GPU_TEMP", "nvidia_smi_compute_apps"] {
        assert!(!stale.contains(omitted), "{omitted}");
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

/// A job label on every metric would create new series for each job.
#[test]
fn only_job_info_metric_has_job_label() {
    for (name, (_, series)) in parse_metrics(&text()) {
        let has_job = series.iter().any(|series| series.contains("slurmjobid="));
        assert_eq!(has_job, name == "slurminit_gpu_job_info", "{name}");
        assert!(!series.iter().any(|series| series.contains("{job=") || series.contains(",job=")), "{name}");
    }
}

fn page_path() -> std::path::PathBuf {
    harness::root().join("docs/reference/metrics.md")
}

/// The page has one table per name prefix, generated from the output of `/metrics`. `UPDATE=1` writes it.
#[test]
fn reference_page_lists_every_metric() {
    let (exported, text) = (parse_metrics(&text()), text());
    let mut page = fs::read_to_string(page_path()).unwrap();
    let old = page.clone();
    for start in ["slurminit_", "nvidia_smi_", "DCGM_", "slurm_"] {
        let helps = text.lines().filter_map(|line| line.strip_prefix("# HELP ")?.split_once(' '));
        let helps = helps.filter(|(name, _)| name.starts_with(start));
        let rows = helps.map(|(name, help)| {
            let (kind, series) = &exported[name];
            format!("| `{name}` | {kind} | {} | {} |\n", labels(start, series), help.trim_end_matches('.'))
        });
        let table = format!("| metric | type | labels | is |\n|---|---|---|---|\n{}", rows.collect::<String>());
        let (before, rest) = page.split_once(&format!("<!-- metrics: {start} -->\n")).expect(start);
        let (_, after) = rest.split_once("<!-- end -->").expect(start);
        page = format!("{before}<!-- metrics: {start} -->\n{table}<!-- end -->{after}");
    }
    if std::env::var_os("UPDATE").is_some() {
        fs::write(page_path(), &page).unwrap();
    } else {
        assert_eq!(old, page, "UPDATE=1 cargo test --test host metrics writes docs/reference/metrics.md");
    }
}

/// Label names in order of appearance. Empty for DCGM metrics, which all have the same labels.
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

/// tests/metrics/asked lists the metric names in each dashboard's expressions. They were extracted from the dashboard's JSON (for
/// dashboard 4323 from the exporter's sources) with
/// `grep -ohE '\b(nvidia_smi|DCGM|slurm)_[A-Za-z0-9_]+' dashboard.json | sort -u`.
#[test]
fn dashboards_use_existing_metrics() {
    let exported = parse_metrics(&text());
    for dashboard in ["14574", "25547", "12239", "4323"] {
        let file = harness::root().join(format!("tests/metrics/asked/{dashboard}.txt"));
        let used = fs::read_to_string(file).unwrap();
        assert!(used.lines().count() > 5);
        for name in used.lines() {
            // A trailing underscore marks a name prefix from a regular expression.
            let is_exported = exported.contains_key(name)
                || (name.ends_with('_') && exported.keys().any(|metric| metric.starts_with(name)));
            assert!(is_exported, "dashboard {dashboard} uses {name}");
        }
    }
}

#[test]
fn dashboard_and_alert_rules_use_metrics_that_exist() {
    let exported = parse_metrics(&text());
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

/// NVIDIA dashboards would count other vendors' GPUs that are exported under NVIDIA names.
#[test]
fn only_nvidia_gpus_use_nvidia_metric_names() {
    let mut files = files();
    let amd_metric_names = |text: &str| {
        let lines = text.lines().filter(|line| line.contains("uuid=\"0000:03:00.0-renderd128\""));
        lines.map(|line| line.split('{').next().unwrap().to_owned()).collect::<BTreeSet<_>>()
    };
    let names = amd_metric_names(&metrics::text(&files, Ok(&slurm()), Some("host")).to_lowercase());
    assert!(names.iter().all(|name| name.starts_with("slurminit_gpu_")), "{names:?}");
    for name in ["info", "utilization_ratio", "memory_total_bytes", "power_watts", "memory_errors_uncorrected"] {
        assert!(names.contains(&format!("slurminit_gpu_{name}")), "{name}: {names:?}");
    }
    files.report.as_mut().unwrap().gpus.retain(|gpu| gpu.identity.vendor == Vendor::Amd);
    let text = metrics::text(&files, Ok(&slurm()), Some("host"));
    assert!(!text.contains("nvidia_smi_") && text.contains("slurminit_gpu_info{"), "{text}");
    let dashboard = fs::read_to_string(harness::root().join("docker/grafana/slurminit.json")).unwrap();
    assert!(!dashboard.contains("nvidia_smi_"), "NVIDIA-only metric in the dashboard for all vendors");
}

/// The agent queries slurmctld only about busy GPUs, so its report has no jobs on idle GPUs.
#[test]
fn takes_gpu_jobs_and_their_run_time_from_slurmctld() {
    let mut files = files();
    let prepared = Prepared { node_name: "c1".to_owned(), ..Prepared::default() };
    files.snapshot.as_mut().unwrap().prepared = Some(prepared);
    files.report.as_mut().unwrap().gpus[0].jobs.clear();
    let mut allocations = Allocations::default();
    let jobs_and_age = |files: &Files| {
        let gpus = &files.report.as_ref().unwrap().gpus;
        gpus.iter().map(|gpu| (gpu.jobs.len(), files.now - gpu.since)).collect::<Vec<_>>()
    };
    allocations.apply(&mut files, Ok(&slurm()));
    // GPU 2 was free before the first scrape. The agent's report has no time for GPU 1.
    assert_eq!(jobs_and_age(&files), [(1, 62), (0, files.now), (0, 5)]);
    files.now += 30;
    allocations.apply(&mut files, Ok(&slurm()));
    assert_eq!(jobs_and_age(&files), [(1, 62), (0, files.now), (0, 35)]);
    let free = Slurm {
        cluster: ClusterNodes::parse(&NODES.replace("(IDX:0)", "(IDX:N/A)"), r#"{"jobs": []}"#).unwrap(),
        ..slurm()
    };
    files.now += 30;
    allocations.apply(&mut files, Ok(&free));
    assert_eq!(jobs_and_age(&files)[0], (0, 30));
    allocations.apply(&mut files, Err("away"));
    assert_eq!(jobs_and_age(&files)[0], (0, 30));
}

#[test]
fn page_state_sanitizes_text_and_drops_stale_readings() {
    let state = State::of(&files(), Ok(&slurm()));
    assert_eq!((state.gpus.len(), state.is_stale, state.report_age), (3, false, Some(3)));
    assert_eq!((state.gpus[0].watts, state.gpus[0].for_seconds), (Some(627), Some(90)));
    assert_eq!(state.gpus[1].faults, ["lost: it fell off the bus"]);
    assert_eq!(state.gpus[2].id, "0000:03:00.0");
    let json = serde_json::to_string(&state).unwrap();
    assert!(!json.contains('\u{202e}') && !json.contains("\\n"), "{json}");
    let slurm_state = state.slurm.as_ref().unwrap();
    assert_eq!((slurm_state.running, slurm_state.pending, slurm_state.node_count), (1, 2, 4));
    let ids: Vec<&str> = slurm_state.jobs.iter().map(|job| job.id.as_str()).collect();
    assert_eq!(ids, ["17", "15", "18", "19"]);
    let stale = State::of(&Files { now: NOW + 600, ..files() }, Err("away"));
    assert!(stale.is_stale && stale.gpus[0].utilization.is_none() && stale.gpus[0].jobs.len() == 1);
    assert_eq!(stale.slurm, Err("away".to_owned()));
    let none = State::of(&Files::default(), Err("away"));
    assert!(!none.is_ready && none.gpus.is_empty() && none.why.contains("not running"));
}

#[test]
fn node_that_accepts_no_jobs_is_not_ready_with_reason() {
    let readiness = |name: &str, slurm: Result<&Slurm, &str>| {
        let mut files = files();
        let snapshot = files.snapshot.as_mut().unwrap();
        snapshot.ready = true;
        snapshot.prepared = Some(Prepared { node_name: name.to_owned(), ..Prepared::default() });
        let state = State::of(&files, slurm);
        (state.is_ready, state.why)
    };
    let why = |name: &str| match readiness(name, Ok(&slurm())) {
        (false, why) => why,
        (true, why) => panic!("{name} is ready: {why}"),
    };
    assert!(readiness("c1", Ok(&slurm())).0);
    assert_eq!(why("c2"), "the node is drained: fan");
    assert_eq!(readiness("c1", Err("no answer")), (false, "no answer".to_owned()));
}
