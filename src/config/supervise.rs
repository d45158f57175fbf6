//! Restarts and deadlines.

use std::time::Duration;

use serde::Deserialize;

use super::value;

/// Restarts and deadlines. In the file, times are seconds and may have a fraction.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Supervise {
    /// The pause before the first restart; it doubles with each failure in a row.
    #[serde(deserialize_with = "value::seconds")]
    pub restart_initial_delay: Duration,
    /// The longest pause.
    #[serde(deserialize_with = "value::seconds")]
    pub restart_max_delay: Duration,
    /// So many failures within `give_up_window` are too many.
    pub give_up_after: u32,
    /// See `give_up_after`.
    #[serde(deserialize_with = "value::seconds")]
    pub give_up_window: Duration,
    /// A daemon that ran for so long has its failures forgotten.
    #[serde(deserialize_with = "value::seconds")]
    pub reset_after: Duration,
    /// What happens then.
    pub on_give_up: OnGiveUp,
    /// How often daemons that are ready are asked whether they still answer; zero is never.
    #[serde(deserialize_with = "value::probe_seconds_or_zero")]
    pub probe_interval: Duration,
    /// How long an answer may take; never longer than `probe_interval`.
    #[serde(deserialize_with = "value::probe_seconds")]
    pub probe_timeout: Duration,
    /// From the signal to the last KILL, for all daemons together. `docker stop` waits 10 s.
    #[serde(deserialize_with = "value::seconds")]
    pub stop_timeout: Duration,
    /// How long detection, planning and installation may take in all.
    #[serde(deserialize_with = "value::seconds")]
    pub prepare_timeout: Duration,
    /// How long the node may take to become idle.
    #[serde(deserialize_with = "value::seconds")]
    pub ready_timeout: Duration,
}

impl Default for Supervise {
    fn default() -> Self {
        Self {
            restart_initial_delay: Duration::from_millis(200),
            restart_max_delay: Duration::from_secs(30),
            give_up_after: 5,
            give_up_window: Duration::from_secs(60),
            reset_after: Duration::from_secs(60),
            on_give_up: OnGiveUp::Exit,
            probe_interval: Duration::from_secs(5),
            probe_timeout: Duration::from_secs(3),
            stop_timeout: Duration::from_secs(8),
            prepare_timeout: Duration::from_secs(30),
            ready_timeout: Duration::from_secs(60),
        }
    }
}

/// What happens when a daemon cannot be kept alive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnGiveUp {
    /// The container ends with that daemon's exit code, so that the orchestrator sees it.
    #[default]
    Exit,
    /// The container stays, so that a person can look inside.
    Hold,
}
