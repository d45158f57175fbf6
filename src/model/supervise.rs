//! `[supervise]`: restarts, liveness checks, deadlines and reloads.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::value;

/// Restarts, liveness checks, deadlines and reloads. Times in the file are in seconds and may be fractional.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Supervise {
    /// The pause after the second consecutive failure of a daemon or service; doubles with each further failure. After the first, the restart is
    /// immediate.
    #[serde(serialize_with = "value::as_seconds", deserialize_with = "value::seconds")]
    pub restart_initial_delay: Duration,
    /// The longest pause between restarts.
    #[serde(serialize_with = "value::as_seconds", deserialize_with = "value::seconds")]
    pub restart_max_delay: Duration,
    /// The number of failures within `give_up_window` after which slurminit gives up on a daemon or service. If the unit has a readiness test,
    /// the death of a ready process does not count once the unit has answered a liveness check.
    pub give_up_after: u32,
    /// The period in which `give_up_after` failures are counted.
    #[serde(serialize_with = "value::as_seconds", deserialize_with = "value::seconds")]
    pub give_up_window: Duration,
    /// If a daemon or service dies after it was ready for this time, its earlier failures no longer count.
    #[serde(serialize_with = "value::as_seconds", deserialize_with = "value::seconds")]
    pub reset_after: Duration,
    /// The action when slurminit gives up on an essential daemon or service.
    pub on_give_up: OnGiveUp,
    /// The liveness check interval; zero disables the checks.
    #[serde(serialize_with = "value::as_seconds", deserialize_with = "value::probe_seconds_or_zero")]
    pub probe_interval: Duration,
    /// The liveness check timeout, limited to `probe_interval`.
    #[serde(serialize_with = "value::as_seconds", deserialize_with = "value::probe_seconds")]
    pub probe_timeout: Duration,
    /// The configured time from the stop signal to the final SIGKILL, for the whole container: see
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
    /// The default readiness timeout of daemons and services, and the time limit for the node to become usable and for the test job.
    #[serde(serialize_with = "value::as_seconds", deserialize_with = "value::seconds")]
    pub ready_timeout: Duration,
    /// Whether a change of slurminit.toml, or of slurm.conf, gres.conf or cgroup.conf in the operator's directory, triggers a reload.
    pub reload_on_change: bool,
    /// Whether to run a test job at a start, and at a reload that changes files, if slurm.conf, gres.conf or cgroup.conf is the user's own.
    pub test_job: bool,
}

/// Shorter than the 10 s that `docker stop` waits before it sends SIGKILL.
const STOP_TIMEOUT: Duration = Duration::from_secs(8);
const PREPARE_TIMEOUT: Duration = Duration::from_secs(30);

impl Supervise {
    /// The time from the stop signal to the final SIGKILL, for the command, the jobs and all daemons and services together.
    pub fn stop_timeout(&self) -> Duration {
        self.stop_timeout.unwrap_or(STOP_TIMEOUT)
    }

    /// The time limit for detection, planning and installation together.
    pub fn prepare_timeout(&self) -> Duration {
        self.prepare_timeout.unwrap_or(PREPARE_TIMEOUT)
    }

    /// The time limit of detection: `configured`, but at most a third of the time limit of the preparation. If a driver reports its GPUs one
    /// by one, detection may take up to two and a half times as long.
    pub fn detect_timeout(&self, configured: Duration) -> Duration {
        configured.min(self.prepare_timeout() / 3)
    }

    /// Extends the preparation's default time limit to three times `detect_timeout`, if that is longer. A configured limit stays.
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
/// command and the jobs do. If the command does not end in time, the jobs are notified while it is still running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopBudget {
    /// The whole stop timeout.
    pub total: Duration,
    /// Reserved for daemons and services.
    pub units: Duration,
    /// The minimum time from SIGTERM to SIGKILL for a daemon or service; a part of `units`.
    pub sigterm_to_sigkill: Duration,
    /// Reserved for Slurm's commands that end the jobs, in addition to the jobs' grace period.
    pub jobs_margin: Duration,
}

impl StopBudget {
    /// Divides the timeout. 1.5 s are enough for the daemons, which need less than 0.1 s on an idle machine, and 2 s
    /// for Slurm's commands. If the timeout is short, neither of these two parts exceeds a quarter of it.
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

/// The action when slurminit gives up on an essential daemon or service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnGiveUp {
    /// The container exits with the exit code that stands for this daemon or for services, for the orchestrator to see.
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
