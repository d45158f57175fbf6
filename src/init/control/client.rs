//! The client end of the control socket, used by the verbs.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::{Instant, timeout_at};

use super::protocol::{Reply, Request, line, parse_answer};

/// The timeout of a complete request.
const DEADLINE: Duration = Duration::from_secs(5);
/// The pause before a retry while PID 1 is busy.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message describes the variant")]
pub enum ControlError {
    #[error("{}: no slurminit runs here as PID 1 of a cluster: {source}", socket.display())]
    NotRunning { socket: PathBuf, source: std::io::Error },
    #[error("{}: only root may do this; try `docker exec -u root`, or sudo", socket.display())]
    NotPermitted { socket: PathBuf },
    #[error("{}: slurminit does not answer (timeout {} s); see `docker logs`", socket.display(), DEADLINE.as_secs())]
    NoAnswer { socket: PathBuf },
    #[error("{}: slurminit sent an unparsable reply ({what}); use the same version of slurminit on both sides", socket.display())]
    Unparsable { socket: PathBuf, what: String },
    #[error("{0}")]
    Refused(String),
}

/// Sends a request and returns the reply with the lines after it. A refusal is an error.
///
/// # Errors
/// See [`ControlError`].
pub fn ask(socket: &Path, request: &Request) -> Result<(Reply, Vec<u8>), ControlError> {
    let mut lines = Vec::new();
    let reply = exchange(socket, request, true, &mut |more| {
        lines.extend_from_slice(more);
        Ok(())
    })?;
    Ok((reply, lines))
}

/// Sends a request with an endless answer and passes everything after the reply to `on_lines`, until `on_lines` or
/// PID 1 ends it. A refusal is an error.
///
/// # Errors
/// See [`ControlError`].
pub fn follow(socket: &Path, request: &Request, on_lines: OnLines<'_>) -> Result<(), ControlError> {
    exchange(socket, request, false, on_lines).map(drop)
}

/// A function that receives the lines after the reply as they arrive.
type OnLines<'a> = &'a mut dyn FnMut(&[u8]) -> std::io::Result<()>;

/// With `is_finite`, the deadline is that of the complete answer, otherwise that of its first line.
fn exchange(socket: &Path, request: &Request, is_finite: bool, on_lines: OnLines<'_>) -> Result<Reply, ControlError> {
    let not_running = |source| ControlError::NotRunning { socket: socket.to_owned(), source };
    let no_answer = || ControlError::NoAnswer { socket: socket.to_owned() };
    let failed = |source: std::io::Error| match source.kind() {
        ErrorKind::PermissionDenied => ControlError::NotPermitted { socket: socket.to_owned() },
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => not_running(source),
        _ => no_answer(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(not_running)?;
    runtime.block_on(async {
        let deadline = Instant::now() + DEADLINE;
        let started = timeout_at(deadline, send_request(socket, request)).await;
        let (mut stream, first_bytes) = started.map_err(|_| no_answer())?.map_err(failed)?;
        // PID 1 stopped before it could answer.
        if first_bytes.is_empty() && *request == Request::Stop {
            return Ok(Reply::Done);
        }
        let (reply, lines) = parse_answer(&first_bytes)
            .map_err(|error| ControlError::Unparsable { socket: socket.to_owned(), what: error.to_string() })?;
        if let Reply::Refused { why } = reply {
            return Err(ControlError::Refused(why));
        }
        let forwarding = forward_lines(&mut stream, lines, on_lines);
        match is_finite {
            true => timeout_at(deadline, forwarding).await.map_err(|_| no_answer())?,
            false => forwarding.await,
        }
        Ok(reply)
    })
}

async fn forward_lines(stream: &mut UnixStream, lines: &[u8], on_lines: OnLines<'_>) {
    let mut result = on_lines(lines);
    let mut buffer = vec![0; 64 * 1024];
    while result.is_ok() {
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(length) => result = on_lines(buffer.get(..length).unwrap_or_default()),
        }
    }
}

/// Sends a request, and returns the connection with the bytes received so far, up to the first line at least.
async fn send_request(socket: &Path, request: &Request) -> std::io::Result<(UnixStream, Vec<u8>)> {
    loop {
        match try_send_request(socket, request).await {
            Ok((_, first_bytes)) if matches!(parse_answer(&first_bytes), Ok((Reply::Busy, _))) => {}
            // The backlog is full.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            started => return started,
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

async fn try_send_request(socket: &Path, request: &Request) -> std::io::Result<(UnixStream, Vec<u8>)> {
    let mut stream = UnixStream::connect(socket).await?;
    // If the request is refused, the connection is already closed, but the reply can still be read.
    let _ = stream.write_all(&line(request)).await;
    let mut first_bytes = Vec::new();
    while !first_bytes.contains(&b'\n') {
        match stream.read_buf(&mut first_bytes).await {
            Err(error) if first_bytes.is_empty() && error.kind() != ErrorKind::ConnectionReset => return Err(error),
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
    }
    Ok((stream, first_bytes))
}
