//! `slurminit-init`, the program that runs as PID 1. `slurminit run` reads the configuration and then executes this program.
//!
//! It is a separate program so that PID 1 contains only the code it needs: no vendor library, network protocol or configuration parser
//! (docs/decisions/make-pid-1-a-program-of-its-own.md). It reads its task from a memory file, whose descriptor is passed on the command
//! line.

#![forbid(unsafe_code)]

mod advice;
mod alarm;
mod changes;
mod clock;
mod control;
pub mod handover;
mod limits;
pub mod logs;
mod notify;
mod output;
mod process;
mod readiness;
mod signals;
mod status;
mod supervise;
mod supervisor;

use std::ffi::{OsStr, OsString};
use std::os::fd::{OwnedFd, RawFd};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::libc::STDERR_FILENO;

use crate::logs::Logs;
use model::{exit_code, message, printable};
use sys::init_task::{InitTask, PROGRAM, TASK_OPTION};
use sys::system_calls::adopt_descriptor;

/// Runs the container to its end, and returns its exit code.
pub fn run(words: impl IntoIterator<Item = OsString>) -> u8 {
    let mut words = words.into_iter().skip(1);
    let (InitTask { task, inherited, locks }, cmd) = match read_task(&mut words) {
        Ok(order) => (order, words.collect()),
        Err(why) => {
            return refuse(&format!("{PROGRAM} cannot read its task: {why}"));
        }
    };
    // The kernel releases the locks when this process dies.
    let _locks: Vec<OwnedFd> = locks.into_iter().map(inherited_descriptor).collect();
    let logs = Logs::install(task.log_format, task.log_level);
    for warning in &task.warnings {
        logs::warn(&message!("start-warning", "{warning}", warning));
    }
    supervise::run(task, cmd, inherited, logs)
        .unwrap_or_else(|error| refuse(&format!("{PROGRAM} cannot start: {error:#}")))
}

/// Reads the task through the descriptor that `slurminit run` passes on the command line before the command.
fn read_task(words: &mut impl Iterator<Item = OsString>) -> Result<InitTask, String> {
    let mut word = || words.next().unwrap_or_default();
    let (option, number, end) = (word(), word(), word());
    let number = number.to_str().and_then(|number| number.parse().ok()).filter(|number| *number > STDERR_FILENO);
    let (true, Some(number)) = (option == OsStr::new(TASK_OPTION) && end == OsStr::new("--"), number) else {
        return Err(format!("expected {TASK_OPTION} DESCRIPTOR -- CMD...; start it with `slurminit run`"));
    };
    InitTask::read(inherited_descriptor(number).into()).map_err(|error| error.to_string())
}

/// A descriptor inherited from `slurminit run`. It is closed in children.
fn inherited_descriptor(number: RawFd) -> OwnedFd {
    // Safe: the number is above the standard descriptors, this process has opened no other, and each is adopted once.
    let descriptor = adopt_descriptor(number);
    // If the task's descriptor is not open, the later read fails.
    let _ = fcntl(&descriptor, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC));
    descriptor
}

fn refuse(why: &str) -> u8 {
    eprintln!("slurminit: {}", printable::lines(why));
    exit_code::FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    use config::{Config, StartOnlyTables};
    use plan::target::Target;
    use sys::inherited::Inherited;

    fn arguments(descriptor: &str) -> impl Iterator<Item = OsString> + use<> {
        ["--task", descriptor, "--", "srun", "--"].map(OsString::from).into_iter()
    }

    #[test]
    fn passes_task_by_memory_file_and_command_unchanged() {
        let config = Config::parse("", std::path::Path::new("x")).unwrap();
        let task = plan::task::task(&config, &StartOnlyTables::of(&config), Target::of(&config), true, 7);
        let inherited: Inherited =
            serde_json::from_str(r#"{"mask":9223372036854775809,"ignored":[1,13],"umask":63}"#).unwrap();
        let init_task = InitTask { task: task.clone(), inherited: inherited.clone(), locks: Vec::new() };
        let file = init_task.write().unwrap();
        let mut arguments = arguments(&std::os::fd::IntoRawFd::into_raw_fd(file).to_string());
        let init_task = read_task(&mut arguments).unwrap();
        assert_eq!((init_task.task, init_task.inherited), (task, inherited));
        assert_eq!(arguments.collect::<Vec<_>>(), ["srun", "--"]);
    }

    #[test]
    fn rejects_a_start_without_a_task() {
        for descriptor in ["", "0", "2", "x", "-1"] {
            let refused = read_task(&mut arguments(descriptor)).unwrap_err();
            assert_eq!(refused, "expected --task DESCRIPTOR -- CMD...; start it with `slurminit run`");
        }
        assert!(read_task(&mut ["--help"].map(OsString::from).into_iter()).is_err());
        let other = File::open("Cargo.toml").unwrap();
        let descriptor = std::os::fd::IntoRawFd::into_raw_fd(other).to_string();
        assert!(
            read_task(&mut arguments(&descriptor))
                .unwrap_err()
                .ends_with("; install the same version of slurminit and slurminit-init")
        );
    }
}
