//! The task of PID 1: what it has to know of the configuration, and of the command line, for as long as the container lives.
//!
//! PURE. `slurminit run` makes it, and hands it to `slurminit-init`: PID 1 itself reads nothing that an operator has written.

use std::ffi::OsString;

use serde::{Deserialize, Serialize};

use super::machine::Setup;
use super::target::Target;
use crate::config::{Config, Held, Level, LogFormat, OnStop, Paths, Role};

/// The task of PID 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// What the state machine knows.
    pub setup: Setup,
    /// Whether slurmctld is here and its nodes are other containers.
    pub has_other_nodes: bool,
    /// What becomes of jobs that do not end in time when the container stops.
    pub on_stop: OnStop,
    /// The role, which the preparation is told.
    pub role: Role,
    /// The number of simulated nodes, if the command line gives one; the preparation is told that, too.
    pub simulated_nodes: Option<u32>,
    /// The configured name of the node.
    pub node: String,
    /// slurmd's port.
    pub daemon_port: u16,
    /// The directories and files.
    pub paths: Paths,
    /// The format of the log.
    pub log_format: LogFormat,
    /// The least severe level that is logged.
    pub log_level: Level,
    /// The configuration file that was named, which the preparation reads again.
    pub config_file: Option<OsString>,
    /// The file to watch for changes, even if none was named.
    pub watched_file: OsString,
    /// The part of the configuration that only a restart changes, without what the command line says instead: [`Held`] as text.
    pub held: String,
    /// What is odd about this start, to be logged first.
    pub warnings: Vec<String>,
}

impl Task {
    /// What the configuration makes of PID 1; the files are still to be named. `seed`: of the machine's jitter.
    pub fn new(config: &Config, held: &Held, target: &Target, has_cmd: bool, seed: u64) -> Self {
        let usual_level = if has_cmd { Level::Warn } else { Level::Info };
        Self {
            setup: Setup {
                has_cluster: target.has_cluster,
                jobs: target.jobs,
                units: target.units(config),
                hooks: config.hooks.pre_start.clone(),
                has_cmd,
                supervise: config.supervise.clone(),
                has_associations: config.has_associations(),
                jobs_grace: config.jobs.grace,
                wait_jobs: config.jobs.wait,
                seed,
            },
            has_other_nodes: target.has_other_nodes,
            on_stop: config.jobs.on_stop,
            role: config.role,
            simulated_nodes: config.simulate.nodes,
            node: config.node.name.to_string(),
            daemon_port: config.slurm.daemon_port,
            paths: config.paths.clone(),
            log_format: config.log.format,
            log_level: config.log.level.unwrap_or(usual_level),
            config_file: None,
            watched_file: OsString::new(),
            held: held.to_string(),
            warnings: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Each kind of value that a task can hold is in one of these.
    const CONFIGURATIONS: [&str; 4] = [
        "",
        "[supervise]\nstop_timeout = 4.25\nrestart_initial_delay = 0.123456789\nprobe_interval = 0\non_give_up = 'hold'\n\
         [log]\nformat = 'json'\nlevel = 'trace'\n[jobs]\ngrace = 0.5\non_stop = 'cancel'\nwait = true\n",
        "[[hooks.pre_start]]\ncommand = ['sh', '-c', 'a \"b\" \u{e4}']\n[accounting]\nmode = 'embedded'\n[daemon.slurmd]\nuser = 'x'\n\
         env = { A = 'b' }\n[daemon.slurmctld]\ncommand = ['slurmctld', '--systemd']\nliveness = 'off'\n\
         [[service]]\nname = 'api'\ncommand = ['api']\nafter = ['slurmd']\nrestart = 'on-failure'\n\
         readiness = { command = ['true'], timeout = 3 }\nliveness = { command = ['true'], timeout = 2 }\n",
        "[simulate]\nnodes = 3\n[metrics]\nlisten = '127.0.0.1:9835'\n",
    ];

    #[test]
    fn pid_1_gets_what_the_configuration_says() {
        for text in CONFIGURATIONS {
            let config = Config::parse(text, Path::new("x")).unwrap();
            let mut task = Task::new(&config, &Held::of(&config), Target::of(&config), true, u64::MAX);
            task.config_file = Some("/x y.toml".into());
            task.warnings.push("odd".to_owned());
            let handed_over: Task = serde_json::from_str(&serde_json::to_string(&task).unwrap()).unwrap();
            assert_eq!(handed_over, task, "{text}");
        }
    }
}
