//! The command line, environment and output of each child.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

use super::command_line::CommandLine;
use super::{Output, Program, Supervisor, limits};
use Output::{Captured, Log, Messages};
use machine::UnitId;
use machine::liveness_result::{CHECKS_VARIABLE, LivenessCheck};
use machine::node_report::SINFO_FORMAT;
use machine::{Child, InheritedState, Unit};
use model::daemons::{DaemonName, ReadinessTest};
use model::paths::Paths;
use model::prepared::{PrepareInput, Prepared, announced};
use model::unit::JobCare;
use model::unit::{ProbeTest, Spec};
use sys::users;

/// The option that makes a preparation read a [`PrepareInput`] from standard input.
const INPUT_OPTION: &str = "--given";

/// Variables that Slurm takes as signs that systemd started it, and that change its behavior.
const NOT_FOR_DAEMONS: [&str; 2] = ["NOTIFY_SOCKET", "INVOCATION_ID"];
/// Variables that images set for their users' programs. With them, munged would load foreign libraries, and could fail.
const NOT_FOR_MUNGED: [&str; 2] = ["LD_LIBRARY_PATH", "LD_PRELOAD"];

impl Supervisor {
    pub(super) fn program(&self, child: Child) -> Program {
        let (command, output) = self.command_line(child);
        let reports = command.is_own();
        let argv = command.into_argv();
        let env = environment(&BTreeMap::new(), &NOT_FOR_DAEMONS);
        let input = self.prepare_input(child).and_then(|input| serde_json::to_vec(&input).ok());
        let program = Program { argv, env, user: None, output, input, is_cmd: false, is_marked: false, reports };
        let program = match child {
            Child::Cmd => Program { env: environment(&BTreeMap::new(), &[]), is_cmd: true, ..program },
            Child::Unit(id) | Child::Probe(id) => {
                let spec = &self.machine.units()[id].spec;
                let is_marked = spec.daemon == Some(DaemonName::Slurmd) && child == Child::Unit(id);
                as_unit_user(spec, Program { is_marked, ..program })
            }
            // The role and the node count from slurminit's command line also apply to the children.
            _ => {
                let reads_role = matches!(child, Child::Prepare | Child::Reload);
                let role = if reads_role { self.task.requested_role } else { Some(self.task.role) };
                let role = role.map(|role| ("SLURMINIT_ROLE".to_owned(), role.to_string()));
                let nodes = self.task.simulated_nodes.map(|nodes| ("SLURMINIT_NODES".to_owned(), nodes.to_string()));
                let mut variables: BTreeMap<_, _> = role.into_iter().chain(nodes).collect();
                if child == Child::Liveness {
                    // A command line is public, and the variables of a unit may be secret.
                    let checks = serde_json::to_string(&self.liveness_checks()).unwrap_or_default();
                    variables.insert(CHECKS_VARIABLE.to_owned(), checks);
                }
                Program { env: environment(&variables, &NOT_FOR_DAEMONS), ..program }
            }
        };
        program.with_reports()
    }

    /// The command line of a child, and the destination of its output.
    fn command_line(&self, child: Child) -> (CommandLine, Output) {
        let node = self.node();
        let jobs = |verb| CommandLine::jobs(node).arg(verb);
        match child {
            Child::Cmd => (CommandLine::new(&self.cmd), Output::Inherited),
            Child::Unit(id) => {
                let unit = &self.machine.units()[id];
                // A service may write many lines in one write, which must not become one message.
                (self.unit_command(unit), if unit.spec.daemon.is_some() { Messages } else { Log })
            }
            Child::Probe(id) => match &self.machine.units()[id].spec.readiness {
                ReadinessTest::Command(command) => (CommandLine::new(command), Log),
                _ => (CommandLine::default(), Log),
            },
            Child::Hook(index) => {
                let hook = self.task.setup.hooks.get(index);
                (hook.map(|hook| CommandLine::new(&hook.command)).unwrap_or_default(), Log)
            }
            Child::Prepare => (self.config_verb("prepare").arg(INPUT_OPTION), Captured),
            Child::Explain(id) => (self.config_verb("prepare").then(self.death_options(id)), Captured),
            Child::Reload => {
                let reload = self.config_verb("prepare").arg("--reload").option("--node", node);
                (reload.arg(INPUT_OPTION), Captured)
            }
            Child::Restore => {
                let (files, died) = self.machine.rollback_files_and_cause();
                let restore = self.config_verb("prepare").option("--restore", files.join(","));
                (restore.then(died.map(|id| self.death_options(id)).unwrap_or_default()), Captured)
            }
            Child::Reopen => (self.config_verb("prepare").arg("--reopen"), Log),
            Child::Environments => (self.config_verb("environments"), Log),
            Child::Associations => (self.config_verb("associations"), Log),
            Child::TestJob => {
                let limit = self.task.setup.supervise.ready_timeout.as_secs_f64().to_string();
                (self.config_verb("test-job").option("--node", node).option("--limit", limit), Log)
            }
            Child::JobsRecover => (jobs("recover"), Log),
            Child::JobsAccount => (jobs("account").flag("--held", self.machine.holds_launches()), Log),
            Child::JobsReclaim => (jobs("reclaim"), Log),
            Child::JobsReclaimDeadSteps => (jobs("reclaim").arg("--dead-steps"), Log),
            Child::JobsFollow => (self.with_socket(self.with_state(CommandLine::own("jobs").arg("follow"))), Log),
            Child::JobsReached => (self.with_socket(jobs("reached").option("--port", self.daemon_port())), Log),
            Child::JobsWait => (jobs("wait"), Log),
            Child::JobsQuiesce if self.task.setup.jobs == JobCare::OtherContainers => (jobs("note-next"), Log),
            Child::JobsQuiesce => {
                let leaves = self.task.setup.jobs == JobCare::Node;
                let has_controller = self.machine.units().iter().any(|unit| unit.is(DaemonName::Slurmctld));
                let quiesce = jobs("quiesce")
                    .option("--grace", self.task.setup.jobs_grace.as_secs_f64().to_string())
                    .option("--on-stop", self.task.on_stop.to_string())
                    .flag("--after-command", self.stops_without_waiting_for_jobs())
                    .flag("--leave", leaves)
                    .flag("--with-controller", leaves && has_controller);
                (quiesce, Log)
            }
            Child::Liveness => {
                let recall = self.task.has_other_nodes.then(|| ("--recall", self.daemon_port()));
                let liveness = CommandLine::own("liveness").option("--run", self.task.paths.run.display().to_string());
                (liveness.options(recall), Captured)
            }
            Child::OomScore => {
                let users = self.machine.units().iter().filter_map(|unit| unit.spec.user.as_deref());
                let spools = self.machine.prepared().map(|prepared| &*prepared.spool_directories).unwrap_or_default();
                let oom_score = CommandLine::own("oom-score").options(users.map(|user| ("--spare", user)));
                (oom_score.options(spools.iter().map(|spool| ("--spool", spool))), Log)
            }
            Child::FreePort(id) => (self.free_port_command(&self.machine.units()[id]), Log),
            Child::Reconfigure => (CommandLine::new(["scontrol", "reconfigure"]), Log),
            Child::NodeCheck if self.task.setup.jobs == JobCare::OtherContainers => {
                (CommandLine::new(["scontrol", "ping"]), Captured)
            }
            Child::NodeCheck => {
                let sinfo = CommandLine::new(["sinfo", "--noheader"]);
                (sinfo.option("--nodes", node).option("--format", SINFO_FORMAT), Captured)
            }
            Child::NodeResume => {
                let name = format!("nodename={node}");
                (CommandLine::new(["scontrol", "update", &name, "state=resume"]), Log)
            }
        }
    }

    fn node(&self) -> &str {
        self.machine.prepared().and_then(Prepared::name_of_node).unwrap_or(&self.task.node)
    }

    /// A unit's command. Some units are started through a verb of slurminit that makes preparations and then executes the command.
    fn unit_command(&self, unit: &Unit) -> CommandLine {
        let mut command = CommandLine::new(&unit.spec.command);
        let registered = self.machine.prepared().and_then(|prepared| prepared.configured_node_name.as_deref());
        if let Some(node) = registered.filter(|_| unit.is(DaemonName::Slurmd) && unit.spec.node.is_none()) {
            command = command.option("-N", node);
        }
        let wrapper = match unit.spec.daemon {
            Some(DaemonName::Slurmd) => self.join_command(unit).or_else(|| self.own_cgroup_command()),
            Some(DaemonName::Slurmctld) => self.number_command(unit),
            Some(DaemonName::Mariadbd) => Some(self.mariadb_command()),
            _ => None,
        };
        wrapper.map_or(command.clone(), |wrapper| wrapper.then(command))
    }

    /// `slurminit jobs number` prevents slurmctld from reusing the job IDs of a saved state or of an accounting database. `None` if that is not
    /// necessary.
    fn number_command(&self, unit: &Unit) -> Option<CommandLine> {
        let number = self.with_state(CommandLine::own("jobs").arg("number"));
        let inherited = unit.inherited_state(self.machine.prepared());
        // An accounting database can contain jobs of a saved state that was lost.
        let has_accounting = || {
            let mut daemons = self.machine.units().iter().filter_map(|unit| unit.spec.daemon);
            daemons.any(DaemonName::is_for_accounting)
        };
        if inherited.is_none() && !(unit.has_empty_state(self.machine.prepared()) && has_accounting()) {
            return None;
        }
        let state_age = match inherited {
            Some(InheritedState::Saved(since)) => {
                Some(self.start.elapsed().saturating_sub(since).as_secs().to_string())
            }
            _ => None,
        };
        Some(number.options(state_age.map(|age| ("--saved-within", age))))
    }

    /// If the node is dynamic, `slurminit jobs join` adds it to the cluster.
    fn join_command(&self, unit: &Unit) -> Option<CommandLine> {
        let prepared = self.machine.prepared()?;
        let join = CommandLine::jobs(&prepared.node_name)
            .arg("join")
            .option("--conf", prepared.dynamic_node.as_deref()?)
            .option("--gpus", announced::text(&prepared.gpus))
            .option("--port", self.daemon_port());
        Some(join.flag("--again", unit.has_been_ready()).arg("--"))
    }

    /// If the node is not dynamic and jobs have cgroups, `slurminit jobs own-cgroup` starts slurmd in its own cgroup.
    fn own_cgroup_command(&self) -> Option<CommandLine> {
        let has_cgroups = self.machine.prepared().is_some_and(|prepared| !prepared.without_cgroups);
        has_cgroups.then(|| CommandLine::own("jobs").arg("own-cgroup").arg("--"))
    }

    /// `slurminit mariadb` creates the database at the first start.
    fn mariadb_command(&self) -> CommandLine {
        let mariadb = CommandLine::own("mariadb").option("--template", Paths::DATABASE_TEMPLATE);
        mariadb.option("--data", self.task.paths.database()).arg("--")
    }

    fn daemon_port(&self) -> String {
        self.task.daemon_port.to_string()
    }

    /// Adds the path of the control socket.
    fn with_socket(&self, command: CommandLine) -> CommandLine {
        command.option("--socket", machine::protocol::socket(&self.task.paths.run))
    }

    /// Adds the paths of slurm.conf and of slurmctld's state.
    fn with_state(&self, command: CommandLine) -> CommandLine {
        let paths = &self.task.paths;
        command.option("--slurm-conf", paths.slurm.join("slurm.conf")).option("--state", paths.state.join("slurmctld"))
    }

    /// Whether the container stops because its command has ended, without waiting for jobs.
    fn stops_without_waiting_for_jobs(&self) -> bool {
        self.machine.stops_with_its_command() && !self.task.setup.wait_jobs
    }

    /// A slurminit verb that reads the configuration again.
    fn config_verb(&self, verb: &str) -> CommandLine {
        CommandLine::own(verb).options(self.task.config_file.as_ref().map(|file| ("--config", file)))
    }

    /// Passes the process groups of all running units, so that `free-port` kills none of them.
    fn free_port_command(&self, unit: &Unit) -> CommandLine {
        let port = match unit.spec.readiness {
            ReadinessTest::Port(port) => port,
            _ => 0,
        };
        let units = self.running_children.values().filter(|running| running.child.unit().is_some());
        CommandLine::own("free-port")
            .option("--port", port.to_string())
            .option("--unit", &unit.spec.name)
            .options(units.map(|running| ("--spare", running.started.group.to_string())))
    }

    /// The standard input of a preparation.
    fn prepare_input(&self, child: Child) -> Option<PrepareInput> {
        let died = match child {
            Child::Prepare | Child::Reload => {
                return Some(PrepareInput {
                    held: Some(self.task.held.clone()),
                    time_limit: Some(self.task.setup.supervise.prepare_timeout()),
                    ..PrepareInput::default()
                });
            }
            Child::Explain(id) => id,
            Child::Restore => self.machine.rollback_files_and_cause().1?,
            _ => return None,
        };
        let last_lines = self.logs.lines_of_last_run(&self.machine.units()[died].spec.name).join("\n");
        Some(PrepareInput { last_lines, ..PrepareInput::default() })
    }

    /// The options for finding the cause of a daemon's death.
    fn death_options(&self, id: UnitId) -> CommandLine {
        CommandLine::default().option("--died", &self.machine.units()[id].spec.name).arg(INPUT_OPTION)
    }

    /// The checks for this round's units. Skips units that have died. Also skips slurmd while the process limit is
    /// nearly reached: the check makes each slurmstepd create a thread, and if that fails, the slurmstepd exits and its
    /// job ends (24.11: `macros.h`).
    fn liveness_checks(&self) -> Vec<LivenessCheck> {
        let node = self.node();
        let is_short_of_processes = limits::process_shortage().is_some();
        let check = |id: &UnitId| {
            let spec = &self.machine.units()[*id].spec;
            if is_short_of_processes && spec.daemon == Some(DaemonName::Slurmd) {
                return None;
            }
            let test = &spec.liveness.as_ref()?.test;
            Some(LivenessCheck {
                unit: *id,
                pid: self.find(Child::Unit(*id))?.started.pid.as_raw(),
                has_clients: matches!(spec.readiness, ReadinessTest::Port(_) | ReadinessTest::Socket(_)),
                connects_to_steps: test.connects_to_steps(),
                commands: test.commands(&self.task.paths.munge_socket, spec.node.as_deref().unwrap_or(node)),
                user: spec.user.clone().filter(|_| has_custom_liveness(spec)),
                env: if has_custom_liveness(spec) { unit_env(spec) } else { BTreeMap::new() },
                timeout_ms: u64::try_from(self.machine.probe_timeout(*id).as_millis()).unwrap_or(u64::MAX),
            })
        };
        self.machine.units_being_checked().iter().filter_map(check).collect()
    }
}

/// Whether the liveness check is the operator's command.
fn has_custom_liveness(spec: &Spec) -> bool {
    spec.liveness.as_ref().is_some_and(|liveness| matches!(liveness.test, ProbeTest::Command(_)))
}

/// Sets the program's user to that of the unit, and adds the variables of the unit and of this user. `slurminit as-user` switches to a user that PID
/// 1 cannot look up.
fn as_unit_user(spec: &Spec, mut program: Program) -> Program {
    let mut added = unit_env(spec);
    let mut removed = NOT_FOR_DAEMONS.to_vec();
    if spec.daemon == Some(DaemonName::Munged) {
        removed.extend(NOT_FOR_MUNGED);
    }
    let Some(name) = &spec.user else { return Program { env: environment(&added, &removed), ..program } };
    let user = if spec.daemon.is_some() { users::local(name) } else { users::find_if_nss_is_local(name) };
    let is_current_user = user.as_ref().is_some_and(|user| user.uid == nix::unistd::Uid::effective().as_raw());
    if is_current_user {
        return Program { env: environment(&added, &removed), ..program };
    }
    match &user {
        Some(user) => user.variables().for_each(|(name, value)| {
            added.entry(name.to_owned()).or_insert_with(|| value.to_owned());
        }),
        None => {
            let helper = CommandLine::own("as-user").arg(name).arg("--");
            program.argv.splice(0..0, helper.into_argv());
        }
    }
    removed.extend(users::VARIABLES);
    Program { env: environment(&added, &removed), user, ..program }
}

/// The variables of the unit, and its defaults for variables that are not set in slurminit's environment.
fn unit_env(spec: &Spec) -> BTreeMap<String, String> {
    let unset = spec.default_env.iter().filter(|(name, _)| std::env::var_os(name).is_none());
    let defaults = unset.cloned();
    defaults.chain(spec.env.clone()).collect()
}

/// slurminit's own environment without `removed`, plus `added`.
fn environment(added: &BTreeMap<String, String>, removed: &[&str]) -> Vec<Vec<u8>> {
    let is_dropped =
        |name: &OsString| name.to_str().is_some_and(|name| removed.contains(&name) || added.contains_key(name));
    let pair = |name: &[u8], value: &[u8]| [name, b"=", value].concat();
    let kept = std::env::vars_os().filter(|(name, _)| !is_dropped(name));
    let kept = kept.map(|(name, value)| pair(&name.into_vec(), &value.into_vec()));
    kept.chain(added.iter().map(|(name, value)| pair(name.as_bytes(), value.as_bytes()))).collect()
}
