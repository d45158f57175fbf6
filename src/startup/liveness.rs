//! Checks whether the daemons respond.
//!
//! PID 1 runs this in a child, once per interval and never twice at a time, so it may block. It distinguishes a hung daemon from a slow
//! one. Of each pause in which this process itself could not run, at most 0.2 s is counted.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use machine::liveness_result::{CHECKS_VARIABLE, Liveness, LivenessCheck, LivenessResult};
use sys::tool::Running;
use sys::users;

mod helper;
mod starting_steps;
pub mod stuck;
mod work;

/// Runs all liveness checks concurrently, and judges the results.
pub fn run_checks(checks: Vec<LivenessCheck>) -> anyhow::Result<Vec<LivenessResult>> {
    let slurmds: Vec<i32> = checks.iter().filter(|check| check.connects_to_steps).map(|check| check.pid).collect();
    starting_steps::wait(&slurmds);
    let (sender, receiver) = channel();
    let waiting: BTreeMap<_, _> = checks.into_iter().map(PendingCheck::new).enumerate().collect();
    for (index, waiting) in &waiting {
        let (index, sender) = (*index, sender.clone());
        let (check, running) = (waiting.check.clone(), Arc::clone(&waiting.running));
        let pid = waiting.check.pid;
        // After this time a command that hangs is killed. The verdict comes earlier, unless this process hardly runs.
        let deadline = 2 * waiting.check.timeout();
        let attempt = move || run_commands(&check, &running, deadline).and_then(|()| helper::check(pid));
        std::thread::Builder::new().spawn(move || retry_until_answer(index, attempt, &sender))?;
    }
    Ok(collect(waiting, &receiver))
}

/// Why an attempt got no answer.
#[derive(Debug)]
enum Failure {
    /// The command could not be executed, or could not send its request.
    NotExecuted(String),
    /// The check failed. It is repeated, because the daemon may be restarting itself. `broken`: a busy daemon does
    /// not explain this failure.
    Failed { why: String, broken: bool },
}

/// The result of one attempt: the index of the check, and its outcome.
type Attempt = (usize, Result<(), Failure>);

/// The pause before a repetition: a daemon that reconfigures itself closes its port for a moment.
const RETRY_PAUSE: Duration = Duration::from_millis(250);
/// After this many consecutive `broken` failures, the daemon is not just restarting itself.
const MIN_BROKEN: u32 = 5;
/// The timeout of a single wait. If the wait takes longer, at most twice this time is counted: time in which the container was frozen, or
/// this process had no CPU time, must not count against the daemon.
const MAX_WAIT: Duration = Duration::from_millis(100);

/// A check without a result yet.
struct PendingCheck {
    check: LivenessCheck,
    /// The PID of the command that was started last; 0 before the first.
    running: Arc<AtomicU32>,
    /// The result of [`Self::work_so_far`] after the first [`MAX_WAIT`]; `None` until then.
    work: Option<(work::Work, u64)>,
    why: Option<String>,
    /// Number of consecutive `broken` failures.
    broken: u32,
}

impl PendingCheck {
    fn new(check: LivenessCheck) -> Self {
        Self { check, running: Arc::default(), work: None, why: None, broken: 0 }
    }

    fn answer(&self, liveness: Liveness) -> LivenessResult {
        LivenessResult { unit: self.check.unit, liveness }
    }

    /// How long the daemon and the command that tests it have run or waited for a CPU so far, and how often the daemon has been scheduled.
    fn work_so_far(&self) -> (work::Work, u64) {
        let [daemon, _] = self.measured_pids();
        (work::Work::of(&self.measured_pids()), work::schedule_count(daemon))
    }

    /// The PIDs of the daemon and of the command that tests it: the command may also have lacked CPU time.
    fn measured_pids(&self) -> [u32; 2] {
        let daemon = u32::try_from(self.check.pid).unwrap_or_default();
        [daemon, self.running.load(Ordering::Relaxed)]
    }

    /// The verdict at the timeout, or after [`MIN_BROKEN`] `broken` failures.
    fn liveness(&self) -> Liveness {
        if let Some(why) = helper::stop_reason(self.check.pid) {
            return Liveness::Stopped(why);
        }
        let Some((before, schedule_count)) = &self.work else {
            return Liveness::Unknown("the timeout expired before its CPU time was first measured".to_owned());
        };
        let time = self.check.timeout();
        let no_answer = format!("no answer within {:.1} s", time.as_secs_f64());
        let (work, now) = self.work_so_far();
        let (work, why) = match (&self.why, self.broken) {
            (None, _) => (Some(work.since(before)), no_answer),
            (Some(failure), 0) => (Some(work.since(before)), format!("{no_answer}; last failure: {failure}")),
            (Some(failure), _) => (None, failure.clone()),
        };
        let serves_others = self.check.has_clients && self.broken == 0 && now != *schedule_count;
        work::liveness(self.check.pid, work, serves_others, time, why)
    }
}

fn collect(mut waiting: BTreeMap<usize, PendingCheck>, receiver: &Receiver<Attempt>) -> Vec<LivenessResult> {
    let mut answers = Vec::new();
    let mut waited = Duration::ZERO;
    while !waiting.is_empty() {
        let begin = Instant::now();
        let received = receiver.recv_timeout(MAX_WAIT);
        waited += begin.elapsed().min(2 * MAX_WAIT);
        match received {
            Ok((index, Ok(()))) => answers.extend(waiting.remove(&index).map(|w| w.answer(Liveness::Answers))),
            Ok((index, Err(Failure::NotExecuted(why)))) => {
                answers.extend(waiting.remove(&index).map(|w| w.answer(Liveness::Unknown(why))));
            }
            Ok((index, Err(Failure::Failed { why, broken }))) => {
                if let Some(waiting) = waiting.get_mut(&index) {
                    (waiting.why, waiting.broken) = (Some(why), if broken { waiting.broken + 1 } else { 0 });
                }
            }
            Err(_) => {}
        }
        let is_over = |waiting: &PendingCheck| waited >= waiting.check.timeout() || waiting.broken >= MIN_BROKEN;
        let (over, rest): (BTreeMap<_, _>, _) = waiting.into_iter().partition(|(_, waiting)| is_over(waiting));
        answers.extend(over.into_values().map(|waiting| waiting.answer(waiting.liveness())));
        waiting = rest;
        if waited >= MAX_WAIT {
            for waiting in waiting.values_mut().filter(|waiting| waiting.work.is_none()) {
                waiting.work = Some(waiting.work_so_far());
            }
        }
    }
    answers
}

#[expect(clippy::disallowed_methods, reason = "a test that fails at once can only be repeated after a pause")]
fn retry_until_answer(index: usize, attempt: impl Fn() -> Result<(), Failure>, sender: &Sender<Attempt>) {
    loop {
        let result = attempt();
        let again = matches!(result, Err(Failure::Failed { .. }));
        if sender.send((index, result)).is_err() || !again {
            return;
        }
        std::thread::sleep(RETRY_PAUSE);
    }
}

fn run_commands(check: &LivenessCheck, running: &AtomicU32, deadline: Duration) -> Result<(), Failure> {
    let execute = |input: Vec<u8>, command: &Vec<String>| execute(check, command, &input, running, deadline);
    check.commands.iter().try_fold(Vec::new(), execute).map(drop)
}

/// Builds the command to run as the check's user, with the check's variables.
fn command_of(check: &LivenessCheck, words: &[String]) -> std::io::Result<Command> {
    let mut command = match &check.user {
        Some(user) => {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["as-user", user, "--"]).args(words);
            for name in users::VARIABLES {
                command.env_remove(name);
            }
            command
        }
        None => {
            let mut command = Command::new(words.first().map(String::as_str).unwrap_or_default());
            command.args(words.get(1..).unwrap_or_default());
            command
        }
    };
    command.env_remove(CHECKS_VARIABLE).envs(&check.env);
    Ok(command)
}

/// Runs a command and returns its output.
fn execute(
    check: &LivenessCheck,
    command: &[String],
    input: &[u8],
    running: &AtomicU32,
    deadline: Duration,
) -> Result<Vec<u8>, Failure> {
    let Some(program) = command.first() else { return Ok(Vec::new()) };
    let not_executed = |error: std::io::Error| Failure::NotExecuted(format!("`{program}` cannot be executed: {error}"));
    let child = command_of(check, command).and_then(|mut command| Running::start(&mut command, input));
    let child = child.map_err(not_executed)?;
    running.store(child.pid(), Ordering::Relaxed);
    let output = match child.finish(deadline, MAX_OUTPUT) {
        Err(error) => return Err(Failure::Failed { why: format!("`{}`: {error}", command.join(" ")), broken: false }),
        Ok(output) => output,
    };
    if output.status.success() {
        return Ok(output.stdout);
    }
    let first_line = [&output.stderr, &output.stdout].into_iter().find_map(|text| first_line(text));
    let reason = first_line.unwrap_or_else(|| output.status.to_string());
    let why = format!("`{}`: {reason}", command.join(" "));
    Err(match has_fatal_error(program, &output.stderr) {
        true => Failure::NotExecuted(why),
        false => Failure::Failed { why, broken: false },
    })
}

/// Whether a Slurm command reports that it could not even send the request (`fatal()` in its `src/common/log.c`). An example is a mistake
/// in slurm.conf: the command reads the file now, but the daemon read it long ago.
fn has_fatal_error(program: &str, stderr: &[u8]) -> bool {
    let word = format!("{}: fatal: ", program.rsplit('/').next().unwrap_or(program));
    String::from_utf8_lossy(stderr).lines().any(|line| line.starts_with(&word))
}

/// How much of each output stream of a command is read, in bytes.
const MAX_OUTPUT: usize = 1 << 20;
/// How much of a command's message is kept, in characters.
const MAX_LINE: usize = 200;

fn first_line(text: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(text);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    Some(model::printable::short(line, MAX_LINE))
}

#[cfg(test)]
mod tests;
