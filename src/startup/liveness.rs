//! Checks whether the daemons respond.
//!
//! PID 1 runs this in a child, once per interval and never twice at a time, so it may block. It distinguishes a hung
//! daemon from a slow one. Time in which this process itself could not run does not count.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use machine::liveness_result::{Liveness, LivenessResult, QUESTIONS, Question};
use sys::tool::Running;
use sys::users;

mod client_load;
mod helper;
pub mod stuck;
mod work;

/// Runs all liveness tests at once, and judges the results.
pub fn run_tests(questions: Vec<Question>) -> anyhow::Result<Vec<LivenessResult>> {
    let (sender, receiver) = channel();
    let daemon_uids: Rc<BTreeSet<u32>> =
        Rc::new(client_load::daemon_uids(questions.iter().map(|question| question.pid)));
    let waiting = questions.into_iter().map(|question| PendingTest::new(question, Rc::clone(&daemon_uids)));
    let waiting: BTreeMap<_, _> = waiting.enumerate().collect();
    for (index, waiting) in &waiting {
        let (index, sender) = (*index, sender.clone());
        let (question, running) = (waiting.question.clone(), Arc::clone(&waiting.running));
        let pid = u32::try_from(waiting.question.pid).unwrap_or_default();
        // After this time PID 1 no longer waits for the result, unless this process has hardly run.
        let deadline = 2 * waiting.question.timeout();
        let attempt = move || run_commands(&question, &running, deadline).and_then(|()| helper::check(pid));
        std::thread::Builder::new().spawn(move || retry_until_answer(index, attempt, &sender))?;
    }
    Ok(collect(waiting, &receiver))
}

/// Why a test got no answer.
#[derive(Debug)]
enum Failure {
    /// The command could not be executed.
    NotExecuted(String),
    /// The command failed. It is repeated, because the daemon may be restarting itself. `broken`: a busy daemon does
    /// not explain this failure.
    Failed { why: String, broken: bool },
}

/// The result of one attempt: the index of the test, and its outcome.
type Attempt = (usize, Result<(), Failure>);

/// The pause before a repetition: a daemon that reconfigures itself closes its port for a moment.
const RETRY_PAUSE: Duration = Duration::from_millis(250);
/// After this many broken results in a row, the daemon is not just restarting itself.
const MIN_BROKEN: u32 = 5;
/// A single wait counts for at most twice this long. Otherwise a frozen container, or a machine without CPU time for
/// this process, would count against the daemon.
const MAX_WAIT: Duration = Duration::from_millis(100);

/// A test without a result yet.
struct PendingTest {
    question: Question,
    /// The command that is running.
    running: Arc<AtomicU32>,
    /// CPU work of the process when the answer became late, and how often it had been scheduled.
    work: Option<(work::Work, u64)>,
    /// The users of all daemons.
    daemon_uids: Rc<BTreeSet<u32>>,
    why: Option<String>,
    /// Number of results in a row that found it broken.
    broken: u32,
}

impl PendingTest {
    fn new(question: Question, daemon_uids: Rc<BTreeSet<u32>>) -> Self {
        Self { question, running: Arc::default(), work: None, daemon_uids, why: None, broken: 0 }
    }

    fn answer(&self, liveness: Liveness) -> LivenessResult {
        LivenessResult { unit: self.question.unit, liveness }
    }

    /// The work so far of the daemon and of the command that tests it.
    fn work_so_far(&self) -> (work::Work, u64) {
        let [daemon, _] = self.measured_pids();
        (work::Work::of(&self.measured_pids()), work::schedule_count(daemon))
    }

    /// The daemon, and the command that tests it, which may not have had CPU time either.
    fn measured_pids(&self) -> [u32; 2] {
        let daemon = u32::try_from(self.question.pid).unwrap_or_default();
        [daemon, self.running.load(Ordering::Relaxed)]
    }

    /// The verdict at the timeout.
    fn liveness(&self) -> Liveness {
        if let Some(why) = helper::stop_reason(self.measured_pids()[0]) {
            return Liveness::Stopped(why);
        }
        let Some((before, schedule_count)) = &self.work else {
            return Liveness::Unknown("the probe had no time".to_owned());
        };
        let time = self.question.timeout();
        let reason = self.why.clone().unwrap_or_else(|| "no answer".to_owned());
        let (work, now) = self.work_so_far();
        let (work, why) = match self.broken {
            0 => (Some(work.since(before)), format!("{reason} within {:.1} s", time.as_secs_f64())),
            _ => (None, reason),
        };
        let load = || client_load::describe_load(&self.question.door, &self.daemon_uids);
        work::liveness(self.question.pid, work, self.broken == 0 && now != *schedule_count, time, why, load)
    }
}

fn collect(mut waiting: BTreeMap<usize, PendingTest>, receiver: &Receiver<Attempt>) -> Vec<LivenessResult> {
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
        let is_over = |waiting: &PendingTest| waited >= waiting.question.timeout() || waiting.broken >= MIN_BROKEN;
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

fn run_commands(question: &Question, running: &AtomicU32, deadline: Duration) -> Result<(), Failure> {
    let execute = |input: Vec<u8>, command: &Vec<String>| execute(question, command, &input, running, deadline);
    question.commands.iter().try_fold(Vec::new(), execute).map(drop)
}

/// The command as the unit's user, with the unit's variables.
fn command_of(question: &Question, words: &[String]) -> std::io::Result<Command> {
    let mut command = match &question.user {
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
    command.env_remove(QUESTIONS).envs(&question.env);
    Ok(command)
}

/// Runs a command and returns its output.
fn execute(
    question: &Question,
    command: &[String],
    input: &[u8],
    running: &AtomicU32,
    deadline: Duration,
) -> Result<Vec<u8>, Failure> {
    let Some(program) = command.first() else { return Ok(Vec::new()) };
    let not_executed = |error: std::io::Error| Failure::NotExecuted(format!("`{program}` cannot be executed: {error}"));
    let child = command_of(question, command).and_then(|mut command| Running::start(&mut command, input));
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

/// Whether a Slurm command reports that it could not even send the request (`fatal()` in its `src/common/log.c`), such as for a mistake in
/// slurm.conf, which the command reads now and the daemon has read long ago.
fn has_fatal_error(program: &str, stderr: &[u8]) -> bool {
    let word = format!("{}: fatal: ", program.rsplit('/').next().unwrap_or(program));
    String::from_utf8_lossy(stderr).lines().any(|line| line.starts_with(&word))
}

/// How much of a command's message is read, in bytes.
const MAX_OUTPUT: usize = 1 << 20;
/// How much of a command's message is kept, in characters.
const MAX_LINE: usize = 200;

fn first_line(text: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(text);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    Some(model::printable::short(line, MAX_LINE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::ReadinessTest;
    use machine::UnitId;

    fn words(command: &[&str]) -> Vec<String> {
        command.iter().map(ToString::to_string).collect()
    }

    fn unit() -> UnitId {
        serde_json::from_str("7").unwrap()
    }

    /// Tests a process with these commands.
    fn liveness(commands: &[&[&str]], pid: u32) -> Liveness {
        let question = Question {
            unit: unit(),
            pid: i32::try_from(pid).unwrap(),
            commands: commands.iter().map(|command| words(command)).collect(),
            timeout_ms: 500,
            door: ReadinessTest::Started,
            user: None,
            env: BTreeMap::new(),
        };
        let (sender, receiver) = channel();
        let probe = question.clone();
        let waiting = PendingTest::new(question, Rc::default());
        let running = Arc::clone(&waiting.running);
        let attempt = move || run_commands(&probe, &running, Duration::from_secs(9));
        std::thread::spawn(move || retry_until_answer(0, attempt, &sender));
        let mut answers = collect(BTreeMap::from([(0, waiting)]), &receiver);
        assert_eq!((answers.len(), answers[0].unit), (1, unit()));
        answers.remove(0).liveness
    }

    /// A sleeping child, killed when dropped.
    struct Sleeper(std::process::Child);

    impl Sleeper {
        #[expect(clippy::disallowed_methods, reason = "a test is not PID 1")]
        fn new(command: &[&str]) -> Self {
            Self(Command::new(command[0]).args(&command[1..]).spawn().unwrap())
        }
    }

    /// Waits for a state of proc_pid_stat(5). A program that is still being loaded may be in state D.
    fn wait_for_state(pid: u32, state: char) {
        while !std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(&format!(") {state} ")) {
            std::thread::yield_now();
        }
    }

    impl Drop for Sleeper {
        #[expect(clippy::disallowed_methods, reason = "a test is not PID 1")]
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    #[test]
    fn pipes_output_to_next_command() {
        assert_eq!(liveness(&[&["printf", "a\\n"], &["grep", "-q", "a"]], std::process::id()), Liveness::Answers);
    }

    #[test]
    fn reason_has_timeout_or_message() {
        let idle = Sleeper::new(&["sleep", "60"]);
        // On a fully loaded machine, an idle process cannot be recognized as idle.
        let why = |commands: &[&[&str]]| match liveness(commands, idle.0.id()) {
            Liveness::Silent(why) | Liveness::Slow(why) => why,
            other => panic!("{other:?}"),
        };
        assert!(why(&[&["sleep", "60"]]).starts_with("no answer within 0.5 s"));
        let refused = why(&[&["sh", "-c", "echo refused >&2; exit 3"]]);
        assert!(refused.contains("refused"), "{refused}");
    }

    #[test]
    fn idle_process_is_silent_and_busy_process_is_slow() {
        let idle = Sleeper::new(&["sleep", "60"]);
        wait_for_state(idle.0.id(), 'S');
        let after = |work| {
            let pid = i32::try_from(idle.0.id()).unwrap();
            let (work, time) = (Some(Duration::from_millis(work)), Duration::from_secs(3));
            work::liveness(pid, work, true, time, "no answer".to_owned(), || None)
        };
        assert_eq!(after(5), Liveness::Silent("no answer".to_owned()));
        assert!(matches!(after(500), Liveness::Slow(_)));
    }

    #[test]
    fn process_starved_of_cpu_time_is_slow() {
        let busy = Sleeper::new(&["sh", "-c", "while :; do :; done"]);
        wait_for_state(busy.0.id(), 'R');
        let pid = i32::try_from(busy.0.id()).unwrap();
        let time = Duration::from_secs(3);
        let liveness = work::liveness(pid, Some(Duration::ZERO), false, time, "no answer".to_owned(), || None);
        assert!(matches!(liveness, Liveness::Slow(_)), "{liveness:?}");
    }

    #[test]
    fn detects_stopped_and_overloaded_processes() {
        let idle = Sleeper::new(&["sleep", "60"]);
        wait_for_state(idle.0.id(), 'S');
        let pid = i32::try_from(idle.0.id()).unwrap();
        let liveness = |runs| {
            let load = || Some("60 connections".to_owned());
            work::liveness(pid, Some(Duration::ZERO), runs, Duration::from_secs(3), "no answer".to_owned(), load)
        };
        assert_eq!(liveness(true), Liveness::Overloaded("no answer; 60 connections".to_owned()));
        assert_eq!(liveness(false), Liveness::Silent("no answer".to_owned()), "a deadlock also collects connections");
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGSTOP).unwrap();
        wait_for_state(idle.0.id(), 'T');
        assert!(matches!(liveness(true), Liveness::Stopped(_)));
    }

    #[test]
    fn traced_process_is_unknown() {
        let traced = Sleeper::new(&["sleep", "60"]);
        let pid = nix::unistd::Pid::from_raw(i32::try_from(traced.0.id()).unwrap());
        // The tracee is detached when this thread ends.
        nix::sys::ptrace::seize(pid, nix::sys::ptrace::Options::empty()).unwrap();
        let Liveness::Unknown(why) = liveness(&[&["sleep", "60"]], traced.0.id()) else { panic!("expected Unknown") };
        assert!(why.contains("is debugging it"), "{why}");
    }

    #[test]
    fn working_process_is_slow() {
        let busy = Sleeper::new(&["sh", "-c", "while :; do :; done"]);
        assert!(matches!(liveness(&[&["sleep", "60"]], busy.0.id()), Liveness::Slow(_)));
    }

    #[test]
    fn busy_process_with_dead_helper_is_silent() {
        let busy = Sleeper::new(&["sh", "-c", "while :; do :; done"]);
        let pid = i32::try_from(busy.0.id()).unwrap();
        let waiting = PendingTest::new(
            Question {
                unit: unit(),
                pid,
                commands: vec![],
                timeout_ms: 500,
                door: ReadinessTest::Started,
                user: None,
                env: BTreeMap::new(),
            },
            Rc::default(),
        );
        let (sender, receiver) = channel();
        let broken = || Err(Failure::Failed { why: "its helper is dead".to_owned(), broken: true });
        std::thread::spawn(move || retry_until_answer(0, broken, &sender));
        let answers = collect(BTreeMap::from([(0, waiting)]), &receiver);
        assert_eq!(answers[0].liveness, Liveness::Silent("its helper is dead".to_owned()));
    }

    #[test]
    fn retries_after_refusal() {
        let directory = tempfile::tempdir().unwrap();
        let flag = directory.path().join("flag").display().to_string();
        let script = format!("test -e {flag} && exit 0; touch {flag}; exit 1");
        assert_eq!(liveness(&[&["sh", "-c", &script]], std::process::id()), Liveness::Answers);
    }

    #[test]
    fn fatal_command_error_is_unknown() {
        let idle = Sleeper::new(&["sleep", "60"]);
        let directory = tempfile::tempdir().unwrap();
        let scontrol = directory.path().join("scontrol");
        let liveness_of = |line: &str| {
            std::fs::write(&scontrol, format!("echo 'scontrol: error: no such key' >&2; echo '{line}' >&2; exit 1\n"))
                .unwrap();
            liveness(&[&["sh", scontrol.to_str().unwrap()]], idle.0.id())
        };
        assert!(matches!(liveness_of("Slurmctld(primary) at node1 is DOWN"), Liveness::Silent(_) | Liveness::Slow(_)));
        let Liveness::Unknown(why) = liveness_of("sh: fatal: Unable to process configuration file") else {
            panic!("expected Unknown")
        };
        assert!(why.ends_with("no such key"), "the first line is the cause: {why}");
    }

    #[test]
    fn missing_probe_or_process_is_unknown() {
        let Liveness::Unknown(why) = liveness(&[&["/no/such/probe"]], 1) else { panic!("expected Unknown") };
        assert!(why.contains("/no/such/probe"), "{why}");
        let gone = Sleeper::new(&["true"]).0.id();
        assert!(matches!(liveness(&[&["sleep", "60"]], gone), Liveness::Unknown(_)));
    }
}
