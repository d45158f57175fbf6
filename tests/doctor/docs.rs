//! Generates the tables of docs/reference/doctor.md from the entries, and lists the symptoms with their recorded answers.

use std::fmt::Write as _;
use std::fs;

use doctor::{Entry, PARTS};

use super::answer::{self, Answer};
use super::symptoms::{SOURCES, Symptom};

const BEGIN: &str =
    "<!-- From here on this is made of the entries of `slurminit doctor`: UPDATE=1 cargo test --test host doctor -->\n";
const END: &str = "<!-- Up to here. -->\n";

/// Fails if the page differs from the entries or a symptom has no recorded answer. With `UPDATE=1`, writes the page.
pub(crate) fn compare() {
    harness::write_evidence(&symptoms());
    let path = harness::root().join("docs/reference/doctor.md");
    let old = fs::read_to_string(&path).unwrap();
    let (head, rest) = old.split_once(BEGIN).expect("marker for the start of the tables");
    let (_, tail) = rest.split_once(END).expect("marker for the end of the tables");
    let new = [head, BEGIN, &tables(), END, tail].concat();
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &new).unwrap();
        return;
    }
    let wrong =
        similar::TextDiff::from_lines(&old, &new).unified_diff().header("docs/reference/doctor.md", "now").to_string();
    assert!(wrong.is_empty(), "{wrong}\nTo accept: UPDATE=1 cargo test --test host doctor");
}

/// Escapes a text for a Markdown table cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

fn tables() -> String {
    let mut text = String::new();
    for part in PARTS {
        let _ = write!(text, "\n## {}\n\n| Symptom | Cause | Fix | Entry |\n|---|---|---|---|\n", part.title);
        for Entry { id, symptoms, cause, fix, .. } in part.entries {
            let symptoms: Vec<String> = symptoms.iter().map(|symptom| cell(symptom)).collect();
            let _ = writeln!(
                text,
                "| {} | {} | {} | `{id}` |",
                symptoms.join("<br>"),
                cell(cause),
                cell(fix).replace("](", "](../")
            );
        }
    }
    text + "\n"
}

fn symptoms() -> String {
    let mut text = String::from(
        "# Symptoms and answers of doctor\n\n\
         Symptoms from the troubleshooting sections of five guides to GPUs in containers, and other known faults. For\n\
         each, a test simulates the fault and compares the answer of `slurminit doctor` with the record: `tests/doctor`\n\
         with stand-ins for hardware and programs, `tests/image/doctor.rs` (records that begin with `image-`) with the\n\
         real munged, slurmctld and slurmd.\n",
    );
    for source in SOURCES {
        let _ = write!(
            text,
            "\n## {}\n\n| Symptom | Simulated fault | Entry, verdict | Answer | Pass |\n|---|---|---|---|---|\n",
            source.title
        );
        for Symptom { symptom, fault, case } in source.symptoms {
            let answer = answer::recorded(case).unwrap_or_else(|| panic!("{case}: no test has recorded an answer"));
            assert_ne!(answer.verdict, "ok", "{case}: the fault was not detected");
            let Answer { entry, verdict, seen, cause, fix } = answer;
            let cause = cause.map(|cause| format!("<br>Cause: {}", cell(&cause))).unwrap_or_default();
            let fix = fix.map(|fix| format!("<br>Fix: `{}`", cell(&fix).replace('`', ""))).unwrap_or_default();
            let (symptom, fault, seen) = (cell(symptom), cell(fault), cell(&seen));
            let _ =
                writeln!(text, "| {symptom} | {fault} | `{entry}`: {verdict} | {seen}{cause}{fix} | yes: `{case}` |");
        }
    }
    text
}
