//! Attacks by an unprivileged user in the container: on the cluster, on other users and on root.
//!
//! Each attack runs in its own container, where a job of another user counts five times a second. The container must
//! survive, the count must have no gap, `srun` must work within 10 s after the attack, and the log must report it.
//! `SLURMINIT_ATTACKS=WORD` runs only the attacks with that word; `UPDATE=1` writes the rows of
//! tests/image/faults/expected.md.

mod attack;
mod connections;
mod memory;
mod ports;
mod processes;
mod requests;
mod users;

use std::path::PathBuf;

use crate::docker::side_by_side;
use crate::long::faults::report;
use attack::{Attack, Effects};

/// Duration of an attack in seconds.
const SECONDS: u64 = 90;
/// Duration in seconds of each attack in a regular run of docker/test.
const SHORT: u64 = 15;

/// Number of parallel attacks. They wait for daemons about half of the time.
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

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn no_attack_on_users_gives_their_rights_or_ends_their_jobs() {
    check(users::attacks());
}

/// One attack of each kind, for a short time. Attacks on users have their own short tests (images/owners.rs, secrets.rs, login.rs,
/// isolation.rs).
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn short_attacks_do_not_end_the_cluster() {
    let names = [
        "questions",
        "800 silent connections",
        "binds slurmd's port",
        "a fork bomb",
        "fills a tmpfs",
        "270 connections",
    ];
    let is_short = |attack: &Attack| names.iter().any(|name| attack.name.contains(name));
    let attacks: Vec<Attack> = all().into_iter().filter(is_short).collect();
    assert_eq!(attacks.len(), names.len());
    run(&attacks, SHORT, attacks.len());
}

/// The recorded table has exactly one row per attack.
#[test]
fn record_lists_every_attack() {
    let names: Vec<String> = all().iter().map(|attack| format!("| {}", attack.name)).collect();
    assert_eq!(report::row_names(&record(), &MARKS, 1), names, "regenerate it with the command in {:?}", record());
}

fn all() -> Vec<Attack> {
    let kinds =
        [requests::attacks, connections::attacks, ports::attacks, processes::attacks, memory::attacks, users::attacks];
    kinds.into_iter().flat_map(|attacks| attacks()).collect()
}

fn record() -> PathBuf {
    harness::root().join("tests/image/faults/expected.md")
}

fn check(attacks: Vec<Attack>) {
    let only = std::env::var("SLURMINIT_ATTACKS").unwrap_or_default();
    let attacks: Vec<Attack> = attacks.into_iter().filter(|attack| attack.name.contains(&only)).collect();
    let table = run(&attacks, SECONDS, SIDE_BY_SIDE);
    harness::write_evidence(&table);
    if std::env::var_os("UPDATE").is_some() {
        report::update(&record(), &MARKS, &table, 1);
    }
}

/// Runs each attack for `seconds`, at most `limit` of them in parallel. Returns the table. Fails if an attack succeeds.
#[track_caller]
fn run(attacks: &[Attack], seconds: u64, limit: usize) -> String {
    let outcomes = side_by_side(limit, attacks, |attack| {
        let result = attack.run(seconds);
        eprintln!("{}: {result:?}", attack.name);
        result
    });
    let results = || attacks.iter().zip(&outcomes);
    let rows: Vec<(&Attack, &Effects)> =
        results().filter_map(|(attack, result)| Some((attack, result.as_ref().ok()?))).collect();
    let failed: Vec<String> =
        results().filter_map(|(attack, result)| Some(format!("{}: {}", attack.name, result.as_ref().err()?))).collect();
    let table = attack::table(&rows);
    println!("{table}");
    assert!(failed.is_empty(), "{} of {} attacks succeeded:\n\n{}", failed.len(), outcomes.len(), failed.join("\n\n"));
    table
}
