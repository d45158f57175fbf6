//! Runs `slurminit doctor` against simulated faults. Hosts and containers are directories with fake tools
//! (`doctor/hosts.rs`, `doctor/containers.rs`); fake-nvml replaces NVIDIA's library. Faults that need real daemons
//! are in `tests/image/doctor.rs`.
//!
//! `tests/doctor/answers` holds the expected answer to each fault. docs/reference/doctor.md is generated from the
//! entries. `UPDATE=1 cargo test --test host doctor` writes both; review the difference. Each run lists symptoms, faults and
//! answers in `target/evidence`.
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "a test is not PID 1, so it may wait for the commands it runs")]

mod answer;
mod container;
mod containers;
mod docs;
mod edges;
mod fixes;
mod hosts;
mod symptoms;

use std::collections::BTreeSet;
use std::process::{Command, Output};

use answer::Report;

/// Path of the fake NVML library. Cargo builds it next to the test because the crate is a dev-dependency.
fn fake_nvml() -> std::path::PathBuf {
    let library = harness::fake_nvml();
    assert!(library.exists(), "{} is missing: run `cargo test --workspace`", library.display());
    library
}

/// `slurminit doctor --json` with an empty environment.
fn doctor() -> Command {
    let mut command = Command::new(harness::slurminit());
    command.env_clear().args(["doctor", "--json"]);
    command
}

fn report(output: &Output) -> Report {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// The exit code for a verdict, from docs/reference/exit-codes.md.
fn exit_code(verdict: &str) -> i32 {
    match verdict {
        "ok" | "note" => 0,
        "warn" => 4,
        "could-not-look" => 5,
        _ => 1,
    }
}

#[test]
fn each_host_fault_gets_recorded_answer() {
    answer::compare(hosts::all().into_iter().map(|(name, entry, host)| {
        let output = hosts::examine(&host);
        let report = report(&output);
        assert_eq!(output.status.code(), Some(exit_code(&report.verdict)), "{name}");
        (name, report.of(entry).without(&host.path("root")))
    }));
}

#[test]
fn each_container_fault_gets_recorded_answer() {
    answer::compare(containers::all().into_iter().map(|(name, entry, container)| {
        let output = container.examine();
        let report = report(&output);
        assert_eq!(output.status.code(), Some(exit_code(&report.verdict)), "{name}");
        (name, report.of(entry).without(&container.path("root")).without(&container.path("")))
    }));
}

/// One step before a limit, and on it.
#[test]
fn similar_situations_get_different_answers() {
    let containers = edges::containers().into_iter().map(|(container, answers)| (container.examine(), answers));
    let hosts = edges::hosts().into_iter().map(|(host, answers)| (hosts::examine(&host), answers));
    let mut wrong = Vec::new();
    for (output, answers) in containers.chain(hosts) {
        let report = report(&output);
        for (entry, verdict, seen) in answers {
            let answer = report.of(entry);
            if (answer.verdict.as_str(), answer.seen.as_str()) != (verdict, seen) {
                wrong.push(format!("{entry}: expected {verdict}: {seen}; got {}: {}", answer.verdict, answer.seen));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Guards against false alarms.
#[test]
fn reports_nothing_without_problems() {
    // Slurm keeps the reason of a node that was resumed.
    let reason = "Low RealMemory (reported:900 < 100.00% of configured:1000)";
    let resumed = container::Container::healthy().answer("sinfo", "node", &format!("gpu:nvidia:1|idle|{reason}\n"));
    let outputs = [container::Container::healthy().examine(), resumed.examine(), hosts::examine(&hosts::healthy())];
    for report in outputs.map(|output| report(&output)) {
        let problems: Vec<String> = report
            .entries
            .iter()
            .filter(|entry| !["ok", "note"].contains(&entry.verdict.as_str()))
            .map(|entry| format!("{entry:?}"))
            .collect();
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }
}

/// The text report shows the same facts as the JSON report.
#[test]
fn text_shows_check_observation_and_fix_without_control_characters() {
    let evil = "fan \u{1b}[31mbroken\u{7}\u{202e}";
    let container = container::Container::healthy().answer("sinfo", "node", &format!("gpu:nvidia:1|drained|{evil}\n"));
    let output = container.command_as_text().output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains(['\u{1b}', '\u{7}', '\u{202e}']), "{text:?}");
    for part in ["! drain:", "checked: sinfo", "fan \\x1b[31mbroken", "fix:       slurminit resume localhost"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let brief = String::from_utf8(container.command_as_text().arg("--brief").output().unwrap().stdout).unwrap();
    assert!(brief.contains("! drain:") && !brief.contains("✓"), "{brief}");
}

#[test]
fn hung_checks_time_out_without_affecting_other_checks() {
    let names = ["ping", "munge", "address"];
    let container = names.into_iter().fold(container::Container::healthy(), container::Container::hangs);
    let output = container.fault("init", "hang").command_as_json().args(["--timeout", "3"]).output().unwrap();
    let report = report(&output);
    assert_eq!(report.of("address").verdict, "could-not-look");
    assert_eq!(report.of("controller").verdict, "fail");
    assert_eq!(report.of("saved-state").verdict, "ok");
}

/// No fault without a recorded answer, and no stale record.
#[test]
fn every_fault_has_record_and_every_record_a_fault() {
    let files = std::fs::read_dir(answer::folder()).unwrap().map(|file| file.unwrap().path());
    let records: BTreeSet<String> = files
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .filter(|name| !name.starts_with("image-"))
        .collect();
    let hosts = hosts::all().into_iter().map(|(name, ..)| name.to_owned());
    let containers = containers::all().into_iter().map(|(name, ..)| name.to_owned());
    assert_eq!(records, hosts.chain(containers).collect());
}

#[test]
fn every_entry_is_covered_by_a_fault() {
    let covered: BTreeSet<String> = std::fs::read_dir(answer::folder())
        .unwrap()
        .map(|file| file.unwrap().path())
        .filter_map(|path| Some(answer::recorded(path.file_stem()?.to_str()?)?.entry))
        .collect();
    let entries = doctor::PARTS.iter().flat_map(|part| part.entries).map(|entry| entry.id);
    let uncovered: Vec<&str> = entries.filter(|id| !covered.contains(*id)).collect();
    assert!(uncovered.is_empty(), "no test simulates a fault for {uncovered:?}");
}

#[test]
fn doctor_page_matches_entries() {
    docs::compare();
}

#[test]
fn each_printed_fix_has_a_test_or_a_reason() {
    fixes::check();
}
