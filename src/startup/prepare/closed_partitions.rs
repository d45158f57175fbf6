//! Partitions that accept no new jobs while a reload removes them.
//!
//! PID 1 ends a reload that takes too long with SIGKILL. So the names are recorded in the run directory before the first partition is
//! closed, and the next process opens the partitions that a killed one closed. That process is `slurminit prepare --reopen`, which PID 1
//! then starts, or the next reload.

use std::path::Path;

use super::budget::Budget;
use config::{Config, Paths};
use model::exit_code;
use model::message;
use plan::Refusal;
use slurm::client::Client;
use slurm::error::QueryError;
use sys::report;

/// Closed partitions; they are opened again if the reload fails.
pub(super) struct ClosedPartitions<'a> {
    paths: &'a Paths,
    root: &'a Path,
    budget: Budget,
    is_kept_closed: bool,
}

impl<'a> ClosedPartitions<'a> {
    /// Closes the partitions with these names.
    pub(super) fn close(config: &'a Config, root: &'a Path, names: &[String], budget: Budget) -> Result<Self, Refusal> {
        let closed = Self { paths: &config.paths, root, budget, is_kept_closed: false };
        if !names.is_empty() {
            install::record_closed_partitions(closed.paths, root, names)?;
        }
        for name in names {
            // Without slurmctld there are no new jobs either.
            if let Err(QueryError::TimedOut(_)) = set_state(&budget.slurm(), name, "DRAIN") {
                return Err(Refusal::new(
                    exit_code::FAILURE,
                    format!("slurmctld did not close the partition {name}"),
                    "a reload must not remove the partition of a new job",
                    "see `slurminit logs slurmctld`, then run `slurminit reload`",
                ));
            }
        }
        Ok(closed)
    }

    /// Keeps the partitions closed: the new files are installed and no longer contain them.
    pub(super) fn keep_closed(mut self) {
        self.is_kept_closed = true;
        if let Err(error) = install::forget_closed_partitions(self.paths, self.root) {
            report::warn(message!("closed-partitions-not-forgotten", "{error}", error));
        }
    }
}

impl Drop for ClosedPartitions<'_> {
    fn drop(&mut self) {
        if !self.is_kept_closed {
            reopen(self.paths, self.root, &self.budget.slurm_for_cleanup());
        }
    }
}

/// Opens the recorded partitions. Those that slurmctld does not open stay recorded.
pub(super) fn reopen(paths: &Paths, root: &Path, slurm: &Client<'_>) {
    let names = match install::closed_partitions(paths, root) {
        Ok(names) => names,
        Err(error) => {
            report::warn(message!("closed-partitions-not-read", "{error}", error));
            return;
        }
    };
    if names.is_empty() {
        return;
    }
    let failed: Vec<String> = names
        .into_iter()
        .filter(|name| match set_state(slurm, name, "UP") {
            Ok(()) => false,
            // slurmctld has started meanwhile, with another slurm.conf.
            Err(QueryError::Failed { output, .. }) => !output.contains("Invalid partition"),
            Err(_) => true,
        })
        .collect();
    let recorded = match failed.is_empty() {
        true => install::forget_closed_partitions(paths, root),
        false => install::record_closed_partitions(paths, root, &failed),
    };
    if let Err(error) = recorded {
        report::warn(message!("closed-partitions-not-forgotten", "{error}", error));
    }
    if !failed.is_empty() {
        report::error(message!(
            "partitions-closed",
            "partitions still in state DRAIN: {names}; run `scontrol update PartitionName=NAME State=UP`",
            names = failed.join(", ")
        ));
    }
}

fn set_state(slurm: &Client<'_>, partition: &str, state: &str) -> Result<(), QueryError> {
    slurm.update(&format!("PartitionName={partition}"), &[format!("State={state}")])
}
