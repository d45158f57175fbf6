//! Tests of the machine in a simulated world.

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

pub(super) use sim::{API, DAEMONS, MS, MUNGED, SLURMCTLD, SLURMD, Sim, UNITS, cluster, hook, probed};

use super::*;
use crate::config::{OnGiveUp, RestartPolicy};
use crate::exit_code;
