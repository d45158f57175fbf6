//! `slurminit-init`, the program that runs as PID 1. `slurminit run` reads the configuration and then executes it.
//!
//! It is a separate program so that PID 1 contains only the code it needs: no vendor library, network protocol or configuration parser
//! (docs/decisions/make-pid-1-a-program-of-its-own.md). It reads its task from a memory file, whose descriptor is passed on the command
//! line.

#![forbid(unsafe_code)]

mod advice;
mod alarm;
mod changes;
mod clock;
pub mod control;
pub mod handover;
mod limits;
pub mod logs;
mod notify;
mod output;
mod process;
mod readiness;
pub mod reloading;
pub mod signals;
pub mod status;
mod supervise;
mod supervisor;

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::libc::STDERR_FILENO;
use nix::sys::memfd::{MFdFlags, memfd_create};
use serde::{Deserialize, Serialize};

use crate::logs::Logs;
use model::task::Task;
use model::{exit_code, message, printable};
use sys::inherited::{Inherited, become_program};
use sys::lock::Lock;
use sys::lock::state::StateLock;
use sys::system_calls::adopt_descriptor;

/// The file name of the program, in the same directory as slurminit.
const PROGRAM: &str = "slurminit-init";
const TASK_OPTION: &str = "--task";

/// The content of the memory file: what `slurminit run` passes to PID 1.
#[derive(Debug, Serialize, Deserialize)]
struct InitTask {
    task: Task,
    /// The signal state to restore in children. All signals are blocked during the exec.
    inherited: Inherited,
    /// The descriptors that hold the locks of the run directory and of the state directories.
    locks: Vec<RawFd>,
}

/// Becomes `slurminit-init` with this task and these locks. Returns only if that fails.
pub fn become_init(task: Task, inherited: Inherited, run: &Lock, state: &StateLock, cmd: &[OsString]) -> anyhow::Error {
    let locks: Vec<&File> = run.file().into_iter().chain(state.files()).collect();
    let init_task = InitTask { task, inherited, locks: locks.iter().map(|file| file.as_raw_fd()).collect() };
    let exec_init = || -> anyhow::Result<Infallible> {
        let file = memory_file(&init_task).map_err(|error| {
            anyhow::anyhow!(
                "cannot create a memory file for PID 1: {error}; allow memfd_create(2) in the container's seccomp profile"
            )
        })?;
        for lock in &locks {
            fcntl(lock, FcntlArg::F_SETFD(FdFlag::empty()))?;
        }
        let words = [PROGRAM.into(), TASK_OPTION.into(), file.as_raw_fd().to_string().into(), "--".into()];
        let words: Vec<OsString> = words.into_iter().chain(cmd.iter().cloned()).collect();
        let env: Vec<_> = std::env::vars_os().collect();
        let error = become_program(&std::env::current_exe()?.with_file_name(PROGRAM), &words, &env);
        anyhow::bail!("cannot execute {PROGRAM}: {error}; put it into the same directory as slurminit")
    };
    match exec_init() {
        Ok(never) => match never {},
        Err(error) => error,
    }
}

/// Creates the memory file. It stays open across an exec.
fn memory_file(init_task: &InitTask) -> io::Result<File> {
    let mut file = File::from(memfd_create("slurminit task", MFdFlags::empty())?);
    file.write_all(&serde_json::to_vec(init_task)?)?;
    file.rewind()?;
    Ok(file)
}

/// Runs the container to its end, and returns its exit code.
pub fn run(words: impl IntoIterator<Item = OsString>) -> u8 {
    let mut words = words.into_iter().skip(1);
    let (InitTask { task, inherited, locks }, cmd) = match read_task(&mut words) {
        Ok(order) => (order, words.collect()),
        Err(why) => {
            return refuse(&format!("{PROGRAM} can only be started by `slurminit run`: {why}"));
        }
    };
    // The kernel releases the locks when this process dies.
    let _locks: Vec<OwnedFd> = locks.into_iter().map(inherited_descriptor).collect();
    let logs = Logs::install(task.log_format, task.log_level);
    for warning in &task.warnings {
        logs::warn(&message!("start-warning", "{warning}", warning = warning));
    }
    supervise::run(task, cmd, inherited, logs).unwrap_or_else(|error| refuse(&format!("{error:#}")))
}

/// Reads the option that `slurminit run` puts on the command line before the command.
fn read_task(words: &mut impl Iterator<Item = OsString>) -> Result<InitTask, String> {
    let mut word = || words.next().unwrap_or_default();
    let (option, number, end) = (word(), word(), word());
    let number = number.to_str().and_then(|number| number.parse().ok()).filter(|number| *number > STDERR_FILENO);
    let (true, Some(number)) = (option == OsStr::new(TASK_OPTION) && end == OsStr::new("--"), number) else {
        return Err(format!("expected {TASK_OPTION} DESCRIPTOR -- CMD..."));
    };
    let mut text = String::new();
    File::from(inherited_descriptor(number)).read_to_string(&mut text).map_err(|error| error.to_string())?;
    serde_json::from_str(&text).map_err(|error| format!("slurminit and {PROGRAM} have different versions: {error}"))
}

/// A descriptor inherited from `slurminit run`. It is closed in children.
fn inherited_descriptor(number: RawFd) -> OwnedFd {
    // Safe: the number is above the standard descriptors, this process has opened no other, and each is adopted once.
    let descriptor = adopt_descriptor(number);
    // If the descriptor is not open, the later read fails.
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
    use config::{Config, StartOnlyTables};
    use plan::target::Target;

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
        let file = memory_file(&init_task).unwrap();
        let mut arguments = arguments(&std::os::fd::IntoRawFd::into_raw_fd(file).to_string());
        let init_task = read_task(&mut arguments).unwrap();
        assert_eq!((init_task.task, init_task.inherited), (task, inherited));
        assert_eq!(arguments.collect::<Vec<_>>(), ["srun", "--"]);
    }

    #[test]
    fn rejects_a_start_without_a_task() {
        for descriptor in ["", "0", "2", "x", "-1"] {
            let refused = read_task(&mut arguments(descriptor)).unwrap_err();
            assert_eq!(refused, "expected --task DESCRIPTOR -- CMD...");
        }
        assert!(read_task(&mut ["--help"].map(OsString::from).into_iter()).is_err());
        let other = File::open("Cargo.toml").unwrap();
        let descriptor = std::os::fd::IntoRawFd::into_raw_fd(other).to_string();
        assert!(
            read_task(&mut arguments(&descriptor))
                .unwrap_err()
                .starts_with("slurminit and slurminit-init have different versions: ")
        );
    }
}
