//! Interprets the first word after the image's name if it is not a command.
//!
//! The image's entry point is `slurminit run --`, so everything after the image's name arrives here as a command.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use clap::Subcommand as _;

use crate::commands::Verb;
use crate::version;

/// The kind of the first word after the image's name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FirstWord {
    /// A command, no word at all, or an unknown word, whose execution fails.
    Command,
    /// `docker run IMAGE --help`.
    Help,
    /// `docker run IMAGE --version`.
    Version,
    /// `docker run IMAGE status`: `slurminit status` once the cluster is ready.
    Verb,
    /// An unknown option, such as a Docker option in the wrong place: `docker run IMAGE --gpus all`.
    Option,
}

/// The output of `docker run IMAGE --help`, after the version.
const HELP: &str = "A Slurm cluster in one container, with the GPUs that this container can use.

  docker run -d --name slurm IMAGE             a cluster that runs until it is stopped
  docker run --rm IMAGE srun hostname          a cluster for one command; its exit code is the container's
  docker run --rm IMAGE --nodes 4 srun -N4 hostname
                                               the same with four simulated nodes
  docker run --rm --gpus all IMAGE srun --gres=gpu:1 nvidia-smi -L
  docker run --rm -v \"$PWD:/work\" -w /work -e SLURMINIT_WAIT_JOBS=true IMAGE sbatch job.sh
                                               a batch job; the container ends when no job is left that can run

In a running container:

  docker exec slurm sinfo                      Slurm's own commands: srun, sbatch, squeue, scancel, scontrol, ...
  docker exec slurm slurminit status           the daemons, the node, the GPUs
  docker exec slurm slurminit doctor --brief   faults, their causes and fixes
  docker exec slurm slurminit logs slurmctld   the last log lines of a daemon; -f follows the log
  docker exec slurm slurminit --help           all verbs

A verb in place of a command (docker run --rm IMAGE detect) runs as `slurminit detect` once the cluster is ready, unless
the image has a program of that name. Without a cluster: docker run --rm --entrypoint slurminit IMAGE detect

To join another machine's cluster: docker exec CONTROLLER slurminit join-command prints the command, which contains --join TOKEN.

Configuration: a slurminit.toml in a directory that is mounted at /config (-v \"$PWD/config:/config\"); none is needed.
Persistent state: volumes at /var/lib/slurm and /etc/munge.
";

/// Classifies the first word. `is_program`: whether a program of that name can be executed.
pub(super) fn classify(cmd: &[OsString], is_program: &dyn Fn(&OsStr) -> bool) -> FirstWord {
    let Some(first) = cmd.first() else { return FirstWord::Command };
    let is_alone = cmd.len() == 1;
    match first.to_str() {
        Some("--help" | "-h") => FirstWord::Help,
        Some("--version" | "-V") => FirstWord::Version,
        Some(option) if option.starts_with('-') && !is_program(first) => FirstWord::Option,
        Some("help") if is_alone && !is_program(first) => FirstWord::Help,
        Some(word) if is_verb(word) && !is_program(first) => FirstWord::Verb,
        _ => FirstWord::Command,
    }
}

/// The token of `docker run IMAGE --join TOKEN`, `Some(None)` if the token is missing, or `None` without `--join`.
pub(super) fn token(cmd: &[OsString]) -> Option<Option<&OsStr>> {
    let first = cmd.first()?;
    match first.to_str() {
        Some("--join") => Some(cmd.get(1).map(OsString::as_os_str)),
        Some(word) => word.strip_prefix("--join=").map(|token| Some(OsStr::new(token))),
        None => None,
    }
}

/// Removes `--nodes N` or `--nodes=N`, and a `--` that follows, from the front of the words after the image's name. Returns N.
pub(super) fn take_nodes(cmd: &mut Vec<OsString>) -> Result<Option<u32>, String> {
    let Some(first) = cmd.first().and_then(|word| word.to_str()) else { return Ok(None) };
    let (number, taken) = match first.strip_prefix("--nodes=") {
        Some(number) => (Some(number.to_owned()), 1),
        None if first == "--nodes" => (cmd.get(1).map(|word| word.to_string_lossy().into_owned()), 2),
        None => return Ok(None),
    };
    let parsed = number.as_deref().and_then(|number| number.parse().ok());
    let nodes =
        parsed.ok_or("--nodes requires a number of simulated nodes: docker run IMAGE --nodes 4 srun -N4 hostname")?;
    cmd.drain(..taken);
    if cmd.first().is_some_and(|word| word == "--") {
        cmd.remove(0);
    }
    Ok(Some(nodes))
}

/// Whether the word is a visible verb. `run` is excluded, because the container already runs it.
fn is_verb(word: &str) -> bool {
    let verbs = Verb::augment_subcommands(clap::Command::new(""));
    verbs.get_subcommands().any(|verb| verb.get_name() == word && !verb.is_hide_set() && word != "run")
}

/// Whether the command is executable: looked up in PATH, if it has no slash.
pub(super) fn is_program(name: &OsStr) -> bool {
    let is_executable = |file: &Path| {
        file.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    };
    if Path::new(name).components().count() > 1 {
        return is_executable(Path::new(name));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| is_executable(&directory.join(name)))
}

/// The image's own help.
pub(super) fn help() -> String {
    format!("{}\n{HELP}", version())
}

/// The output of `slurminit --version`.
pub(super) fn version() -> String {
    format!("slurminit {}", *version::LINE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classification(cmd: &[&str], programs: &[&str]) -> FirstWord {
        let cmd: Vec<OsString> = cmd.iter().map(OsString::from).collect();
        classify(&cmd, &|name| programs.iter().any(|program| OsStr::new(program) == name))
    }

    #[test]
    fn interprets_words_that_are_not_commands() {
        for (cmd, expected) in [
            (&[][..], FirstWord::Command),
            (&["--help"], FirstWord::Help),
            (&["-h"], FirstWord::Help),
            (&["help"], FirstWord::Help),
            (&["--version"], FirstWord::Version),
            (&["-V"], FirstWord::Version),
            (&["status"], FirstWord::Verb),
            (&["logs", "slurmd"], FirstWord::Verb),
            (&["--gpus", "all", "srun"], FirstWord::Option),
            (&["srun", "--help"], FirstWord::Command),
            (&["no-such-command"], FirstWord::Command),
            // Hidden verbs, `run`, and `help` with an argument are not treated as verbs.
            (&["prepare"], FirstWord::Command),
            (&["run", "--", "srun"], FirstWord::Command),
            (&["help", "me"], FirstWord::Command),
        ] {
            assert_eq!(classification(cmd, &["srun"]), expected, "{cmd:?}");
        }
    }

    #[test]
    fn program_takes_precedence_over_verb_and_option() {
        for name in ["status", "help", "-x"] {
            assert_eq!(classification(&[name], &[name]), FirstWord::Command, "{name}");
        }
    }

    #[test]
    fn parses_nodes_option_with_and_without_separator() {
        for cmd in [&["--nodes", "4", "srun", "hostname"][..], &["--nodes=4", "--", "srun", "hostname"]] {
            let mut cmd: Vec<OsString> = cmd.iter().map(OsString::from).collect();
            assert_eq!(take_nodes(&mut cmd), Ok(Some(4)));
            assert_eq!(cmd, ["srun", "hostname"]);
        }
    }

    #[test]
    fn finds_join_token_only_before_command() {
        let token = |cmd: &[&str]| {
            let cmd: Vec<OsString> = cmd.iter().map(OsString::from).collect();
            super::token(&cmd).map(|token| token.map(OsStr::to_owned))
        };
        assert_eq!(token(&["--join", "sj1-x", "srun"]), Some(Some("sj1-x".into())));
        assert_eq!(token(&["--join=sj1-x"]), Some(Some("sj1-x".into())));
        assert_eq!(token(&["--join"]), Some(None));
        assert_eq!(token(&["srun", "--join", "sj1-x"]), None);
        assert_eq!(token(&[]), None);
    }

    #[test]
    fn help_fits_terminal() {
        assert!(HELP.lines().all(|line| line.len() <= 130), "{HELP}");
    }

    #[test]
    fn accepts_only_executables_as_programs() {
        assert!(is_program(OsStr::new("sh")) && is_program(OsStr::new("/bin/sh")));
        assert!(!is_program(OsStr::new("/etc")) && !is_program(OsStr::new("no-such-program")));
    }
}
