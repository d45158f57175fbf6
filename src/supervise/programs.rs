//! What is executed for each child.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use crate::config::{DaemonName, ReadinessTest};

use super::daemon::{LivenessTest, Spec};
use super::liveness::{Door, Question};
use super::machine::{Child, Follows};
use super::node::SINFO_FORMAT;
use super::{Output, Program, World};

/// Slurm takes these for systemd's, and behaves otherwise.
const NOT_FOR_DAEMONS: [&str; 2] = ["NOTIFY_SOCKET", "INVOCATION_ID"];

impl World {
    pub(super) fn program(&self, child: Child) -> Program {
        let node = self.machine.node_name().unwrap_or(self.job.config.node.name.as_str());
        match child {
            Child::Cmd => Program {
                argv: self.job.cmd.iter().map(|word| word.as_bytes().to_vec()).collect(),
                env: environment(&BTreeMap::new(), &[]),
                user: None,
                output: Output::Inherited,
                is_cmd: true,
                is_marked: false,
            },
            Child::Unit(unit) => {
                let Some(spec) = self.machine.units().get(unit) else { return helper::<&str>(&[], Output::Log) };
                Program {
                    argv: self.numbered(unit, spec),
                    env: environment(&with_defaults(spec), &NOT_FOR_DAEMONS),
                    user: spec.user.clone(),
                    output: Output::Log,
                    is_cmd: false,
                    is_marked: spec.daemon == Some(DaemonName::Slurmd),
                }
            }
            Child::Probe(unit) => match self.machine.units().get(unit).map(|spec| &spec.readiness) {
                Some(ReadinessTest::Command(command)) => helper(command, Output::Log),
                _ => helper::<&str>(&[], Output::Log),
            },
            Child::Hook(index) => {
                let hook = self.job.config.hooks.pre_start.get(index);
                helper(hook.map(|hook| hook.command.as_slice()).unwrap_or_default(), Output::Log)
            }
            Child::Prepare => Program { argv: self.prepare(), ..helper::<&str>(&[], Output::Captured) },
            Child::Environments => Program { argv: self.own_verb("environments"), ..helper::<&str>(&[], Output::Log) },
            Child::JobsRecover => Program { argv: jobs(node, &["recover"]), ..helper::<&str>(&[], Output::Log) },
            Child::JobsReclaim => Program { argv: jobs(node, &["reclaim"]), ..helper::<&str>(&[], Output::Log) },
            Child::JobsQuiesce => {
                let grace = self.job.config.jobs.grace.as_secs_f64().to_string();
                let on_stop = self.job.config.jobs.on_stop.as_str();
                let argv = jobs(node, &["quiesce", "--grace", &grace, "--on-stop", on_stop]);
                Program { argv, ..helper::<&str>(&[], Output::Log) }
            }
            Child::Liveness => {
                let questions = serde_json::to_vec(&self.questions(node)).unwrap_or_default();
                Program {
                    argv: vec![own_file(), b"liveness".to_vec(), questions],
                    ..helper::<&str>(&[], Output::Captured)
                }
            }
            Child::FreePort(unit) => Program { argv: self.free_port(unit), ..helper::<&str>(&[], Output::Log) },
            Child::Reload => {
                let mut argv = self.prepare();
                argv.extend([b"--reload".to_vec(), b"--held".to_vec(), self.job.held.to_string().into_bytes()]);
                argv.extend([b"--node".to_vec(), node.as_bytes().to_vec()]);
                Program { argv, ..helper::<&str>(&[], Output::Captured) }
            }
            Child::Restore => {
                let mut argv = self.prepare();
                argv.extend([b"--restore".to_vec(), self.machine.files_to_restore().join(",").into_bytes()]);
                Program { argv, ..helper::<&str>(&[], Output::Log) }
            }
            Child::Reconfigure => helper(&["scontrol", "reconfigure"], Output::Log),
            Child::NodeCheck => {
                helper(&["sinfo", "--noheader", "--nodes", node, "--format", SINFO_FORMAT], Output::Captured)
            }
            Child::NodeResume => {
                helper(&["scontrol", "update", &format!("nodename={node}"), "state=resume"], Output::Log)
            }
        }
    }

    /// A slurmctld that finds a former one's state is begun by `slurminit jobs number`, which becomes it: no job id is given twice.
    fn numbered(&self, unit: usize, spec: &Spec) -> Vec<Vec<u8>> {
        let command = spec.command.iter().map(|word| word.clone().into_bytes());
        let follows = (spec.daemon == Some(DaemonName::Slurmctld)).then(|| self.machine.follows(unit)).flatten();
        let Some(follows) = follows else { return command.collect() };
        let paths = &self.job.config.paths;
        let mut argv = vec![own_file(), b"jobs".to_vec(), b"number".to_vec()];
        for (option, path) in
            [("--slurm-conf", paths.slurm.join("slurm.conf")), ("--state", paths.state.join("slurmctld"))]
        {
            argv.extend([option.as_bytes().to_vec(), path.into_os_string().into_vec()]);
        }
        argv.extend((follows == Follows::Saved).then(|| b"--saved".to_vec()));
        argv.extend(command);
        argv
    }

    fn prepare(&self) -> Vec<Vec<u8>> {
        self.own_verb("prepare")
    }

    /// One that reads the configuration again.
    fn own_verb(&self, verb: &str) -> Vec<Vec<u8>> {
        let mut argv = vec![own_file(), verb.as_bytes().to_vec()];
        if let Some(file) = &self.job.config_file {
            argv.extend([b"--config".to_vec(), file.as_os_str().as_bytes().to_vec()]);
        }
        argv
    }

    /// Who has a unit's port is not asked whether it is one of these, and nobody's processes are all ended who runs one.
    fn free_port(&self, unit: usize) -> Vec<Vec<u8>> {
        let spec = self.machine.units().get(unit);
        let port = match spec.map(|spec| &spec.readiness) {
            Some(ReadinessTest::Port(port)) => *port,
            _ => 0,
        };
        let name = spec.map(|spec| spec.name.as_str()).unwrap_or_default();
        let words = ["free-port", "--port", &port.to_string(), "--unit", name].map(|word| word.as_bytes().to_vec());
        let units = self.living.values().filter(|living| super::unit_of(living.child).is_some());
        let spared = units.flat_map(|living| [b"--spare".to_vec(), living.started.group.to_string().into_bytes()]);
        let again = (self.machine.setbacks(unit) > 2).then(|| b"--again".to_vec());
        std::iter::once(own_file()).chain(words).chain(spared).chain(again).collect()
    }

    /// What the units of this round are asked; one that died since is left out.
    fn questions(&self, node: &str) -> Vec<Question> {
        let question = |unit: &usize| {
            let test = &self.machine.units().get(*unit)?.liveness.as_ref()?.test;
            Some(Question {
                unit: *unit,
                pid: self.find(Child::Unit(*unit))?.started.pid.as_raw(),
                door: door(&self.machine.units().get(*unit)?.readiness),
                commands: question(test, &self.job.config.paths.munge_socket, node),
                timeout_ms: u64::try_from(self.machine.probe_timeout(*unit).as_millis()).unwrap_or(u64::MAX),
            })
        };
        self.machine.asked().iter().filter_map(question).collect()
    }
}

/// munged encodes and decodes a credential, slurmctld takes a ping, slurmd tells its own state. What it is that the
/// controller believes of the node is no evidence: it takes five minutes to notice.
fn question(test: &LivenessTest, munge_socket: &Path, node: &str) -> Vec<Vec<String>> {
    let words = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
    let socket = format!("--socket={}", munge_socket.display());
    match test {
        LivenessTest::Daemon(DaemonName::Munged) => {
            vec![words(&["munge", "--no-input", &socket]), words(&["unmunge", "--no-output", &socket])]
        }
        LivenessTest::Daemon(DaemonName::Slurmctld) => vec![words(&["scontrol", "ping"])],
        LivenessTest::Daemon(DaemonName::Slurmd) => vec![words(&["scontrol", "show", "slurmd", node])],
        LivenessTest::Command(command) => vec![command.clone()],
    }
}

fn door(readiness: &ReadinessTest) -> Option<Door> {
    match readiness {
        ReadinessTest::Port(port) => Some(Door::Port(*port)),
        ReadinessTest::Socket(path) => Some(Door::Socket(path.clone())),
        ReadinessTest::Started | ReadinessTest::Command(_) => None,
    }
}

fn jobs(node: &str, arguments: &[&str]) -> Vec<Vec<u8>> {
    let own = [own_file(), b"jobs".to_vec(), b"--node".to_vec(), node.as_bytes().to_vec()];
    own.into_iter().chain(arguments.iter().map(|word| word.as_bytes().to_vec())).collect()
}

/// Slurminit's own file, for the verbs that it runs as children.
fn own_file() -> Vec<u8> {
    std::env::current_exe().map_or_else(|_| b"slurminit".to_vec(), |file| file.into_os_string().into_vec())
}

fn helper<S: AsRef<str>>(argv: &[S], output: Output) -> Program {
    Program {
        argv: argv.iter().map(|word| word.as_ref().as_bytes().to_vec()).collect(),
        env: environment(&BTreeMap::new(), &NOT_FOR_DAEMONS),
        user: None,
        output,
        is_cmd: false,
        is_marked: false,
    }
}

fn with_defaults(spec: &Spec) -> BTreeMap<String, String> {
    let unset = spec.default_env.iter().filter(|(name, _)| std::env::var_os(name).is_none());
    let defaults = unset.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    defaults.chain(spec.env.clone()).collect()
}

/// Slurminit's own environment, less `without`, and `added` on top.
fn environment(added: &BTreeMap<String, String>, without: &[&str]) -> Vec<Vec<u8>> {
    let replaced =
        |name: &OsString| name.to_str().is_some_and(|name| without.contains(&name) || added.contains_key(name));
    let pair = |name: &[u8], value: &[u8]| [name, b"=", value].concat();
    let kept = std::env::vars_os().filter(|(name, _)| !replaced(name));
    let kept = kept.map(|(name, value)| pair(&name.into_vec(), &value.into_vec()));
    kept.chain(added.iter().map(|(name, value)| pair(name.as_bytes(), value.as_bytes()))).collect()
}
