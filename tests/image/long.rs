//! Slow tests, and tests of rare faults. docker/test runs those in tests/image/representatives; docker/test --all runs all.

#[path = "adversary/attacks.rs"]
mod adversary;
mod autoscale;
mod between;
pub(crate) mod change_rounds;
mod checkpoint;
mod cluster_failures;
mod crontab;
mod drains;
#[path = "faults/matrix.rs"]
mod faults;
mod forged_records;
mod gpu_drivers;
#[path = "gpu_faults/computes.rs"]
mod gpu_faults;
mod handover;
mod hostile;
mod hosts;
mod idle_nodes;
#[path = "images/namespaces.rs"]
mod images;
mod jobs_once;
pub(crate) mod jobs_rounds;
mod join;
mod joined_volumes;
mod ldap;
mod machines;
mod memory;
mod mig;
mod mpi;
mod paths;
mod pods;
mod reconfigure;
mod reload_jobs;
mod requests;
mod sbatch_args;
#[path = "session/killed.rs"]
mod session;
mod simulate;
mod stubborn_jobs;
#[path = "session/transfers.rs"]
mod transfers;
