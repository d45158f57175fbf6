//! `slurminit run`: reads the options of a container, then executes `slurminit-init`. If the cluster of the container is already running, it
//! runs the command there instead.

mod attach;
mod docker_args;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::Configuration;
use crate::output::{error_line, print};
use config::{Config, DEFAULT_FILE};
use control::launch::become_init;
use control::status;
use docker_args::FirstWord;
use install::load_config;
use machine::PhaseName;
use model::inventory::Finding;
use model::task::Task;
use model::{exit_code, printable};
use plan::FileName;
use plan::task::task;
use startup::start::Start;
use startup::take_token::take_token;
use startup::take_variables::{saved_toml, take_variables};
use startup::up;
use sys::container::Container;
use sys::inherited::Inherited;
use sys::lock::Lock;
use sys::lock::state::{StateInUse, StateLock};
use sys::outer_job;

pub(super) use attach::wait_for_running_cluster;

/// The key of slurm.conf that sets slurmctld's state directory.
const STATE_KEY: &str = "StateSaveLocation";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    start: Start,
    /// Join the cluster of this token, which `slurminit join-command` prints in the controller's container
    #[arg(long, value_name = "TOKEN")]
    join: Option<OsString>,
    /// Leave the terminal and session of the parent process: for `slurminit up`
    #[arg(long, hide = true)]
    detached: bool,
    /// The signal mask, ignored signals and umask of the process before it re-executed itself without its secrets
    #[arg(long, hide = true, value_parser = parse_inherited)]
    inherited: Option<Inherited>,
}

fn parse_inherited(text: &str) -> Result<Inherited, serde_json::Error> {
    serde_json::from_str(text)
}

pub(crate) fn run(args: Args, configuration: &Configuration) -> anyhow::Result<u8> {
    let Args { mut start, join, detached, inherited } = args;
    start.cluster.config.clone_from(&configuration.config);
    let inherited = inherited.unwrap_or_else(Inherited::capture);
    if detached {
        up::detach();
    }
    if let Some(code) = handle_first_word(&mut start, join.as_deref(), &inherited)? {
        return Ok(code);
    }
    let (config, start_only, target) = match start.configuration() {
        Ok(configuration) => configuration,
        Err(error) => return Ok(refuse(&format!("{error:#}"), exit_code::CONFIG)),
    };
    // The lock is taken first, so that a second start does not replace the saved variables of a running cluster.
    let lock = match target.has_cluster.then(|| Lock::take(&config.paths.run)).transpose() {
        Ok(lock) => lock.unwrap_or_default(),
        // The cluster is already running, or a concurrent start has taken the lock.
        Err(_) if !start.cmd.is_empty() => return attach::run(&start.cluster, &config, &start.cmd),
        Err(running) => return Ok(refuse(&running.to_string(), exit_code::FAILURE)),
    };
    if target.has_cluster {
        if let Err(error) = take_variables(start.cluster.file(), Some(&inherited)) {
            return Ok(refuse(&error.to_string(), exit_code::CONFIG));
        }
    }
    let state = match target.has_state().then(|| lock_state(&config)).transpose() {
        Ok(state) => state.unwrap_or_default(),
        Err(in_use) => return Ok(refuse(&in_use.to_string(), exit_code::CONFIG)),
    };
    let file = start.cluster.file();
    let outer = if target.has_cluster { take_outer_job() } else { Vec::new() };
    let task = Task {
        config_file: file.map(|file| file.as_os_str().to_owned()),
        watched_file: load_config::file(file).into(),
        // PID 1 passes these options on to the preparation, also at a reload.
        requested_role: start.cluster.role,
        simulated_nodes: start.cluster.nodes,
        warnings: warnings(&config, file, &lock, &state).into_iter().chain(outer_job::warning(&outer)).collect(),
        ..task(&config, &start_only, target, !start.cmd.is_empty(), sys::monotonic_ms())
    };
    Err(become_init(task, inherited, &lock, &state, &start.cmd, &outer))
}

/// Returns the names of the variables of an outer Slurm job, and of `SLURM_CONF`. Records the variables, so that later commands can remove them.
fn take_outer_job() -> Vec<OsString> {
    let outer = outer_job::variables();
    if let Err(error) = outer_job::record(Path::new("/"), &outer) {
        error_line(format_args!("slurminit: warning: cannot update the record of ignored Slurm variables: {error}"));
    }
    outer
}

/// Locks slurminit's state directory, and slurmctld's if the configuration or the user's own slurm.conf sets one outside of it.
fn lock_state(config: &Config) -> Result<StateLock, StateInUse> {
    // An unreadable file is reported by the preparation.
    let found = install::find_user_files(&config.paths, Path::new("/")).unwrap_or_default();
    let chosen = plan::select_user_files(config, &found);
    let custom = match chosen.get(FileName::SlurmConf) {
        Some(file) => plan::last_value(&file.text, STATE_KEY),
        None => config.slurm.conf.get(STATE_KEY).map(|state| state.as_str().to_owned()),
    };
    let custom = custom.map(PathBuf::from).filter(|path| path.is_absolute() && !path.starts_with(&config.paths.state));
    StateLock::take(config.paths.state.clone(), custom.into_iter().collect())
}

fn refuse(why: &str, code: u8) -> u8 {
    error_line(format_args!("slurminit: {}", printable::lines(why)));
    code
}

/// Without a join token on the command line, handles a first word that is not a command, or runs the command in a running cluster. Then saves
/// the join token, if there is one. Returns the exit code if nothing is left to do.
fn handle_first_word(start: &mut Start, join: Option<&OsStr>, inherited: &Inherited) -> anyhow::Result<Option<u8>> {
    let has_token = join.is_some() || docker_args::token(&start.cmd).is_some();
    if !has_token {
        if let Some(code) =
            interpret_first_word(start)?.map_or_else(|| run_in_running_cluster(start), |code| Ok(Some(code)))?
        {
            return Ok(Some(code));
        }
    }
    // A token on the command line or in the environment makes this process execute itself again, without the token.
    let taken = take_token(docker_args::token(&start.cmd).or_else(|| join.map(Some)), Some(inherited));
    Ok(taken.err().map(|error| refuse(&error.to_string(), exit_code::CONFIG)))
}

/// Takes `--nodes` from the words, and handles a first word that is not a command. Returns the exit code if nothing is left to do.
fn interpret_first_word(start: &mut Start) -> anyhow::Result<Option<u8>> {
    match docker_args::take_nodes(&mut start.cmd) {
        Ok(nodes) => start.cluster.nodes = nodes.or(start.cluster.nodes),
        Err(why) => {
            return Ok(Some(refuse(&why, exit_code::CONFIG)));
        }
    }
    match docker_args::classify(&start.cmd, &docker_args::is_program) {
        FirstWord::Command => {}
        FirstWord::Help => return print_text(&docker_args::help()).map(Some),
        FirstWord::Version => return print_text(&format!("{}\n", docker_args::version())).map(Some),
        FirstWord::Verb => start.cmd.insert(0, std::env::current_exe()?.into_os_string()),
        FirstWord::Option => {
            let option = start.cmd.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
            let why = format!(
                "`{option}` is not a command; put options of `docker run` before the image's name, or see `docker run IMAGE --help`"
            );
            return Ok(Some(refuse(&why, exit_code::CMD_NOT_FOUND)));
        }
    }
    Ok(None)
}

/// Runs the command in the cluster that is already running in this container, and returns the exit code. Returns `None` if there is no command
/// or no such cluster, if that cluster is stopping, or if the configuration is invalid.
fn run_in_running_cluster(start: &Start) -> anyhow::Result<Option<u8>> {
    let Ok((config, _, target)) = start.configuration() else { return Ok(None) };
    let running = status::of_running_slurminit(&config.paths.run);
    let is_running = running.is_some_and(|status| status.snapshot.phase != PhaseName::Stopping);
    if start.cmd.is_empty() || !target.has_cluster || !is_running {
        return Ok(None);
    }
    attach::run(&start.cluster, &config, &start.cmd).map(Some)
}

/// The warnings that PID 1 logs first.
fn warnings(config: &Config, file: Option<&Path>, lock: &Lock, state: &StateLock) -> Vec<String> {
    let mut warnings = Vec::new();
    if std::env::var_os("SLURMINIT_DEMO").is_some_and(|value| !value.is_empty()) {
        warnings.push("DEMO: the GPUs of this cluster are SIMULATED; jobs cannot compute on them".to_owned());
    }
    if let Some(nodes) = config.simulated() {
        let count = nodes.iter().count();
        warnings.push(format!(
            "the nodes of this cluster are SIMULATED ({count} in all): they share the resources of one container"
        ));
    }
    if file == Some(&saved_toml()) && Path::new(DEFAULT_FILE).exists() {
        warnings
            .push(format!("{DEFAULT_FILE} is ignored, because SLURMINIT_TOML replaces it; fix: remove one of them"));
    }
    if Container::of_this_process().shares_pid_namespace() {
        warnings.push(
            "the PID namespace is shared with the host or other containers, whose users can signal jobs; fix: remove --pid, hostPID or shareProcessNamespace"
                .to_owned(),
        );
    }
    warnings.extend(state.warnings.iter().cloned());
    warnings
        .extend(lock.repaired.iter().chain(&state.repaired).map(|repaired| format!("{repaired}; {}", repaired.fix())));
    let unknown = load_config::unknown_variables().into_iter();
    warnings.extend(unknown.map(|Finding { what, fix, .. }| format!("{what}; fix: {fix}")));
    warnings
}

fn print_text(text: &str) -> anyhow::Result<u8> {
    print(text)?;
    Ok(exit_code::SUCCESS)
}
