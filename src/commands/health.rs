//! `slurminit health`: for HEALTHCHECK and probes.

use std::path::{Path, PathBuf};

use super::load_config;
use crate::control::client::{self, ControlError};
use crate::control::{self, protocol::Request};
use crate::exit_code;
use crate::supervise::machine::Snapshot;
use crate::supervise::status::{self, Status};

/// Its command line.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Whether jobs can run now; the default
    #[arg(long)]
    ready: bool,
    /// Whether PID 1 answers and nothing essential is given up: true during a start and a stop as well
    #[arg(long, conflicts_with = "ready")]
    live: bool,
    /// The configuration; /config/slurminit.toml if there is one
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Does it.
pub fn run(args: Args) -> anyhow::Result<u8> {
    let directory = &load_config::run_directory(args.config.as_deref())?;
    let (healthy, why) = match running(status::read(directory), directory) {
        Err(why) => (false, why),
        Ok(status) if args.live => {
            // Whoever may not ask has the file; so has everybody where the socket could not be made.
            let answer = client::ask(&control::socket(directory), &Request::Ping);
            is_live(&status.snapshot, answer.err())
        }
        Ok(Status { snapshot, .. }) => (snapshot.ready, snapshot.why),
    };
    println!("{why}");
    Ok(if healthy { exit_code::SUCCESS } else { exit_code::FAILURE })
}

/// The status, if the process that wrote it lives; else why there is none.
fn running(status: std::io::Result<Status>, directory: &Path) -> Result<Status, String> {
    match status {
        Err(error) => {
            let file = directory.join(status::FILE);
            Err(format!("no slurminit runs here as PID 1 of a cluster ({}: {error})", file.display()))
        }
        Ok(status) if !is_alive(status.pid) => Err(format!("slurminit (pid {}) is gone", status.pid)),
        Ok(status) => Ok(status),
    }
}

fn is_live(snapshot: &Snapshot, error: Option<ControlError>) -> (bool, String) {
    if let Some(error @ ControlError::NoAnswer { .. }) = error {
        return (false, error.to_string());
    }
    match snapshot.units.iter().find(|unit| unit.essential && unit.state == "given up") {
        Some(unit) => {
            let how = unit.last_exit.as_deref().unwrap_or("ended");
            (false, format!("{name} is given up: it last {how}; `slurminit restart {name}`", name = unit.name))
        }
        None => (true, format!("alive, and {}", if snapshot.ready { "ready" } else { snapshot.phase.as_str() })),
    }
}

/// Whether the process exists; another user's does too, even if it may not be signalled.
pub(super) fn is_alive(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::machine::UnitSnapshot;

    #[test]
    fn without_a_status_file_the_reason_names_it() {
        let directory = tempfile::tempdir().unwrap();
        let why = running(status::read(directory.path()), directory.path()).unwrap_err();
        assert!(why.contains("status.json"), "{why}");
    }

    #[test]
    fn what_is_given_up_and_essential_is_not_live_and_a_start_is() {
        let unit = |name: &str, essential, state: &str| UnitSnapshot {
            name: name.to_owned(),
            essential,
            state: state.to_owned(),
            ..UnitSnapshot::default()
        };
        let snapshot = |units| Snapshot { phase: "starting".to_owned(), units, ..Snapshot::default() };
        let starting = snapshot(vec![unit("munged", true, "backing off"), unit("api", false, "given up")]);
        assert_eq!(is_live(&starting, None), (true, "alive, and starting".to_owned()));
        let (live, why) = is_live(&snapshot(vec![unit("munged", true, "given up")]), None);
        assert!(!live && why.contains("munged is given up"), "{why}");
        let silent = ControlError::NoAnswer { socket: "/run/slurminit/control".into() };
        assert!(!is_live(&starting, Some(silent)).0);
        let not_root = ControlError::NotPermitted { socket: "/run/slurminit/control".into() };
        assert!(is_live(&starting, Some(not_root)).0);
    }
}
