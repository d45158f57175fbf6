//! `slurminit liveness`: asks the daemons whether they still answer.
//!
//! PID 1 runs it as a child, once each interval and never twice at a time, so it may wait. It tells a hung daemon from a
//! slow one, and its own clock from the machine's: time in which this process could not run does not count.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::exit_code;
use crate::supervise::liveness::{Answer, Question, Verdict};

mod crowd;
mod helper;
mod people;
mod stuck;
mod work;

/// Its command line.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The questions, as JSON
    questions: String,
}

/// Does it.
pub fn run(args: Args) -> anyhow::Result<u8> {
    let questions: Vec<Question> = serde_json::from_str(&args.questions).context("the questions are no JSON")?;
    let (said, hear) = channel();
    people::offer(Path::new("/"), questions.iter().map(|question| question.pid));
    let own: Rc<BTreeSet<u32>> = Rc::new(crowd::own_users(questions.iter().map(|question| question.pid)));
    let waiting = questions.into_iter().map(|question| Waiting::new(question, Rc::clone(&own)));
    let waiting: BTreeMap<_, _> = waiting.enumerate().collect();
    for (index, waiting) in &waiting {
        let (index, said) = (*index, said.clone());
        let (commands, running) = (waiting.question.commands.clone(), Arc::clone(&waiting.running));
        let pid = u32::try_from(waiting.question.pid).unwrap_or_default();
        let attempt = move || ask(&commands, &running).and_then(|()| helper::look(pid));
        std::thread::Builder::new().spawn(move || ask_until_it_answers(index, attempt, &said))?;
    }
    let mut lines = Vec::new();
    let answers = listen(waiting, &hear);
    for answer in &answers {
        serde_json::to_writer(&mut lines, answer)?;
        lines.push(b'\n');
    }
    // At once: PID 1 wakes up for it, and judges when this process ends.
    std::io::stdout().lock().write_all(&lines)?;
    // A verdict must not wait for it, and Slurm can say nothing of jobs else.
    if answers.iter().all(|answer| answer.verdict == Verdict::Answers) {
        stuck::end(Path::new("/"));
    }
    Ok(exit_code::SUCCESS)
}

/// Why a question brought no answer.
#[derive(Debug)]
enum Failure {
    /// The command could not be executed.
    NotAsked(String),
    /// It failed; the daemon may be at its own restart, so it is asked again. A daemon that is broken has no excuse in being
    /// busy.
    Failed { why: String, broken: bool },
}

/// One more try came to this end.
type Try = (usize, Result<(), Failure>);

/// A daemon that configures itself anew closes its port for a moment.
const AGAIN: Duration = Duration::from_millis(250);
/// A daemon that is so often seen to be broken is not at its own restart.
const CERTAIN: u32 = 5;
/// The longest that one wait counts for twice over: a frozen container, or a machine that gives this process no CPU, is
/// no evidence against the daemon.
const SLICE: Duration = Duration::from_millis(100);

/// A question without an answer so far.
struct Waiting {
    question: Question,
    /// The command that runs now.
    running: Arc<AtomicU32>,
    /// What the process had done when the answer began to be late, and how often it had run.
    work: Option<(work::Work, u64)>,
    /// The users of all daemons.
    own: Rc<BTreeSet<u32>>,
    why: Option<String>,
    /// How often in a row it was seen to be broken.
    broken: u32,
}

impl Waiting {
    fn new(question: Question, own: Rc<BTreeSet<u32>>) -> Self {
        Self { question, running: Arc::default(), work: None, own, why: None, broken: 0 }
    }

    fn answer(&self, verdict: Verdict) -> Answer {
        Answer { unit: self.question.unit, verdict }
    }

    /// What it and the command that asks it have done so far.
    fn done(&self) -> (work::Work, u64) {
        let [daemon, _] = self.who_works();
        (work::Work::of(&self.who_works()), work::turns(daemon))
    }

    /// The daemon, and the command that asks it: that one may have had no CPU either.
    fn who_works(&self) -> [u32; 2] {
        let daemon = u32::try_from(self.question.pid).unwrap_or_default();
        [daemon, self.running.load(Ordering::Relaxed)]
    }

    /// The time is over.
    fn verdict(&self) -> Verdict {
        let Some((before, turns)) = &self.work else { return Verdict::Unknown("the probe had no time".to_owned()) };
        let time = self.question.timeout();
        let seen = self.why.clone().unwrap_or_else(|| "no answer".to_owned());
        let (done, now) = self.done();
        let (work, why) = match self.broken {
            0 => (done.since(before), format!("{seen} within {:.1} s", time.as_secs_f64())),
            _ => (Duration::ZERO, seen),
        };
        let crowd = || crowd::at(self.question.door.as_ref()?, &self.own);
        work::verdict(self.question.pid, work, self.broken == 0 && now != *turns, time, why, crowd)
    }
}

fn listen(mut waiting: BTreeMap<usize, Waiting>, hear: &Receiver<Try>) -> Vec<Answer> {
    let mut answers = Vec::new();
    let mut waited = Duration::ZERO;
    while !waiting.is_empty() {
        let begin = Instant::now();
        let heard = hear.recv_timeout(SLICE);
        waited += begin.elapsed().min(2 * SLICE);
        match heard {
            Ok((index, Ok(()))) => answers.extend(waiting.remove(&index).map(|w| w.answer(Verdict::Answers))),
            Ok((index, Err(Failure::NotAsked(why)))) => {
                answers.extend(waiting.remove(&index).map(|w| w.answer(Verdict::Unknown(why))));
            }
            Ok((index, Err(Failure::Failed { why, broken }))) => {
                if let Some(waiting) = waiting.get_mut(&index) {
                    (waiting.why, waiting.broken) = (Some(why), if broken { waiting.broken + 1 } else { 0 });
                }
            }
            Err(_) => {}
        }
        let is_over = |waiting: &Waiting| waited >= waiting.question.timeout() || waiting.broken >= CERTAIN;
        let (over, rest): (BTreeMap<_, _>, _) = waiting.into_iter().partition(|(_, waiting)| is_over(waiting));
        answers.extend(over.into_values().map(|waiting| waiting.answer(waiting.verdict())));
        waiting = rest;
        if waited >= SLICE {
            for waiting in waiting.values_mut().filter(|waiting| waiting.work.is_none()) {
                waiting.work = Some(waiting.done());
            }
        }
    }
    answers
}

#[expect(clippy::disallowed_methods, reason = "what refuses at once can only be asked again after a while")]
fn ask_until_it_answers(index: usize, attempt: impl Fn() -> Result<(), Failure>, said: &Sender<Try>) {
    loop {
        let result = attempt();
        let again = matches!(result, Err(Failure::Failed { .. }));
        if said.send((index, result)).is_err() || !again {
            return;
        }
        std::thread::sleep(AGAIN);
    }
}

fn ask(commands: &[Vec<String>], running: &AtomicU32) -> Result<(), Failure> {
    commands.iter().try_fold(Vec::new(), |input, command| execute(command, &input, running)).map(drop)
}

/// Runs one command; returns what it wrote.
#[expect(clippy::disallowed_methods, reason = "this is a child of PID 1, and waits for its own children only")]
fn execute(command: &[String], input: &[u8], running: &AtomicU32) -> Result<Vec<u8>, Failure> {
    let Some((program, arguments)) = command.split_first() else { return Ok(Vec::new()) };
    let not_asked = |error: std::io::Error| Failure::NotAsked(format!("`{program}` cannot be executed: {error}"));
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(if input.is_empty() { Stdio::null() } else { Stdio::piped() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(not_asked)?;
    running.store(child.id(), Ordering::Relaxed);
    if let Some(mut stdin) = child.stdin.take() {
        // One that does not want it says so by its code.
        let _ = stdin.write_all(input);
    }
    let output = child.wait_with_output().map_err(not_asked)?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let first_line = [output.stderr, output.stdout].iter().find_map(|text| first_line(text));
    let said = first_line.unwrap_or_else(|| output.status.to_string());
    Err(Failure::Failed { why: format!("`{}`: {said}", command.join(" ")), broken: false })
}

/// Enough of what a command said to know what it meant.
const LINE: usize = 200;

fn first_line(text: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(text);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    Some(crate::printable::short(line, LINE))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(command: &[&str]) -> Vec<String> {
        command.iter().map(ToString::to_string).collect()
    }

    /// The verdicts on a process that does nothing, asked by these commands.
    fn verdict(commands: &[&[&str]], pid: u32) -> Verdict {
        let question = Question {
            unit: 7,
            pid: i32::try_from(pid).unwrap(),
            commands: commands.iter().map(|command| words(command)).collect(),
            timeout_ms: 500,
            door: None,
        };
        let (said, hear) = channel();
        let commands = question.commands.clone();
        let waiting = Waiting::new(question, Rc::default());
        let running = Arc::clone(&waiting.running);
        std::thread::spawn(move || ask_until_it_answers(0, || ask(&commands, &running), &said));
        let mut answers = listen(BTreeMap::from([(0, waiting)]), &hear);
        assert_eq!((answers.len(), answers[0].unit), (1, 7));
        answers.remove(0).verdict
    }

    /// A child that sleeps, and is gone with this value.
    struct Sleeper(std::process::Child);

    impl Sleeper {
        #[expect(clippy::disallowed_methods, reason = "a test is nobody's PID 1")]
        fn new(command: &[&str]) -> Self {
            Self(Command::new(command[0]).args(&command[1..]).spawn().unwrap())
        }
    }

    impl Drop for Sleeper {
        #[expect(clippy::disallowed_methods, reason = "a test is nobody's PID 1")]
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    #[test]
    fn what_one_command_writes_the_next_one_reads() {
        assert_eq!(verdict(&[&["printf", "a\\n"], &["grep", "-q", "a"]], std::process::id()), Verdict::Answers);
    }

    #[test]
    fn the_reason_is_what_was_seen_or_said() {
        let idle = Sleeper::new(&["sleep", "60"]);
        // On a machine without a free CPU nobody can tell that it is idle.
        let why = |commands: &[&[&str]]| match verdict(commands, idle.0.id()) {
            Verdict::Silent(why) | Verdict::Slow(why) => why,
            other => panic!("{other:?}"),
        };
        assert!(why(&[&["sleep", "60"]]).starts_with("no answer within 0.5 s"));
        let refused = why(&[&["sh", "-c", "echo refused >&2; exit 3"]]);
        assert!(refused.contains("refused"), "{refused}");
    }

    #[test]
    fn who_did_nothing_is_silent_and_who_worked_is_slow() {
        let idle = Sleeper::new(&["sleep", "60"]);
        let after = |work| {
            let pid = i32::try_from(idle.0.id()).unwrap();
            let (work, time) = (Duration::from_millis(work), Duration::from_secs(3));
            work::verdict(pid, work, true, time, "no answer".to_owned(), || None)
        };
        assert_eq!(after(5), Verdict::Silent("no answer".to_owned()));
        assert!(matches!(after(500), Verdict::Slow(_)));
    }

    #[test]
    fn who_was_stopped_is_no_question_of_time_and_who_runs_in_a_crowd_is_not_silent() {
        let idle = Sleeper::new(&["sleep", "60"]);
        let pid = i32::try_from(idle.0.id()).unwrap();
        let verdict = |runs| {
            let crowd = || Some("60 connections".to_owned());
            work::verdict(pid, Duration::ZERO, runs, Duration::from_secs(3), "no answer".to_owned(), crowd)
        };
        assert_eq!(verdict(true), Verdict::Overloaded("no answer; 60 connections".to_owned()));
        assert_eq!(verdict(false), Verdict::Silent("no answer".to_owned()), "a deadlock collects connections, too");
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGSTOP).unwrap();
        while !std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") T ") {
            std::thread::yield_now();
        }
        assert!(matches!(verdict(true), Verdict::Stopped(_)));
    }

    #[test]
    #[expect(unsafe_code, reason = "ptrace has no safe wrapper here")]
    fn a_process_that_is_being_debugged_is_left_alone() {
        let traced = Sleeper::new(&["sleep", "60"]);
        let pid = i32::try_from(traced.0.id()).unwrap();
        // SAFETY: the addresses are not used; the tracer's end detaches it.
        assert_eq!(unsafe { nix::libc::ptrace(nix::libc::PTRACE_SEIZE, pid, 0, 0) }, 0);
        let Verdict::Unknown(why) = verdict(&[&["sleep", "60"]], traced.0.id()) else { panic!("a verdict") };
        assert!(why.contains("is debugging it"), "{why}");
    }

    #[test]
    fn a_process_that_works_is_slow() {
        let busy = Sleeper::new(&["sh", "-c", "while :; do :; done"]);
        assert!(matches!(verdict(&[&["sleep", "60"]], busy.0.id()), Verdict::Slow(_)));
    }

    #[test]
    fn a_process_that_works_and_is_seen_to_be_broken_is_silent() {
        let busy = Sleeper::new(&["sh", "-c", "while :; do :; done"]);
        let pid = i32::try_from(busy.0.id()).unwrap();
        let waiting =
            Waiting::new(Question { unit: 7, pid, commands: vec![], timeout_ms: 500, door: None }, Rc::default());
        let (said, hear) = channel();
        let broken = || Err(Failure::Failed { why: "its helper is dead".to_owned(), broken: true });
        std::thread::spawn(move || ask_until_it_answers(0, broken, &said));
        let answers = listen(BTreeMap::from([(0, waiting)]), &hear);
        assert_eq!(answers[0].verdict, Verdict::Silent("its helper is dead".to_owned()));
    }

    #[test]
    fn one_that_refuses_for_a_moment_answers() {
        let directory = tempfile::tempdir().unwrap();
        let flag = directory.path().join("flag").display().to_string();
        let script = format!("test -e {flag} && exit 0; touch {flag}; exit 1");
        assert_eq!(verdict(&[&["sh", "-c", &script]], std::process::id()), Verdict::Answers);
    }

    #[test]
    fn a_probe_that_cannot_run_and_a_process_that_is_gone_say_nothing() {
        let Verdict::Unknown(why) = verdict(&[&["/no/such/probe"]], 1) else { panic!("a verdict") };
        assert!(why.contains("/no/such/probe"), "{why}");
        let gone = Sleeper::new(&["true"]).0.id();
        assert!(matches!(verdict(&[&["sleep", "60"]], gone), Verdict::Unknown(_)));
    }
}
