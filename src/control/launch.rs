//! Starts PID 1.

use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsRawFd as _;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use model::task::Task;
use sys::inherited::{Inherited, become_program};
use sys::init_task::{InitTask, PROGRAM, TASK_OPTION};
use sys::lock::Lock;
use sys::lock::state::StateLock;

/// Becomes `slurminit-init` with this task and these locks. Returns only if that fails.
pub fn become_init(task: Task, inherited: Inherited, run: &Lock, state: &StateLock, cmd: &[OsString]) -> anyhow::Error {
    let locks: Vec<&File> = run.file().into_iter().chain(state.files()).collect();
    let init_task = InitTask { task, inherited, locks: locks.iter().map(|file| file.as_raw_fd()).collect() };
    let exec_init = || -> anyhow::Result<Infallible> {
        let file = init_task.write().map_err(|error| {
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
