//! Reads the output of children, and turns it into log lines or events.

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use tokio::io::Interest;
use tokio::sync::mpsc::UnboundedSender;

use crate::logs::{Circumstances, LineSplitter, Logs, Origin, Record, parse_daemon_line, warn};
use machine::Event;
use machine::liveness_result::LivenessResult;
use machine::node_report::NodeReport;
use model::message;
use model::message::{RECORD, Report};
use sys::system_calls::async_fd;

/// Bytes per read. Other tasks get their turn between two reads.
const CHUNK: usize = 16 * 1024;
/// The maximum number of reads from the pipe of a dead child: another process may hold the pipe open and keep writing.
const LAST_READS: usize = 64;

/// How the lines of a pipe are handled.
#[derive(Debug)]
pub(super) enum LineHandler {
    /// Each line is logged under the name `source`. With `is_packet_mode`, each read is one write or a piece of one. `reports`: whether the
    /// program is slurminit, which sends reports until it becomes a daemon.
    Log { source: String, is_packet_mode: bool, circumstances: RefCell<Circumstances>, reports: Cell<bool> },
    /// Each line is an event of the preparation.
    Prepare,
    /// Each line is the state of a node or of a controller; the least ready one is reported.
    Node(RefCell<Option<NodeReport>>),
    /// Each line is the result of a liveness check.
    Liveness,
}

/// Reads one output pipe of a child.
#[derive(Debug)]
pub(super) struct PipeReader {
    pipe: OwnedFd,
    handler: LineHandler,
    logs: Logs,
    events: UnboundedSender<Event>,
    lines: RefCell<LineSplitter>,
}

/// The outcome of a read.
enum Read {
    Data,
    Nothing,
    End,
}

impl PipeReader {
    /// Sets the pipe to non-blocking: only this process has the reading end open, so this affects no other process.
    pub(super) fn new(
        pipe: OwnedFd,
        handler: LineHandler,
        logs: Logs,
        events: UnboundedSender<Event>,
    ) -> Option<Rc<Self>> {
        fcntl(&pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).ok()?;
        Some(Rc::new(Self { pipe, handler, logs, events, lines: RefCell::default() }))
    }

    /// Reads until the last writer has closed the pipe, which may be long after the child's death.
    pub(super) async fn run(self: Rc<Self>) {
        let Ok(pipe) = self.pipe.try_clone().and_then(|pipe| async_fd(pipe, Interest::READABLE)) else { return };
        while let Ok(mut guard) = pipe.readable().await {
            match self.read() {
                Read::Data => tokio::task::yield_now().await,
                Read::Nothing => guard.clear_ready(),
                Read::End => return self.end(),
            }
        }
    }

    /// Reads the remaining output of a dead child, so that its last lines are logged before its death is reported.
    pub(super) fn finish(&self) {
        for _ in 0..LAST_READS {
            if !matches!(self.read(), Read::Data) {
                break;
            }
        }
        if !matches!(self.handler, LineHandler::Log { .. }) {
            self.end();
        }
    }

    /// Handles the end of the output: the pipe is closed, or the child has died.
    fn end(&self) {
        self.lines.borrow_mut().finish(|line| self.handle_line(line));
        if let LineHandler::Node(least_ready) = &self.handler {
            if let Some(report) = least_ready.take() {
                let _ = self.events.send(Event::Node(report));
            }
        }
    }

    /// Applies a handover: a successor, which finds its predecessor's saved state, now writes to this pipe.
    pub(super) fn handed_over(&self) {
        if let LineHandler::Log { circumstances, .. } = &self.handler {
            circumstances.borrow_mut().new_state = false;
        }
    }

    fn read(&self) -> Read {
        let mut buffer = [0; CHUNK];
        match nix::unistd::read(&self.pipe, &mut buffer) {
            Ok(0) => Read::End,
            Ok(n) => {
                self.handle_bytes(buffer.get(..n).unwrap_or_default());
                Read::Data
            }
            Err(nix::Error::EINTR) => Read::Data,
            Err(nix::Error::EAGAIN) => Read::Nothing,
            Err(_) => Read::End,
        }
    }

    fn handle_bytes(&self, bytes: &[u8]) {
        let mut lines = self.lines.borrow_mut();
        let LineHandler::Log { source, is_packet_mode, circumstances, reports } = &self.handler else {
            return lines.push(bytes, |line| self.handle_line(line));
        };
        let (mut batch, circumstances) = (self.logs.batch(source), circumstances.borrow());
        let mut add = |line: &[u8], origin| match origin {
            Origin::Continuation => batch.add_continuation(line),
            Origin::Message => match Line::of(reports, line) {
                Line::Report(Report { level, message }) => batch.push(&Record::own(level, source, None, &message)),
                Line::EndOfReports => {}
                Line::Text => {
                    let (level, message) = parse_daemon_line(source, line, &circumstances);
                    batch.add(level, message);
                }
            },
        };
        match is_packet_mode {
            true => lines.push_write(bytes, add),
            false => lines.push(bytes, |line| add(line, Origin::Message)),
        }
        batch.end();
    }

    fn handle_line(&self, line: &[u8]) {
        match &self.handler {
            LineHandler::Log { source, circumstances, reports, .. } => match Line::of(reports, line) {
                Line::Report(Report { level, message }) => {
                    self.logs.write(&Record::own(level, source, None, &message));
                }
                Line::EndOfReports => {}
                Line::Text => {
                    let (level, message) = parse_daemon_line(source, line, &circumstances.borrow());
                    self.logs.write(&Record::line(level, source, message));
                }
            },
            LineHandler::Prepare => match serde_json::from_slice(line) {
                Ok(event) => drop(self.events.send(Event::Prepare(event))),
                Err(error) => {
                    warn(&message!("unparsable-output", "the preparation sent an unparsable event: {error}", error))
                }
            },
            LineHandler::Liveness => match serde_json::from_slice(line) {
                Ok(LivenessResult { unit, liveness }) => drop(self.events.send(Event::Liveness(unit, liveness))),
                Err(error) => {
                    warn(&message!("unparsable-output", "a liveness check sent an unparsable reply: {error}", error))
                }
            },
            LineHandler::Node(least_ready) => {
                let line = String::from_utf8_lossy(line);
                let report = NodeReport::parse(&line).or_else(|| NodeReport::of_controller(&line));
                least_ready.replace_with(|least_ready| NodeReport::less_ready(least_ready.take(), report));
            }
        }
    }
}

/// The kind of a line.
enum Line {
    Report(Report),
    EndOfReports,
    Text,
}

impl Line {
    /// A daemon's line can contain users' text, so no line is a report once the program has become a daemon.
    fn of(reports: &Cell<bool>, line: &[u8]) -> Self {
        match line.strip_prefix(&[RECORD]).filter(|_| reports.get()) {
            Some([]) => {
                reports.set(false);
                Self::EndOfReports
            }
            Some(report) => serde_json::from_slice(report).map_or(Self::Text, Self::Report),
            None => Self::Text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_after_end_record_are_plain_text() {
        let report = Report { level: model::log::Level::Error, message: message!("forged", "FORGED") };
        let line = [&[RECORD], serde_json::to_vec(&report).unwrap().as_slice()].concat();
        let reports = Cell::new(true);
        assert!(matches!(Line::of(&reports, &line), Line::Report(_)));
        assert!(matches!(Line::of(&reports, b"text"), Line::Text));
        assert!(matches!(Line::of(&reports, &[RECORD]), Line::EndOfReports));
        assert!(matches!(Line::of(&reports, &line), Line::Text));
        assert!(matches!(Line::of(&reports, &[RECORD]), Line::Text));
    }
}
