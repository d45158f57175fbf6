//! The fault matrix: what is done to the real daemons, at which moment of their lives, and what becomes of it.
//!
//! No cell may be a hang or silence: a case fails when the cluster does not come back (or the container does not end with
//! the documented code) in time, when a job or the saved state is lost that should not be, and when the log has no record of
//! what happened. `SLURMINIT_FAULTS=WORD` runs only the cases with that word; `UPDATE=1`
//! writes the rows of tests/image/faults/expected.md.

mod at_the_start;
mod at_the_stop;
pub(crate) mod case;
mod recovery;
pub(crate) mod report;
pub(crate) mod sign;
pub(crate) mod surroundings;
mod while_ready;
mod while_reloading;
mod wrapper;

use std::path::PathBuf;

use crate::docker::{share, side_by_side};
use case::{Case, Seen};

/// More than there are CPUs: most of a case is waiting.
const SIDE_BY_SIDE: usize = 4;

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn no_fault_at_the_start_hangs_or_goes_unreported() {
    check(at_the_start::cases());
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn no_fault_of_a_ready_cluster_hangs_or_goes_unreported() {
    check(while_ready::cases());
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn no_fault_during_a_reload_hangs_or_goes_unreported() {
    check(while_reloading::cases());
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn no_fault_at_the_stop_hangs_or_goes_unreported() {
    check(at_the_stop::cases());
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn no_fault_of_the_surroundings_hangs_or_goes_unreported() {
    surroundings::build();
    check(surroundings::cases());
}

/// The record has a row for each case and no other.
#[test]
fn record_lists_every_case() {
    let cases = [at_the_start::cases(), while_ready::cases(), while_reloading::cases(), at_the_stop::cases()].concat();
    let cases = [cases, surroundings::cases()].concat();
    let names: Vec<String> = cases.iter().map(report::row_name).collect();
    assert_eq!(
        report::row_names(&record(), &report::MARKS, 3),
        names,
        "make it again with the command in {:?}",
        record()
    );
}

fn record() -> PathBuf {
    harness::root().join("tests/image/faults/expected.md")
}

fn check(cases: Vec<Case>) {
    share::hold(SIDE_BY_SIDE);
    let only = std::env::var("SLURMINIT_FAULTS").unwrap_or_default();
    let cases: Vec<Case> = cases.into_iter().filter(|case| case.name().contains(&only)).collect();
    let seen = side_by_side(SIDE_BY_SIDE, &cases, |case| {
        let result = case.run();
        eprintln!("{}: {result:?}", case.name());
        result
    });
    let results = || cases.iter().zip(&seen);
    let rows: Vec<(&Case, &Seen)> =
        results().filter_map(|(case, result)| Some((case, result.as_ref().ok()?))).collect();
    let failed: Vec<String> =
        results().filter_map(|(case, result)| Some(format!("{}: {}", case.name(), result.as_ref().err()?))).collect();
    let table = report::table(&rows);
    println!("{table}");
    harness::write_evidence(&table);
    assert!(failed.is_empty(), "{} of {} cases failed:\n\n{}", failed.len(), seen.len(), failed.join("\n\n"));
    if std::env::var_os("UPDATE").is_some() {
        report::update(&record(), &report::MARKS, &table, 3);
    } else {
        report::compare(&record(), &report::MARKS, &table, 4);
    }
}
