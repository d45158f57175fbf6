//! Tests of minutes. docker/test runs one seventh of them, by the day of the year; docker/test --all runs all.

#[path = "adversary/attacks.rs"]
mod adversary;
mod autoscale;
mod between;
mod change_rounds;
mod checkpoint;
mod cluster_failures;
#[path = "faults/matrix.rs"]
mod faults;
mod forged_records;
#[path = "gpu_faults/computes.rs"]
mod gpu_faults;
mod hosts;
#[path = "images/namespaces.rs"]
mod images;
mod jobs_rounds;
mod join;
mod ldap;
mod machines;
mod mpi;
mod pods;
mod requests;
mod sbatch_args;
