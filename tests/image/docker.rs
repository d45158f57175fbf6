//! Containers, volumes and mounted files that clean up after themselves.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

#[path = "share.rs"]
pub(crate) mod share;

/// The image without GPUs. docker/test builds all five.
pub(crate) const PLAIN: &str = "slurminit:test";
/// Simulated GPUs.
pub(crate) const DEMO: &str = "slurminit:test-demo";
/// AMD's pieces inside.
pub(crate) const AMD: &str = "slurminit:test-amd";
/// Simulated GPUs on Debian 12, with Slurm 22.05.
pub(crate) const BOOKWORM: &str = "slurminit:test-bookworm";

/// With MariaDB and slurmdbd.
pub(crate) const ACCOUNTING: &str = "slurminit:test-accounting";

/// Whether this part of docker/test has the image: SLURMINIT_TEST_BUILT names its images, `plain demo accounting` by default.
pub(crate) fn is_built(image: &str) -> bool {
    let built = std::env::var("SLURMINIT_TEST_BUILT").unwrap_or_else(|_| "plain demo accounting".to_owned());
    let name = image.strip_prefix(PLAIN).and_then(|name| name.strip_prefix('-')).unwrap_or("plain");
    built.split_whitespace().any(|built| built == name)
}

/// Those of the images that this part of docker/test has.
#[track_caller]
pub(crate) fn built<const N: usize>(images: [&'static str; N]) -> Vec<&'static str> {
    let built: Vec<_> = images.into_iter().filter(|image| is_built(image)).collect();
    assert!(!built.is_empty(), "SLURMINIT_TEST_BUILT names none of {images:?}");
    built
}

/// The image, or Debian 12's in the part `debian12` of docker/test.
#[track_caller]
pub(crate) fn debians(image: &'static str) -> Vec<&'static str> {
    built([image, BOOKWORM])
}

/// Its tag on this machine: two checkouts that are tested side by side have images of their own.
pub(crate) fn tag(image: &str) -> String {
    let own = std::env::var("SLURMINIT_TEST_IMAGE").unwrap_or_else(|_| PLAIN.to_owned());
    image.replacen(PLAIN, &own, 1)
}

/// What a docker command left.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Outcome {
    /// What a command under `timeout` left; one that was killed counts as too slow.
    pub(crate) fn of(output: &std::process::Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let code = output.status.code().unwrap_or(124);
        Self { code, stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }

    /// Standard output of a command that must have succeeded.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, 0, "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self.stdout
    }
}

/// Runs docker to its end. What it creates is labelled, and the test has its share of the machine before the first container.
pub(crate) fn docker<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(arguments: I) -> Outcome {
    let mut arguments: Vec<OsString> = arguments.into_iter().map(|word| word.as_ref().to_owned()).collect();
    let words: Vec<&str> = arguments.iter().take(2).filter_map(|word| word.to_str()).collect();
    let options = match words[..] {
        ["run" | "create", ..] => {
            share::hold_one();
            1
        }
        ["build", ..] => 1,
        ["volume" | "network", "create"] => 2,
        _ => 0,
    };
    if options > 0 {
        arguments.splice(options..options, ["--label".into(), label().into()]);
    }
    let output = Command::new("docker").args(arguments).stdin(Stdio::null()).output().expect("docker is installed");
    Outcome::of(&output)
}

/// The label of everything that tests create in Docker, by which docker/test removes what a killed run left behind.
pub(crate) fn label() -> &'static str {
    static LABEL: LazyLock<String> = LazyLock::new(|| {
        let run = std::env::var("SLURMINIT_TEST_RUN").unwrap_or_else(|_| std::process::id().to_string());
        format!("slurminit.test={run}")
    });
    &LABEL
}

/// `docker exec`. Its client, two daemons and a shim take as much time of the CPU as runc, to which they hand the command in the end, and
/// the tests execute thousands: where SLURMINIT_TEST_RUNC names the directory in which the engine's runc keeps its containers, it is asked
/// itself.
fn exec(container: &str, command: &[&str]) -> Outcome {
    static IDS: LazyLock<Mutex<HashMap<String, String>>> = LazyLock::new(Mutex::default);
    let Some(root) = std::env::var_os("SLURMINIT_TEST_RUNC") else {
        return docker(["exec", container].iter().chain(command));
    };
    let known = IDS.lock().unwrap_or_else(PoisonError::into_inner).get(container).cloned();
    let id = known.unwrap_or_else(|| {
        let id = docker(["inspect", "--format", "{{.Id}}", container]).ok().trim().to_owned();
        IDS.lock().unwrap_or_else(PoisonError::into_inner).insert(container.to_owned(), id.clone());
        id
    });
    let mut runc = Command::new("runc");
    runc.arg("--root").arg(root).args(["exec", &id]).args(command).stdin(Stdio::null());
    Outcome::of(&runc.output().expect("runc is installed"))
}

/// A name that no other test has, also not one of another run.
pub(crate) fn unique(what: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("slurminit-test-{}-{}-{what}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Runs the cases, so many at a time. The results are in the order of the cases.
pub(crate) fn side_by_side<C: Sync, R: Send>(limit: usize, cases: &[C], run: impl Fn(&C) -> R + Sync) -> Vec<R> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..limit {
            scope.spawn(|| {
                while let Some((index, case)) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|index| Some((index, cases.get(index)?)))
                {
                    let result = run(case);
                    results.lock().unwrap_or_else(PoisonError::into_inner).push((index, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// A container to be: image, options, command.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    image: String,
    options: Vec<String>,
    command: Vec<String>,
    healthcheck: bool,
}

impl Image {
    pub(crate) fn new(image: &str) -> Self {
        Self { image: tag(image), options: Vec::new(), command: Vec::new(), healthcheck: false }
    }

    /// With a log for programs, in which slurminit's own events have a kind.
    pub(crate) fn json_log(self) -> Self {
        self.with(["--env", "SLURMINIT_LOG_FORMAT=json"])
    }

    /// With the image's HEALTHCHECK. The others do without: each check is a command that the engine executes.
    pub(crate) fn with_healthcheck(mut self) -> Self {
        self.healthcheck = true;
        self
    }

    /// The options of `docker run`.
    fn options(&self) -> impl Iterator<Item = &str> {
        let without = (!self.healthcheck).then_some("--no-healthcheck");
        without.into_iter().chain(self.options.iter().map(String::as_str))
    }

    /// One option of `docker run`, such as `["--env", "A=b"]`.
    pub(crate) fn with<const N: usize>(mut self, option: [&str; N]) -> Self {
        self.options.extend(option.map(str::to_owned));
        self
    }

    /// What `start` and `serve` put behind the image's name.
    pub(crate) fn command<const N: usize>(mut self, command: [&str; N]) -> Self {
        self.command = command.map(str::to_owned).to_vec();
        self
    }

    /// A host file or directory at `target`, read-only.
    pub(crate) fn mount(self, source: &Path, target: &str) -> Self {
        self.with(["--volume", &format!("{}:{target}:ro", source.display())])
    }

    pub(crate) fn volume(self, volume: &Volume, target: &str) -> Self {
        self.with(["--volume", &format!("{}:{target}", volume.name)])
    }

    /// `docker run --rm IMAGE COMMAND`, as a user types it. A container that hangs is ended after three minutes, with 124.
    pub(crate) fn run(&self, command: &[&str]) -> Outcome {
        let name = unique("run");
        let container = Container { name };
        share::hold_one();
        let output = Command::new("timeout")
            .args(["--kill-after=1", "180", "docker", "run", "--rm", "--label", label(), "--name", &container.name])
            .args(self.options())
            .arg(&self.image)
            .args(command)
            .stdin(Stdio::null())
            .output()
            .expect("docker is installed");
        Outcome::of(&output)
    }

    /// `docker run -d IMAGE`, without waiting.
    pub(crate) fn start(&self) -> Container {
        let container = Container { name: unique("serve") };
        let mut arguments = vec!["run", "--detach", "--name", &container.name];
        arguments.extend(self.options());
        arguments.push(&self.image);
        arguments.extend(self.command.iter().map(String::as_str));
        docker(arguments).ok();
        container
    }

    /// `docker run -d IMAGE`, ready.
    #[track_caller]
    pub(crate) fn serve(&self) -> Container {
        let container = self.start();
        container.wait_until_healthy();
        container
    }
}

/// Has slurmctld save, and waits for it: a text that it did not have before is in both of its files.
const SAVED: &str = r#"word=saved-$(date +%s%N); state=/var/lib/slurm/slurmctld
scontrol update nodename="$(sinfo --noheader --Node --format=%N | head -n 1)" comment="$word" || exit
job=$(squeue --noheader --format=%A | head -n 1)
[ -z "$job" ] || scontrol update jobid="$job" comment="$word" || exit
tries=0
until grep -q "$word" $state/node_state && { [ -z "$job" ] || grep -q "$word" $state/job_state; }; do
    [ $((tries += 1)) -lt 1200 ] || exit 1; sleep 0.05
done"#;

/// Puts a program that counts in front of scontrol. Replaced at once, so that no check finds it missing.
const COUNT_ROUNDS: &str = r#"[ -e /run/scontrol ] || {
    cp "$(readlink -f /usr/bin/scontrol)" /run/scontrol
    printf '#!/bin/sh\ngrep -qa liveness "/proc/$PPID/cmdline" && echo >>/run/rounds\nexec /run/scontrol "$@"\n' >/run/counting
    chmod 755 /run/counting && mv /run/counting /usr/bin/scontrol
}
: >/run/rounds"#;

/// Whether a record is one that the lack of CPU alone can cause.
pub(crate) fn is_of_a_busy_machine(record: &Value) -> bool {
    ["preparation-slow", "unit-starts-slowly", "unit-slow", "liveness-unknown"]
        .iter()
        .any(|kind| record["kind"] == *kind)
}

/// The text of a record: slurminit's own messages are constant, and have it beside their data.
pub(crate) fn text(record: &Value) -> &str {
    record["text"].as_str().or_else(|| record["message"].as_str()).unwrap_or_default()
}

/// The records of a JSON log, slurminit's own and others.
pub(crate) fn records(log: &str) -> Vec<Value> {
    log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// A container that goes away with this value.
#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) name: String,
}

impl Container {
    pub(crate) fn exec(&self, command: &[&str]) -> Outcome {
        exec(&self.name, command)
    }

    /// A shell line inside; what it prints, without the last newline.
    #[track_caller]
    pub(crate) fn sh(&self, line: &str) -> String {
        self.exec(&["sh", "-c", line]).ok().trim_end().to_owned()
    }

    #[track_caller]
    pub(crate) fn wait_until_healthy(&self) {
        let outcome = self.exec(&["slurminit", "health", "--wait", "180"]);
        assert_eq!(outcome.code, 0, "not ready: {}{}\n{}", outcome.stdout, outcome.stderr, self.log());
    }

    /// Until PID 1 holds TERM back or catches it; before that the kernel drops it.
    #[track_caller]
    pub(crate) fn wait_for_handlers(&self) {
        let pid = docker(["inspect", "--format", "{{.State.Pid}}", &self.name]).ok();
        let status = format!("/proc/{}/status", pid.trim());
        let deadline = Instant::now() + Duration::from_secs(120);
        let has_term = |line: &str| {
            let mask = line.strip_prefix("SigBlk:").or_else(|| line.strip_prefix("SigCgt:"));
            mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask >> 14 & 1 == 1)
        };
        while !std::fs::read_to_string(&status).unwrap_or_default().lines().any(has_term) {
            assert!(Instant::now() < deadline, "{status} shows no handler for TERM");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until a shell condition holds inside; 124 if it does not in so many seconds.
    pub(crate) fn wait_until(&self, seconds: u32, condition: &str) -> Outcome {
        let line = format!("timeout {seconds} sh -c 'until {condition}; do sleep 0.2; done'");
        self.exec(&["sh", "-c", &line])
    }

    /// Waits until a shell condition holds inside, as it must within three minutes.
    #[track_caller]
    pub(crate) fn until(&self, condition: &str) {
        let outcome = self.wait_until(180, condition);
        assert_eq!(outcome.code, 0, "{condition}: {outcome:?}");
    }

    /// Waits until the log has these words, as it must within two minutes. For the words of Slurm and of other programs: slurminit's
    /// messages change, and what they are about is in its state, or in `records`. How long it took.
    #[track_caller]
    pub(crate) fn until_said(&self, words: &str) -> Duration {
        let begin = Instant::now();
        self.until_log(words, |log| log.contains(words));
        begin.elapsed()
    }

    /// Waits until the log is so, as it must within two minutes.
    #[track_caller]
    pub(crate) fn until_log(&self, what: &str, is_so: impl Fn(&str) -> bool) {
        let begin = Instant::now();
        while !is_so(&self.log()) {
            assert!(begin.elapsed() < Duration::from_secs(120), "never logged: {what}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits until slurminit has logged an event of this kind, of this unit. Only with `Image::json_log`.
    #[track_caller]
    pub(crate) fn until_logged(&self, kind: &str, unit: Option<&str>) -> Duration {
        let begin = Instant::now();
        let is_it = |record: &Value| record["kind"] == kind && unit.is_none_or(|unit| record["unit"] == unit);
        self.until_log(kind, |log| records(log).iter().any(is_it));
        begin.elapsed()
    }

    /// slurminit's own records of this kind. Only with `Image::json_log`.
    pub(crate) fn records(&self, kind: &str) -> Vec<Value> {
        records(&self.log()).into_iter().filter(|record| record["kind"] == kind).collect()
    }

    /// Everything above information, from whatever source, but what a busy machine alone can cause. Only with `Image::json_log`.
    pub(crate) fn warnings(&self) -> Vec<Value> {
        let is_one = |record: &Value| record["level"] == "warn" || record["level"] == "error";
        records(&self.log()).into_iter().filter(|record| is_one(record) && !is_of_a_busy_machine(record)).collect()
    }

    /// `slurminit status --json`.
    #[track_caller]
    pub(crate) fn status(&self) -> Value {
        serde_json::from_str(&self.sh("slurminit status --json")).expect("the status is JSON")
    }

    /// A daemon or service in the status.
    #[track_caller]
    pub(crate) fn unit(&self, name: &str) -> Value {
        let status = self.status();
        let units = status["units"].as_array().cloned().unwrap_or_default();
        let unit = units.into_iter().find(|unit| unit["name"] == name);
        assert!(unit.is_some(), "no unit {name}: {status:#}");
        unit.unwrap_or_default()
    }

    /// Waits until slurmctld has written down what it knows now of nodes and jobs, as it does every 5 s.
    #[track_caller]
    pub(crate) fn until_saved(&self) {
        self.sh(SAVED);
    }

    /// Waits for whole rounds of liveness checks, by counting how often slurminit executes `scontrol ping`.
    #[track_caller]
    pub(crate) fn until_liveness_rounds(&self, rounds: u32) {
        self.sh(COUNT_ROUNDS);
        // One that has begun need not have ended.
        self.until(&format!("[ \"$(wc -l </run/rounds)\" -gt {rounds} ]"));
    }

    /// Everything that the container wrote.
    pub(crate) fn log(&self) -> String {
        let outcome = docker(["logs", &self.name]);
        outcome.stdout + &outcome.stderr
    }

    /// `docker stop`: the container's exit code. That of KILL, 137, comes after two minutes: a busy machine takes longer than Docker's 10 s.
    #[track_caller]
    pub(crate) fn stop(&self) -> i32 {
        docker(["stop", "--time", "120", &self.name]).ok();
        self.exit_code()
    }

    /// Waits for the end of the container.
    #[track_caller]
    pub(crate) fn exit_code(&self) -> i32 {
        docker(["wait", &self.name]).ok().trim().parse().expect("docker wait prints a number")
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // Only a test that fails shows what is printed.
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            println!("the last lines of {}:\n{}", self.name, lines[lines.len().saturating_sub(60)..].join("\n"));
        }
        // `docker run --rm` has mostly removed it already.
        docker(["rm", "--force", "--volumes", &self.name]);
    }
}

/// A named volume that goes away with this value. Declare it before the containers that use it.
#[derive(Debug)]
pub(crate) struct Volume {
    pub(crate) name: String,
}

impl Volume {
    pub(crate) fn new(what: &str) -> Self {
        let name = unique(what);
        docker(["volume", "create", &name]).ok();
        Self { name }
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        docker(["volume", "rm", "--force", &self.name]);
    }
}

/// A network of its own. Declare it after the containers in it: they are dropped first.
#[derive(Debug)]
pub(crate) struct Network(pub(crate) String);

impl Network {
    #[track_caller]
    pub(crate) fn new() -> Self {
        let network = Self(unique("network"));
        docker(["network", "create", &network.0]).ok();
        network
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        docker(["network", "rm", &self.0]);
    }
}

/// A directory of the operator's, to be mounted at /config.
pub(crate) fn directory(files: &[(&str, &str)]) -> TempDir {
    let directory = TempDir::with_prefix("slurminit-test-").expect("a temporary directory");
    for (name, content) in files {
        fs::write(directory.path().join(name), content).expect("a file in it");
    }
    directory
}
