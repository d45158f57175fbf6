use super::*;
use machine::UnitId;

fn words(command: &[&str]) -> Vec<String> {
    command.iter().map(ToString::to_string).collect()
}

fn unit() -> UnitId {
    serde_json::from_str("7").unwrap()
}

/// A time limit for commands that answer: the load of the machine must not matter.
const LONG: u64 = 60_000;

/// Tests a process with these commands, which have half a second.
fn liveness(commands: &[&[&str]], pid: u32) -> Liveness {
    liveness_within(500, commands, pid)
}

fn liveness_within(timeout_ms: u64, commands: &[&[&str]], pid: u32) -> Liveness {
    let check = LivenessCheck {
        unit: unit(),
        pid: i32::try_from(pid).unwrap(),
        commands: commands.iter().map(|command| words(command)).collect(),
        timeout_ms,
        has_clients: false,
        connects_to_steps: false,
        user: None,
        env: BTreeMap::new(),
    };
    let (sender, receiver) = channel();
    let probe = check.clone();
    let waiting = PendingCheck::new(check);
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
    let commands: &[&[&str]] = &[&["printf", "a\\n"], &["grep", "-q", "a"]];
    assert_eq!(liveness_within(LONG, commands, std::process::id()), Liveness::Answers);
}

#[test]
fn reason_has_timeout_or_message() {
    let idle = Sleeper::new(&["sleep", "60"]);
    wait_for_state(idle.0.id(), 'S');
    // On a fully loaded machine, an idle process cannot be recognized as idle.
    let why = |timeout_ms, commands: &[&[&str]]| match liveness_within(timeout_ms, commands, idle.0.id()) {
        Liveness::Silent(why) | Liveness::Slow(why) => why,
        other => panic!("{other:?}"),
    };
    assert!(why(500, &[&["sleep", "60"]]).starts_with("no answer within 0.5 s"));
    let refused = why(5_000, &[&["sh", "-c", "echo refused >&2; exit 3"]]);
    assert!(refused.contains("refused"), "{refused}");
}

#[test]
fn idle_process_is_silent_and_busy_process_is_slow() {
    let idle = Sleeper::new(&["sleep", "60"]);
    wait_for_state(idle.0.id(), 'S');
    let after = |work| {
        let pid = i32::try_from(idle.0.id()).unwrap();
        let (work, time) = (Some(Duration::from_millis(work)), Duration::from_secs(3));
        work::liveness(pid, work, false, time, "no answer".to_owned())
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
    let liveness = work::liveness(pid, Some(Duration::ZERO), false, time, "no answer".to_owned());
    assert!(matches!(liveness, Liveness::Slow(_)), "{liveness:?}");
}

#[test]
fn detects_stopped_process_and_one_that_clients_may_keep_busy() {
    let idle = Sleeper::new(&["sleep", "60"]);
    wait_for_state(idle.0.id(), 'S');
    let pid = i32::try_from(idle.0.id()).unwrap();
    let liveness = |serves_others| {
        work::liveness(pid, Some(Duration::ZERO), serves_others, Duration::from_secs(3), "no answer".to_owned())
    };
    assert!(matches!(liveness(true), Liveness::Slow(_)));
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
    let waiting = PendingCheck::new(LivenessCheck {
        unit: unit(),
        pid,
        commands: vec![],
        timeout_ms: 500,
        has_clients: false,
        connects_to_steps: false,
        user: None,
        env: BTreeMap::new(),
    });
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
    assert_eq!(liveness_within(LONG, &[&["sh", "-c", &script]], std::process::id()), Liveness::Answers);
}

#[test]
fn fatal_command_error_is_unknown() {
    let idle = Sleeper::new(&["sleep", "60"]);
    wait_for_state(idle.0.id(), 'S');
    let directory = tempfile::tempdir().unwrap();
    let scontrol = directory.path().join("scontrol");
    let liveness_of = |timeout_ms, line: &str| {
        std::fs::write(&scontrol, format!("echo 'scontrol: error: no such key' >&2; echo '{line}' >&2; exit 1\n"))
            .unwrap();
        liveness_within(timeout_ms, &[&["sh", scontrol.to_str().unwrap()]], idle.0.id())
    };
    assert!(matches!(liveness_of(500, "Slurmctld(primary) at node1 is DOWN"), Liveness::Silent(_) | Liveness::Slow(_)));
    let Liveness::Unknown(why) = liveness_of(LONG, "sh: fatal: Unable to process configuration file") else {
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
