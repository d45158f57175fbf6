//! All exit codes of slurminit, explained in docs/reference/exit-codes.md.
//!
//! If a CMD ran, the container's code is CMD's own (128+n if signal n killed it), unless the container failed before CMD ended.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

/// Success, including a requested stop of a container without a CMD.
pub const SUCCESS: u8 = 0;
/// A command of slurminit failed, or `slurminit doctor` found a failure; see its output.
pub const FAILURE: u8 = 1;
/// The command line is invalid.
pub const USAGE: u8 = 2;
/// `slurminit doctor` found a warning, and nothing worse.
pub const WARNINGS: u8 = 4;
/// `slurminit doctor` found nothing wrong, but could not check everything.
pub const NOT_CHECKED: u8 = 5;
/// `slurminit jobs quiesce` left jobs that did not end in time. Used only between this command and PID 1.
pub const JOBS_LEFT: u8 = 3;
/// `slurminit test-job`: jobs cannot run, and the node is drained. Used only between this command and PID 1.
pub const TEST_JOB_FAILED: u8 = 6;
/// slurminit itself failed at start. Later it never exits because of an error of its own.
pub const INTERNAL: u8 = 70;
/// The configuration (TOML, environment, or a user's own Slurm file) or the saved state is refused.
pub const CONFIG: u8 = 78;
/// munged could not be kept alive.
pub const MUNGED: u8 = 100;
/// slurmctld could not be kept alive.
pub const SLURMCTLD: u8 = 101;
/// slurmd could not be kept alive.
pub const SLURMD: u8 = 102;
/// An essential `[[service]]` could not be kept alive.
pub const SERVICE: u8 = 103;
/// The preparation (detection, rendering, installation) failed or exceeded its deadline.
pub const PREPARE: u8 = 104;
/// GPU_TYPE and the visible GPUs do not match, and `on_mismatch = "fail"`.
pub const MISMATCH: u8 = 105;
/// A pre-start hook failed or timed out.
pub const HOOK: u8 = 106;
/// The cluster did not become ready in time, or the test job failed, while a CMD, `slurminit up` or `slurminit run` waited for the cluster.
pub const NOT_READY: u8 = 107;
/// The accounting database or slurmdbd could not be brought up.
pub const ACCOUNTING: u8 = 108;
/// Files in a tmpfs fill the container's memory.
pub const MEMORY_FULL: u8 = 109;
/// CMD was found but cannot be executed.
pub const CMD_NOT_EXECUTABLE: u8 = 126;
/// CMD was not found.
pub const CMD_NOT_FOUND: u8 = 127;

/// The exit code that a shell reports for a process: its own code, or 128+n after signal n.
pub fn of(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILURE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signal_counts_as_in_a_shell() {
        // wait(2): the code is in the second byte, the signal in the first.
        let code = |wait_status| of(ExitStatus::from_raw(wait_status));
        assert_eq!([0, 3 << 8, 255 << 8].map(code), [0, 3, 255]);
        assert_eq!([9, 15].map(code), [137, 143]);
    }
}
