//! Rendering of configuration files from an inventory. Each directory in `tests/render` is a case:
//! - `inventory.json`: the detected hardware, as changes to `tests/render/inventory.json`
//! - `slurminit.toml`: the configuration
//! - `config/`, `slurm/`: the user's files
//! - `expected/`: the output files that differ from the first case. A file is recorded whole, or as `NAME.diff` if the difference is
//!   shorter. `absent` names the files that only the first case has.
//!
//! `UPDATE=1 cargo test --test host render` writes `expected/`; review the diff before you commit it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod properties;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use config::Config;
use model::inventory::Inventory;
use plan::render::{explain, render};
use plan::{FileName, FileState, Names, select_user_files};
use serde_json::Value;

/// The first case, whose expected files are complete.
const FIRST: &str = "01-two-linked-h200";

/// Replaces the values of `base` with those of `change`. Objects are merged.
fn merge(base: &mut Value, change: Value) {
    match (base, change) {
        (Value::Object(base), Value::Object(change)) => {
            for (key, value) in change {
                merge(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, change) => *base = change,
    }
}

fn inventory(case: &Path) -> Inventory {
    let read = |file: &Path| fs::read_to_string(file).map(|text| serde_json::from_str::<Value>(&text).unwrap());
    let mut inventory = read(&harness::root().join("tests/render/inventory.json")).unwrap();
    if let Ok(change) = read(&case.join("inventory.json")) {
        merge(&mut inventory, change);
    }
    serde_json::from_value(inventory).unwrap()
}

/// The lines that differ, each group with its neighbouring lines. Has no line numbers, so that added lines in the first case do not
/// change the recorded differences of the others.
fn line_difference(base: &str, text: &str) -> String {
    let difference = similar::TextDiff::from_lines(base, text).unified_diff().context_radius(1).to_string();
    difference
        .lines()
        .map(|line| if line.starts_with("@@") { "@@\n".to_owned() } else { format!("{line}\n") })
        .collect()
}

/// The files to record for a case: those that differ from the first case.
fn differences(files: BTreeMap<String, String>, first: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let only_first =
        |name: &&String| *name != "oci.conf" && !files.contains_key(*name) && !files.contains_key("refusal.txt");
    let absent: String = first.keys().filter(only_first).map(|name| format!("{name}\n")).collect();
    let record = |(name, text): (String, String)| {
        let difference = first.get(&name).map(|base| line_difference(base, &text));
        match difference.filter(|difference| difference.lines().count() < text.lines().count()) {
            Some(difference) => (format!("{name}.diff"), difference),
            None => (name, text),
        }
    };
    let mut files: BTreeMap<_, _> =
        files.into_iter().filter(|(name, text)| first.get(name) != Some(text)).map(record).collect();
    if !absent.is_empty() {
        files.insert("absent".to_owned(), absent);
    }
    files
}

/// Renders a case. Returns the text of its files by name.
fn render_case(case: &Path) -> BTreeMap<String, String> {
    let inventory = inventory(case);
    let toml = fs::read_to_string(case.join("slurminit.toml")).unwrap_or_default();
    let mut config = Config::parse(&toml, Path::new("slurminit.toml")).unwrap();
    config.paths.slurm = "/slurm".into();

    let mut files = BTreeMap::new();
    let mut plan = match plan::plan(&config, &inventory) {
        Ok(plan) => plan,
        Err(refusal) => {
            let text = format!("exit code {}\n{}", refusal.exit_code, explain(&[], &[refusal.finding]));
            files.insert("refusal.txt".to_owned(), text);
            return files;
        }
    };
    let user_files = install::find_user_files(&config.paths, case).unwrap();
    let has_device = |path: &Path| inventory.gpus.iter().any(|gpu| gpu.device_file.as_deref() == Some(path));
    let state = |path: &Path| match path {
        path if has_device(path) => FileState::Present,
        path if path.starts_with("/config") => FileState::Program,
        _ => FileState::Missing,
    };
    let configured = Some(config.node.name.to_string()).filter(|name| name != "localhost");
    let names = Names { configured, hostname: inventory.hostname.clone(), ..Names::default() };
    let selected = select_user_files(&config, &user_files);
    let customized = plan.apply_user_files(&config, selected, &inventory, &names, &state);
    for file in render(&plan) {
        // Compare oci.conf in one case only: it is the same in nearly all.
        let is_expected = file.name != FileName::OciConf || case.ends_with(FIRST);
        if is_expected && customized.get(file.name).is_none() {
            files.insert(file.name.to_string(), file.text);
        }
    }
    if let Some(fatal) = &customized.fatal {
        files.insert("fatal.txt".to_owned(), format!("{fatal:#?}\n"));
    }
    files.insert("explain.txt".to_owned(), explain(&plan.decisions, &plan.findings));
    files
}

#[test]
fn every_case_renders_expected_files() {
    let root = harness::root().join("tests/render");
    let update = std::env::var_os("UPDATE").is_some();
    let mut cases: Vec<_> = fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path()).collect();
    cases.retain(|path| path.is_dir());
    cases.sort();
    assert!(cases.len() >= 24, "cases are missing: {cases:?}");
    let first = render_case(&root.join(FIRST));
    let mut diff = String::new();
    for case in cases {
        let actual = render_case(&case);
        let actual = if case.ends_with(FIRST) { actual } else { differences(actual, &first) };
        let expected = case.join("expected");
        if update {
            let _ = fs::remove_dir_all(&expected);
            fs::create_dir(&expected).unwrap();
            for (name, text) in &actual {
                fs::write(expected.join(name), text).unwrap();
            }
        }
        let read = |entry: fs::DirEntry| {
            let text = fs::read_to_string(entry.path()).unwrap();
            (entry.file_name().into_string().unwrap(), text)
        };
        let expected_files: BTreeMap<String, String> =
            fs::read_dir(&expected).unwrap().map(|entry| read(entry.unwrap())).collect();
        let empty = String::new();
        for name in actual.keys().chain(expected_files.keys().filter(|name| !actual.contains_key(*name))) {
            let (old, new) = (expected_files.get(name).unwrap_or(&empty), actual.get(name).unwrap_or(&empty));
            if old != new {
                let path = expected.join(name).display().to_string();
                diff.push_str(&similar::TextDiff::from_lines(old, new).unified_diff().header(&path, "now").to_string());
            }
        }
    }
    if !diff.is_empty() {
        panic!("{diff}\nIf this change is intended: UPDATE=1 cargo test --test host render");
    }
}
