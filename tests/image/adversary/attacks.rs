//! An adversary inside: what a user without privileges does to the cluster, and what becomes of it.
//!
//! Each attack is a container. A job of somebody else's counts five times a second meanwhile. The container must live, the
//! job must miss nothing, `srun` must work again within 10 s after the attack, and the log must say what went on.
//! `SLURMINIT_ATTACKS=WORD` runs only the attacks with that word; with `SLURMINIT_ATTACKS_TABLE=docs/evidence/faults.md` the table in that
//! file is made anew.

mod attack;
mod connections;
mod memory;
mod ports;
mod processes;
mod requests;

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::docker::share;
use crate::faults::report;
use attack::{Attack, Seen};

/// Attacks that wait for the daemons as much as they work against them.
const SIDE_BY_SIDE: usize = 3;

const MARKS: report::Marks =
    report::Marks { begin: "<!-- the attacks: made by the command above -->\n", end: "<!-- end of the attacks -->\n" };

fn attacks() -> Vec<Attack> {
    let attackers = [requests::attacks, connections::attacks, ports::attacks, processes::attacks, memory::attacks];
    attackers.into_iter().flat_map(|attacks| attacks()).collect()
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn nobody_inside_ends_the_cluster() {
    share::hold_all();
    let only = std::env::var("SLURMINIT_ATTACKS").unwrap_or_default();
    let attacks: Vec<Attack> = attacks().into_iter().filter(|attack| attack.what.contains(&only)).collect();
    assert!(!attacks.is_empty(), "no attack is called {only:?}");
    let (next, seen) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..SIDE_BY_SIDE {
            scope.spawn(|| {
                while let Some((index, attack)) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|index| Some((index, attacks.get(index)?)))
                {
                    let result = attack.run();
                    eprintln!("{}: {result:?}", attack.what);
                    seen.lock().unwrap().push((index, result));
                }
            });
        }
    });
    let mut seen = seen.into_inner().unwrap();
    seen.sort_by_key(|(index, _)| *index);
    let rows: Vec<(&Attack, &Seen)> =
        seen.iter().filter_map(|(index, result)| Some((attacks.get(*index)?, result.as_ref().ok()?))).collect();
    let failed: Vec<String> = seen
        .iter()
        .filter_map(|(index, result)| Some(format!("{}: {}", attacks.get(*index)?.what, result.as_ref().err()?)))
        .collect();
    let table = attack::table(&rows);
    println!("{table}");
    assert!(failed.is_empty(), "{} of {} attacks succeeded:\n\n{}", failed.len(), seen.len(), failed.join("\n\n"));
    if let Some(file) = std::env::var_os("SLURMINIT_ATTACKS_TABLE") {
        report::write(Path::new(&file), &MARKS, &table);
    } else if only.is_empty() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/evidence/faults.md");
        report::compare(&file, &MARKS, &table, 1);
    }
}
