//! A verb's end of the control socket.
//!
//! EDGE.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::protocol::{Reply, Request, line, parse_answer};

/// How long PID 1 may take, all in all.
const DEADLINE: Duration = Duration::from_secs(5);
/// The pause before the next try when PID 1 has its hands full.
const AGAIN: Duration = Duration::from_millis(50);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Nobody listens there.
    #[error("{}: no slurminit runs here as PID 1 of a cluster: {source}", socket.display())]
    Nobody {
        /// The socket.
        socket: PathBuf,
        /// The kernel's reason.
        source: std::io::Error,
    },
    /// Only root may.
    #[error("{}: only root may do this; try `docker exec -u root`, or sudo", socket.display())]
    NotPermitted {
        /// The socket.
        socket: PathBuf,
    },
    /// It does not answer.
    #[error("{}: slurminit does not answer within {} s; see `docker logs`", socket.display(), DEADLINE.as_secs())]
    NoAnswer {
        /// The socket.
        socket: PathBuf,
    },
    /// It answered something that this version does not know.
    #[error("{}: slurminit's answer is not understood ({what}); are there two versions of slurminit?", socket.display())]
    NotUnderstood {
        /// The socket.
        socket: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// It says no.
    #[error("{0}")]
    Refused(String),
}

/// Asks, and returns the reply with the lines that follow it. A refusal is an error.
///
/// # Errors
/// Each of [`ControlError`].
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
    // It stopped before it had time to say so.
    if answer.is_empty() && *request == Request::Stop {
        return Ok((Reply::Done, answer));
    }
    match parse_answer(&answer) {
        Ok((Reply::Refused { why }, _)) => Err(ControlError::Refused(why)),
        Ok((reply, lines)) => Ok((reply, lines.to_vec())),
        Err(error) => Err(ControlError::NotUnderstood { socket: socket.to_owned(), what: error.to_string() }),
    }
}

async fn ask_until_answered(socket: &Path, request: &Request) -> std::io::Result<Vec<u8>> {
    loop {
        match ask_once(socket, request).await {
            Ok(answer) if matches!(parse_answer(&answer), Ok((Reply::Busy, _))) => {}
            // Those that wait to be let in are too many.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            answer => return answer,
        }
        tokio::time::sleep(AGAIN).await;
    }
}

async fn ask_once(socket: &Path, request: &Request) -> std::io::Result<Vec<u8>> {
    let mut stream = UnixStream::connect(socket).await?;
    // One that is refused finds the connection closed; what it was told before can still be read.
    let _ = stream.write_all(&line(request)).await;
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer).await {
        Err(error) if answer.is_empty() && error.kind() != ErrorKind::ConnectionReset => Err(error),
        _ => Ok(answer),
    }
}
