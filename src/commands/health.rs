//! `slurminit health`: for HEALTHCHECK and probes.

use std::path::{Path, PathBuf};

use super::load_config;
use crate::exit_code;
use crate::supervise::status::{self, Status};

/// Its command line.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The configuration; /config/slurminit.toml if there is one
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Does it.
pub fn run(args: Args) -> anyhow::Result<u8> {
    let run = load_config::run_directory(args.config.as_deref());
    let (healthy, why) = verdict(status::read(&run), &run);
    println!("{why}");
    Ok(if healthy { exit_code::SUCCESS } else { exit_code::FAILURE })
}

fn verdict(status: std::io::Result<Status>, directory: &Path) -> (bool, String) {
    match status {
        Err(error) => {
            let file = directory.join(status::FILE);
            (false, format!("no slurminit runs here as PID 1 of a cluster ({}: {error})", file.display()))
        }
        Ok(status) if !is_alive(status.pid) => (false, format!("slurminit (pid {}) is gone", status.pid)),
        Ok(status) => (status.snapshot.ready, status.snapshot.why),
    }
}

/// Whether the process exists; another user's does too, even if it may not be signalled.
pub(super) fn is_alive(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_status_file_the_reason_names_it() {
        let directory = tempfile::tempdir().unwrap();
        let (healthy, why) = verdict(status::read(directory.path()), directory.path());
        assert!(!healthy);
        assert!(why.contains("status.json"), "{why}");
    }
}
