//! Sends requests to PID 1's control socket.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, setsockopt, socket, sockopt};
use nix::sys::time::TimeVal;

use machine::protocol::{Reply, Request, line, parse_answer};

/// The timeout of a complete request, including retries.
const DEADLINE: Duration = Duration::from_secs(5);
/// The pause before a retry while PID 1 is busy.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message describes the variant")]
pub enum ControlError {
    #[error("{}: no cluster is running in this container: {error}", socket.display())]
    NotRunning { socket: PathBuf, error: io::Error },
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

/// Sends a request with an endless answer. Passes everything after the reply to `on_lines`, until `on_lines` fails or PID 1 closes the connection. A
/// refusal is an error.
///
/// # Errors
/// See [`ControlError`].
pub fn follow(socket: &Path, request: &Request, on_lines: OnLines<'_>) -> Result<(), ControlError> {
    exchange(socket, request, false, on_lines).map(drop)
}

/// A function that receives the lines after the reply as they arrive.
type OnLines<'a> = &'a mut dyn FnMut(&[u8]) -> io::Result<()>;

/// The deadline applies to the complete answer if `is_finite`, otherwise to its first line.
fn exchange(socket: &Path, request: &Request, is_finite: bool, on_lines: OnLines<'_>) -> Result<Reply, ControlError> {
    let path = || socket.to_owned();
    let failed = |error: io::Error| match error.kind() {
        ErrorKind::PermissionDenied => ControlError::NotPermitted { socket: path() },
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => ControlError::NotRunning { socket: path(), error },
        _ => ControlError::NoAnswer { socket: path() },
    };
    let deadline = Instant::now() + DEADLINE;
    let (mut connection, first_bytes) = Connection::send_request(socket, request, deadline).map_err(failed)?;
    // PID 1 stopped before it could answer.
    if first_bytes.is_empty() && *request == Request::Stop {
        return Ok(Reply::Done);
    }
    let (reply, lines) = parse_answer(&first_bytes)
        .map_err(|error| ControlError::Unparsable { socket: path(), what: error.to_string() })?;
    if let Reply::Refused { why } = reply {
        return Err(ControlError::Refused(why));
    }
    if !is_finite {
        connection.deadline = None;
    }
    let mut result = on_lines(lines);
    let mut buffer = vec![0; 64 * 1024];
    while result.is_ok() {
        match connection.read(&mut buffer) {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Err(failed(error));
            }
            Ok(0) | Err(_) => break,
            Ok(length) => result = on_lines(buffer.get(..length).unwrap_or_default()),
        }
    }
    Ok(reply)
}

struct Connection {
    stream: UnixStream,
    deadline: Option<Instant>,
}

impl Connection {
    /// Sends a request. Returns the connection and the bytes received so far, which contain at least the first line.
    fn send_request(socket: &Path, request: &Request, deadline: Instant) -> io::Result<(Self, Vec<u8>)> {
        loop {
            let mut connection = Self { stream: open(socket, left(deadline)?)?, deadline: Some(deadline) };
            // If the request is refused, the connection is already closed, but the reply can still be read.
            let _ = connection.stream.write_all(&line(request));
            let first_bytes = connection.first_bytes()?;
            if !matches!(parse_answer(&first_bytes), Ok((Reply::Busy, _))) {
                return Ok((connection, first_bytes));
            }
            pause();
        }
    }

    fn first_bytes(&mut self) -> io::Result<Vec<u8>> {
        let (mut first_bytes, mut buffer) = (Vec::new(), [0; 4096]);
        while !first_bytes.contains(&b'\n') {
            match self.read(&mut buffer) {
                Err(error) if first_bytes.is_empty() && error.kind() != ErrorKind::ConnectionReset => {
                    return Err(error);
                }
                Ok(0) | Err(_) => break,
                Ok(length) => first_bytes.extend_from_slice(buffer.get(..length).unwrap_or_default()),
            }
        }
        Ok(first_bytes)
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            self.stream.set_read_timeout(self.deadline.map(left).transpose()?)?;
            match self.stream.read(buffer) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }
}

/// Connects. The send timeout also limits connect(2) while the listen backlog is full (socket(7)).
fn open(path: &Path, timeout: Duration) -> io::Result<UnixStream> {
    let descriptor = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let timeout = TimeVal::new(timeout.as_secs().try_into().unwrap_or(0), timeout.subsec_micros().into());
    setsockopt(&descriptor, sockopt::SendTimeout, &timeout)?;
    connect(descriptor.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(descriptor.into())
}

#[expect(
    clippy::disallowed_methods,
    reason = "PID 1 reports that it is busy, but not when it has served another client"
)]
fn pause() {
    std::thread::sleep(RETRY_PAUSE);
}

/// The time left until the deadline. An error if none is left.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.checked_duration_since(Instant::now()).filter(|left| left.as_millis() > 0);
    left.ok_or_else(|| ErrorKind::TimedOut.into())
}
