//! What the children say: their pipes become log lines, or events.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc::UnboundedSender;
use tracing::warn;

use super::footprint::Activity;
use super::liveness::Answer;
use super::machine::Event;
use super::node::NodeReport;
use crate::logs::{LineSplitter, Logs, Record, parse_daemon_line};
use crate::watch::watch;

/// How much is read at a time; others get their turn between two reads.
const CHUNK: usize = 16 * 1024;
/// How much of what a dead child left in its pipe is read: a process that holds the pipe open may go on writing.
const LAST_READS: usize = 64;

/// What becomes of the lines.
#[derive(Debug)]
pub(super) enum Reader {
    /// They go into the log under this name.
    Log { source: String },
    /// Each is an event of the preparation.
    Prepare,
    /// The first is the node's state.
    Node,
    /// Each is what a liveness question showed.
    Liveness,
}

/// A pipe, and whether the loop wakes up for it.
#[derive(Debug)]
pub(super) enum Pipe {
    /// Whenever something is in it.
    Watched(AsyncFd<OwnedFd>),
    /// No: what it can hold is read when the child is dead.
    Unwatched(OwnedFd),
}

impl Pipe {
    pub(super) fn watched(pipe: OwnedFd) -> Option<Self> {
        set_nonblocking(&pipe)?;
        watch(pipe, Interest::READABLE).ok().map(Self::Watched)
    }

    pub(super) fn unwatched(pipe: OwnedFd) -> Option<Self> {
        set_nonblocking(&pipe)?;
        Some(Self::Unwatched(pipe))
    }

    fn fd(&self) -> &OwnedFd {
        match self {
            Self::Watched(pipe) => pipe.get_ref(),
            Self::Unwatched(pipe) => pipe,
        }
    }
}

/// The reading end is ours alone, so the flag is too.
fn set_nonblocking(pipe: &OwnedFd) -> Option<()> {
    fcntl(pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).ok().map(drop)
}

/// One pipe of one child.
#[derive(Debug)]
pub(super) struct Pump {
    pipe: Pipe,
    reader: Reader,
    logs: Logs,
    events: UnboundedSender<Event>,
    activity: Activity,
    lines: RefCell<LineSplitter>,
}

/// What a read found.
enum Read {
    Some,
    Nothing,
    End,
}

impl Pump {
    pub(super) fn new(
        pipe: Pipe,
        reader: Reader,
        logs: Logs,
        events: UnboundedSender<Event>,
        activity: Activity,
    ) -> Rc<Self> {
        Rc::new(Self { pipe, reader, logs, events, activity, lines: RefCell::default() })
    }

    /// Reads until the last writer is gone, which may be long after the child's death.
    pub(super) async fn run(self: Rc<Self>) {
        let Pipe::Watched(pipe) = &self.pipe else { return };
        while let Ok(mut guard) = pipe.readable().await {
            match self.read() {
                Read::Some => tokio::task::yield_now().await,
                Read::Nothing => {
                    guard.clear_ready();
                    self.activity.note();
                }
                Read::End => return self.lines.borrow_mut().finish(|line| self.line(line)),
            }
        }
    }

    /// The child is dead: takes what it left, so that its last words come before the news of its death.
    pub(super) fn finish(&self) {
        for _ in 0..LAST_READS {
            if !matches!(self.read(), Read::Some) {
                break;
            }
        }
        if !matches!(self.reader, Reader::Log { .. }) {
            self.lines.borrow_mut().finish(|line| self.line(line));
        }
    }

    fn read(&self) -> Read {
        let mut buffer = [0; CHUNK];
        match nix::unistd::read(self.pipe.fd(), &mut buffer) {
            Ok(0) => Read::End,
            Ok(n) => {
                self.take(buffer.get(..n).unwrap_or_default());
                Read::Some
            }
            Err(nix::Error::EINTR) => Read::Some,
            Err(nix::Error::EAGAIN) => Read::Nothing,
            Err(_) => Read::End,
        }
    }

    fn take(&self, bytes: &[u8]) {
        let mut lines = self.lines.borrow_mut();
        let Reader::Log { source } = &self.reader else { return lines.push(bytes, |line| self.line(line)) };
        let mut batch = self.logs.batch(source);
        lines.push(bytes, |line| {
            let (level, message) = parse_daemon_line(source, line);
            batch.add(level, message);
        });
        batch.end();
    }

    fn line(&self, line: &[u8]) {
        match &self.reader {
            Reader::Log { source } => {
                let (level, message) = parse_daemon_line(source, line);
                self.logs.write(&Record { level, source, message });
            }
            Reader::Prepare => match serde_json::from_slice(line) {
                Ok(event) => drop(self.events.send(Event::Prepare(event))),
                Err(error) => warn!("the preparation said something that is no event: {error}"),
            },
            Reader::Liveness => match serde_json::from_slice(line) {
                Ok(Answer { unit, verdict }) => drop(self.events.send(Event::Liveness(unit, verdict))),
                Err(error) => warn!("a liveness probe said something that is no answer: {error}"),
            },
            Reader::Node => {
                if let Some(report) = NodeReport::parse(&String::from_utf8_lossy(line)) {
                    let _ = self.events.send(Event::Node(report));
                }
            }
        }
    }
}
