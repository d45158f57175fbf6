//! Runs the operator's commands for faults, one at a time.
//!
//! EDGE. Nothing waits for a command: one that hangs is killed at its deadline, and one that runs too often is left out and counted.

use std::collections::VecDeque;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::unistd::User;
use serde::Serialize;

use super::say;
use crate::config::Notify;
use crate::gpu_health::report::Told;
use crate::install;

const HOUR: Duration = Duration::from_secs(3600);
/// The pause between two looks at a command that runs.
const LOOK: Duration = Duration::from_millis(100);
/// Faults that wait for their command beyond this number are left out.
const MOST: usize = 100;

/// What a command reads from its standard input: one line of JSON.
#[derive(Debug, Serialize)]
struct Message<'a> {
    /// The node's name in Slurm.
    node: &'a str,
    #[serde(flatten)]
    told: &'a Told,
    /// How many were left out before this one.
    skipped: u64,
}

#[derive(Debug)]
pub(super) struct Notifier<'a> {
    commands: Vec<Rated<'a>>,
    waiting: VecDeque<(usize, Told)>,
    running: Option<Running>,
}

#[derive(Debug)]
struct Rated<'a> {
    notify: &'a Notify,
    runs: VecDeque<Instant>,
    skipped: u64,
}

#[derive(Debug)]
struct Running {
    child: Child,
    program: String,
    until: Instant,
}

impl<'a> Notifier<'a> {
    pub(super) fn new(all: &'a [Notify]) -> Self {
        let rated = |notify| Rated { notify, runs: VecDeque::new(), skipped: 0 };
        Self { commands: all.iter().map(rated).collect(), waiting: VecDeque::new(), running: None }
    }

    /// When it has something to do.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        self.running.as_ref().map(|running| running.until.min(now + LOOK))
    }

    pub(super) fn tell(&mut self, now: Instant, told: &Told) {
        for (index, rated) in self.commands.iter_mut().enumerate() {
            if told.policy < rated.notify.at_least {
                continue;
            }
            rated.runs.retain(|run| now.saturating_duration_since(*run) < HOUR);
            let most = usize::try_from(rated.notify.per_hour).unwrap_or(usize::MAX);
            if rated.runs.len() >= most || self.waiting.len() >= MOST {
                rated.skipped += 1;
            } else {
                rated.runs.push_back(now);
                self.waiting.push_back((index, told.clone()));
            }
        }
    }

    pub(super) fn step(&mut self, now: Instant, node: &str) {
        if let Some(running) = &mut self.running {
            let why = match running.child.try_wait() {
                Ok(None) if now < running.until => return,
                Ok(None) => {
                    let _ = running.child.kill();
                    let _ = running.child.try_wait();
                    Some("it did not end in time, and was killed".to_owned())
                }
                Ok(Some(status)) => (!status.success()).then(|| status.to_string()),
                Err(error) => Some(error.to_string()),
            };
            if let Some(why) = why {
                say(false, &format!("{} of [[notify]] failed: {why}", running.program));
            }
            self.running = None;
        }
        let Some((index, told)) = self.waiting.pop_front() else { return };
        let Some(rated) = self.commands.get_mut(index) else { return };
        let message = Message { node, told: &told, skipped: std::mem::take(&mut rated.skipped) };
        match launch(rated.notify, &message) {
            Ok(child) => {
                let program = rated.notify.command.first().cloned().unwrap_or_default();
                self.running = Some(Running { child, program, until: now + rated.notify.timeout });
            }
            Err(error) => say(false, &format!("{:?} of [[notify]] cannot be run: {error}", rated.notify.command)),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "this process is nobody's PID 1: it may have children of its own")]
fn launch(notify: &Notify, message: &Message<'_>) -> std::io::Result<Child> {
    let [program, arguments @ ..] = notify.command.as_slice() else { return Err(std::io::ErrorKind::NotFound.into()) };
    let name = notify.user.as_deref().unwrap_or(install::LOOKERS);
    let user = User::from_name(name)?.ok_or_else(|| std::io::Error::other(format!("there is no user {name}")))?;
    let mut command = Command::new(program);
    command.args(arguments).current_dir("/").uid(user.uid.as_raw()).gid(user.gid.as_raw());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    // A fault's line is far shorter than what a pipe holds, so this does not wait for a reader; one that does not read is no error.
    let _ = child.stdin.take().map(|mut stdin| stdin.write_all(&line));
    Ok(child)
}

impl Drop for Notifier<'_> {
    fn drop(&mut self) {
        if let Some(running) = &mut self.running {
            let _ = running.child.kill();
        }
    }
}
