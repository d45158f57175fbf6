//! Restart policy and deadlines.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::value;

/// Restart policy and deadlines. Times in the file are in seconds and may be fractional.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Supervise {
    /// The pause before the first restart; doubles with each consecutive failure.
    #[serde(serialize_with = "value::as_seconds", deserialize_with = "value::seconds")]
    pub restart_initial_delay: Duration,
    /// The longest pause between restarts.
    #[serde(serialize_with = "value::as_seconds", deserialize_with = "value::seconds")]
    pub restart_max_delay: Duration,
    /// The number of failures within `give_up_window` after which a daemon gives up.
    pub give_up_after: u32,
    /// The period in which `give_up_after` failures are counted.
    #[serde(serialize_with = "value::as_seconds", deserialize_with = "value::seconds")]
    pub give_up_window: Duration,
    /// After this run time, a daemon's failure count is reset.
    #[serde(serialize_with = "value::as_seconds", deserialize_with = "value::seconds")]
    pub reset_after: Duration,
    /// The action when a daemon gives up.
    pub on_give_up: OnGiveUp,
    /// The liveness check interval; zero disables the checks.
    #[serde(serialize_with = "value::as_seconds", deserialize_with = "value::probe_seconds_or_zero")]
    pub probe_interval: Duration,
    /// The liveness check timeout; at most `probe_interval`.
    #[serde(serialize_with = "value::as_seconds", deserialize_with = "value::probe_seconds")]
    pub probe_timeout: Duration,
    /// The configured time from the stop signal to the final SIGKILL, for all daemons together: see
    /// [`Supervise::stop_timeout`].
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "value::as_optional_seconds",
        deserialize_with = "value::optional_seconds"
    )]
    pub stop_timeout: Option<Duration>,
    /// The configured time limit for detection, planning and installation together: see [`Supervise::prepare_timeout`].
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "value::as_optional_seconds",
        deserialize_with = "value::optional_seconds"
    )]
    pub prepare_timeout: Option<Duration>,
    /// The time limit for the node to become idle.
    #[serde(serialize_with = "value::as_seconds", deserialize_with = "value::seconds")]
    pub ready_timeout: Duration,
    /// Whether changes in the operator's directory trigger a reload.
    pub reload_on_change: bool,
    /// Whether a job must run before the container is ready, if a file of Slurm is the user's own.
    pub test_job: bool,
}

/// Shorter than the 10 s that `docker stop` waits before it sends SIGKILL.
const STOP_TIMEOUT: Duration = Duration::from_secs(8);
const PREPARE_TIMEOUT: Duration = Duration::from_secs(30);

impl Supervise {
    /// The time from the stop signal to the final SIGKILL, for all daemons together.
    pub fn stop_timeout(&self) -> Duration {
        self.stop_timeout.unwrap_or(STOP_TIMEOUT)
    }

    /// The time limit for detection, planning and installation together.
    pub fn prepare_timeout(&self) -> Duration {
        self.prepare_timeout.unwrap_or(PREPARE_TIMEOUT)
    }

    /// The time that a driver may take. A driver that reports its GPUs one by one may take up to two and a half times as long.
    pub fn detect_timeout(&self, configured: Duration) -> Duration {
        configured.min(self.prepare_timeout() / 3)
    }

    /// Extends the preparation's time limit for a driver that may take this time, unless the limit is configured.
    pub fn allow_for_detection(&mut self, detect_timeout: Duration) {
        let needed = detect_timeout.saturating_mul(3);
        if self.prepare_timeout.is_none() && needed > PREPARE_TIMEOUT {
            self.prepare_timeout = Some(needed);
        }
    }

    /// How the stop timeout is divided.
    pub fn stop_budget(&self) -> StopBudget {
        StopBudget::of(self.stop_timeout())
    }
}

/// The parts of the stop timeout. The daemons' part is reserved, so that slurmctld can save its state whatever the
/// command and the jobs do; the command gets what the jobs do not need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopBudget {
    /// The whole stop timeout.
    pub total: Duration,
    /// Reserved for daemons and services.
    pub units: Duration,
    /// The least time from SIGTERM to SIGKILL of a daemon or service; a part of `units`.
    pub sigterm_to_sigkill: Duration,
    /// For Slurm's commands, on top of the jobs' grace period.
    pub jobs_margin: Duration,
}

impl StopBudget {
    /// Divides the timeout. 1.5 s are enough for the daemons, which need less than 0.1 s on an idle machine, and 2 s
    /// for Slurm's commands. Of a short timeout, each part is a quarter.
    fn of(total: Duration) -> Self {
        let units = Duration::from_millis(1500).min(total / 4);
        let jobs_margin = Duration::from_secs(2).min(total / 4);
        Self { total, units, sigterm_to_sigkill: units * 2 / 3, jobs_margin }
    }

    /// The longest grace period of jobs.
    pub fn max_grace(self) -> Duration {
        self.total - self.units - self.jobs_margin
    }
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
            stop_timeout: None,
            prepare_timeout: None,
            ready_timeout: Duration::from_secs(60),
            reload_on_change: true,
            test_job: true,
        }
    }
}

/// The action when a daemon gives up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnGiveUp {
    /// The container exits with that daemon's exit code, for the orchestrator to see.
    #[default]
    Exit,
    /// The container stays up, so that a person can inspect it.
    Hold,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn slow_driver_extends_only_default_prepare_timeout() {
        let prepare_timeout = |configured, detect| {
            let mut supervise = Supervise { prepare_timeout: configured, ..Supervise::default() };
            supervise.allow_for_detection(detect);
            supervise.prepare_timeout
        };
        assert_eq!(prepare_timeout(None, 10 * SECOND), None);
        assert_eq!(prepare_timeout(None, 11 * SECOND), Some(33 * SECOND));
        assert_eq!(prepare_timeout(Some(20 * SECOND), 11 * SECOND), Some(20 * SECOND));
    }

    #[test]
    fn driver_may_take_a_third_of_the_preparation() {
        let supervise = Supervise { prepare_timeout: Some(12 * SECOND), ..Supervise::default() };
        assert_eq!(supervise.detect_timeout(3 * SECOND), 3 * SECOND);
        assert_eq!(supervise.detect_timeout(5 * SECOND), 4 * SECOND);
        assert_eq!(Supervise::default().detect_timeout(20 * SECOND), 10 * SECOND);
    }

    #[test]
    fn stop_budget_reserves_time_for_daemons_before_jobs() {
        let budget = |total: Option<Duration>| Supervise { stop_timeout: total, ..Supervise::default() }.stop_budget();
        let long = budget(Some(60 * SECOND));
        assert_eq!((long.units, long.sigterm_to_sigkill, long.jobs_margin), (SECOND * 3 / 2, SECOND, 2 * SECOND));
        assert_eq!((long.total, long.max_grace()), (60 * SECOND, SECOND * 113 / 2));
        let short = budget(Some(4 * SECOND));
        assert_eq!((short.units, short.jobs_margin, short.max_grace()), (SECOND, SECOND, 2 * SECOND));
        assert!(budget(None).total < 10 * SECOND, "docker stop kills after 10 s");
    }
}
