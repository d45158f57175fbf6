//! Containers, volumes and mounted files that clean up after themselves.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};

use serde_json::Value;
use tempfile::TempDir;

pub(crate) use container::Container;

#[path = "docker/container.rs"]
mod container;
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
/// With sshd.
pub(crate) const LOGIN: &str = "slurminit:test-login";
/// With sshd on Debian 12.
pub(crate) const BOOKWORM_LOGIN: &str = "slurminit:test-bookworm-login";

/// Whether this part of docker/test has the image: SLURMINIT_TEST_BUILT names its images, `plain demo accounting login` by default.
pub(crate) fn is_built(image: &str) -> bool {
    let built = std::env::var("SLURMINIT_TEST_BUILT").unwrap_or_else(|_| "plain demo accounting login".to_owned());
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
