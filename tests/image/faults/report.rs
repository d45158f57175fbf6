//! The table of what was seen, as Markdown.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::case::{Case, End, Seen};

const BEGIN: &str = "<!-- the table: made by the command above -->\n";
const END: &str = "<!-- end of the table -->\n";

pub(super) fn table(rows: &[(&Case, &Seen)]) -> String {
    let mut table = String::from(
        "| what | when | fault | outcome | jobs lost | data lost | what was said |\n|---|---|---|---|---|---|---|\n",
    );
    for (case, seen) in rows {
        let took = seen.took.as_secs_f64();
        let outcome = match case.end {
            End::Recovers if case.phase == "starting" => format!("ready after {took:.1} s"),
            End::Recovers => format!("recovered within {took:.1} s"),
            End::Exits(code) | End::NextExits(code) => format!("ends with code {code} after {took:.1} s"),
            End::Stops => format!("stopped after {took:.1} s"),
            End::Restarts => format!("works after a restart of the container; stopped after {took:.1} s"),
        };
        let Case { target, phase, fault, .. } = case;
        let job = or_none(if case.jobs { &seen.job } else { "" });
        let said = seen.said.replace('|', "\\|");
        // Writing to a String cannot fail.
        let _ =
            writeln!(table, "| {target} | {phase} | {fault} | {outcome} | {job} | {} | {said} |", or_none(case.data));
    }
    table
}

fn or_none(text: &str) -> &str {
    if text.is_empty() { "none" } else { text }
}

/// Puts the table into the file, between the marks.
pub(super) fn write(file: &Path, table: &str) {
    let text = fs::read_to_string(file).expect("the file with the marks");
    let (before, rest) = text.split_once(BEGIN).expect("the mark before the table");
    let (_, after) = rest.split_once(END).expect("the mark after the table");
    fs::write(file, format!("{before}{BEGIN}\n{table}\n{END}{after}")).expect("the file can be written");
}

/// The file has a row for each case, and no other. Times and words of a run are its own.
pub(super) fn compare(file: &Path, rows: &[(&Case, &Seen)]) {
    let text = fs::read_to_string(file).expect("docs/faults.md");
    let key = |row: &str| row.split(" | ").take(3).collect::<Vec<_>>().join(" | ");
    let table = table(rows);
    let (found, wanted): (Vec<String>, Vec<String>) = (
        text.lines().filter(|line| line.starts_with("| ")).map(key).collect(),
        table.lines().filter(|line| line.starts_with("| ")).map(key).collect(),
    );
    assert_eq!(found, wanted, "docs/faults.md has other rows: make it anew with the command in it");
}
