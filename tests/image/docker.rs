//! Containers, volumes, networks and mounted files that are removed when dropped.

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

/// The image without GPUs.
pub(crate) const PLAIN: &str = "slurminit:test";
/// The image with simulated GPUs.
pub(crate) const DEMO: &str = "slurminit:test-demo";
/// The image with AMD's plugin and tools.
pub(crate) const AMD: &str = "slurminit:test-amd";
/// The image with MariaDB, slurmdbd, slurmrestd and sshd.
pub(crate) const FULL: &str = "slurminit:test-full";

/// Whether this part of docker/test has the image. SLURMINIT_TEST_BUILT lists the images of the part (default
/// `plain demo full`).
pub(crate) fn is_built(image: &str) -> bool {
    let built = std::env::var("SLURMINIT_TEST_BUILT").unwrap_or_else(|_| "plain demo full".to_owned());
    let name = image.strip_prefix(PLAIN).and_then(|name| name.strip_prefix('-')).unwrap_or("plain");
    built.split_whitespace().any(|built| built == name)
}

/// The given images that this part of docker/test has.
#[track_caller]
pub(crate) fn built<const N: usize>(images: [&'static str; N]) -> Vec<&'static str> {
    let built: Vec<_> = images.into_iter().filter(|image| is_built(image)).collect();
    assert!(!built.is_empty(), "SLURMINIT_TEST_BUILT lists none of {images:?}");
    built
}

/// The tag of the image on this machine. Concurrently tested checkouts use different tags.
pub(crate) fn tag(image: &str) -> String {
    let plain = std::env::var("SLURMINIT_TEST_IMAGE").unwrap_or_else(|_| PLAIN.to_owned());
    image.replacen(PLAIN, &plain, 1)
}

/// Exit code and output of a command.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Outcome {
    /// Converts the output of a command. A command killed by a signal gets code 124, as from `timeout`.
    pub(crate) fn of(output: &std::process::Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let code = output.status.code().unwrap_or(124);
        Self { code, stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }

    /// Asserts success and returns standard output.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, 0, "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self.stdout
    }
}

/// Runs docker and waits for it. Labels created objects.
pub(crate) fn docker<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(arguments: I) -> Outcome {
    let mut arguments: Vec<OsString> = arguments.into_iter().map(|word| word.as_ref().to_owned()).collect();
    let words: Vec<&str> = arguments.iter().take(2).filter_map(|word| word.to_str()).collect();
    let options = match words[..] {
        ["run" | "create" | "build", ..] => 1,
        ["volume" | "network", "create"] => 2,
        _ => 0,
    };
    if options > 0 {
        arguments.splice(options..options, ["--label".into(), label().into()]);
    }
    let output = Command::new("docker").args(arguments).stdin(Stdio::null()).output().expect("docker is installed");
    Outcome::of(&output)
}

/// The label of all Docker objects that tests create. docker/test uses it to remove leftovers of a killed run.
pub(crate) fn label() -> &'static str {
    static LABEL: LazyLock<String> = LazyLock::new(|| {
        let run = std::env::var("SLURMINIT_TEST_RUN").unwrap_or_else(|_| std::process::id().to_string());
        format!("slurminit.test={run}")
    });
    &LABEL
}

/// A name that is unique across tests and concurrent runs.
pub(crate) fn unique(suffix: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("slurminit-test-{}-{}-{suffix}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Runs at most `limit` cases at a time. The results are in the order of the cases.
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

/// The specification of a container: image, options and command.
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

    /// With a JSON log, in which slurminit's events have a `kind`.
    pub(crate) fn json_log(self) -> Self {
        self.with(["--env", "SLURMINIT_LOG_FORMAT=json"])
    }

    /// With the image's HEALTHCHECK. It is off by default because the engine executes a command for each check.
    pub(crate) fn with_healthcheck(mut self) -> Self {
        self.healthcheck = true;
        self
    }

    /// Options of `docker run`.
    fn options(&self) -> impl Iterator<Item = &str> {
        let no_healthcheck = (!self.healthcheck).then_some("--no-healthcheck");
        no_healthcheck.into_iter().chain(self.options.iter().map(String::as_str))
    }

    /// Adds options of `docker run`, such as `["--env", "A=b"]`.
    pub(crate) fn with<const N: usize>(mut self, option: [&str; N]) -> Self {
        self.options.extend(option.map(str::to_owned));
        self
    }

    /// Sets the command of `start` and `serve`.
    pub(crate) fn command<const N: usize>(mut self, command: [&str; N]) -> Self {
        self.command = command.map(str::to_owned).to_vec();
        self
    }

    /// Mounts a host file or directory read-only at `target`.
    pub(crate) fn mount(self, source: &Path, target: &str) -> Self {
        self.with(["--volume", &format!("{}:{target}:ro", source.display())])
    }

    pub(crate) fn volume(self, volume: &Volume, target: &str) -> Self {
        self.with(["--volume", &format!("{}:{target}", volume.name)])
    }

    /// `docker run --rm IMAGE COMMAND`. Kills a container that hangs after three minutes (code 124).
    pub(crate) fn run(&self, command: &[&str]) -> Outcome {
        let name = unique("run");
        let container = Container { name };
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

    /// `docker run -d IMAGE`. Does not wait until the cluster is ready.
    pub(crate) fn start(&self) -> Container {
        let container = Container { name: unique("serve") };
        let mut arguments = vec!["run", "--detach", "--name", &container.name];
        arguments.extend(self.options());
        arguments.push(&self.image);
        arguments.extend(self.command.iter().map(String::as_str));
        docker(arguments).ok();
        container
    }

    /// `docker run -d IMAGE`. Waits until the cluster is ready.
    #[track_caller]
    pub(crate) fn serve(&self) -> Container {
        let container = self.start();
        container.wait_until_healthy();
        container
    }
}

/// Whether a record can be caused by a shortage of CPU time alone.
pub(crate) fn is_of_a_busy_machine(record: &Value) -> bool {
    ["preparation-slow", "unit-starts-slowly", "unit-slow", "liveness-unknown"]
        .iter()
        .any(|kind| record["kind"] == *kind)
}

/// The full text of a record. slurminit records have a constant `message` and put the full text into `text`.
pub(crate) fn text(record: &Value) -> &str {
    record["text"].as_str().or_else(|| record["message"].as_str()).unwrap_or_default()
}

/// The records of a JSON log, from slurminit and other programs.
pub(crate) fn records(log: &str) -> Vec<Value> {
    log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// A named volume that is removed on drop. Declare it before the containers that use it.
#[derive(Debug)]
pub(crate) struct Volume {
    pub(crate) name: String,
}

impl Volume {
    pub(crate) fn new(suffix: &str) -> Self {
        let name = unique(suffix);
        docker(["volume", "create", &name]).ok();
        Self { name }
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        docker(["volume", "rm", "--force", &self.name]);
    }
}

/// A network that is removed on drop. Its containers must be dropped first: declare it as the last field of a struct.
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

/// A temporary directory with these files, to be mounted at /config.
pub(crate) fn directory(files: &[(&str, &str)]) -> TempDir {
    let directory = TempDir::with_prefix("slurminit-test-").expect("a temporary directory");
    for (name, content) in files {
        fs::write(directory.path().join(name), content).expect("the directory is writable");
    }
    directory
}
