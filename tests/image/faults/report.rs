//! The table of what was seen, as Markdown.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::case::{Case, End, Seen};

/// The lines between which a table lies in its file.
pub(crate) struct Marks {
    pub(crate) begin: &'static str,
    pub(crate) end: &'static str,
}

pub(super) const MARKS: Marks =
    Marks { begin: "<!-- the table: made by the command above -->\n", end: "<!-- end of the table -->\n" };

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
            End::Killed => format!("works {took:.1} s after docker kill and start"),
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

/// The text before the table, the table, and the text after it.
fn parts<'a>(text: &'a str, marks: &Marks) -> (&'a str, &'a str, &'a str) {
    let (before, rest) = text.split_once(marks.begin).expect("the mark before the table");
    let (table, after) = rest.split_once(marks.end).expect("the mark after the table");
    (before, table, after)
}

/// Puts the table into the file, between the marks.
pub(crate) fn write(file: &Path, marks: &Marks, table: &str) {
    let text = fs::read_to_string(file).expect("the file with the marks");
    let (before, _, after) = parts(&text, marks);
    fs::write(file, format!("{before}{}\n{table}\n{}{after}", marks.begin, marks.end))
        .expect("the file can be written");
}

/// The file has a row for each case, known by its first columns, and no other. Times and words of a run are its own.
pub(crate) fn compare(file: &Path, marks: &Marks, table: &str, columns: usize) {
    let text = fs::read_to_string(file).expect("the file with the marks");
    let key = |row: &str| row.split(" | ").take(columns).collect::<Vec<_>>().join(" | ");
    let keys = |table: &str| table.lines().filter(|line| line.starts_with("| ")).map(key).collect::<Vec<_>>();
    assert_eq!(
        keys(parts(&text, marks).1),
        keys(table),
        "{} has other rows: make it anew with the command in it",
        file.display()
    );
}
