//! The faults that end or block a process, each in a process of its own.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "a test is no PID 1: it may wait for the commands that it runs")]

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};

use nvml_wrapper::Nvml;

/// Set for the child alone: `cargo test -- --ignored` runs it as well, and must survive that.
const IS_CHILD: &str = "FAULTS_CHILD";

/// Nvml answered, and the process went on: no fault ends a process so.
const WENT_ON: i32 = 7;

/// Loads the library in a child that may take half a second.
fn child_that_meets(kind: &str) -> ExitStatus {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("gpus = 1\n[[fault]]\nat = 'count'\nkind = '{kind}'\n")).unwrap();
    Command::new("timeout")
        .arg("--signal=KILL")
        .arg("0.5")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--ignored"])
        .env("FAKE_NVML", file.path())
        .env(IS_CHILD, "1")
        .status()
        .unwrap()
}

#[test]
#[ignore = "the other tests run it as their child"]
fn child() {
    if std::env::var_os(IS_CHILD).is_none() {
        return;
    }
    let library = std::env::current_exe().unwrap().with_file_name("libfake_nvml.so");
    let nvml = Nvml::builder().lib_path(library.as_os_str()).init().unwrap();
    let _ = nvml.device_count();
    std::process::exit(WENT_ON);
}

#[test]
fn a_crash_is_a_signal() {
    assert_eq!(child_that_meets("crash").signal(), Some(libc::SIGSEGV));
    assert_eq!(child_that_meets("abort").signal(), Some(libc::SIGABRT));
}

#[test]
fn a_hang_lasts_until_somebody_ends_it() {
    assert_eq!(child_that_meets("hang").signal(), Some(libc::SIGKILL));
    assert_eq!(child_that_meets("spin").signal(), Some(libc::SIGKILL));
}

#[test]
fn an_exit_looks_like_success() {
    assert_eq!(child_that_meets("exit").code(), Some(0));
}

#[test]
fn errors_and_nonsense_leave_the_process_alone() {
    for kind in ["unknown", "gpu-is-lost", "unheard-of", "nonsense", "untouched", "noise"] {
        assert_eq!(child_that_meets(kind).code(), Some(WENT_ON), "{kind}");
    }
}
