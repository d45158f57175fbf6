//! Which batch scripts have a way of their own to end.

use std::collections::BTreeSet;
use std::fs;

/// The jobs whose batch script catches TERM or ignores it. The others would be ended by it; so would one that has not come
/// as far as its `trap` yet, and has done nothing.
pub(super) fn that_hear_term() -> BTreeSet<String> {
    let processes = || fs::read_dir("/proc").into_iter().flatten().flatten();
    let steps = processes().filter_map(|process| {
        let title = fs::read(process.path().join("cmdline")).ok()?;
        let job = job_of_script(&String::from_utf8_lossy(&title))?;
        Some((process.file_name().into_string().ok()?, job))
    });
    let steps: Vec<(String, String)> = steps.collect();
    let hears = |process: fs::DirEntry| {
        let status = fs::read_to_string(process.path().join("status")).ok()?;
        let parent = field(&status, "PPid:")?;
        let (_, job) = steps.iter().find(|(step, _)| step == parent)?;
        hears_term(&status).then(|| job.clone())
    };
    processes().filter_map(hears).collect()
}

/// The title of the slurmstepd that runs a batch script is `slurmstepd: [JOB.batch]` (Slurm 22.05 to 24.11, `slurmstepd.c`).
fn job_of_script(title: &str) -> Option<String> {
    let (job, step) = title.strip_prefix("slurmstepd: [")?.split_once(']')?.0.split_once('.')?;
    (step == "batch").then(|| job.to_owned())
}

/// By the sets of signals that are caught and ignored, in `/proc/PID/status` (proc(5)).
fn hears_term(status: &str) -> bool {
    let term = 1_u64 << (libc::SIGTERM - 1);
    let has = |name| field(status, name).and_then(|set| u64::from_str_radix(set, 16).ok()).unwrap_or(0) & term != 0;
    has("SigCgt:") || has("SigIgn:")
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::{hears_term, job_of_script};

    #[test]
    fn a_shell_without_a_trap_does_not_hear_term() {
        let status = |ignored, caught| format!("Name:\tsh\nPPid:\t7\nSigIgn:\t{ignored}\nSigCgt:\t{caught}\n");
        assert!(!hears_term(&status("0000000000000000", "0000000000010002")));
        assert!(hears_term(&status("0000000000000000", "0000000000014002")));
        assert!(hears_term(&status("0000000000004000", "0000000000010002")));
        assert!(!hears_term(""));
    }

    #[test]
    fn only_the_step_of_a_script_counts() {
        assert_eq!(job_of_script("slurmstepd: [7.batch]\0").as_deref(), Some("7"));
        assert_eq!(job_of_script("slurmstepd: [7.0]"), None);
        assert_eq!(job_of_script("sh -c [7.batch]"), None);
    }
}
