//! Partitions that accept no new jobs while a reload removes them.
//!
//! PID 1 ends a reload that takes too long with SIGKILL. So the names are recorded in the run directory before the first partition is
//! closed, and the partitions that a killed reload closed are opened later: by `slurminit prepare --reopen`, which PID 1 then starts, or by
//! the next reload.

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
            // Other errors are ignored: if slurmctld is not running, there are no new jobs.
            if let Err(QueryError::TimedOut(_)) = set_state(&budget.slurm(), name, "DRAIN") {
                return Err(Refusal::new(
                    exit_code::FAILURE,
                    format!("slurmctld did not close the partition {name} in time"),
                    "before a reload removes a partition, the partition must accept no new jobs",
                    "see `slurminit logs slurmctld`, then run `slurminit reload`",
                ));
            }
        }
        Ok(closed)
    }

    /// Keeps the partitions closed: the new files are installed, and contain them only with State=DRAIN, if at all.
    pub(super) fn keep_closed(mut self) {
        self.is_kept_closed = true;
        if let Err(error) = install::forget_closed_partitions(self.paths, self.root) {
            report::warn(message!(
                "closed-partitions-not-forgotten",
                "cannot remove the record of closed partitions: {error}",
                error
            ));
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

/// Opens the recorded partitions. Those that slurmctld has but does not open remain recorded.
pub(super) fn reopen(paths: &Paths, root: &Path, slurm: &Client<'_>) {
    let names = match install::closed_partitions(paths, root) {
        Ok(names) => names,
        Err(error) => {
            report::warn(message!(
                "closed-partitions-not-read",
                "cannot read the record of closed partitions: {error}",
                error
            ));
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
            // slurmctld uses another slurm.conf by now, without this partition.
            Err(QueryError::Failed { output, .. }) => !output.contains("Invalid partition"),
            Err(_) => true,
        })
        .collect();
    let recorded = match failed.is_empty() {
        true => install::forget_closed_partitions(paths, root),
        false => install::record_closed_partitions(paths, root, &failed),
    };
    if let Err(error) = recorded {
        report::warn(message!(
            "closed-partitions-not-forgotten",
            "cannot update the record of closed partitions: {error}",
            error
        ));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_slurm::FakeSlurm;

    #[test]
    fn partition_stays_recorded_until_slurmctld_opens_it_or_has_lost_it() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("run/slurminit")).unwrap();
        let paths = Paths::default();
        let names = ["a", "b", "c"].map(str::to_owned);
        install::record_closed_partitions(&paths, root.path(), &names).unwrap();
        let slurm = FakeSlurm::new(&[
            ("scontrol update PartitionName=a State=UP", Ok("")),
            ("scontrol update PartitionName=b State=UP", Err("Invalid partition name specified")),
            ("scontrol update PartitionName=c State=UP", Err("slurm_update error: Unable to contact slurm controller")),
        ]);
        reopen(&paths, root.path(), &Client::with_runner(&slurm.run()));
        assert_eq!(slurm.commands("").len(), 3);
        assert_eq!(install::closed_partitions(&paths, root.path()).unwrap(), ["c"]);
        let slurm = FakeSlurm::new(&[("scontrol update PartitionName=c State=UP", Ok(""))]);
        reopen(&paths, root.path(), &Client::with_runner(&slurm.run()));
        assert_eq!(install::closed_partitions(&paths, root.path()).unwrap(), [""; 0]);
    }
}
