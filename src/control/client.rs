//! The client end of the control socket, used by the verbs.
//!
//! EDGE.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::protocol::{Reply, Request, line, parse_answer};

/// How long PID 1 may take in total.
const DEADLINE: Duration = Duration::from_secs(5);
/// The pause before the next try while PID 1 is busy.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Nobody listens on the socket.
    #[error("{}: no slurminit runs here as PID 1 of a cluster: {source}", socket.display())]
    Nobody {
        /// The socket.
        socket: PathBuf,
        /// The error of the system call.
        source: std::io::Error,
    },
    /// Only root may connect.
    #[error("{}: only root may do this; try `docker exec -u root`, or sudo", socket.display())]
    NotPermitted {
        /// The socket.
        socket: PathBuf,
    },
    /// PID 1 does not answer.
    #[error("{}: slurminit does not answer within {} s; see `docker logs`", socket.display(), DEADLINE.as_secs())]
    NoAnswer {
        /// The socket.
        socket: PathBuf,
    },
    /// The answer is unknown to this version.
    #[error("{}: slurminit's answer is not understood ({what}); are there two versions of slurminit?", socket.display())]
    NotUnderstood {
        /// The socket.
        socket: PathBuf,
        /// What is wrong with the answer.
        what: String,
    },
    /// PID 1 refused the request.
    #[error("{0}")]
    Refused(String),
}

/// Sends a request and returns the reply with the lines after it. A refusal is an error.
///
/// # Errors
/// See [`ControlError`].
pub fn ask(socket: &Path, request: &Request) -> Result<(Reply, Vec<u8>), ControlError> {
    let nobody = |source| ControlError::Nobody { socket: socket.to_owned(), source };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(nobody)?;
    let no_answer = || ControlError::NoAnswer { socket: socket.to_owned() };
    let answer = runtime.block_on(async { timeout(DEADLINE, ask_until_answered(socket, request)).await });
    let answer = answer.map_err(|_| no_answer())?.map_err(|source| match source.kind() {
        ErrorKind::PermissionDenied => ControlError::NotPermitted { socket: socket.to_owned() },
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => nobody(source),
        _ => no_answer(),
    })?;
    // PID 1 stopped before it could answer.
    if answer.is_empty() && *request == Request::Stop {
        return Ok((Reply::Done, answer));
    }
    match parse_answer(&answer) {
        Ok((Reply::Refused { why }, _)) => Err(ControlError::Refused(why)),
        Ok((reply, lines)) => Ok((reply, lines.to_vec())),
        Err(error) => Err(ControlError::NotUnderstood { socket: socket.to_owned(), what: error.to_string() }),
    }
}

/// Sends a request with an endless answer and passes everything after the reply to `take`, until `take` or PID 1 ends
/// it. A refusal is an error.
///
/// # Errors
/// See [`ControlError`].
pub fn follow(
    socket: &Path,
    request: &Request,
    take: &mut dyn FnMut(&[u8]) -> std::io::Result<()>,
) -> Result<(), ControlError> {
    let failed = |source: std::io::Error| match source.kind() {
        ErrorKind::PermissionDenied => ControlError::NotPermitted { socket: socket.to_owned() },
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            ControlError::Nobody { socket: socket.to_owned(), source }
        }
        _ => ControlError::NoAnswer { socket: socket.to_owned() },
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    runtime.block_on(async {
        let begun = timeout(DEADLINE, begin(socket, request)).await;
        let (mut stream, first) =
            begun.map_err(|_| ControlError::NoAnswer { socket: socket.to_owned() })?.map_err(failed)?;
        let lines = match parse_answer(&first) {
            Ok((Reply::Refused { why }, _)) => return Err(ControlError::Refused(why)),
            Ok((_, lines)) => lines,
            Err(error) => {
                return Err(ControlError::NotUnderstood { socket: socket.to_owned(), what: error.to_string() });
            }
        };
        let mut taken = take(lines);
        let mut buffer = vec![0; 64 * 1024];
        while taken.is_ok() {
            match stream.read(&mut buffer).await {
                Ok(0) | Err(_) => break,
                Ok(length) => taken = take(buffer.get(..length).unwrap_or_default()),
            }
        }
        Ok(())
    })
}

/// Sends a request, and returns the connection with the first line and whatever arrived with it.
async fn begin(socket: &Path, request: &Request) -> std::io::Result<(UnixStream, Vec<u8>)> {
    loop {
        match begin_once(socket, request).await {
            Ok((_, first)) if matches!(parse_answer(&first), Ok((Reply::Busy, _))) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            begun => return begun,
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

async fn begin_once(socket: &Path, request: &Request) -> std::io::Result<(UnixStream, Vec<u8>)> {
    let mut stream = UnixStream::connect(socket).await?;
    let _ = stream.write_all(&line(request)).await;
    let mut first = Vec::new();
    while !first.contains(&b'\n') && stream.read_buf(&mut first).await? > 0 {}
    Ok((stream, first))
}

async fn ask_until_answered(socket: &Path, request: &Request) -> std::io::Result<Vec<u8>> {
    loop {
        match ask_once(socket, request).await {
            Ok(answer) if matches!(parse_answer(&answer), Ok((Reply::Busy, _))) => {}
            // The backlog is full.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            answer => return answer,
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

async fn ask_once(socket: &Path, request: &Request) -> std::io::Result<Vec<u8>> {
    let mut stream = UnixStream::connect(socket).await?;
    // If the request is refused, the connection is already closed, but the reply can still be read.
    let _ = stream.write_all(&line(request)).await;
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer).await {
        Err(error) if answer.is_empty() && error.kind() != ErrorKind::ConnectionReset => Err(error),
        _ => Ok(answer),
    }
}
