//! Connects standard input and output of a step to a Unix socket on its node.

use std::fs::File;
use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

/// How long the server may take to create the socket. Python in an image on a slow disk starts slowly.
const TIMEOUT: Duration = Duration::from_secs(300);
const INTERVAL: Duration = Duration::from_millis(100);

/// Returns when the server closes the connection.
pub(super) fn run(path: &Path) -> anyhow::Result<()> {
    let socket = connect(path)?;
    // Another user may have created the directory and the socket before the server did.
    let server = getsockopt(&socket, PeerCredentials)?.uid();
    anyhow::ensure!(server == nix::unistd::getuid().as_raw(), "the server at {} runs as another user", path.display());
    let (mut stdin, mut stdout) = (file(io::stdin())?, file(io::stdout())?);
    let mut upstream = socket.try_clone()?;
    std::thread::spawn(move || {
        let _ = io::copy(&mut stdin, &mut upstream);
        let _ = upstream.shutdown(Shutdown::Write);
    });
    io::copy(&mut &socket, &mut stdout)?;
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "a server that starts reports no event to another step")]
fn connect(path: &Path) -> anyhow::Result<UnixStream> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match UnixStream::connect(path) {
            Err(_) if Instant::now() < deadline => std::thread::sleep(INTERVAL),
            result => return result.with_context(|| format!("cannot connect to {}", path.display())),
        }
    }
}

/// Bypasses the standard library's buffer, which holds back text without a final newline.
fn file(stream: impl std::os::fd::AsFd) -> io::Result<File> {
    Ok(stream.as_fd().try_clone_to_owned()?.into())
}
