//! The process that reads one vendor's GPUs: started, followed, and killed when the driver hangs.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use config::Config;
use model::faults::look::{Identity, Key, Line};
use model::inventory::Vendor;
use sys::secret_variables;

/// After this time, the log tells which GPU the driver initialises.
const SLOW: Duration = Duration::from_secs(5);
/// The longest line, in bytes.
const LONGEST: usize = 1 << 20;
/// The backoff before a process that ended is started again: the first, and the longest; it doubles.
const PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The backoff of a GPU that did not respond: the first, and the longest; it doubles.
const REST: Duration = Duration::from_secs(60);
const LONGEST_REST: Duration = Duration::from_secs(900);

/// An event of the watcher.
#[derive(Debug)]
pub(super) enum WatcherEvent {
    /// The process was started.
    Started,
    Line(Line),
    /// The driver takes long to initialise this GPU.
    Waiting(Identity),
    /// The driver timed out, for this GPU or as a whole.
    TimedOut(Option<Identity>, Duration),
    /// The process crashed repeatedly while it queried the driver for this GPU or as a whole.
    Crashed(Option<Identity>, String),
    /// The process was restarted, for this reason.
    Restarted(String),
}

/// A GPU that did not respond.
#[derive(Debug)]
struct Resting {
    gpu: Identity,
    until: Instant,
    rest: Duration,
}

#[derive(Debug)]
pub(super) struct Watcher {
    pub(super) vendor: Vendor,
    interval: Duration,
    timeout: Duration,
    /// Whether to read values that need calls of their own.
    meters: bool,
    running: Option<Running>,
    /// The process before, which has GPUs open that are to be closed.
    former: Option<Running>,
    /// When to start the process.
    start: Instant,
    pause: Duration,
    deaths: u32,
    resting: BTreeMap<Key, Resting>,
    /// The GPUs that are not to be open.
    closed: Vec<Identity>,
    /// The GPUs that the process listed or opened last.
    known: BTreeMap<Key, Identity>,
    /// Killed processes that are stuck in the kernel.
    stuck: Vec<Child>,
}

#[derive(Debug)]
struct Running {
    child: Child,
    out: ChildStdout,
    unread: Vec<u8>,
    /// The GPU that the driver is being queried for.
    asking: Option<Key>,
    /// When it was started; `None` once it has listed the GPUs.
    began: Option<Instant>,
    /// Whether it leaves the driver alone, because all GPUs are closed.
    all_closed: bool,
    /// Whether the process only waits for events.
    is_idle: bool,
    /// Deadline of the next line.
    due: Instant,
}

impl Watcher {
    pub(super) fn new(vendor: Vendor, config: &Config, interval: Duration) -> Self {
        Self {
            vendor,
            interval,
            timeout: config.agent.timeout,
            meters: config.metrics.listen.is_some(),
            running: None,
            former: None,
            start: Instant::now(),
            pause: PAUSE,
            deaths: 0,
            resting: BTreeMap::new(),
            closed: Vec::new(),
            known: BTreeMap::new(),
            stuck: Vec::new(),
        }
    }

    /// The file descriptor to wait for, and the deadline.
    pub(super) fn waits(&self) -> (Option<BorrowedFd<'_>>, Instant) {
        let own = self.running.as_ref().map_or(self.start, |running| running.due);
        let until = self.resting.values().map(|resting| resting.until).fold(own, Instant::min);
        (self.running.as_ref().map(|running| running.out.as_fd()), until)
    }

    /// Does what is due, and reads the output of the process.
    pub(super) fn step(&mut self, now: Instant) -> Vec<WatcherEvent> {
        self.reap();
        let mut events = Vec::new();
        if self.running.is_none() && now >= self.start {
            match self.launch(now) {
                Ok(()) => events.push(WatcherEvent::Started),
                Err(error) => {
                    self.start = now + self.pause;
                    self.pause = (self.pause * 2).min(LONGEST_PAUSE);
                    events.push(WatcherEvent::Restarted(format!("it cannot be started: {error}")));
                }
            }
        }
        self.read(now, &mut events);
        self.check_deadline(now, &mut events);
        // A GPU whose backoff has ended is queried again.
        let rested = self.resting.values().any(|resting| resting.until <= now);
        if rested && self.running.as_ref().is_some_and(|running| running.asking.is_none()) {
            self.resting.values_mut().filter(|resting| resting.until <= now).for_each(|resting| {
                resting.until = now + LONGEST_REST * 4;
            });
            self.end(now);
        }
        events
    }

    /// The GPUs that are neither opened nor queried.
    fn closed(&self, now: Instant) -> impl Iterator<Item = &Identity> {
        // A date far in the future marks a GPU that is being queried again.
        let is_resting = move |resting: &&Resting| resting.until > now && resting.until <= now + LONGEST_REST;
        self.resting.values().filter(is_resting).map(|resting| &resting.gpu).chain(&self.closed)
    }

    /// Whether the vendor has no GPU that is to be open. NVIDIA's library may open a GPU without a request for its handle.
    fn are_all_closed(&self) -> bool {
        let is_closed = |key: &Key| self.closed.iter().any(|gpu| gpu.key() == *key);
        !self.known.is_empty() && self.known.keys().all(is_closed)
    }

    /// Closes these GPUs and no others: the driver has no other way than the end of the process.
    pub(super) fn close(&mut self, now: Instant, closed: Vec<Identity>) {
        let was_closed = self.running.as_ref().is_some_and(|running| running.all_closed);
        if self.closed == closed && (self.running.is_none() || was_closed == self.are_all_closed()) {
            return;
        }
        self.closed = closed;
        self.end_former();
        // It ends once the next process has opened the others, so that the driver keeps them initialised, and no event is missed.
        self.former = self.running.take();
        if self.former.is_some() && self.launch(now).is_err() {
            self.end_former();
            self.start = now + self.pause;
        }
    }

    /// Ends the process that has GPUs open which are to be closed. Returns the events that it received last.
    fn end_former(&mut self) -> Vec<Line> {
        let Some(mut former) = self.former.take() else { return Vec::new() };
        let mut rest = std::mem::take(&mut former.unread);
        let _ = former.child.kill();
        let mut chunk = [0; 16 * 1024];
        while let Ok(count @ 1..) = former.out.read(&mut chunk) {
            rest.extend_from_slice(chunk.get(..count).unwrap_or_default());
        }
        self.stuck.push(former.child);
        self.reap();
        let lines = rest.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok());
        lines.filter(|line| matches!(line, Line::Event { .. })).collect()
    }

    /// The GPUs that no process has open.
    pub(super) fn is_closed(&mut self) -> Vec<Key> {
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
        if self.meters {
            command.arg("--meters");
        }
        if all_closed {
            command.arg("--all-closed");
        }
        for gpu in self.closed(now) {
            command.arg("--closed").arg(serde_json::to_string(gpu)?);
        }
        command.env_clear().envs(secret_variables::kept());
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let Some(out) = child.stdout.take() else { return Ok(()) };
        fcntl(&out, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        self.running = Some(Running {
            child,
            out,
            unread: Vec::new(),
            asking: None,
            began: Some(now),
            all_closed,
            is_idle: false,
            due: now + self.timeout,
        });
        Ok(())
    }

    fn read(&mut self, now: Instant, events: &mut Vec<WatcherEvent>) {
        let Some(running) = &mut self.running else { return };
        let mut chunk = [0; 16 * 1024];
        let has_ended = loop {
            match running.out.read(&mut chunk) {
                Ok(0) => break true,
                Ok(count) => running.unread.extend_from_slice(chunk.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break true,
            }
            if running.unread.len() > LONGEST {
                break true;
            }
        };
        while let Some(end) = running.unread.iter().position(|byte| *byte == b'\n') {
            let rest = running.unread.split_off(end + 1);
            let line = std::mem::replace(&mut running.unread, rest);
            // Other lines were printed by a library.
            let Ok(line) = serde_json::from_slice::<Line>(&line) else { continue };
            let patience = match &line {
                Line::Done | Line::Event { .. } | Line::Reset { .. } | Line::Trouble { .. } => {
                    self.interval + self.timeout
                }
                _ => self.timeout,
            };
            running.due = now + patience;
            running.is_idle = matches!(line, Line::Done | Line::Event { .. } | Line::Reset { .. });
            match &line {
                Line::Opening { gpu } => {
                    running.asking = Some(gpu.key());
                    self.known.entry(gpu.key()).or_insert_with(|| gpu.clone());
                    if running.began.is_some_and(|began| now.saturating_duration_since(began) >= SLOW) {
                        events.push(WatcherEvent::Waiting(gpu.clone()));
                    }
                }
                Line::Listed { gpus } => {
                    (running.asking, running.began) = (None, None);
                    self.known = gpus.iter().map(|gpu| (gpu.key(), gpu.clone())).collect();
                }
                Line::Asking { gpu } => running.asking = Some(gpu.clone()),
                Line::Seen { gpu, .. } => {
                    running.asking = None;
                    self.resting.remove(gpu);
                }
                Line::Done => (self.deaths, self.pause) = (0, PAUSE),
                _ => {}
            }
            events.push(WatcherEvent::Line(line));
        }
        if has_ended {
            self.died(now, events);
        }
        if events.iter().any(|event| matches!(event, WatcherEvent::Line(Line::Listed { .. }))) {
            events.extend(self.end_former().into_iter().map(WatcherEvent::Line));
        }
    }

    fn died(&mut self, now: Instant, events: &mut Vec<WatcherEvent>) {
        let asking = self.running.as_ref().and_then(|running| running.asking.clone());
        let how = self.end(now).unwrap_or_else(|| "it closed its output".to_owned());
        self.deaths += 1;
        self.start = now + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        // A user can kill it, too. Only repeated crashes point to the driver.
        if self.deaths >= 3 {
            self.deaths = 0;
            self.rest(now, asking.as_ref());
            events.push(WatcherEvent::Crashed(self.identity_of(asking), how));
        }
    }

    fn check_deadline(&mut self, now: Instant, events: &mut Vec<WatcherEvent>) {
        let Some(running) = self.running.as_ref().filter(|running| now >= running.due) else { return };
        let (asking, is_idle) = (running.asking.clone(), running.is_idle);
        self.end(now);
        // The next process queries the driver at once, which shows whether it still responds.
        if is_idle {
            return events.push(WatcherEvent::Restarted(
                "the driver's wait for events did not return; watcher restarted".to_owned(),
            ));
        }
        self.rest(now, asking.as_ref());
        if asking.is_none() {
            self.start = now + self.pause;
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        }
        events.push(WatcherEvent::TimedOut(self.identity_of(asking), self.timeout));
    }

    fn identity_of(&self, key: Option<Key>) -> Option<Identity> {
        self.known.get(&key?).cloned()
    }

    fn rest(&mut self, now: Instant, key: Option<&Key>) {
        let Some((key, gpu)) = key.and_then(|key| Some((key.clone(), self.known.get(key)?.clone()))) else { return };
        let known = self.resting.entry(key);
        let resting = known.and_modify(|resting| resting.rest = (resting.rest * 2).min(LONGEST_REST));
        let resting = resting.or_insert(Resting { gpu, until: now, rest: REST });
        resting.until = now + resting.rest;
    }

    /// Kills the process; returns how it ended, if it has. It is started again at once.
    fn end(&mut self, now: Instant) -> Option<String> {
        self.end_former();
        let mut running = self.running.take()?;
        self.start = now;
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

    /// Keeps a process that is stuck in the driver, which ignores even KILL.
    fn reap(&mut self) {
        self.stuck.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.end(Instant::now());
    }
}
