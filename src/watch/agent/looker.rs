//! The process that looks at one vendor's GPUs: started, listened to, ended when the driver hangs.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use config::Config;
use faults::look::{Key, Line};
use model::inventory::Vendor;

/// The longest line, in bytes.
const LONGEST: usize = 1 << 20;
/// The pause before a process that ended is started again: this at first, then twice as long, up to the longest.
const PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How long a GPU that did not answer is left alone: this at first, then twice as long, up to the longest.
const REST: Duration = Duration::from_secs(60);
const LONGEST_REST: Duration = Duration::from_secs(900);

/// What has happened.
#[derive(Debug)]
pub(super) enum Heard {
    /// It was started.
    Started,
    Line(Line),
    /// The driver did not answer in time, for this GPU or as a whole.
    Silent(Option<Key>, Duration),
    /// It died, again and again, while the driver was asked for this GPU or as a whole.
    Dies(Option<Key>, String),
    /// It was started anew, for this reason.
    Anew(String),
}

/// A GPU that did not answer.
#[derive(Debug)]
struct Resting {
    until: Instant,
    rest: Duration,
}

#[derive(Debug)]
pub(super) struct Looker {
    pub(super) vendor: Vendor,
    interval: Duration,
    timeout: Duration,
    /// Whether somebody wants what takes calls of its own.
    meters: bool,
    running: Option<Running>,
    /// When it is to be started.
    start: Instant,
    pause: Duration,
    deaths: u32,
    resting: BTreeMap<Key, Resting>,
    /// Killed ones that are stuck in the kernel.
    stuck: Vec<Child>,
}

#[derive(Debug)]
struct Running {
    child: Child,
    out: ChildStdout,
    unread: Vec<u8>,
    /// The GPU that the driver is asked for.
    asking: Option<Key>,
    /// Whether it only waits for events.
    is_idle: bool,
    /// When the next line must have come.
    due: Instant,
}

impl Looker {
    pub(super) fn new(vendor: Vendor, config: &Config, interval: Duration) -> Self {
        Self {
            vendor,
            interval,
            timeout: config.agent.timeout,
            meters: config.metrics.listen.is_some(),
            running: None,
            start: Instant::now(),
            pause: PAUSE,
            deaths: 0,
            resting: BTreeMap::new(),
            stuck: Vec::new(),
        }
    }

    /// What can be waited for, and until when.
    pub(super) fn waits(&self) -> (Option<BorrowedFd<'_>>, Instant) {
        let own = self.running.as_ref().map_or(self.start, |running| running.due);
        let until = self.resting.values().map(|resting| resting.until).fold(own, Instant::min);
        (self.running.as_ref().map(|running| running.out.as_fd()), until)
    }

    /// Does what is due, and reads what it said.
    pub(super) fn step(&mut self, now: Instant) -> Vec<Heard> {
        self.reap();
        let mut heard = Vec::new();
        if self.running.is_none() && now >= self.start {
            match self.launch(now) {
                Ok(()) => heard.push(Heard::Started),
                Err(error) => {
                    self.start = now + self.pause;
                    self.pause = (self.pause * 2).min(LONGEST_PAUSE);
                    heard.push(Heard::Anew(format!("it cannot be started: {error}")));
                }
            }
        }
        self.read(now, &mut heard);
        self.check_deadline(now, &mut heard);
        // One that rested long enough is asked again.
        let rested = self.resting.values().any(|resting| resting.until <= now);
        if rested && self.running.as_ref().is_some_and(|running| running.asking.is_none()) {
            self.resting.values_mut().filter(|resting| resting.until <= now).for_each(|resting| {
                resting.until = now + LONGEST_REST * 4;
            });
            self.end(now);
        }
        heard
    }

    /// The GPUs that are not asked.
    fn skipped(&self, now: Instant) -> Vec<String> {
        // A far date is that of one which is being asked again.
        let is_resting = |resting: &Resting| resting.until > now && resting.until <= now + LONGEST_REST;
        self.resting.iter().filter(|(_, resting)| is_resting(resting)).map(|(key, _)| key.to_string()).collect()
    }

    #[expect(clippy::disallowed_methods, reason = "this process is nobody's PID 1: it may have children of its own")]
    fn launch(&mut self, now: Instant) -> std::io::Result<()> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("look").args(["--vendor", self.vendor.as_str()]);
        command.args(["--interval-ms", &self.interval.as_millis().to_string()]);
        if self.meters {
            command.arg("--meters");
        }
        for key in self.skipped(now) {
            command.args(["--skip", &key]);
        }
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let Some(out) = child.stdout.take() else { return Ok(()) };
        fcntl(&out, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        self.running =
            Some(Running { child, out, unread: Vec::new(), asking: None, is_idle: false, due: now + self.timeout });
        Ok(())
    }

    fn read(&mut self, now: Instant, heard: &mut Vec<Heard>) {
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
            // What is no line of ours was printed by a library.
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
                Line::Asking { gpu } => running.asking = Some(gpu.clone()),
                Line::Seen { gpu, .. } => {
                    running.asking = None;
                    self.resting.remove(gpu);
                }
                Line::Done => (self.deaths, self.pause) = (0, PAUSE),
                _ => {}
            }
            heard.push(Heard::Line(line));
        }
        if has_ended {
            self.died(now, heard);
        }
    }

    fn died(&mut self, now: Instant, heard: &mut Vec<Heard>) {
        let asking = self.running.as_ref().and_then(|running| running.asking.clone());
        let how = self.end(now).unwrap_or_else(|| "it closed its output".to_owned());
        self.deaths += 1;
        self.start = now + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        // Others can end it, too. Only one that dies each time dies of the driver.
        if self.deaths >= 3 {
            self.deaths = 0;
            self.rest(now, asking.as_ref());
            heard.push(Heard::Dies(asking, how));
        }
    }

    fn check_deadline(&mut self, now: Instant, heard: &mut Vec<Heard>) {
        let Some(running) = self.running.as_ref().filter(|running| now >= running.due) else { return };
        let (asking, is_idle) = (running.asking.clone(), running.is_idle);
        self.end(now);
        // The next one asks the driver at once, and tells whether it still answers.
        if is_idle {
            return heard
                .push(Heard::Anew("it did not come back from waiting for events; another has begun".to_owned()));
        }
        self.rest(now, asking.as_ref());
        if asking.is_none() {
            self.start = now + self.pause;
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        }
        heard.push(Heard::Silent(asking, self.timeout));
    }

    fn rest(&mut self, now: Instant, key: Option<&Key>) {
        let Some(key) = key else { return };
        let known = self.resting.entry(key.clone());
        let resting = known.and_modify(|resting| resting.rest = (resting.rest * 2).min(LONGEST_REST));
        let resting = resting.or_insert(Resting { until: now, rest: REST });
        resting.until = now + resting.rest;
    }

    /// Ends the process; returns how it ended, if it has. It is started again at once.
    fn end(&mut self, now: Instant) -> Option<String> {
        let mut running = self.running.take()?;
        self.start = now;
        // PID and all are still its own: only this process reaps it.
        let _ = running.child.kill();
        match running.child.try_wait() {
            Ok(Some(status)) => Some(status.to_string()),
            _ => {
                self.stuck.push(running.child);
                None
            }
        }
    }

    /// A process that is stuck in the driver ignores even KILL.
    fn reap(&mut self) {
        self.stuck.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    }
}

impl Drop for Looker {
    fn drop(&mut self) {
        self.end(Instant::now());
    }
}
