//! What a unit is: a daemon or a service, and the policy by which it is kept alive.
//!
//! PURE.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::config::{self, Config, DaemonName, Readiness, ReadinessTest, RestartPolicy, Service};
use crate::exit_code;

/// A process that slurminit keeps alive.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// Its name in logs, in `after`, in `status`.
    pub name: String,
    /// Program and arguments; the first is also argv\[0\], which Slurm's daemons look at.
    pub command: Vec<String>,
    /// The user that it runs as; `None` is slurminit's own.
    pub user: Option<String>,
    /// Variables added to the environment.
    pub env: BTreeMap<String, String>,
    /// Variables that are added where neither the operator nor the container sets them.
    pub default_env: &'static [(&'static str, &'static str)],
    /// The units that must be ready first, and must outlive it.
    pub after: Vec<usize>,
    /// What of the preparation must be done first.
    pub gate: Gate,
    /// When it counts as ready.
    pub readiness: ReadinessTest,
    /// How long it may take to become ready.
    pub ready_timeout: Duration,
    /// How it is asked whether it still answers; `None` is not asked.
    pub liveness: Option<Liveness>,
    /// When it is started again.
    pub restart: RestartPolicy,
    /// The container's exit code when it cannot be kept alive; `None` lets the others live on without it.
    pub essential: Option<u8>,
    /// From its stop signal to KILL.
    pub stop_timeout: Duration,
    /// Which of Slurm's own daemons it is, if it is one.
    pub daemon: Option<DaemonName>,
}

/// How a ready unit is asked whether it still answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Liveness {
    /// What it is asked.
    pub test: LivenessTest,
    /// How long the answer may take; `None` is `supervise.probe_timeout`.
    pub timeout: Option<Duration>,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LivenessTest {
    /// This daemon, by what it is for.
    Daemon(DaemonName),
    /// This command must end with 0.
    Command(Vec<String>),
}

/// slurmd, and each job step after it, loads all of hwloc's plugins (X11, OpenCL, Level Zero) and needs none of them: 17 ms
/// of its start and 8 ms of each step, and OpenCL's would wake the GPU's driver. slurmd also asks the name server for the
/// name of 0.0.0.0, for a log line; where no server answers, that is 10 s instead of 1.
const SLURMD_ENV: &[(&str, &str)] = &[("HWLOC_PLUGINS_PATH", "/var/empty"), ("RES_OPTIONS", "timeout:1 attempts:1")];

/// What of the preparation a unit waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Gate {
    /// Nothing but the hooks.
    Hooks,
    /// The munge key.
    MungeKey,
    /// Slurm's files.
    Files,
    /// The jobs of a former start are accounted for.
    Jobs,
}

/// The units of the role `all`: munged, slurmctld, slurmd, then the services in the order of the file.
pub fn units(config: &Config) -> Vec<Spec> {
    let mut units: Vec<Spec> = DaemonName::ALL.into_iter().map(|name| daemon(config, name)).collect();
    for service in &config.services {
        // The configuration has checked that every name exists; one that names a later service is resolved below.
        units.push(self::service(config, service));
    }
    let names: Vec<String> = units.iter().map(|unit| unit.name.clone()).collect();
    for (service, unit) in config.services.iter().zip(units.iter_mut().skip(DaemonName::ALL.len())) {
        unit.after = service.after.iter().filter_map(|other| names.iter().position(|name| name == other)).collect();
    }
    units
}

fn daemon(config: &Config, name: DaemonName) -> Spec {
    let settings = config.daemons.get(&name).cloned().unwrap_or_default();
    let words = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
    let paths = &config.paths;
    let (command, user, after, gate, readiness, essential) = match name {
        DaemonName::Munged => (
            vec![
                "munged".to_owned(),
                "--foreground".to_owned(),
                format!("--key-file={}", paths.munge_key.display()),
                format!("--socket={}", paths.munge_socket.display()),
                // A connection that says nothing holds a thread for two seconds, and by default there are two.
                "--num-threads=32".to_owned(),
                // Beside the socket, for /var/lib/munge may be read-only. It adds to the kernel's randomness, no more.
                format!("--seed-file={}", paths.munge_socket.with_file_name("munged.seed").display()),
            ],
            Some("munge"),
            vec![],
            Gate::MungeKey,
            ReadinessTest::Socket(paths.munge_socket.clone()),
            exit_code::MUNGED,
        ),
        DaemonName::Slurmctld => (
            words(&["slurmctld", "-D"]),
            Some("slurm"),
            vec![0],
            Gate::Files,
            ReadinessTest::Port(config.slurm.controller_port),
            exit_code::SLURMCTLD,
        ),
        DaemonName::Slurmd => (
            words(&["slurmd", "-D"]),
            None,
            vec![1],
            Gate::Jobs,
            ReadinessTest::Port(config.slurm.daemon_port),
            exit_code::SLURMD,
        ),
    };
    let (readiness, ready_timeout) = readiness_or(config, settings.readiness, readiness);
    Spec {
        name: name.to_string(),
        command: settings.command.unwrap_or(command),
        user: settings.user.or_else(|| user.map(str::to_owned)),
        env: settings.env,
        default_env: if name == DaemonName::Slurmd { SLURMD_ENV } else { &[] },
        after,
        gate,
        readiness,
        ready_timeout,
        liveness: liveness(settings.liveness, Some(name)),
        restart: settings.restart.unwrap_or(RestartPolicy::Always),
        essential: Some(essential),
        stop_timeout: settings.stop_timeout.unwrap_or(config.supervise.stop_timeout),
        daemon: Some(name),
    }
}

fn service(config: &Config, service: &Service) -> Spec {
    let (readiness, ready_timeout) = readiness_or(config, service.readiness.clone(), ReadinessTest::Started);
    Spec {
        name: service.name.clone(),
        command: service.command.clone(),
        user: service.user.clone(),
        env: service.env.clone(),
        default_env: &[],
        after: Vec::new(),
        gate: Gate::Hooks,
        readiness,
        ready_timeout,
        liveness: liveness(service.liveness.clone(), None),
        restart: service.restart,
        essential: service.essential.then_some(exit_code::SERVICE),
        stop_timeout: service.stop_timeout.unwrap_or(config.supervise.stop_timeout),
        daemon: None,
    }
}

fn readiness_or(config: &Config, own: Option<Readiness>, default: ReadinessTest) -> (ReadinessTest, Duration) {
    let timeout = own.as_ref().and_then(|readiness| readiness.timeout).unwrap_or(config.supervise.ready_timeout);
    (own.map_or(default, |readiness| readiness.test), timeout)
}

fn liveness(own: Option<config::Liveness>, daemon: Option<DaemonName>) -> Option<Liveness> {
    match own {
        None => Some(Liveness { test: LivenessTest::Daemon(daemon?), timeout: None }),
        Some(config::Liveness::Off) => None,
        Some(config::Liveness::Command { command, timeout }) => {
            Some(Liveness { test: LivenessTest::Command(command), timeout })
        }
    }
}
