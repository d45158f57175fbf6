//! Tests of the state machine in a simulation.

mod accounting;
mod boot;
mod commands;
mod deaths;
mod histories;
mod jobs;
mod node;
mod readiness;
mod sim;
mod stop;

pub(super) use sim::{API, DAEMONS, MS, MUNGED, SLURMCTLD, SLURMD, Sim, UNITS, cluster, hook, own_files, probed};

use super::*;
use model::daemons::RestartPolicy;
use model::exit_code;
use model::supervise::{OnGiveUp, Supervise};
use model::unit::{JobCare, Spec};
