//! The fault matrix: what is done to the real daemons, at which moment of their lives, and what becomes of it.
//!
//! No cell may be a hang or silence: a case fails when the cluster does not come back (or the container does not end with
//! the documented code) in time, when a job or the saved state is lost that should not be, and when the log does not say
//! what happened. `SLURMINIT_FAULTS=WORD` runs only the cases with that word; with `SLURMINIT_FAULTS_TABLE=docs/evidence/faults.md`
//! the table in that file is made anew.

mod at_the_start;
mod at_the_stop;
pub(crate) mod case;
mod recovery;
pub(crate) mod report;
pub(crate) mod surroundings;
mod while_ready;
mod while_reloading;
mod wrapper;

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::docker::share;
use case::{Case, Seen};

/// More than there are CPUs: most of a case is waiting.
const SIDE_BY_SIDE: usize = 5;

fn cases() -> Vec<Case> {
    let daemons = [at_the_start::cases(), while_ready::cases(), while_reloading::cases(), at_the_stop::cases()];
    [daemons.concat(), surroundings::cases()].concat()
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn no_fault_hangs_or_goes_unsaid() {
    share::hold_all();
    let only = std::env::var("SLURMINIT_FAULTS").unwrap_or_default();
    let cases: Vec<Case> = cases().into_iter().filter(|case| case.name().contains(&only)).collect();
    assert!(!cases.is_empty(), "no fault is called {only:?}");
    surroundings::build();
    let (next, seen) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..SIDE_BY_SIDE {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(case) = cases.get(index) else { return };
                    let result = case.run();
                    eprintln!("{}: {result:?}", case.name());
                    seen.lock().unwrap().push((index, result));
                }
            });
        }
    });
    let mut seen = seen.into_inner().unwrap();
    seen.sort_by_key(|(index, _)| *index);
    // Two things that happen within the same milliseconds come in another order on a busy machine. What fails beside four others
    // must pass alone; what is broken fails again.
    for (index, result) in seen.iter_mut().filter(|(_, result)| result.is_err()) {
        let Some(case) = cases.get(*index) else { continue };
        println!(
            "{} failed beside others, and is tried alone: {}",
            case.name(),
            result.as_ref().err().map_or("", String::as_str)
        );
        *result = case.run();
    }
    let rows: Vec<(&Case, &Seen)> =
        seen.iter().filter_map(|(index, result)| Some((cases.get(*index)?, result.as_ref().ok()?))).collect();
    let table = report::table(&rows);
    let failed: Vec<String> = seen
        .iter()
        .filter_map(|(index, result)| Some(format!("{}: {}", cases.get(*index)?.name(), result.as_ref().err()?)))
        .collect();
    println!("{table}");
    assert!(failed.is_empty(), "{} of {} cases failed:\n\n{}", failed.len(), seen.len(), failed.join("\n\n"));
    if let Some(file) = std::env::var_os("SLURMINIT_FAULTS_TABLE") {
        report::write(Path::new(&file), &report::MARKS, &table);
    } else if only.is_empty() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/evidence/faults.md");
        report::compare(&file, &report::MARKS, &table, 3);
    }
}
