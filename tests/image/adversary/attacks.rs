//! An adversary inside: what a user without privileges does to the cluster, and what becomes of it.
//!
//! Each attack is a container. A job of somebody else's counts five times a second meanwhile. The container must live, the
//! job must miss nothing, `srun` must work again within 10 s after the attack, and the log must say what went on.
//! `SLURMINIT_ATTACKS=WORD` runs only the attacks with that word; `UPDATE=1` writes the rows of tests/image/faults/expected.md.

mod attack;
mod connections;
mod memory;
mod ports;
mod processes;
mod requests;

use std::path::PathBuf;

use crate::docker::{share, side_by_side};
use crate::long::faults::report;
use attack::{Attack, Seen};

/// Attacks that wait for the daemons as much as they work against them.
const SIDE_BY_SIDE: usize = 5;

const MARKS: report::Marks =
    report::Marks { begin: "<!-- the attacks: made by the command above -->\n", end: "<!-- end of the attacks -->\n" };

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn no_attack_by_requests_ends_the_cluster() {
    check(requests::attacks());
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn no_attack_by_connections_ends_the_cluster() {
    check(connections::attacks());
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn no_attack_by_ports_ends_the_cluster() {
    check(ports::attacks());
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn no_attack_by_processes_ends_the_cluster() {
    check(processes::attacks());
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn no_attack_by_memory_ends_the_cluster() {
    check(memory::attacks());
}

/// The record has a row for each attack and no other.
#[test]
fn record_lists_every_attack() {
    let attackers = [requests::attacks, connections::attacks, ports::attacks, processes::attacks, memory::attacks];
    let names: Vec<String> =
        attackers.into_iter().flat_map(|attacks| attacks()).map(|attack| format!("| {}", attack.what)).collect();
    assert_eq!(report::row_names(&record(), &MARKS, 1), names, "make it again with the command in {:?}", record());
}

fn record() -> PathBuf {
    harness::root().join("tests/image/faults/expected.md")
}

fn check(attacks: Vec<Attack>) {
    share::hold_all();
    let only = std::env::var("SLURMINIT_ATTACKS").unwrap_or_default();
    let attacks: Vec<Attack> = attacks.into_iter().filter(|attack| attack.what.contains(&only)).collect();
    let seen = side_by_side(SIDE_BY_SIDE, &attacks, |attack| {
        let result = attack.run();
        eprintln!("{}: {result:?}", attack.what);
        result
    });
    let results = || attacks.iter().zip(&seen);
    let rows: Vec<(&Attack, &Seen)> =
        results().filter_map(|(attack, result)| Some((attack, result.as_ref().ok()?))).collect();
    let failed: Vec<String> =
        results().filter_map(|(attack, result)| Some(format!("{}: {}", attack.what, result.as_ref().err()?))).collect();
    let table = attack::table(&rows);
    println!("{table}");
    harness::write_evidence(&table);
    assert!(failed.is_empty(), "{} of {} attacks succeeded:\n\n{}", failed.len(), seen.len(), failed.join("\n\n"));
    if std::env::var_os("UPDATE").is_some() {
        report::update(&record(), &MARKS, &table, 1);
    }
}
