//! Starts PID 1.

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use model::task::Task;
use sys::inherited::{Inherited, become_program};
use sys::init_task::{InitTask, PROGRAM, SEARCH_PATH, TASK_OPTION};
use sys::lock::Lock;
use sys::lock::state::StateLock;

/// Replaces this process with `slurminit-init`, which gets the task, the locks `run` and `state`, and the CMD, but not the `removed`
/// environment variables. Returns only on failure.
pub fn become_init(
    task: Task,
    inherited: Inherited,
    run: &Lock,
    state: &StateLock,
    cmd: &[OsString],
    removed: &[OsString],
) -> anyhow::Error {
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
        let path = complete_path(std::env::var_os("PATH").as_deref());
        let kept = std::env::vars_os().filter(|(name, _)| name != "PATH" && !removed.contains(name));
        let env = kept.chain([("PATH".into(), path)]).collect::<Vec<_>>();
        let error = become_program(&std::env::current_exe()?.with_file_name(PROGRAM), &words, &env);
        anyhow::bail!(
            "cannot execute {PROGRAM}: {error}; install it as an executable file in the directory of slurminit"
        )
    };
    match exec_init() {
        Ok(never) => match never {},
        Err(error) => error,
    }
}

/// The PATH of PID 1 and its child processes, with the daemons' directories added, which the PATH of a derived image might not contain.
fn complete_path(path: Option<&OsStr>) -> OsString {
    let own: Vec<PathBuf> = path.map(|path| std::env::split_paths(path).collect()).unwrap_or_default();
    let missing = std::env::split_paths(SEARCH_PATH).filter(|directory| !own.contains(directory));
    let all = own.iter().cloned().chain(missing);
    std::env::join_paths(all).unwrap_or_else(|_| SEARCH_PATH.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_keeps_its_order_and_has_all_directories_of_daemons() {
        let complete = |path: Option<&str>| complete_path(path.map(OsStr::new)).into_string().unwrap();
        assert_eq!(complete(None), SEARCH_PATH);
        assert_eq!(complete(Some(SEARCH_PATH)), SEARCH_PATH);
        assert_eq!(
            complete(Some("/opt/bin:/bin")),
            "/opt/bin:/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin"
        );
    }
}
