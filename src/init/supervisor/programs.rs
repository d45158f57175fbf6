//! The command line, environment and output of each child.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use super::{Output, Program, Supervisor, limits};
use Output::{Captured, Log, Messages};
use machine::UnitId;
use machine::liveness_result::{QUESTIONS, Question};
use machine::node_report::SINFO_FORMAT;
use machine::{Child, Follows, Unit};
use model::daemons::{DaemonName, ReadinessTest};
use model::paths::Paths;
use model::prepared::{PrepareInput, Prepared, announced};
use model::unit::JobCare;
use model::unit::{ProbeTest, Spec};
use sys::users;

type Argv = Vec<Vec<u8>>;

/// Slurm reads these as signs of systemd and changes its behaviour.
const NOT_FOR_DAEMONS: [&str; 2] = ["NOTIFY_SOCKET", "INVOCATION_ID"];

impl Supervisor {
    pub(super) fn program(&self, child: Child) -> Program {
        let (argv, output) = self.argv(child);
        let env = environment(&BTreeMap::new(), &NOT_FOR_DAEMONS);
        let input = self.input(child).and_then(|given| serde_json::to_vec(&given).ok());
        let program = Program { argv, env, user: None, output, input, is_cmd: false, is_marked: false };
        match child {
            Child::Cmd => Program { env: environment(&BTreeMap::new(), &[]), is_cmd: true, ..program },
            Child::Unit(id) | Child::Probe(id) => {
                let spec = &self.machine.units()[id].spec;
                let is_marked = spec.daemon == Some(DaemonName::Slurmd) && child == Child::Unit(id);
                of_unit(spec, Program { is_marked, ..program })
            }
            // Options of the command line apply to children, too.
            _ => {
                let mut said = BTreeMap::from([("SLURMINIT_ROLE".to_owned(), self.task.role.to_string())]);
                said.extend(self.task.simulated_nodes.map(|nodes| ("SLURMINIT_NODES".to_owned(), nodes.to_string())));
                if child == Child::Liveness {
                    // A command line is public, and the variables of a unit may be secret.
                    said.insert(QUESTIONS.to_owned(), serde_json::to_string(&self.questions()).unwrap_or_default());
                }
                Program { env: environment(&said, &NOT_FOR_DAEMONS), ..program }
            }
        }
    }

    /// The command line, and where the output goes.
    fn argv(&self, child: Child) -> (Argv, Output) {
        let node = self.node();
        let prepare = |more: &[Argv]| [self.own_verb("prepare"), more.concat()].concat();
        match child {
            Child::Cmd => (self.cmd.iter().map(|word| word.as_bytes().to_vec()).collect(), Output::Inherited),
            Child::Unit(id) => {
                let unit = &self.machine.units()[id];
                // A service may write many lines at once.
                (self.numbered(unit), if unit.spec.daemon.is_some() { Messages } else { Log })
            }
            Child::Probe(id) => match &self.machine.units()[id].spec.readiness {
                ReadinessTest::Command(command) => (words(command), Log),
                _ => (Vec::new(), Log),
            },
            Child::Hook(index) => {
                (self.task.setup.hooks.get(index).map(|hook| words(&hook.command)).unwrap_or_default(), Log)
            }
            Child::Prepare => (prepare(&[given()]), Captured),
            Child::Explain(id) => (prepare(&[self.death(id)]), Captured),
            Child::Reload => (prepare(&[words(&["--reload", "--node", node]), given()]), Captured),
            Child::Restore => {
                let (files, died) = self.machine.to_restore();
                let death = died.map(|id| self.death(id)).unwrap_or_default();
                (prepare(&[words(&["--restore", &files.join(",")]), death]), Captured)
            }
            Child::Environments => (self.own_verb("environments"), Log),
            Child::Associations => (self.own_verb("associations"), Log),
            Child::JobsRecover => (jobs(node, &["recover"]), Log),
            Child::JobsAccount if self.machine.holds_launches() => (jobs(node, &["account", "--held"]), Log),
            Child::JobsAccount => (jobs(node, &["account"]), Log),
            Child::JobsReclaim => (jobs(node, &["reclaim"]), Log),
            Child::JobsFollow => {
                let argv = [own_file(), b"jobs".to_vec(), b"follow".to_vec()].into_iter().chain(self.state());
                (argv.chain(self.socket()).collect(), Log)
            }
            Child::JobsReached => {
                ([jobs(node, &["reached", "--port", &self.daemon_port()]), self.socket()].concat(), Log)
            }
            Child::JobsWait => (jobs(node, &["wait"]), Log),
            Child::JobsQuiesce if self.task.setup.jobs == JobCare::OtherContainers => (jobs(node, &["note-next"]), Log),
            Child::JobsQuiesce => {
                let grace = self.task.setup.jobs_grace.as_secs_f64().to_string();
                let on_stop = self.task.on_stop.to_string();
                let mut arguments = vec!["quiesce", "--grace", &grace, "--on-stop", &on_stop];
                arguments.extend(self.has_left_jobs_alone().then_some("--after-command"));
                let leaves = self.task.setup.jobs == JobCare::Node;
                arguments.extend(leaves.then_some("--leave"));
                let has_controller = self.machine.units().iter().any(|unit| unit.is(DaemonName::Slurmctld));
                arguments.extend((leaves && has_controller).then_some("--with-controller"));
                (jobs(node, &arguments), Log)
            }
            Child::Liveness => {
                let recall = self.task.has_other_nodes.then(|| words(&["--recall", &self.daemon_port()]));
                ([vec![own_file(), b"liveness".to_vec()], recall.unwrap_or_default()].concat(), Captured)
            }
            Child::OomScore => {
                let users = self.machine.units().iter().filter_map(|unit| unit.spec.user.as_deref());
                let spared = users.flat_map(|user| [b"--spare".to_vec(), user.as_bytes().to_vec()]);
                ([own_file(), b"oom-score".to_vec()].into_iter().chain(spared).collect(), Log)
            }
            Child::FreePort(id) => (self.free_port(&self.machine.units()[id]), Log),
            Child::Reconfigure => (words(&["scontrol", "reconfigure"]), Log),
            Child::NodeCheck if self.task.setup.jobs == JobCare::OtherContainers => {
                (words(&["scontrol", "ping"]), Captured)
            }
            Child::NodeCheck => (words(&["sinfo", "--noheader", "--nodes", node, "--format", SINFO_FORMAT]), Captured),
            Child::NodeResume => (words(&["scontrol", "update", &format!("nodename={node}"), "state=resume"]), Log),
        }
    }

    fn node(&self) -> &str {
        self.machine.prepared().and_then(Prepared::name_of_node).unwrap_or(&self.task.node)
    }

    /// If a previous slurmctld left saved state, slurmctld is started through `slurminit jobs number`, which execs it.
    /// This prevents job IDs from being reused.
    fn numbered(&self, unit: &Unit) -> Argv {
        let mut command = words(&unit.spec.command);
        let told = self.machine.prepared().and_then(|prepared| prepared.told_node.as_deref());
        if let Some(node) = told.filter(|_| unit.is(DaemonName::Slurmd) && unit.spec.node.is_none()) {
            command.extend(words(&["-N", node]));
        }
        if let Some(joining) = self.joining(unit) {
            return [joining, command].concat();
        }
        if unit.is(DaemonName::Mariadbd) {
            return [self.database(), command].concat();
        }
        let follows = unit.follows(self.machine.prepared()).filter(|_| unit.is(DaemonName::Slurmctld));
        let Some(follows) = follows else { return command };
        let mut argv = vec![own_file(), b"jobs".to_vec(), b"number".to_vec()];
        argv.extend(self.state());
        if let Follows::Saved(since) = follows {
            let age = self.start.elapsed().saturating_sub(since).as_secs();
            argv.extend([b"--saved-within".to_vec(), age.to_string().into_bytes()]);
        }
        argv.extend(command);
        argv
    }

    /// On a compute node, slurmd is started through `slurminit jobs join`, which execs it.
    fn joining(&self, unit: &Unit) -> Option<Argv> {
        let prepared = self.machine.prepared().filter(|_| unit.is(DaemonName::Slurmd))?;
        let conf = prepared.dynamic_node.as_deref()?;
        let again = unit.has_been_ready().then_some("--again");
        let port = self.daemon_port();
        let gpus = announced::text(&prepared.gpus);
        let arguments =
            ["join", "--conf", conf, "--gpus", &gpus, "--port", &port].into_iter().chain(again).chain(["--"]);
        let arguments: Vec<&str> = arguments.collect();
        Some(jobs(&prepared.node_name, &arguments))
    }

    /// mariadbd is started through `slurminit mariadb`, which creates the database at the first start and then execs mariadbd.
    fn database(&self) -> Argv {
        let data = self.task.paths.database().into_os_string().into_vec();
        let words = words(&["mariadb", "--template", Paths::DATABASE_TEMPLATE, "--data"]);
        [vec![own_file()], words, vec![data, b"--".to_vec()]].concat()
    }

    fn daemon_port(&self) -> String {
        self.task.daemon_port.to_string()
    }

    /// The option that names the control socket.
    fn socket(&self) -> Argv {
        vec![b"--socket".to_vec(), crate::control::socket(&self.task.paths.run).into_os_string().into_vec()]
    }

    /// The options that name slurmctld's state directory and its default.
    fn state(&self) -> [Vec<u8>; 4] {
        let paths = &self.task.paths;
        let bytes = |path: PathBuf| path.into_os_string().into_vec();
        let (conf, state) = (bytes(paths.slurm.join("slurm.conf")), bytes(paths.state.join("slurmctld")));
        [b"--slurm-conf".to_vec(), conf, b"--state".to_vec(), state]
    }

    /// Whether the container stops because its command has ended, without waiting for jobs.
    fn has_left_jobs_alone(&self) -> bool {
        self.machine.stops_with_its_command() && !self.task.setup.wait_jobs
    }

    /// A slurminit verb that reads the configuration again.
    fn own_verb(&self, verb: &str) -> Argv {
        let mut argv = vec![own_file(), verb.as_bytes().to_vec()];
        if let Some(file) = &self.task.config_file {
            argv.extend([b"--config".to_vec(), file.as_bytes().to_vec()]);
        }
        argv
    }

    /// Units are spared: one that has the port is not killed, and none is stopped with the other processes of its user.
    fn free_port(&self, unit: &Unit) -> Argv {
        let port = match unit.spec.readiness {
            ReadinessTest::Port(port) => port,
            _ => 0,
        };
        let words = words(&["free-port", "--port", &port.to_string(), "--unit", &unit.spec.name]);
        let units = self.living.values().filter(|living| living.child.unit().is_some());
        let spared = units.flat_map(|living| [b"--spare".to_vec(), living.started.group.to_string().into_bytes()]);
        let again = (unit.external_failures_in_a_row() > 1).then(|| b"--again".to_vec());
        std::iter::once(own_file()).chain(words).chain(spared).chain(again).collect()
    }

    /// The standard input of a preparation.
    fn input(&self, child: Child) -> Option<PrepareInput> {
        let died = match child {
            Child::Prepare | Child::Reload => {
                return Some(PrepareInput { held: Some(self.task.held.clone()), ..PrepareInput::default() });
            }
            Child::Explain(id) => id,
            Child::Restore => self.machine.to_restore().1?,
            _ => return None,
        };
        let last_lines = self.logs.lines_of_last_run(&self.machine.units()[died].spec.name).join("\n");
        Some(PrepareInput { last_lines, ..PrepareInput::default() })
    }

    /// The daemon that died.
    fn death(&self, id: UnitId) -> Argv {
        [words(&["--died", &self.machine.units()[id].spec.name]), given()].concat()
    }

    /// The questions for this round's units. A unit that died since is left out. So is slurmd when no thread can be
    /// created: it asks each slurmstepd, and a slurmstepd that cannot create a thread for its answer exits, and its job
    /// with it (24.11: `macros.h`).
    fn questions(&self) -> Vec<Question> {
        let node = self.node();
        let no_threads = limits::lacks_processes().is_some();
        let question = |id: &UnitId| {
            let spec = &self.machine.units()[*id].spec;
            if no_threads && spec.daemon == Some(DaemonName::Slurmd) {
                return None;
            }
            Some(Question {
                unit: *id,
                pid: self.find(Child::Unit(*id))?.started.pid.as_raw(),
                door: spec.readiness.clone(),
                commands: {
                    let node = spec.node.as_deref().unwrap_or(node);
                    spec.liveness.as_ref()?.test.commands(&self.task.paths.munge_socket, node)
                },
                user: spec.user.clone().filter(|_| is_own(spec)),
                env: if is_own(spec) { with_defaults(spec) } else { BTreeMap::new() },
                timeout_ms: u64::try_from(self.machine.probe_timeout(*id).as_millis()).unwrap_or(u64::MAX),
            })
        };
        self.machine.asked().iter().filter_map(question).collect()
    }
}

/// The option for a preparation with [`Supervisor::input`].
fn given() -> Argv {
    words(&["--given"])
}

fn jobs(node: &str, arguments: &[&str]) -> Argv {
    [vec![own_file()], words(&["jobs", "--node", node]), words(arguments)].concat()
}

/// The path of the `slurminit` program, in the same directory as PID 1's.
fn own_file() -> Vec<u8> {
    let file = std::env::current_exe().map(|init| init.with_file_name("slurminit"));
    file.map_or_else(|_| b"slurminit".to_vec(), |file| file.into_os_string().into_vec())
}

fn words<S: AsRef<str>>(words: &[S]) -> Argv {
    words.iter().map(|word| word.as_ref().as_bytes().to_vec()).collect()
}

/// Whether the liveness check is the operator's command.
fn is_own(spec: &Spec) -> bool {
    spec.liveness.as_ref().is_some_and(|liveness| matches!(liveness.test, ProbeTest::Command(_)))
}

/// The program as the unit's user, with the unit's variables and the user's own.
fn of_unit(spec: &Spec, mut program: Program) -> Program {
    let mut added = with_defaults(spec);
    let Some(name) = &spec.user else { return Program { env: environment(&added, &NOT_FOR_DAEMONS), ..program } };
    let user = if spec.daemon.is_some() { users::local(name) } else { users::complete(name) };
    let is_own = user.as_ref().is_some_and(|user| user.uid == nix::unistd::Uid::effective().as_raw());
    if is_own {
        return Program { env: environment(&added, &NOT_FOR_DAEMONS), ..program };
    }
    match &user {
        Some(user) => user.variables().for_each(|(name, value)| {
            added.entry(name.to_owned()).or_insert_with(|| value.to_owned());
        }),
        None => {
            let helper = [own_file(), b"as-user".to_vec(), name.clone().into_bytes(), b"--".to_vec()];
            program.argv.splice(0..0, helper);
        }
    }
    let without = [&NOT_FOR_DAEMONS[..], &users::VARIABLES].concat();
    Program { env: environment(&added, &without), user, ..program }
}

fn with_defaults(spec: &Spec) -> BTreeMap<String, String> {
    let unset = spec.default_env.iter().filter(|(name, _)| std::env::var_os(name).is_none());
    let defaults = unset.cloned();
    defaults.chain(spec.env.clone()).collect()
}

/// slurminit's own environment without `without`, plus `added`.
fn environment(added: &BTreeMap<String, String>, without: &[&str]) -> Argv {
    let replaced =
        |name: &OsString| name.to_str().is_some_and(|name| without.contains(&name) || added.contains_key(name));
    let pair = |name: &[u8], value: &[u8]| [name, b"=", value].concat();
    let kept = std::env::vars_os().filter(|(name, _)| !replaced(name));
    let kept = kept.map(|(name, value)| pair(&name.into_vec(), &value.into_vec()));
    kept.chain(added.iter().map(|(name, value)| pair(name.as_bytes(), value.as_bytes()))).collect()
}
