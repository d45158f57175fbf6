//! The table of outcomes, as Markdown.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::case::{Case, End, Seen};

/// The lines that delimit a table in its file.
pub(crate) struct Marks {
    pub(crate) begin: &'static str,
    pub(crate) end: &'static str,
}

pub(super) const MARKS: Marks =
    Marks { begin: "<!-- the table: made by the command above -->\n", end: "<!-- end of the table -->\n" };

pub(super) fn table(rows: &[(&Case, &Seen)]) -> String {
    let mut table = String::from(
        "| what | when | fault | outcome | jobs lost | data lost | reported |\n|---|---|---|---|---|---|---|\n",
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

/// The first columns of each row of the recorded table.
pub(crate) fn row_names(file: &Path, marks: &Marks, columns: usize) -> Vec<String> {
    let text = fs::read_to_string(file).expect("the file with the marks");
    let (_, table, _) = parts(&text, marks);
    table.lines().filter(|line| line.starts_with("| ")).skip(1).map(|row| key(row, columns)).collect()
}

fn key(row: &str, columns: usize) -> String {
    row.split(" | ").take(columns).collect::<Vec<_>>().join(" | ")
}

pub(super) fn row_name(case: &Case) -> String {
    format!("| {} | {} | {}", case.target, case.phase, case.fault)
}

/// Replaces the recorded rows that are also in the table, identified by their first columns, and appends the table's other rows.
pub(crate) fn update(file: &Path, marks: &Marks, table: &str, columns: usize) {
    let text = fs::read_to_string(file).expect("the file with the marks");
    let (before, old, after) = parts(&text, marks);
    let mut rows: Vec<&str> = old.trim().lines().collect();
    for row in table.lines().skip(2) {
        match rows.iter_mut().find(|old| key(old, columns) == key(row, columns)) {
            Some(old) => *old = row,
            None => rows.push(row),
        }
    }
    fs::write(file, format!("{before}{}\n{}\n\n{}{after}", marks.begin, rows.join("\n"), marks.end))
        .expect("the file can be written");
}

/// Fails unless each row of the table is recorded with the same first columns. Times and messages are not compared.
pub(crate) fn compare(file: &Path, marks: &Marks, table: &str, columns: usize) {
    let text = fs::read_to_string(file).expect("the file with the marks");
    let key = |row: &str| key(&without_times(row), columns);
    let recorded: Vec<String> = parts(&text, marks).1.lines().map(key).collect();
    let changed: Vec<&str> = table.lines().skip(2).filter(|row| !recorded.contains(&key(row))).collect();
    assert!(changed.is_empty(), "outcomes differ from {}:\n{}", file.display(), changed.join("\n"));
}

/// The text with each time (a number with a decimal point) replaced by `N`.
fn without_times(text: &str) -> String {
    let is_time = |word: &str| word.contains('.') && word.parse::<f64>().is_ok();
    let words = text.split(' ').map(|word| if is_time(word) { "N" } else { word });
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn compares_outcome_and_ignores_times() {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let text = "| slurmd | ready | KILL | recovered within 1.5 s | none | said |\n";
    fs::write(file.path(), format!("{}{text}{}", MARKS.begin, MARKS.end)).expect("the temporary file");
    let matches = |row: &str| {
        let table = format!("| what |\n|---|\n{row}");
        std::panic::catch_unwind(|| compare(file.path(), &MARKS, &table, 4)).is_ok()
    };
    assert!(matches("| slurmd | ready | KILL | recovered within 12.0 s | none | other |\n"));
    assert!(!matches("| slurmd | ready | KILL | ends with code 101 after 1.5 s | none | said |\n"));
}
