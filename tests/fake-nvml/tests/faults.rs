//! The faults that end or block a process, each in a child process.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "a test is not PID 1, so it may wait for the commands it runs")]

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use nvml_wrapper::Nvml;
use tempfile::TempDir;

/// Environment variable with the path of the marker file `asks`. If it is unset (`cargo test -- --ignored`), `child` does nothing.
const MARKER_VARIABLE: &str = "FAULTS_CHILD";

/// Exit code after the NVML call returned. No fault uses this code.
const RETURNED: i32 = 7;

/// Timeout for an expected exit or call.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Time for which a hung child must not exit.
const HANG_TIME: Duration = Duration::from_millis(300);

/// A child that loads the library, creates the marker file `asks` beside the machine file and makes the faulty call.
fn spawn_with_fault(kind: &str) -> (TempDir, Child) {
    let directory = tempfile::tempdir().unwrap();
    let machine = directory.path().join("machine.toml");
    std::fs::write(&machine, format!("gpus = 1\n[[fault]]\nat = 'count'\nkind = '{kind}'\n")).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "child", "--ignored"])
        .env("FAKE_NVML", machine)
        .env(MARKER_VARIABLE, directory.path().join("asks"));
    (directory, command.spawn().unwrap())
}

/// Exit status of the child, or `None` on timeout.
fn wait_timeout(child: &mut Child, timeout: Duration) -> Option<ExitStatus> {
    let start = Instant::now();
    loop {
        let status = child.try_wait().unwrap();
        if status.is_some() || start.elapsed() >= timeout {
            return status;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn exit_status_with_fault(kind: &str) -> ExitStatus {
    let (_machine, mut child) = spawn_with_fault(kind);
    let status = wait_timeout(&mut child, TIMEOUT);
    if status.is_none() {
        child.kill().unwrap();
    }
    status.expect(kind)
}

#[test]
#[ignore = "the other tests run it as their child"]
fn child() {
    let Some(marker) = std::env::var_os(MARKER_VARIABLE) else { return };
    let library = std::env::current_exe().unwrap().with_file_name("libfake_nvml.so");
    let nvml = Nvml::builder().lib_path(library.as_os_str()).init().unwrap();
    std::fs::write(marker, "").unwrap();
    let _ = nvml.device_count();
    std::process::exit(RETURNED);
}

#[test]
fn crash_and_abort_end_process_by_signal() {
    assert_eq!(exit_status_with_fault("crash").signal(), Some(libc::SIGSEGV));
    assert_eq!(exit_status_with_fault("abort").signal(), Some(libc::SIGABRT));
}

#[test]
fn hang_and_spin_last_until_killed() {
    for kind in ["hang", "spin"] {
        let (machine, mut child) = spawn_with_fault(kind);
        let start = Instant::now();
        while !machine.path().join("asks").exists() {
            assert!(start.elapsed() < TIMEOUT, "{kind}: the child makes no NVML call");
            std::thread::sleep(Duration::from_millis(5));
        }
        let status = wait_timeout(&mut child, HANG_TIME);
        child.kill().unwrap();
        assert_eq!(status, None, "{kind}");
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL), "{kind}");
    }
}

#[test]
fn exit_fault_ends_process_with_code_0() {
    assert_eq!(exit_status_with_fault("exit").code(), Some(0));
}

#[test]
fn errors_and_bad_values_do_not_end_process() {
    for kind in ["unknown", "gpu-is-lost", "unheard-of", "nonsense", "untouched", "noise"] {
        assert_eq!(exit_status_with_fault(kind).code(), Some(RETURNED), "{kind}");
    }
}
