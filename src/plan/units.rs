//! The units of a container: the command line, readiness and liveness of each daemon and service.

use config::{Config, DaemonName, Paths, Readiness, ReadinessTest, RestartPolicy, Service, SimulatedNodes};
use model::exit_code;
use model::unit::{Gate, HANDOVER_OPTION, Handover, LivenessProbe, ProbeTest, Spec};
use std::time::Duration;

/// Slurm's daemons resolve 0.0.0.0 for a log line, at their start and at a reconfiguration. An unresponsive name server
/// would block slurmctld for 10 s, longer than its liveness timeout.
const NAME_SERVER: (&str, &str) = ("RES_OPTIONS", "timeout:1 attempts:2");

const SLURM_ENV: &[(&str, &str)] = &[NAME_SERVER];

/// By default, slurmd and each job step load all hwloc plugins (X11, OpenCL, Level Zero). Slurm needs none of
/// them. They cost 17 ms at start-up and 8 ms per step, and the OpenCL plugin would wake the GPU driver.
///
/// A PMIx client selects its authentication method from a list that the server sends ("munge,native"). A library without munge support,
/// such as PyPI's Open MPI, prints a message about that list for each task. Offering only `native` loses nothing, because the server
/// accepts the client's choice.
const SLURMD_ENV: &[(&str, &str)] = &[NAME_SERVER, ("HWLOC_PLUGINS_PATH", "/var/empty"), ("PMIX_MCA_psec", "native")];

/// Without CAP_SYS_ADMIN slurmrestd cannot create namespaces and would exit. It does not need them, because it has no privileges and only
/// passes on its clients' tokens.
const SLURMRESTD_ENV: &[(&str, &str)] =
    &[NAME_SERVER, ("SLURM_JWT", "daemon"), ("SLURMRESTD_SECURITY", "disable_unshare_sysv,disable_unshare_files")];

/// A daemon, which starts once the daemons in `after` are ready.
pub(super) fn daemon(config: &Config, name: DaemonName, after: &[DaemonName]) -> Spec {
    let settings = config.daemons.get(&name).cloned().unwrap_or_default();
    let (command, gate, readiness, essential) = defaults(config, name);
    let (readiness, ready_timeout) = readiness_or(config, settings.readiness, readiness);
    Spec {
        handover: handover(name, settings.command.as_deref(), settings.user.is_some()),
        name: name.to_string(),
        command: settings.command.unwrap_or(command),
        user: settings.user.or_else(|| name.user().map(str::to_owned)),
        env: settings.env,
        default_env: default_env(name).iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        after: after.iter().map(ToString::to_string).collect(),
        gate,
        readiness,
        ready_timeout,
        liveness: liveness(settings.liveness, Some(name)),
        restart: settings.restart.unwrap_or(RestartPolicy::Always),
        essential,
        stop_timeout: settings.stop_timeout.unwrap_or_else(|| config.supervise.stop_timeout()),
        daemon: Some(name),
        node: None,
    }
}

fn default_env(name: DaemonName) -> &'static [(&'static str, &'static str)] {
    match name {
        DaemonName::Slurmd => SLURMD_ENV,
        DaemonName::Slurmrestd => SLURMRESTD_ENV,
        DaemonName::Slurmctld | DaemonName::Slurmdbd => SLURM_ENV,
        _ => &[],
    }
}

/// Whether the daemon hands over to a successor.
///
/// With `--systemd`, slurmctld does not switch to SlurmUser. So a daemon whose configuration sets `user` but not `command` is
/// started with `-D`.
fn handover(name: DaemonName, own: Option<&[String]>, has_own_user: bool) -> Handover {
    match own {
        Some(command) if command.iter().any(|word| word.contains(HANDOVER_OPTION)) => Handover::Always,
        None if matches!(name, DaemonName::Slurmctld | DaemonName::Slurmd) && !has_own_user => Handover::WhereItCan,
        _ => Handover::Never,
    }
}

/// The slurmd units, one for each simulated node.
pub(super) fn simulated(config: &Config, nodes: &SimulatedNodes, after: &[DaemonName]) -> Vec<Spec> {
    let first = daemon(config, DaemonName::Slurmd, after);
    let has_default_readiness = first.readiness == ReadinessTest::Port(config.slurm.daemon_port);
    let spec = |(number, (node, port)): (u32, &(String, u16))| {
        let name = DaemonName::Slurmd.of_simulated_node(number);
        let own = [first.command.clone(), vec!["-N".to_owned(), node.clone()]].concat();
        let readiness = if has_default_readiness { ReadinessTest::Port(*port) } else { first.readiness.clone() };
        Spec { name, command: own, readiness, node: Some(node.clone()), ..first.clone() }
    };
    (1..).zip(nodes.iter()).map(spec).collect()
}

/// The defaults of a daemon: command, gate, readiness test, and the container's exit code if slurminit gives up on the daemon; `None` if
/// the container then continues.
fn defaults(config: &Config, name: DaemonName) -> (Vec<String>, Gate, ReadinessTest, Option<u8>) {
    let words = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
    let paths = &config.paths;
    match name {
        DaemonName::Munged => (
            vec![
                "munged".to_owned(),
                "--foreground".to_owned(),
                format!("--key-file={}", paths.munge_key.display()),
                format!("--socket={}", paths.munge_socket.display()),
                // An idle connection occupies a thread for two seconds, and munged has two threads by default.
                "--num-threads=32".to_owned(),
                // Kept beside the socket, because /var/lib/munge may be read-only. The seed only supplements the
                // kernel's randomness.
                format!("--seed-file={}", paths.munge_socket.with_file_name("munged.seed").display()),
            ],
            Gate::MungeKey,
            ReadinessTest::Socket(paths.munge_socket.clone()),
            Some(exit_code::MUNGED),
        ),
        DaemonName::Mariadbd => (
            mariadbd(paths),
            Gate::Files,
            ReadinessTest::Socket(Paths::DATABASE_SOCKET.into()),
            Some(exit_code::ACCOUNTING),
        ),
        DaemonName::Slurmdbd => (
            words(&["slurmdbd", "-D"]),
            Gate::Files,
            ReadinessTest::Port(config.accounting.port),
            Some(exit_code::ACCOUNTING),
        ),
        DaemonName::Slurmctld => (
            words(&["slurmctld", "-D"]),
            Gate::Files,
            ReadinessTest::Port(config.slurm.controller_port),
            Some(exit_code::SLURMCTLD),
        ),
        DaemonName::Slurmd => (
            words(&["slurmd", "-D"]),
            Gate::Jobs,
            ReadinessTest::Port(config.slurm.daemon_port),
            Some(exit_code::SLURMD),
        ),
        DaemonName::Slurmrestd => {
            let listen = config.rest.listen.map(|address| address.to_string()).unwrap_or_default();
            let port = config.rest.listen.map_or(0, |address| address.port());
            // Jobs do not depend on slurmrestd.
            (words(&["slurmrestd", "-a", "rest_auth/jwt", &listen]), Gate::Files, ReadinessTest::Port(port), None)
        }
        DaemonName::Metrics => {
            let port = config.metrics.listen.map_or(0, |address| address.port());
            (metrics(config), Gate::Files, ReadinessTest::Port(port), None)
        }
        DaemonName::Sshd => {
            let port = config.login.port.map_or(0, std::num::NonZeroU16::get);
            let file = paths.sshd_config().display().to_string();
            (words(&[Paths::SSHD, "-D", "-e", "-f", &file]), Gate::Files, ReadinessTest::Port(port), None)
        }
        DaemonName::Agent => (words(&["slurminit", "agent"]), Gate::Served, ReadinessTest::Started, None),
    }
}

/// The command of the metrics server. All parameters are arguments, because the process cannot read a configuration with secrets. The
/// process drops its root privileges itself.
fn metrics(config: &Config) -> Vec<String> {
    let listen = config.metrics.listen.map(|address| address.to_string()).unwrap_or_default();
    let run = config.paths.run.display().to_string();
    let words = ["slurminit", "metrics", "--listen", &listen, "--run", &run].map(str::to_owned);
    let switches = [(config.metrics.dcgm, "--dcgm"), (config.accounting.is_on(), "--accounting")];
    let switches = switches.into_iter().filter(|(is_on, _)| *is_on).map(|(_, word)| word.to_owned());
    let hosts = config.metrics.hosts.iter().map(|host| format!("--allow-host={host}"));
    words.into_iter().chain(switches).chain(hosts).collect()
}

/// The embedded database: small, Unix socket only, without a binary log. With a lock timeout below 900 s,
/// slurmdbd logs an error.
fn mariadbd(paths: &Paths) -> Vec<String> {
    let own = [
        "mariadbd".to_owned(),
        "--no-defaults".to_owned(),
        format!("--datadir={}", paths.database().display()),
        format!("--socket={}", Paths::DATABASE_SOCKET),
        format!("--pid-file={}", paths.database().with_extension("pid").display()),
    ];
    let fixed = [
        "--skip-networking",
        // Without this option, MariaDB generates a TLS key at each start, which takes 0.5 s.
        "--skip-ssl",
        "--table-open-cache-instances=1",
        "--skip-log-bin",
        "--skip-performance-schema",
        "--innodb-lock-wait-timeout=900",
        // Enabled by default since MariaDB 11.6. slurmdbd does not retry a write and would exit on a conflict (release notes of Slurm 26.05).
        "--loose-innodb-snapshot-isolation=OFF",
    ];
    own.into_iter().chain(fixed.map(str::to_owned)).chain(MARIADBD_SIZES.map(str::to_owned)).collect()
}

/// The sizes of the image's empty database, sufficient for a few million jobs.
const MARIADBD_SIZES: [&str; 4] = [
    "--innodb-undo-tablespaces=0",
    "--innodb-data-file-path=ibdata1:4M:autoextend",
    "--innodb-log-file-size=48M",
    "--innodb-buffer-pool-size=128M",
];

/// A service from the operator's configuration.
pub(super) fn service(config: &Config, service: &Service) -> Spec {
    let (readiness, ready_timeout) = readiness_or(config, service.readiness.clone(), ReadinessTest::Started);
    Spec {
        name: service.name.clone(),
        command: service.command.clone(),
        user: service.user.clone(),
        env: service.env.clone(),
        default_env: Vec::new(),
        after: service.after.clone(),
        gate: Gate::Hooks,
        readiness,
        ready_timeout,
        liveness: liveness(service.liveness.clone(), None),
        restart: service.restart,
        essential: service.essential.then_some(exit_code::SERVICE),
        stop_timeout: service.stop_timeout.unwrap_or_else(|| config.supervise.stop_timeout()),
        handover: Handover::Never,
        daemon: None,
        node: None,
    }
}

fn readiness_or(config: &Config, own: Option<Readiness>, default: ReadinessTest) -> (ReadinessTest, Duration) {
    let timeout = own.as_ref().and_then(|readiness| readiness.timeout).unwrap_or(config.supervise.ready_timeout);
    (own.map_or(default, |readiness| readiness.test), timeout)
}

fn liveness(own: Option<config::LivenessTest>, daemon: Option<DaemonName>) -> Option<LivenessProbe> {
    match own {
        None if daemon.is_some_and(|name| !name.has_liveness_check()) => None,
        None => Some(LivenessProbe { test: ProbeTest::Daemon(daemon?), timeout: None }),
        Some(config::LivenessTest::Off) => None,
        Some(config::LivenessTest::Command { command, timeout }) => {
            Some(LivenessProbe { test: ProbeTest::Command(command), timeout })
        }
    }
}
