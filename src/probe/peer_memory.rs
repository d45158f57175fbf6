//! Whether a process may read the memory of another process of its user (process_vm_readv(2)), as MPI libraries do for large messages
//! on one node.
//!
//! The seccomp profile of Docker before 23 refuses the system call, and Yama (`kernel.yama.ptrace_scope`) refuses it to processes that
//! are not ancestors. The test reads only this process's own memory: a test with two processes would have to expose memory that may contain
//! secrets.

use std::io::IoSliceMut;
use std::path::Path;
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::getpid;

use super::regular;
use sys::sandbox::{Sandbox, SandboxError};

/// The setting of Yama: 0 adds no restriction.
const YAMA: &str = "proc/sys/kernel/yama/ptrace_scope";

/// A running detection.
#[derive(Debug)]
pub(super) struct Detection {
    is_refused_by_yama: bool,
    seccomp_attempt: Option<Sandbox<bool>>,
}

impl Detection {
    /// Starts the detection. With another root directory, the system call would test this machine, so only Yama's setting is read.
    pub(super) fn start(root: &Path) -> Self {
        Self {
            is_refused_by_yama: regular::text(&root.join(YAMA)).is_ok_and(|scope| scope.trim() != "0"),
            // In a sandbox, because a seccomp profile may kill the caller.
            seccomp_attempt: (root == Path::new("/")).then(|| Sandbox::start(is_refused_by_seccomp)),
        }
    }

    /// Whether access to a peer's memory is refused. If the attempt has no result, only Yama's setting decides.
    pub(super) fn finish(self, deadline: Instant) -> bool {
        let is_refused = |attempt: Sandbox<bool>| match attempt.finish(deadline) {
            // A profile that kills the caller sends this signal.
            Err(error) => error == SandboxError::Crashed(Signal::SIGSYS),
            Ok(is_refused) => is_refused,
        };
        self.is_refused_by_yama || self.seccomp_attempt.is_some_and(is_refused)
    }
}

/// Reads this process's own memory. The kernel grants that without a check, so only a filter of system calls (seccomp), or a kernel without
/// this call, can refuse it.
fn is_refused_by_seccomp() -> bool {
    let value = 0x5eed_u32.to_ne_bytes();
    let mut copy = [0; size_of::<u32>()];
    let own = RemoteIoVec { base: value.as_ptr().addr(), len: value.len() };
    let read = process_vm_readv(getpid(), &mut [IoSliceMut::new(&mut copy)], &[own]);
    matches!(read, Err(Errno::EPERM | Errno::EACCES | Errno::ENOSYS))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn seccomp_profile_that_kills_the_caller_refuses() {
        let refused = |attempt: fn() -> bool| {
            let detection = Detection { is_refused_by_yama: false, seccomp_attempt: Some(Sandbox::start(attempt)) };
            detection.finish(Instant::now() + Duration::from_secs(60))
        };
        assert!(refused(|| nix::sys::signal::raise(Signal::SIGSYS).is_ok()));
        assert!(!refused(|| nix::sys::signal::raise(Signal::SIGABRT).is_ok()), "not by seccomp");
        assert!(!refused(|| false));
    }

    #[test]
    fn yama_allows_peer_memory_only_with_scope_0() {
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
