//! Sends requests to PID 1's control socket.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, setsockopt, socket, sockopt};
use nix::sys::time::TimeVal;

use machine::protocol::{Reply, Request, line, parse_answer};

/// The timeout of a request, including retries. If the answer is endless, the timeout applies only to its first line.
const DEADLINE: Duration = Duration::from_secs(5);
/// The pause before a retry while PID 1 is busy.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message describes the variant")]
pub enum ControlError {
    #[error("{}: no cluster is running in this container: {error}", socket.display())]
    NotRunning { socket: PathBuf, error: io::Error },
    #[error("{}: only root can send requests to slurminit; use `docker exec -u root`, or sudo", socket.display())]
    NotPermitted { socket: PathBuf },
    #[error(
        "{}: slurminit does not answer (timeout {} s); see /var/log/slurminit.log or `docker logs`",
        socket.display(),
        DEADLINE.as_secs()
    )]
    NoAnswer { socket: PathBuf },
    #[error("{}: slurminit sent no valid reply ({what}); if it is still running, use the version of slurminit that started the cluster", socket.display())]
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

/// Sends a request. [`DEADLINE`] applies to the complete answer if `is_finite`, otherwise only to its first line.
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
    if on_lines(lines).is_ok() {
        connection.pass_lines(on_lines).map_err(failed)?;
    }
    Ok(reply)
}

struct Connection {
    stream: UnixStream,
    deadline: Option<Instant>,
}

impl Connection {
    /// Sends a request. Returns the connection and the bytes received so far: at least the first line, unless PID 1 has closed the connection.
    fn send_request(socket: &Path, request: &Request, deadline: Instant) -> io::Result<(Self, Vec<u8>)> {
        loop {
            let mut connection = Self { stream: open(socket, left(deadline)?)?, deadline: Some(deadline) };
            // If PID 1 has already refused the request and closed the connection, the write fails, but the reply can still be read.
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

    /// Passes further bytes on, until `on_lines` fails or PID 1 closes the connection. Fails if the deadline passes first.
    fn pass_lines(&mut self, on_lines: OnLines<'_>) -> io::Result<()> {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            match self.read(&mut buffer) {
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return Err(error),
                Ok(length @ 1..) if on_lines(buffer.get(..length).unwrap_or_default()).is_ok() => {}
                Ok(_) | Err(_) => return Ok(()),
            }
        }
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

#[expect(clippy::disallowed_methods, reason = "PID 1 replies that it is busy, but does not signal when it is free")]
fn pause() {
    std::thread::sleep(RETRY_PAUSE);
}

/// The time left until the deadline. An error if less than 1 ms is left.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.checked_duration_since(Instant::now()).filter(|left| left.as_millis() > 0);
    left.ok_or_else(|| ErrorKind::TimedOut.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(deadline: Option<Instant>) -> (Connection, UnixStream) {
        let (stream, peer) = UnixStream::pair().unwrap();
        (Connection { stream, deadline }, peer)
    }

    fn passed(connection: &mut Connection, accept: impl Fn(&str) -> bool) -> (io::Result<()>, String) {
        let mut text = String::new();
        let result = connection.pass_lines(&mut |bytes| {
            text.push_str(std::str::from_utf8(bytes).unwrap());
            if accept(&text) { Ok(()) } else { Err(ErrorKind::BrokenPipe.into()) }
        });
        (result, text)
    }

    #[test]
    fn lines_end_with_the_connection_or_their_reader() {
        let (mut open, mut peer) = connection(None);
        peer.write_all(b"a\nb\n").unwrap();
        assert_eq!(passed(&mut open, |text| text.len() < 4).1, "a\nb\n", "the reader accepts no more");
        peer.write_all(b"c\n").unwrap();
        drop(peer);
        let (result, text) = passed(&mut open, |_| true);
        assert!(result.is_ok() && text == "c\n", "{result:?} {text}");
        // The peer closes with unread data, which resets the connection.
        let (mut reset, peer) = connection(None);
        reset.stream.write_all(b"unread").unwrap();
        drop(peer);
        assert!(passed(&mut reset, |_| true).0.is_ok());
    }

    #[test]
    fn silence_until_the_deadline_is_an_error() {
        let (mut late, _peer) = connection(Some(Instant::now()));
        assert_eq!(passed(&mut late, |_| true).0.unwrap_err().kind(), ErrorKind::TimedOut);
    }
}
