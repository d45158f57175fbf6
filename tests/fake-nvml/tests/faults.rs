//! The faults that end or block a process, each in a process of its own.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "a test is no PID 1: it may wait for the commands that it runs")]

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use nvml_wrapper::Nvml;
use tempfile::TempDir;

/// The file `asks`. Set for the child alone: `cargo test -- --ignored` runs it as well, and must survive that.
const IS_CHILD: &str = "FAULTS_CHILD";

/// Nvml answered, and the process went on: no fault ends a process so.
const WENT_ON: i32 = 7;

/// What has not come after this time never comes.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a hang is watched.
const WATCH: Duration = Duration::from_millis(300);

/// A child that loads the library and asks it for what is at fault. Before the question it leaves the file `asks` beside the machine's.
fn child_that_meets(kind: &str) -> (TempDir, Child) {
    let directory = tempfile::tempdir().unwrap();
    let machine = directory.path().join("machine.toml");
    std::fs::write(&machine, format!("gpus = 1\n[[fault]]\nat = 'count'\nkind = '{kind}'\n")).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "child", "--ignored"])
        .env("FAKE_NVML", machine)
        .env(IS_CHILD, directory.path().join("asks"));
    (directory, command.spawn().unwrap())
}

/// Its end; `None` where none comes.
fn end_within(child: &mut Child, patience: Duration) -> Option<ExitStatus> {
    let start = Instant::now();
    loop {
        let status = child.try_wait().unwrap();
        if status.is_some() || start.elapsed() >= patience {
            return status;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn end_of_a_child_that_meets(kind: &str) -> ExitStatus {
    let (_machine, mut child) = child_that_meets(kind);
    let end = end_within(&mut child, PATIENCE);
    if end.is_none() {
        child.kill().unwrap();
    }
    end.expect(kind)
}

#[test]
#[ignore = "the other tests run it as their child"]
fn child() {
    let Some(asks) = std::env::var_os(IS_CHILD) else { return };
    let library = std::env::current_exe().unwrap().with_file_name("libfake_nvml.so");
    let nvml = Nvml::builder().lib_path(library.as_os_str()).init().unwrap();
    std::fs::write(asks, "").unwrap();
    let _ = nvml.device_count();
    std::process::exit(WENT_ON);
}

#[test]
fn crash_is_signal() {
    assert_eq!(end_of_a_child_that_meets("crash").signal(), Some(libc::SIGSEGV));
    assert_eq!(end_of_a_child_that_meets("abort").signal(), Some(libc::SIGABRT));
}

#[test]
fn hang_lasts_until_it_is_ended() {
    for kind in ["hang", "spin"] {
        let (machine, mut child) = child_that_meets(kind);
        let start = Instant::now();
        while !machine.path().join("asks").exists() {
            assert!(start.elapsed() < PATIENCE, "{kind}: it does not ask");
            std::thread::sleep(Duration::from_millis(5));
        }
        let end = end_within(&mut child, WATCH);
        child.kill().unwrap();
        assert_eq!(end, None, "{kind}");
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL), "{kind}");
    }
}

#[test]
fn exit_without_report_looks_like_success() {
    assert_eq!(end_of_a_child_that_meets("exit").code(), Some(0));
}

#[test]
fn errors_and_nonsense_leave_the_process_alone() {
    for kind in ["unknown", "gpu-is-lost", "unheard-of", "nonsense", "untouched", "noise"] {
        assert_eq!(end_of_a_child_that_meets(kind).code(), Some(WENT_ON), "{kind}");
    }
}
