//! Finds batch scripts that handle TERM themselves.

use std::collections::{BTreeMap, BTreeSet};

use sys::proc;
use sys::proc::parse;
use sys::proc::parse::field;

/// The jobs whose batch script catches or ignores TERM. TERM would end all others. That includes a script that has not
/// reached its `trap` yet, but it has done nothing so far.
pub(super) fn handling_term() -> BTreeSet<String> {
    let script = |pid: i32| {
        let title = proc::step_title(&proc::stat(pid)?)?;
        let (job, step) = parse::step(&title)?;
        (step == "batch").then(|| (pid, job.to_string()))
    };
    let scripts: BTreeMap<i32, String> = proc::pids().filter_map(script).collect();
    let traps_term = |pid| {
        let status = proc::status(pid)?;
        let job = scripts.get(&field(&status, "PPid")?.parse().ok()?)?;
        handles_term(&status).then(|| job.clone())
    };
    proc::pids().filter_map(traps_term).collect()
}

/// Checks the sets of caught and ignored signals in `/proc/PID/status` (proc(5)).
fn handles_term(status: &str) -> bool {
    let term = 1_u64 << (libc::SIGTERM - 1);
    let has = |name| field(status, name).and_then(|set| u64::from_str_radix(set, 16).ok()).unwrap_or(0) & term != 0;
    has("SigCgt") || has("SigIgn")
}

#[cfg(test)]
mod tests {
    use super::handles_term;

    #[test]
    fn shell_without_trap_does_not_handle_term() {
        let status = |ignored, caught| format!("Name:\tsh\nPPid:\t7\nSigIgn:\t{ignored}\nSigCgt:\t{caught}\n");
        assert!(!handles_term(&status("0000000000000000", "0000000000010002")));
        assert!(handles_term(&status("0000000000000000", "0000000000014002")));
        assert!(handles_term(&status("0000000000004000", "0000000000010002")));
        assert!(!handles_term(""));
    }
}
