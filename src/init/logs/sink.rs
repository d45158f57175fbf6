//! Writes to standard error without ever blocking.

use std::collections::VecDeque;
use std::io::Write as _;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, send};
use nix::sys::stat::{SFlag, fstat};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use model::log::{Level, LogFormat};
use model::message;
use sys::system_calls::async_fd;

use super::record::{self, Record};

/// The maximum size of the backlog, in bytes, for a reader that does not keep up.
const MAX_BACKLOG_BYTES: usize = 4 << 20;
/// How long slurminit waits at its exit until the reader has read the backlog.
const FINAL_FLUSH_TIMEOUT: Duration = Duration::from_millis(200);
/// A pipe that polls as writable accepts this many bytes without blocking (POSIX's PIPE_BUF on Linux).
const PIPE_BUF: usize = 4096;

/// How standard error is written without blocking.
#[derive(Debug)]
enum WriteMethod {
    /// Through a separate open file description for the same pipe or terminal, set to non-blocking. Setting the flag
    /// on the inherited description would affect CMD too.
    OwnDescription,
    /// A socket: each send uses MSG_DONTWAIT.
    Socket,
    /// A pipe or terminal that cannot be reopened: written only when it polls as writable.
    AfterPoll,
    /// A regular file: writes never block.
    File,
}

#[derive(Debug)]
pub(super) struct Sink {
    fd: Option<OwnedFd>,
    method: WriteMethod,
    format: LogFormat,
    lines: VecDeque<Vec<u8>>,
    /// How many bytes of the first line are written.
    written: usize,
    bytes: usize,
    dropped: u64,
}

impl Sink {
    pub(super) fn standard_error(format: LogFormat) -> Self {
        let copy = std::io::stderr().as_fd().try_clone_to_owned().ok();
        let kind = copy.as_ref().and_then(|fd| fstat(fd).ok()).map(|stat| SFlag::from_bits_truncate(stat.st_mode));
        let kind = kind.map_or(SFlag::S_IFREG, |bits| bits & SFlag::S_IFMT);
        let (fd, method) = match kind {
            SFlag::S_IFSOCK => (copy, WriteMethod::Socket),
            SFlag::S_IFREG => (copy, WriteMethod::File),
            _ => match reopen() {
                Some(reopened) => (Some(reopened), WriteMethod::OwnDescription),
                None => (copy, WriteMethod::AfterPoll),
            },
        };
        Self { fd, method, format, lines: VecDeque::new(), written: 0, bytes: 0, dropped: 0 }
    }

    /// A sink that discards all lines.
    #[cfg(test)]
    pub(super) fn without_output(format: LogFormat) -> Self {
        Self { fd: None, method: WriteMethod::File, format, lines: VecDeque::new(), written: 0, bytes: 0, dropped: 0 }
    }

    /// A handle that becomes ready once writing is possible again; `None` for a file.
    pub(super) fn readiness(&self) -> Option<AsyncFd<OwnedFd>> {
        let fd = self.fd.as_ref()?.try_clone().ok()?;
        async_fd(fd, Interest::WRITABLE).ok()
    }

    pub(super) fn has_backlog(&self) -> bool {
        !self.lines.is_empty()
    }

    /// Queues a line, including its newline, for the next [`Sink::flush`]. If the backlog is full, the line is dropped.
    pub(super) fn push(&mut self, line: Vec<u8>) {
        if self.bytes + line.len() > MAX_BACKLOG_BYTES {
            self.flush();
        }
        if self.bytes + line.len() > MAX_BACKLOG_BYTES {
            self.dropped += 1;
            return;
        }
        self.report_dropped();
        self.bytes += line.len();
        self.lines.push_back(line);
    }

    fn report_dropped(&mut self) {
        if self.dropped > 0 && self.lines.is_empty() {
            let dropped = message!(
                "log-lines-dropped",
                "log lines dropped here: {lines}; the log reader was too slow",
                lines = std::mem::take(&mut self.dropped)
            );
            let line = Record::own(Level::Warn, super::OWN_NAME, None, &dropped).format(self.format, &record::now());
            self.bytes += line.len();
            self.lines.push_back(line);
        }
    }

    /// Writes what can be written now; `false` if the reader must catch up first.
    pub(super) fn flush(&mut self) -> bool {
        while let Some(line) = self.lines.front() {
            let rest = line.get(self.written..).unwrap_or_default();
            let coalesced = self.coalesced(rest);
            let text = coalesced.as_deref().unwrap_or(rest);
            match self.write_now(text) {
                Ok(n) => self.remove_written(n),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                // Standard error cannot be written to, for example because its reader has exited. So the line is dropped.
                Err(_) => self.next_line(),
            }
        }
        true
    }

    /// Like [`Sink::flush`], and then writes the number of dropped lines.
    fn flush_with_dropped(&mut self) -> bool {
        self.flush() && {
            self.report_dropped();
            self.flush()
        }
    }

    /// `rest`, the unwritten part of the first line, with the following lines that fit into the same write; `None` if
    /// none fits. The write is limited to what a pipe takes atomically, so that other processes' output cannot split these lines.
    fn coalesced(&self, rest: &[u8]) -> Option<Vec<u8>> {
        let second = self.lines.get(1)?;
        if rest.len() + second.len() > PIPE_BUF {
            return None;
        }
        let mut text = Vec::with_capacity(PIPE_BUF);
        text.extend_from_slice(rest);
        for line in self.lines.iter().skip(1) {
            if text.len() + line.len() > PIPE_BUF {
                break;
            }
            text.extend_from_slice(line);
        }
        Some(text)
    }

    /// Removes this many written bytes from the queue.
    fn remove_written(&mut self, mut bytes: usize) {
        while let Some(line) = self.lines.front() {
            let rest = line.len() - self.written;
            if bytes < rest {
                self.written += bytes;
                return;
            }
            bytes -= rest;
            self.next_line();
        }
    }

    fn next_line(&mut self) {
        self.written = 0;
        if let Some(line) = self.lines.pop_front() {
            self.bytes -= line.len();
        }
        if self.lines.is_empty() {
            // Releases the memory of a burst.
            self.lines.shrink_to(16);
        }
    }

    fn write_now(&self, bytes: &[u8]) -> std::io::Result<usize> {
        let Some(fd) = &self.fd else { return Ok(bytes.len()) };
        match self.method {
            WriteMethod::OwnDescription | WriteMethod::File => Ok(nix::unistd::write(fd, bytes)?),
            WriteMethod::Socket => Ok(send(fd.as_raw_fd(), bytes, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL)?),
            WriteMethod::AfterPoll => {
                let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLOUT)];
                poll(&mut fds, PollTimeout::ZERO)?;
                match fds[0].revents() {
                    Some(events) if events.contains(PollFlags::POLLOUT) => {
                        Ok(nix::unistd::write(fd, bytes.get(..PIPE_BUF).unwrap_or(bytes))?)
                    }
                    Some(events) if !events.is_empty() => Err(std::io::ErrorKind::BrokenPipe.into()),
                    _ => Err(std::io::ErrorKind::WouldBlock.into()),
                }
            }
        }
    }

    /// Writes the backlog and the number of dropped lines, if the reader reads them in time.
    pub(super) fn finish(&mut self) {
        self.finish_within(FINAL_FLUSH_TIMEOUT);
    }

    fn finish_within(&mut self, timeout: Duration) {
        let begin = Instant::now();
        while !self.flush_with_dropped() && begin.elapsed() < timeout {
            if let Some(fd) = &self.fd {
                let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLOUT)];
                let _ = poll(&mut fds, PollTimeout::from(10_u8));
            }
        }
        let _ = std::io::stderr().flush();
    }
}

/// Opens standard error again, as a separate open file description.
fn reopen() -> Option<OwnedFd> {
    let flags = OFlag::O_WRONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC | OFlag::O_NOCTTY | OFlag::O_APPEND;
    let reopened = nix::fcntl::open("/proc/self/fd/2", flags, nix::sys::stat::Mode::empty()).ok()?;
    fcntl(&reopened, FcntlArg::F_GETFL)
        .ok()
        .filter(|flags| OFlag::from_bits_truncate(*flags).contains(OFlag::O_NONBLOCK))?;
    Some(reopened)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read as _;

    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
    use nix::unistd::pipe2;

    use super::*;

    fn sink(fd: OwnedFd, method: WriteMethod) -> Sink {
        Sink { fd: Some(fd), method, format: LogFormat::Text, lines: VecDeque::new(), written: 0, bytes: 0, dropped: 0 }
    }

    /// A pipe that never blocks, and is full.
    fn full_pipe() -> (File, OwnedFd) {
        let (read, write) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).unwrap();
        while nix::unistd::write(&write, &[b'x'; PIPE_BUF]).is_ok() {}
        (File::from(read), write)
    }

    /// Reads until the pipe is empty. Returns the text without the bytes that filled the pipe.
    fn output(pipe: &mut File) -> String {
        let (mut bytes, mut chunk) = (Vec::new(), [0; PIPE_BUF]);
        while let Ok(count @ 1..) = pipe.read(&mut chunk) {
            bytes.extend_from_slice(&chunk[..count]);
        }
        String::from_utf8(bytes).unwrap().trim_start_matches('x').to_owned()
    }

    #[test]
    fn lines_wait_in_order_while_pipe_is_full() {
        for method in [WriteMethod::OwnDescription, WriteMethod::AfterPoll] {
            let (mut reader, pipe) = full_pipe();
            let mut sink = sink(pipe, method);
            for line in ["a\n", "b\n"] {
                sink.push(line.into());
                assert!(!sink.flush() && sink.has_backlog());
            }
            assert_eq!(output(&mut reader), "");
            sink.push(b"c\n".to_vec());
            assert!(sink.flush() && !sink.has_backlog());
            assert_eq!((output(&mut reader).as_str(), sink.bytes), ("a\nb\nc\n", 0));
        }
    }

    #[test]
    fn counts_lines_beyond_backlog_and_reports_them_when_there_is_space() {
        let (mut reader, pipe) = full_pipe();
        let mut sink = sink(pipe, WriteMethod::OwnDescription);
        let line = |byte: u8| [vec![byte; MAX_BACKLOG_BYTES / 4 - 1], b"\n".to_vec()].concat();
        // Four lines fill the backlog exactly.
        (b'a'..=b'f').for_each(|byte| sink.push(line(byte)));
        assert_eq!((sink.lines.len(), sink.bytes, sink.dropped), (4, MAX_BACKLOG_BYTES, 2));
        let mut text = String::new();
        while !sink.flush() {
            text += &output(&mut reader);
        }
        text += &output(&mut reader);
        sink.push(b"end\n".to_vec());
        assert!(sink.flush());
        text += &output(&mut reader);
        let starts: Vec<_> = text.lines().map(|line| &line[..1]).collect();
        assert_eq!(starts[..4], ["a", "b", "c", "d"]);
        let last: Vec<_> = text.lines().skip(4).collect();
        assert!(last.len() == 2 && last[0].contains("log lines dropped here: 2;") && last[1] == "end", "{last:?}");
    }

    #[test]
    fn finish_reports_dropped_lines_after_backlog() {
        let (mut reader, pipe) = full_pipe();
        output(&mut reader);
        let mut sink = sink(pipe, WriteMethod::AfterPoll);
        sink.push(b"a\n".to_vec());
        sink.dropped = 7;
        sink.finish();
        let text = output(&mut reader);
        assert!(text.starts_with("a\n") && text.contains("log lines dropped here: 7;"), "{text}");
    }

    /// A backlog is written in as many steps as the pipe needs.
    #[test]
    fn finish_writes_whole_backlog_to_reader_that_keeps_up() {
        let (reader, writer) = pipe2(OFlag::O_CLOEXEC).unwrap();
        let count = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            File::from(reader).read_to_end(&mut bytes).unwrap();
            bytes.len()
        });
        fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        fcntl(&writer, FcntlArg::F_SETPIPE_SZ(4096)).unwrap();
        let mut sink = sink(writer, WriteMethod::OwnDescription);
        (0..1000).for_each(|_| sink.push([[b'a'; 999].as_slice(), b"\n"].concat()));
        sink.finish_within(Duration::from_secs(60));
        drop(sink);
        assert_eq!(count.join().unwrap(), 1_000_000);
    }

    #[test]
    fn lines_share_write_up_to_atomic_size_of_pipe() {
        // Each write is a packet.
        let (reader, writer) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_NONBLOCK).unwrap();
        let mut sink = sink(writer, WriteMethod::Socket);
        let sizes = [1000, 1000, 1000, 1096, 1, 4096, 5000, 10];
        sizes.iter().for_each(|size| sink.push([vec![b'a'; size - 1], b"\n".to_vec()].concat()));
        assert!(sink.flush());
        let mut buffer = [0; 8192];
        let packets = std::iter::from_fn(|| nix::unistd::read(&reader, &mut buffer).ok());
        assert_eq!(packets.collect::<Vec<_>>(), [4096, 1, 4096, 5000, 10]);
    }

    #[test]
    fn partial_write_continues_in_same_line() {
        let (_, pipe) = full_pipe();
        let mut sink = sink(pipe, WriteMethod::OwnDescription);
        ["abc\n", "de\n", "f\n"].into_iter().for_each(|line| sink.push(line.into()));
        sink.remove_written(2);
        assert_eq!((sink.written, sink.lines.len(), sink.bytes), (2, 3, 9));
        sink.remove_written(2 + 3 + 1);
        assert_eq!((sink.written, sink.lines.len(), sink.bytes), (1, 1, 2));
        assert_eq!(sink.coalesced(b"\n"), None, "there is no second line");
    }

    #[test]
    fn drops_lines_after_reader_has_gone() {
        let (reader, pipe) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).unwrap();
        drop(reader);
        let mut sink = sink(pipe, WriteMethod::AfterPoll);
        sink.push(b"a\n".to_vec());
        assert!(sink.flush() && !sink.has_backlog());
    }
}
