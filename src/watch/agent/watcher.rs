//! Starts the process that reads one vendor's GPUs, reads its output, and kills it when the driver hangs.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use config::Config;
use faults::sample::{Identity, Key, Line};
use model::inventory::Vendor;
use sys::secret_variables;

/// If the process is still initializing GPUs this long after its start, each further GPU is logged.
const SLOW_START: Duration = Duration::from_secs(5);
/// The maximum number of unparsed bytes, which limits the length of a line.
const MAX_LINE: usize = 1 << 20;
/// The first and the longest backoff before the restart of a process that ended; it doubles each time.
const RESTART_BACKOFF: Duration = Duration::from_millis(500);
const MAX_RESTART_BACKOFF: Duration = Duration::from_secs(60);
/// The first and the longest backoff of a [`BackingOffGpu`]; it doubles each time.
const GPU_BACKOFF: Duration = Duration::from_secs(60);
const MAX_GPU_BACKOFF: Duration = Duration::from_secs(900);

/// An event of the watcher.
#[derive(Debug)]
pub(super) enum WatcherEvent {
    /// The process was started.
    Started,
    Line(Line),
    /// The driver is initializing this GPU, and the process was started at least [`SLOW_START`] ago.
    Waiting(Identity),
    /// The driver timed out, for this GPU or as a whole.
    TimedOut(Option<Identity>, Duration),
    /// The process ended for the third time without a complete round in between, while it queried this GPU or none. The text states how.
    Crashed(Option<Identity>, String),
    /// The process could not be started, or was killed because its wait for events did not return. It will be started again.
    Restarted(String),
}

/// A GPU that did not respond, or whose query ended the process repeatedly.
#[derive(Debug)]
struct BackingOffGpu {
    gpu: Identity,
    until: Instant,
    backoff: Duration,
}

#[derive(Debug)]
pub(super) struct Watcher {
    pub(super) vendor: Vendor,
    interval: Duration,
    timeout: Duration,
    /// Whether to read values that need additional driver calls, for the metrics.
    reads_meters: bool,
    running: Option<Running>,
    /// The previous process, which still has GPUs open that are to be closed.
    former: Option<Running>,
    /// When to start the process.
    start_at: Instant,
    restart_backoff: Duration,
    crashes: u32,
    backing_off: BTreeMap<Key, BackingOffGpu>,
    /// The GPUs that must not be open.
    closed: Vec<Identity>,
    /// The GPUs that the process listed last, and those that it has begun to initialize since.
    known: BTreeMap<Key, Identity>,
    /// Killed processes that have not been reaped yet.
    stuck: Vec<Child>,
}

#[derive(Debug)]
struct Running {
    child: Child,
    output: ChildStdout,
    unparsed: Vec<u8>,
    /// The GPU that the driver is being queried for.
    queried_gpu: Option<Key>,
    /// When the process was started; `None` once it has listed the GPUs.
    started_at: Option<Instant>,
    /// Whether the process does not query the driver, because all GPUs are closed.
    all_closed: bool,
    /// Whether the process only waits for events.
    is_idle: bool,
    /// Deadline of the next line.
    deadline: Instant,
}

impl Watcher {
    pub(super) fn new(vendor: Vendor, config: &Config, interval: Duration) -> Self {
        Self {
            vendor,
            interval,
            timeout: config.agent.timeout,
            reads_meters: config.metrics.listen.is_some(),
            running: None,
            former: None,
            start_at: Instant::now(),
            restart_backoff: RESTART_BACKOFF,
            crashes: 0,
            backing_off: BTreeMap::new(),
            closed: Vec::new(),
            known: BTreeMap::new(),
            stuck: Vec::new(),
        }
    }

    /// The file descriptor to wait for, and the deadline.
    pub(super) fn poll_source(&self) -> (Option<BorrowedFd<'_>>, Instant) {
        let own = self.running.as_ref().map_or(self.start_at, |running| running.deadline);
        let until = self.backing_off.values().map(|backing_off| backing_off.until).fold(own, Instant::min);
        (self.running.as_ref().map(|running| running.output.as_fd()), until)
    }

    /// Starts or ends the process if due, and reads its output.
    pub(super) fn step(&mut self, now: Instant) -> Vec<WatcherEvent> {
        self.reap();
        let mut events = Vec::new();
        if self.running.is_none() && now >= self.start_at {
            match self.launch(now) {
                Ok(()) => events.push(WatcherEvent::Started),
                Err(error) => {
                    self.delay_restart(now);
                    events.push(WatcherEvent::Restarted(format!(
                        "the process that queries the driver cannot be started: {error}"
                    )));
                }
            }
        }
        self.read(now, &mut events);
        self.check_deadline(now, &mut events);
        // A GPU whose backoff has ended is queried again.
        let is_backoff_over = self.backing_off.values().any(|backing_off| backing_off.until <= now);
        if is_backoff_over && self.running.as_ref().is_some_and(|running| running.queried_gpu.is_none()) {
            self.backing_off.values_mut().filter(|backing_off| backing_off.until <= now).for_each(|backing_off| {
                backing_off.until = now + MAX_GPU_BACKOFF * 4;
            });
            self.end(now);
        }
        events
    }

    /// The GPUs that are neither opened nor queried.
    fn excluded_gpus(&self, now: Instant) -> impl Iterator<Item = &Identity> {
        // A date far in the future marks a GPU that is being queried again.
        let is_resting = move |gpu: &&BackingOffGpu| gpu.until > now && gpu.until <= now + MAX_GPU_BACKOFF;
        self.backing_off.values().filter(is_resting).map(|backing_off| &backing_off.gpu).chain(&self.closed)
    }

    /// Whether all of the vendor's GPUs are to be closed. If so, the process does not load the vendor's library: NVIDIA's may open a GPU
    /// without a request for its handle.
    fn are_all_closed(&self) -> bool {
        let is_closed = |key: &Key| self.closed.iter().any(|gpu| gpu.key() == *key);
        !self.known.is_empty() && self.known.keys().all(is_closed)
    }

    /// Closes these GPUs and no others. The driver closes a GPU only when the process exits.
    pub(super) fn close(&mut self, now: Instant, closed: Vec<Identity>) {
        let was_closed = self.running.as_ref().is_some_and(|running| running.all_closed);
        if self.closed == closed && (self.running.is_none() || was_closed == self.are_all_closed()) {
            return;
        }
        self.closed = closed;
        self.end_former();
        // The running process ends only after the next one has opened the other GPUs, so that these GPUs remain initialized and no event is
        // missed.
        self.former = self.running.take();
        if self.former.is_some() && self.launch(now).is_err() {
            self.end_former();
            self.start_at = now + self.restart_backoff;
        }
    }

    /// Ends the previous process, which has GPUs open that are to be closed. Returns the events in its unread output.
    fn end_former(&mut self) -> Vec<Line> {
        let Some(mut former) = self.former.take() else { return Vec::new() };
        let mut output_left = std::mem::take(&mut former.unparsed);
        let _ = former.child.kill();
        let mut chunk = [0; 16 * 1024];
        while let Ok(count @ 1..) = former.output.read(&mut chunk) {
            output_left.extend_from_slice(chunk.get(..count).unwrap_or_default());
        }
        self.stuck.push(former.child);
        self.reap();
        let lines = output_left.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok());
        lines.filter(|line| matches!(line, Line::Event { .. })).collect()
    }

    /// The GPUs to be closed, once no former or killed process can have them open; until then, none.
    pub(super) fn closed_keys(&mut self) -> Vec<Key> {
        self.reap();
        if self.stuck.is_empty() && self.former.is_none() {
            self.closed.iter().map(Identity::key).collect()
        } else {
            Vec::new()
        }
    }

    #[expect(clippy::disallowed_methods, reason = "this process is not PID 1 and may have children")]
    fn launch(&mut self, now: Instant) -> std::io::Result<()> {
        let all_closed = self.are_all_closed();
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("look").args(["--vendor", self.vendor.as_str()]);
        command.args(["--interval-ms", &self.interval.as_millis().to_string()]);
        if self.reads_meters {
            command.arg("--meters");
        }
        if all_closed {
            command.arg("--all-closed");
        }
        for gpu in self.excluded_gpus(now) {
            command.arg("--closed").arg(serde_json::to_string(gpu)?);
        }
        command.env_clear().envs(secret_variables::inheritable_variables());
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let Some(output) = child.stdout.take() else { return Ok(()) };
        fcntl(&output, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        self.running = Some(Running {
            child,
            output,
            unparsed: Vec::new(),
            queried_gpu: None,
            started_at: Some(now),
            all_closed,
            is_idle: false,
            deadline: now + self.timeout,
        });
        Ok(())
    }

    fn read(&mut self, now: Instant, events: &mut Vec<WatcherEvent>) {
        let Some(running) = &mut self.running else { return };
        let mut chunk = [0; 16 * 1024];
        let has_ended = loop {
            match running.output.read(&mut chunk) {
                Ok(0) => break true,
                Ok(count) => running.unparsed.extend_from_slice(chunk.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break true,
            }
            if running.unparsed.len() > MAX_LINE {
                break true;
            }
        };
        while let Some(end) = running.unparsed.iter().position(|byte| *byte == b'\n') {
            let remainder = running.unparsed.split_off(end + 1);
            let line = std::mem::replace(&mut running.unparsed, remainder);
            // The output is not trusted: a line that cannot be parsed is skipped.
            let Ok(line) = serde_json::from_slice::<Line>(&line) else { continue };
            let line_timeout = match &line {
                Line::Done | Line::Event { .. } | Line::Reset { .. } | Line::Trouble { .. } => {
                    self.interval + self.timeout
                }
                _ => self.timeout,
            };
            running.deadline = now + line_timeout;
            running.is_idle = matches!(line, Line::Done | Line::Event { .. } | Line::Reset { .. });
            match &line {
                Line::Opening { gpu } => {
                    running.queried_gpu = Some(gpu.key());
                    self.known.entry(gpu.key()).or_insert_with(|| gpu.clone());
                    if running.started_at.is_some_and(|start| now.saturating_duration_since(start) >= SLOW_START) {
                        events.push(WatcherEvent::Waiting(gpu.clone()));
                    }
                }
                Line::Listed { gpus } => {
                    (running.queried_gpu, running.started_at) = (None, None);
                    self.known = gpus.iter().map(|gpu| (gpu.key(), gpu.clone())).collect();
                }
                Line::Asking { gpu } => running.queried_gpu = Some(gpu.clone()),
                Line::Seen { gpu, .. } => {
                    running.queried_gpu = None;
                    self.backing_off.remove(gpu);
                }
                Line::Done => (self.crashes, self.restart_backoff) = (0, RESTART_BACKOFF),
                _ => {}
            }
            events.push(WatcherEvent::Line(line));
        }
        if has_ended {
            self.handle_exit(now, events);
        }
        if events.iter().any(|event| matches!(event, WatcherEvent::Line(Line::Listed { .. }))) {
            events.extend(self.end_former().into_iter().map(WatcherEvent::Line));
        }
    }

    fn handle_exit(&mut self, now: Instant, events: &mut Vec<WatcherEvent>) {
        let queried_gpu = self.running.as_ref().and_then(|running| running.queried_gpu.clone());
        let exit = self.end(now).unwrap_or_else(|| "it closed its output or wrote an overlong line".to_owned());
        self.crashes += 1;
        self.delay_restart(now);
        // The OOM killer or an administrator can end the process, too. Only repeated crashes point to the driver.
        if self.crashes >= 3 {
            self.crashes = 0;
            self.back_off(now, queried_gpu.as_ref());
            events.push(WatcherEvent::Crashed(self.identity_of(queried_gpu), exit));
        }
    }

    fn check_deadline(&mut self, now: Instant, events: &mut Vec<WatcherEvent>) {
        let Some(running) = self.running.as_ref().filter(|running| now >= running.deadline) else { return };
        let (queried_gpu, is_idle) = (running.queried_gpu.clone(), running.is_idle);
        self.end(now);
        // The next process queries the driver at once, which shows whether it still responds.
        if is_idle {
            return events.push(WatcherEvent::Restarted(
                "the driver's wait for events did not return; restarting the process that queries the driver"
                    .to_owned(),
            ));
        }
        self.back_off(now, queried_gpu.as_ref());
        if queried_gpu.is_none() {
            self.delay_restart(now);
        }
        events.push(WatcherEvent::TimedOut(self.identity_of(queried_gpu), self.timeout));
    }

    fn identity_of(&self, key: Option<Key>) -> Option<Identity> {
        self.known.get(&key?).cloned()
    }

    fn back_off(&mut self, now: Instant, key: Option<&Key>) {
        let Some((key, gpu)) = key.and_then(|key| Some((key.clone(), self.known.get(key)?.clone()))) else { return };
        let known = self.backing_off.entry(key);
        let backing_off = known.and_modify(|gpu| gpu.backoff = (gpu.backoff * 2).min(MAX_GPU_BACKOFF));
        let backing_off = backing_off.or_insert(BackingOffGpu { gpu, until: now, backoff: GPU_BACKOFF });
        backing_off.until = now + backing_off.backoff;
    }

    /// Kills the process. It is started again at once, unless the caller delays the start. Returns how it ended, if it has ended.
    fn end(&mut self, now: Instant) -> Option<String> {
        self.end_former();
        let mut running = self.running.take()?;
        self.start_at = now;
        // The PID cannot have been reused: only this process reaps it.
        let _ = running.child.kill();
        match running.child.try_wait() {
            Ok(Some(status)) => Some(status.to_string()),
            _ => {
                self.stuck.push(running.child);
                None
            }
        }
    }

    fn delay_restart(&mut self, now: Instant) {
        self.start_at = now + self.restart_backoff;
        self.restart_backoff = (self.restart_backoff * 2).min(MAX_RESTART_BACKOFF);
    }

    /// Reaps killed processes. A process that is stuck in the driver does not die of SIGKILL, and remains in the list.
    fn reap(&mut self) {
        self.stuck.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.end(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::path::Path;

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test is not PID 1, so it may have children")]
    fn dropped_watcher_kills_its_process() {
        let (mut peer, input) = UnixStream::pair().unwrap();
        let mut child = Command::new("sleep")
            .arg("600")
            .stdin(Stdio::from(OwnedFd::from(input)))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let now = Instant::now();
        let output = child.stdout.take().unwrap();
        let config = Config::parse("", Path::new("slurminit.toml")).unwrap();
        let mut watcher = Watcher::new(Vendor::Nvidia, &config, Duration::from_secs(1));
        watcher.running = Some(Running {
            child,
            output,
            unparsed: Vec::new(),
            queried_gpu: None,
            started_at: None,
            all_closed: false,
            is_idle: true,
            deadline: now,
        });
        drop(watcher);
        // The socket's other end closes with the process.
        peer.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(peer.read(&mut [0]).unwrap(), 0);
    }

    const INTERVAL: Duration = Duration::from_secs(5);
    const TIMEOUT: Duration = Duration::from_secs(10);

    fn gpu(index: u32) -> Identity {
        Identity { index, uuid: Some(format!("GPU-{index}")), ..Identity::default() }
    }

    fn watcher() -> Watcher {
        let config = Config::parse("", Path::new("slurminit.toml")).unwrap();
        let mut watcher = Watcher::new(Vendor::Nvidia, &config, INTERVAL);
        watcher.timeout = TIMEOUT;
        watcher.known = [gpu(0), gpu(1)].map(|gpu| (gpu.key(), gpu)).into();
        watcher
    }

    /// A process that has printed these lines. With `exit` it has ended, too.
    #[expect(clippy::disallowed_methods, reason = "a test is not PID 1, so it may have children")]
    fn running(now: Instant, lines: &[Line], exit: bool) -> Running {
        let text: String = lines.iter().map(|line| serde_json::to_string(line).unwrap() + "\n").collect();
        let script = if exit { "printf %s \"$0\"" } else { "printf %s \"$0\"; exec sleep 600" };
        let mut command = Command::new("sh");
        let mut child = command.args(["-c", script, &text]).stdout(Stdio::piped()).spawn().unwrap();
        let output = child.stdout.take().unwrap();
        let readable = PollFlags::POLLIN;
        if exit {
            child.wait().unwrap();
        } else if !lines.is_empty() {
            poll(&mut [PollFd::new(output.as_fd(), readable)], PollTimeout::from(60_000_u16)).unwrap();
        }
        fcntl(&output, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        Running {
            child,
            output,
            unparsed: Vec::new(),
            queried_gpu: None,
            started_at: Some(now),
            all_closed: false,
            is_idle: false,
            deadline: now + TIMEOUT,
        }
    }

    fn excluded(watcher: &Watcher, now: Instant) -> Vec<u32> {
        watcher.excluded_gpus(now).map(|gpu| gpu.index).collect()
    }

    #[test]
    fn gpu_that_does_not_respond_rests_longer_each_time() {
        let (mut watcher, mut now) = (watcher(), Instant::now());
        for seconds in [60, 120, 240, 480, 900, 900] {
            watcher.running = Some(running(now, &[Line::Asking { gpu: gpu(1).key() }], false));
            let (mut before, mut events) = (Vec::new(), Vec::new());
            watcher.read(now, &mut before);
            watcher.check_deadline(now + TIMEOUT - Duration::from_millis(1), &mut events);
            assert!(events.is_empty() && watcher.running.is_some());
            now += TIMEOUT;
            watcher.check_deadline(now, &mut events);
            let [WatcherEvent::TimedOut(Some(silent), TIMEOUT)] = &events[..] else { panic!("{events:?}") };
            assert_eq!((silent.index, watcher.running.is_some(), watcher.start_at), (1, false, now));
            let end = now + Duration::from_secs(seconds);
            assert_eq!(watcher.poll_source().1, now, "it is started again at once");
            assert_eq!(excluded(&watcher, end - Duration::from_millis(1)), [1], "{seconds}");
            assert_eq!(excluded(&watcher, end), [0; 0], "{seconds}");
        }
        watcher.closed = vec![gpu(0)];
        assert_eq!(excluded(&watcher, now), [1, 0]);
    }

    #[test]
    fn gpu_is_queried_again_after_its_backoff_and_kept_if_it_responds() {
        let (mut watcher, now) = (watcher(), Instant::now());
        watcher.back_off(now, Some(&gpu(1).key()));
        let end = now + GPU_BACKOFF;
        watcher.running = Some(Running { deadline: end + TIMEOUT, ..running(now, &[], false) });
        assert!(watcher.step(end - Duration::from_millis(1)).is_empty() && watcher.running.is_some());
        assert!(watcher.step(end).is_empty() && watcher.running.is_none(), "the next process opens the GPU");
        assert_eq!(excluded(&watcher, end), [0; 0]);
        watcher.running = Some(running(end, &[Line::Seen { gpu: gpu(1).key(), seen: Box::default() }], false));
        watcher.read(end, &mut Vec::new());
        assert!(watcher.backing_off.is_empty());
    }

    #[test]
    fn only_third_crash_in_a_row_points_to_driver() {
        let (mut watcher, now) = (watcher(), Instant::now());
        let mut crash = |lines: &[Line]| {
            watcher.running = Some(running(now, lines, true));
            let mut events = Vec::new();
            watcher.read(now, &mut events);
            let crashed = events.into_iter().find_map(|event| match event {
                WatcherEvent::Crashed(gpu, _) => Some(gpu.map(|gpu| gpu.index)),
                _ => None,
            });
            (crashed, watcher.start_at - now)
        };
        let asking = [Line::Asking { gpu: gpu(0).key() }];
        let ms = Duration::from_millis;
        assert_eq!(crash(&asking), (None, ms(500)));
        assert_eq!(crash(&asking), (None, ms(1000)));
        assert_eq!(crash(&[Line::Done]), (None, ms(500)), "a complete round in between");
        assert_eq!(crash(&asking), (None, ms(1000)));
        assert_eq!(crash(&asking), (Some(Some(0)), ms(2000)));
        (0..2).for_each(|_| assert_eq!(crash(&[]).0, None));
        assert_eq!(crash(&[]).0, Some(None));
        let longest = (0..9).map(|_| crash(&[]).1).max();
        assert_eq!(longest, Some(MAX_RESTART_BACKOFF));
    }

    #[test]
    fn deadline_includes_interval_only_between_rounds() {
        for (line, left, is_idle) in [
            (Line::Done, INTERVAL + TIMEOUT, true),
            (Line::Event { gpu: None, xid: 79 }, INTERVAL + TIMEOUT, true),
            (Line::Listed { gpus: vec![gpu(0)] }, TIMEOUT, false),
            (Line::Asking { gpu: gpu(0).key() }, TIMEOUT, false),
        ] {
            let (mut watcher, now) = (watcher(), Instant::now());
            watcher.running = Some(running(now - TIMEOUT, &[line], false));
            let mut events = Vec::new();
            watcher.read(now, &mut events);
            assert_eq!(watcher.poll_source().1, now + left, "{events:?}");
            watcher.check_deadline(now + left, &mut events);
            assert_eq!(matches!(events.last(), Some(WatcherEvent::Restarted(_))), is_idle, "{events:?}");
            assert!(!is_idle || watcher.backing_off.is_empty());
        }
    }

    #[test]
    fn list_of_gpus_ends_initialization() {
        let (mut watcher, now) = (watcher(), Instant::now());
        let lines = [Line::Opening { gpu: gpu(1) }, Line::Listed { gpus: vec![gpu(0)] }];
        watcher.running = Some(running(now, &lines, false));
        watcher.read(now, &mut Vec::new());
        let running = watcher.running.as_ref().unwrap();
        assert_eq!((&running.queried_gpu, running.started_at), (&None, None));
        assert_eq!(watcher.known.values().map(|gpu| gpu.index).collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn reports_gpu_whose_initialization_is_slow() {
        for (age, is_reported) in [(SLOW_START, true), (SLOW_START - Duration::from_millis(1), false)] {
            let (mut watcher, now) = (watcher(), Instant::now());
            watcher.running = Some(running(now, &[Line::Opening { gpu: gpu(2) }], false));
            let mut events = Vec::new();
            watcher.read(now + age, &mut events);
            assert_eq!(events.iter().any(|event| matches!(event, WatcherEvent::Waiting(_))), is_reported);
            assert_eq!(watcher.known.len(), 3);
        }
    }

    #[test]
    fn closes_gpus_of_next_process() {
        let (mut watcher, now) = (watcher(), Instant::now());
        for closed in [vec![gpu(1)], vec![], vec![gpu(0), gpu(1)]] {
            watcher.close(now, closed.clone());
            assert_eq!(watcher.closed, closed);
        }
        // The same list does not restart the process.
        watcher.running = Some(Running { all_closed: true, ..running(now, &[], false) });
        watcher.close(now, vec![gpu(0), gpu(1)]);
        assert!(watcher.running.is_some() && watcher.former.is_none());
    }

    #[test]
    fn all_gpus_are_closed_only_if_each_known_one_is() {
        let mut watcher = watcher();
        for (closed, expected) in [(vec![], false), (vec![gpu(0)], false), (vec![gpu(1), gpu(0)], true)] {
            watcher.closed = closed;
            assert_eq!(watcher.are_all_closed(), expected);
        }
        assert_eq!(watcher.closed_keys().len(), 2);
        watcher.former = Some(running(Instant::now(), &[Line::Event { gpu: None, xid: 79 }, Line::Done], false));
        assert_eq!(watcher.closed_keys(), [], "the former process may have the GPU open");
        assert!(matches!(watcher.end_former()[..], [Line::Event { xid: 79, .. }]));
        watcher.known.clear();
        assert!(!watcher.are_all_closed());
    }
}
