//! Whether a process may read the memory of another process of its user (process_vm_readv(2)), as MPI libraries do for large messages
//! on one node.
//!
//! The seccomp profile of Docker before 23 refuses the system call, and Yama (`kernel.yama.ptrace_scope`) refuses it to processes that
//! are not ancestors.

use std::io::IoSliceMut;
use std::path::Path;
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::prctl::set_dumpable;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Gid, Uid, geteuid, getppid, setgid, setgroups, setuid};

use super::regular;
use super::sandbox::Sandbox;
use sys::system_calls::fork;

/// The user `nobody`. Root could read more than the users of jobs.
const NOBODY: u32 = 65534;

/// The setting of Yama: 0 allows what Unix allows.
const YAMA: &str = "proc/sys/kernel/yama/ptrace_scope";

/// A running detection.
#[derive(Debug)]
pub(super) enum Detection {
    Attempt(Sandbox<bool>),
    Known(bool),
}

impl Detection {
    /// With another root directory an attempt would show another machine's answer, so only the setting counts.
    pub(super) fn start(root: &Path) -> Self {
        if root == Path::new("/") {
            return Self::Attempt(Sandbox::start(is_refused));
        }
        Self::Known(regular::text(&root.join(YAMA)).is_ok_and(|scope| scope.trim() != "0"))
    }

    /// Whether it is refused; `false` if the attempt cannot be made.
    pub(super) fn finish(self, deadline: Instant) -> bool {
        match self {
            Self::Attempt(started) => started.finish(deadline).unwrap_or(false),
            Self::Known(refused) => refused,
        }
    }
}

/// Has a child process read this process's memory: an ancestor of the process may do more than the tasks of a job, which are siblings.
fn is_refused() -> bool {
    if geteuid().is_root() && become_nobody().is_err() {
        return false;
    }
    let value = 0x5eed_u32.to_ne_bytes();
    let read = || {
        let mut copy = [0; size_of::<u32>()];
        let remote = RemoteIoVec { base: value.as_ptr().addr(), len: value.len() };
        match process_vm_readv(getppid(), &mut [IoSliceMut::new(&mut copy)], &[remote]) {
            Err(error @ (Errno::EPERM | Errno::EACCES | Errno::ENOSYS)) => error as i32,
            _ => 0,
        }
    };
    let ended = fork(read).and_then(|child| waitpid(child, None));
    matches!(ended, Ok(WaitStatus::Exited(_, code)) if code != 0)
}

fn become_nobody() -> nix::Result<()> {
    setgroups(&[])?;
    setgid(Gid::from_raw(NOBODY))?;
    setuid(Uid::from_raw(NOBODY))?;
    // The change of the user made this process's memory private to root.
    set_dumpable(true)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn yama_refuses_unless_its_scope_is_0() {
        let root = tempfile::tempdir().unwrap();
        let refused = || Detection::start(root.path()).finish(Instant::now() + Duration::from_secs(60));
        assert!(!refused(), "a kernel without Yama");
        std::fs::create_dir_all(root.path().join("proc/sys/kernel/yama")).unwrap();
        for (scope, expected) in [("0\n", false), ("1\n", true), ("3\n", true)] {
            std::fs::write(root.path().join(YAMA), scope).unwrap();
            assert_eq!(refused(), expected, "{scope}");
        }
    }
}
