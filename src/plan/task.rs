//! Builds the task of PID 1 from the configuration.

use std::ffi::OsString;

use super::target::Target;
use config::{Config, Level, StartOnlyTables};
use model::task::{Setup, Task};

/// The task of PID 1, without the warnings and the fields that the command line determines. `seed` is the seed of the jitter.
pub fn task(config: &Config, held: &StartOnlyTables, target: &Target, has_cmd: bool, seed: u64) -> Task {
    let usual_level = if has_cmd { Level::Warn } else { Level::Info };
    Task {
        setup: Setup {
            has_cluster: target.has_cluster,
            jobs: target.jobs,
            units: target.units(config),
            hooks: config.hooks.pre_start.clone(),
            has_cmd,
            supervise: config.supervise.clone(),
            jobs_grace: config.jobs.grace,
            wait_jobs: config.jobs.wait,
            seed,
        },
        has_other_nodes: target.has_other_nodes,
        on_stop: config.jobs.on_stop,
        role: config.role,
        requested_role: None,
        simulated_nodes: None,
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Together, these contain every kind of value in a task.
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
    fn task_round_trips_through_json() {
        for text in CONFIGURATIONS {
            let config = Config::parse(text, Path::new("x")).unwrap();
            let mut task = task(&config, &StartOnlyTables::of(&config), Target::of(&config), true, u64::MAX);
            task.config_file = Some("/x y.toml".into());
            task.simulated_nodes = config.simulate.nodes;
            task.warnings.push("odd".to_owned());
            let parsed: Task = serde_json::from_str(&serde_json::to_string(&task).unwrap()).unwrap();
            assert_eq!(parsed, task, "{text}");
        }
    }
}
