//! The server end of the control socket, in PID 1.
//!
//! Each client has its own task on PID 1's only thread. At most [`MAX_CLIENTS`] are served at once, and
//! [`MAX_FOLLOWERS`] more may follow a log. A client has [`DEADLINE`] to send its request, of at most
//! [`MAX_REQUEST_BYTES`] bytes, and the same time to read the answer. Without a client there are no wake-ups.

use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::stat::{Mode, umask};
use nix::unistd::Uid;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc::{Receiver, UnboundedSender};
use tokio::sync::oneshot;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use machine::protocol::{MAX_REQUEST_BYTES, Reply, Request, line, take_request};

/// How many clients are served at once; further clients receive `Busy`.
const MAX_CLIENTS: usize = 8;
/// How many clients may follow a log, for any length of time, in addition to the others. slurminit itself uses up to two of
/// these slots.
const MAX_FOLLOWERS: usize = 6;
/// How long a client may take to send its request, and again to read the answer.
const DEADLINE: Duration = Duration::from_secs(1);
/// How long to stop accepting clients after accept(2) has failed, for example because file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A request, and the channel for its answer.
#[derive(Debug)]
pub(super) struct ReceivedRequest {
    /// The request.
    pub request: Request,
    /// The channel for the answer.
    pub answer: oneshot::Sender<FullReply>,
}

/// The answer to a client.
#[derive(Debug)]
pub(super) struct FullReply {
    /// The first line of the answer.
    pub reply: Reply,
    /// The log lines after the reply.
    pub lines: Vec<u8>,
    /// Later lines, until the client disconnects.
    pub new_lines: Option<Receiver<Vec<u8>>>,
}

impl From<Reply> for FullReply {
    fn from(reply: Reply) -> Self {
        Self { reply, lines: Vec::new(), new_lines: None }
    }
}

/// Creates the socket, and replaces one left by an earlier start. Must be called within a tokio runtime.
///
/// # Errors
/// The directory is missing, read-only or untrusted, the path is too long for a socket, or a file that is not a
/// socket has this name.
pub(super) fn listen(socket: &Path) -> std::io::Result<UnixListener> {
    let (run, file) = sys::trusted_path::socket_place(socket)?;
    match run.metadata_of(&file) {
        Ok(metadata) if metadata.file_type().is_socket() => run.remove(&file)?,
        _ => {}
    }
    // Other users must never be able to connect. PID 1 has one thread, so the umask affects no other file.
    let before = umask(Mode::from_bits_truncate(0o177));
    let listener = UnixListener::bind(socket);
    umask(before);
    listener
}

/// Serves clients as long as the receiver of `requests` exists.
pub(super) async fn serve(listener: UnixListener, requests: UnboundedSender<ReceivedRequest>) {
    let (client_slots, followers) = (Arc::new(Semaphore::new(MAX_CLIENTS)), Arc::new(Semaphore::new(MAX_FOLLOWERS)));
    while !requests.is_closed() {
        match listener.accept().await {
            Ok((stream, _)) => match Arc::clone(&client_slots).try_acquire_owned() {
                Ok(slot) => {
                    let (requests, followers) = (requests.clone(), Arc::clone(&followers));
                    tokio::task::spawn_local(async move { serve_client(stream, &requests, slot, followers).await });
                }
                // The reply fits into the socket's buffer, so it is written completely.
                Err(_) => drop(stream.try_write(&line(&Reply::Busy))),
            },
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
        // A flood of clients must not starve the other tasks.
        tokio::task::yield_now().await;
    }
}

async fn serve_client(
    mut stream: UnixStream,
    requests: &UnboundedSender<ReceivedRequest>,
    slot: OwnedSemaphorePermit,
    followers: Arc<Semaphore>,
) {
    let mut answer = if is_permitted(&stream) {
        match timeout(DEADLINE, receive(&mut stream)).await {
            Ok(Some(Ok(request))) => ask(request, requests).await,
            Ok(Some(Err(malformed))) => refused(malformed),
            Ok(None) => return,
            Err(_) => refused(format!("no request within {} s; closing the connection", DEADLINE.as_secs())),
        }
    } else {
        refused("only root may send requests".to_owned())
    };
    let mut new_lines = answer.new_lines.take();
    let follower_slot = new_lines.is_some().then(|| followers.try_acquire_owned());
    if matches!(follower_slot, Some(Err(_))) {
        new_lines = None;
        let limit = MAX_FOLLOWERS;
        answer = refused(format!(
            "{limit} clients already follow a log; stop one of them, or use `docker logs -f` or `kubectl logs -f`"
        ));
    }
    let bytes = [line(&answer.reply), answer.lines].concat();
    // A client that does not read its answer in time loses the rest of it.
    let written = timeout(DEADLINE, stream.write_all(&bytes)).await;
    drop(slot);
    if let (Some(new_lines), Ok(Ok(()))) = (new_lines, written) {
        forward_lines(stream, new_lines).await;
    }
}

/// Passes lines on until the client disconnects. A slow reader delays only itself: lines that do not fit are dropped.
async fn forward_lines(mut stream: UnixStream, mut new_lines: Receiver<Vec<u8>>) {
    let (mut reader, mut writer) = stream.split();
    let mut unexpected = [0];
    loop {
        tokio::select! {
            lines = new_lines.recv() => match lines {
                Some(lines) if writer.write_all(&lines).await.is_ok() => {}
                _ => return,
            },
            // The client disconnected, or sent something unexpected.
            _ = reader.read(&mut unexpected) => return,
        }
    }
}

/// Whether the client is root or slurminit's own user. The socket's mode already ensures this, but may have been changed.
fn is_permitted(stream: &UnixStream) -> bool {
    stream.peer_cred().is_ok_and(|client| client.uid() == 0 || client.uid() == Uid::effective().as_raw())
}

/// Reads the client's request; `None` only if reading fails. An incomplete or invalid request is an error.
async fn receive(stream: &mut UnixStream) -> Option<Result<Request, String>> {
    let mut buffer = vec![0; MAX_REQUEST_BYTES];
    let mut length = 0;
    loop {
        let read = stream.read(buffer.get_mut(length..)?).await.ok()?;
        length += read;
        if let Some(request) = take_request(buffer.get(..length)?, read == 0) {
            return Some(request);
        }
    }
}

async fn ask(request: Request, requests: &UnboundedSender<ReceivedRequest>) -> FullReply {
    let (answer, receiver) = oneshot::channel();
    let _ = requests.send(ReceivedRequest { request, answer });
    receiver.await.unwrap_or_else(|_| refused("the container is stopping".to_owned()))
}

fn refused(why: String) -> FullReply {
    Reply::Refused { why }.into()
}
