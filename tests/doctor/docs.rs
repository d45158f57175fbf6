//! docs/evidence/symptoms.md is made of the symptoms and their answers, and the tables of docs/troubleshooting.md of the entries.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use doctor::{Entry, PARTS};

use crate::answer::{self, Answer};
use crate::symptoms::{SOURCES, Symptom};

const BEGIN: &str =
    "<!-- From here on this is made of the entries of `slurminit doctor`: UPDATE=1 cargo test --test doctor -->\n";
const END: &str = "<!-- Up to here. -->\n";

/// Holds both against what they are made of; with `UPDATE=1` they are written.
pub(crate) fn compare() {
    let troubleshooting = fs::read_to_string(path("troubleshooting.md")).unwrap();
    let (head, rest) = troubleshooting.split_once(BEGIN).expect("the mark where the tables begin");
    let (_, tail) = rest.split_once(END).expect("the mark where they end");
    let made = [head, BEGIN, &tables(), END, tail].concat();
    let mut wrong = String::new();
    for (name, made) in [("troubleshooting.md", made), ("evidence/symptoms.md", symptoms())] {
        if std::env::var_os("UPDATE").is_some() {
            fs::write(path(name), &made).unwrap();
        }
        let old = fs::read_to_string(path(name)).unwrap_or_default();
        if old != made {
            wrong += &similar::TextDiff::from_lines(&old, &made).unified_diff().header(name, "now").to_string();
        }
    }
    assert!(wrong.is_empty(), "{wrong}\nIf that is right: UPDATE=1 cargo test --test doctor");
}

fn path(name: &str) -> PathBuf {
    harness::root().join("docs").join(name)
}

/// A cell of a table cannot hold the sign that ends it.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

fn tables() -> String {
    let mut text = String::new();
    for part in PARTS {
        let _ = write!(text, "\n## {}\n\n| Symptom | Cause | Repair | Entry |\n|---|---|---|---|\n", part.title);
        for Entry { id, symptoms, cause, repair, .. } in part.entries {
            let symptoms: Vec<String> = symptoms.iter().map(|symptom| cell(symptom)).collect();
            let _ = writeln!(text, "| {} | {} | {} | `{id}` |", symptoms.join("<br>"), cell(cause), cell(repair));
        }
    }
    text + "\n"
}

fn symptoms() -> String {
    let mut text = String::from(
        "# Symptoms, and what doctor says\n\n\
         Every symptom in the troubleshooting parts of five guides to GPUs in containers, and what else is known to go wrong. For\n\
         each, a test makes the fault and holds the answer of `slurminit doctor` against the one below: `tests/doctor` with\n\
         stand-ins for hardware and programs, `tests/image/doctor.rs` (the rows whose record begins with `image-`) with the real\n\
         munged, slurmctld and slurmd. This page is made by these tests: a row is here because its test passes.\n",
    );
    for source in SOURCES {
        let _ = write!(
            text,
            "\n## {}\n\n| Symptom | The fault that was made | Entry, verdict | The answer | Pass |\n|---|---|---|---|---|\n",
            source.title
        );
        for Symptom { symptom, fault, case } in source.symptoms {
            let answer = answer::recorded(case).unwrap_or_else(|| panic!("{case}: no test has recorded an answer"));
            assert_ne!(answer.verdict, "ok", "{case}: the fault was not seen");
            let Answer { entry, verdict, seen, cause, repair } = answer;
            let cause = cause.map(|cause| format!("<br>Cause: {}", cell(&cause))).unwrap_or_default();
            let repair =
                repair.map(|repair| format!("<br>Repair: `{}`", cell(&repair).replace('`', ""))).unwrap_or_default();
            let (symptom, fault, seen) = (cell(symptom), cell(fault), cell(&seen));
            let _ = writeln!(
                text,
                "| {symptom} | {fault} | `{entry}`: {verdict} | {seen}{cause}{repair} | yes: `{case}` |"
            );
        }
    }
    text
}
