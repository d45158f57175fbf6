//! PID 1's end of the control socket.
//!
//! EDGE. Every client has a task of its own on PID 1's one thread; there are at most [`CLIENTS`], each has [`DEADLINE`] to
//! ask and again to take the answer, and may send [`LONGEST_REQUEST`] bytes. Without a client nothing wakes.

use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::stat::{Mode, umask};
use nix::unistd::Uid;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::protocol::{LONGEST_REQUEST, Malformed, Reply, Request, line, take_request};

/// How many clients are served at a time; the next is told to come again.
const CLIENTS: usize = 8;
/// How long a client may take to ask, and how long to take its answer.
const DEADLINE: Duration = Duration::from_secs(1);
/// How long nobody is let in when there is no descriptor left for them.
const NO_DESCRIPTOR: Duration = Duration::from_millis(100);

/// A request, and where its answer goes.
#[derive(Debug)]
pub struct Asked {
    /// What is asked.
    pub request: Request,
    /// Takes the answer.
    pub answer: oneshot::Sender<Answer>,
}

/// What a client is told.
#[derive(Debug)]
pub struct Answer {
    /// The first line.
    pub reply: Reply,
    /// What follows it.
    pub lines: Vec<u8>,
}

impl From<Reply> for Answer {
    fn from(reply: Reply) -> Self {
        Self { reply, lines: Vec::new() }
    }
}

/// Makes the socket, in place of one that a former start has left. Needs a tokio runtime.
///
/// # Errors
/// The kernel's: the directory is missing, read-only or somebody else's, or something else has that name.
pub fn listen(socket: &Path) -> std::io::Result<UnixListener> {
    let (run, file) = crate::walk::socket_place(socket)?;
    match run.metadata_of(&file) {
        Ok(metadata) if metadata.file_type().is_socket() => run.remove(&file)?,
        _ => {}
    }
    // Not for a moment may others connect. Slurminit has one thread, so nobody else makes a file meanwhile.
    let before = umask(Mode::from_bits_truncate(0o177));
    let listener = UnixListener::bind(socket);
    umask(before);
    listener
}

/// Serves clients for as long as somebody takes the requests.
pub async fn serve(listener: UnixListener, requests: UnboundedSender<Asked>) {
    let places = Arc::new(Semaphore::new(CLIENTS));
    while !requests.is_closed() {
        match listener.accept().await {
            Ok((stream, _)) => match Arc::clone(&places).try_acquire_owned() {
                Ok(place) => {
                    let requests = requests.clone();
                    tokio::task::spawn_local(async move {
                        attend(stream, &requests).await;
                        drop(place);
                    });
                }
                // It fits the socket's own buffer: nothing waits.
                Err(_) => drop(stream.try_write(&line(&Reply::Busy))),
            },
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
            Err(_) => tokio::time::sleep(NO_DESCRIPTOR).await,
        }
        // A flood of clients must not keep the others of this thread waiting.
        tokio::task::yield_now().await;
    }
}

async fn attend(mut stream: UnixStream, requests: &UnboundedSender<Asked>) {
    let answer = if is_permitted(&stream) {
        match timeout(DEADLINE, receive(&mut stream)).await {
            Ok(Some(Ok(request))) => ask(request, requests).await,
            Ok(Some(Err(malformed))) => refused(malformed.to_string()),
            Ok(None) => return,
            Err(_) => refused(format!("no request came within {} s; the connection ends", DEADLINE.as_secs())),
        }
    } else {
        refused("only root may ask".to_owned())
    };
    let bytes = [line(&answer.reply), answer.lines].concat();
    // A client that does not take its answer does without.
    let _ = timeout(DEADLINE, stream.write_all(&bytes)).await;
}

/// The socket's mode says so already; somebody may have changed it.
fn is_permitted(stream: &UnixStream) -> bool {
    stream.peer_cred().is_ok_and(|client| client.uid() == 0 || client.uid() == Uid::effective().as_raw())
}

/// The client's request; `None` if it went away.
async fn receive(stream: &mut UnixStream) -> Option<Result<Request, Malformed>> {
    let mut buffer = vec![0; LONGEST_REQUEST];
    let mut length = 0;
    loop {
        let read = stream.read(buffer.get_mut(length..)?).await.ok()?;
        length += read;
        if let Some(request) = take_request(buffer.get(..length)?, read == 0) {
            return Some(request);
        }
    }
}

async fn ask(request: Request, requests: &UnboundedSender<Asked>) -> Answer {
    let (answer, answered) = oneshot::channel();
    let _ = requests.send(Asked { request, answer });
    answered.await.unwrap_or_else(|_| refused("the container ends".to_owned()))
}

fn refused(why: String) -> Answer {
    Reply::Refused { why }.into()
}
