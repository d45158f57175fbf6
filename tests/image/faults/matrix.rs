//! The fault matrix: faults injected into the real daemons in each phase, and their outcomes.
//!
//! A case fails if the cluster does not recover (or the container does not exit with the documented code) in time, if a
//! job or saved state is lost that should not be, or if the log does not record the fault. `SLURMINIT_FAULTS=WORD`
//! selects the cases whose name contains that word; `UPDATE=1` writes the rows of tests/image/faults/expected.md.

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

use crate::docker::side_by_side;
use case::{Case, Seen};

/// May exceed the number of CPUs: cases mostly wait.
const PARALLEL_CASES: usize = 4;

/// The rows that every run of docker/test includes: target, phase, fault.
const SHORT: [&str; 6] = [
    "slurmctld starting KILL",
    "munged ready KILL",
    "slurmd ready STOP",
    "slurmctld reloading (reconfigure) KILL",
    "slurmd reloading (restart) exit 1 at each start",
    "slurmd stopping KILL",
];

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn short_list_of_faults_does_not_hang_or_go_unreported() {
    let all = [at_the_start::cases(), while_ready::cases(), while_reloading::cases(), at_the_stop::cases()].concat();
    let cases: Vec<Case> = all.into_iter().filter(|case| SHORT.contains(&case.name().as_str())).collect();
    assert_eq!(cases.len(), SHORT.len());
    check(cases);
}

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

/// One row for each case, and no other.
#[test]
fn expected_md_lists_every_case() {
    let cases = [at_the_start::cases(), while_ready::cases(), while_reloading::cases(), at_the_stop::cases()].concat();
    let cases = [cases, surroundings::cases()].concat();
    let names: Vec<String> = cases.iter().map(report::row_name).collect();
    assert_eq!(
        report::row_names(&expected_file(), &report::MARKS, 3),
        names,
        "regenerate it with the command in {:?}",
        expected_file()
    );
}

fn expected_file() -> PathBuf {
    harness::root().join("tests/image/faults/expected.md")
}

fn check(cases: Vec<Case>) {
    let only = std::env::var("SLURMINIT_FAULTS").unwrap_or_default();
    let cases: Vec<Case> = cases.into_iter().filter(|case| case.name().contains(&only)).collect();
    let results = side_by_side(PARALLEL_CASES, &cases, |case| {
        let result = case.run();
        eprintln!("{}: {result:?}", case.name());
        result
    });
    let pairs = || cases.iter().zip(&results);
    let rows: Vec<(&Case, &Seen)> = pairs().filter_map(|(case, result)| Some((case, result.as_ref().ok()?))).collect();
    let failed: Vec<String> =
        pairs().filter_map(|(case, result)| Some(format!("{}: {}", case.name(), result.as_ref().err()?))).collect();
    let table = report::table(&rows);
    println!("{table}");
    harness::write_evidence(&table);
    assert!(failed.is_empty(), "{} of {} cases failed:\n\n{}", failed.len(), results.len(), failed.join("\n\n"));
    if std::env::var_os("UPDATE").is_some() {
        report::update(&expected_file(), &report::MARKS, &table, 3);
    } else {
        report::compare(&expected_file(), &report::MARKS, &table, 4);
    }
}
