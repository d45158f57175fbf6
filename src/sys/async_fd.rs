//! Waits for a file descriptor in the event loop.

use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers a descriptor with the event loop. Must be called within a tokio runtime.
///
/// # Errors
/// The registration fails; regular files cannot be waited for (`EPERM`).
#[expect(unsafe_code, reason = "tokio cannot see that the descriptor stays open for as long as it is registered")]
pub fn watch(fd: OwnedFd, interest: Interest) -> std::io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd is open until it is dropped, and the AsyncFd owns it.
    Ok(unsafe { AsyncFd::register_with_interest(fd, interest) }?)
}
