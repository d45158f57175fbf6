//! Finds batch scripts that handle TERM themselves.

use std::collections::BTreeSet;

use sys::proc::parse::field;
use sys::proc::{self, Process, Processes};

/// The jobs whose batch script catches or ignores TERM. TERM would end all other scripts, including one that has just
/// started and has not reached its `trap` yet.
pub(super) fn handling_term() -> BTreeSet<String> {
    let all = Processes::read();
    let job = |process: &Process| {
        let step = all.get(process.parent)?.step().filter(|step| step.name == "batch")?;
        handles_term(&proc::status(process.pid)?).then(|| step.job.to_string())
    };
    all.iter().filter_map(job).collect()
}

/// Whether TERM is among the caught or ignored signals in `/proc/PID/status` (proc(5)).
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
