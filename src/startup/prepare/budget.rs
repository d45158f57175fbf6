//! The time budget of a preparation. PID 1 ends a preparation with SIGKILL after `prepare_timeout`, so every step must
//! end before that.

use std::time::{Duration, Instant};

use super::Sources;
use config::Config;
use slurm::client::{Client, limit};

/// The fraction of the time, in tenths, after which no further step begins. The remaining time is for undoing a failed reload.
const WORK: u32 = 9;

/// The time budget for the steps of a preparation. Each step also has its own timeout.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    total: Duration,
    work_until: Instant,
}

impl Budget {
    /// The budget that PID 1 grants, which is also set in `config`: PID 1 may use an older configuration.
    pub(super) fn of(sources: &Sources<'_>, config: &mut Config) -> Self {
        config.supervise.prepare_timeout = sources.time_limit.or(config.supervise.prepare_timeout);
        Self::begin(config.supervise.prepare_timeout())
    }

    /// Starts the budget. `total`: the time until SIGKILL.
    pub(super) fn begin(total: Duration) -> Self {
        Self { total, work_until: Instant::now() + work(total) }
    }

    /// The timeout of a step that may take at most `most`.
    pub(super) fn timeout(&self, most: Duration) -> Duration {
        most.min(self.work_until.saturating_duration_since(Instant::now()))
    }

    /// The timeout of `slurmd -G`.
    pub(super) fn check_timeout(&self) -> Duration {
        self.timeout(check(self.total))
    }

    /// A client whose timeout for each command is [`limit::RELOAD`], or the work time that is left now if it is shorter.
    pub(super) fn slurm(&self) -> Client<'static> {
        Client::with_timeout(self.timeout(limit::RELOAD))
    }

    /// A client for undoing a reload. Its timeout covers all commands together.
    pub(super) fn slurm_for_cleanup(&self) -> Client<'static> {
        Client::with_total_timeout(cleanup(self.total))
    }
}

fn work(total: Duration) -> Duration {
    total / 10 * WORK
}

fn cleanup(total: Duration) -> Duration {
    (total - work(total)) / 2
}

fn check(total: Duration) -> Duration {
    total / 3
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::key;
    use super::*;

    /// The time of detection: GPUs that answer one after the other take two and a half times a driver's timeout.
    fn detection(config: &Config) -> Duration {
        config.supervise.detect_timeout(config.gpu.detect_timeout) * 5 / 2
    }

    /// Each pair is an inner timeout and the one that encloses it.
    #[test]
    fn inner_timeouts_are_shorter_than_outer_ones() {
        let mut pairs = vec![
            ("a query of the shares", limit::SHARES, "a scrape", limit::SCRAPE),
            ("a command in a reload", limit::RELOAD, "a command in general", limit::COMMAND),
        ];
        for (detect, prepare) in
            [("", ""), ("0.5", ""), ("13", ""), ("100", ""), ("100", "1"), ("", "5"), ("20", "300")]
        {
            let key =
                |name: &str, value: &str| if value.is_empty() { String::new() } else { format!("{name} = {value}\n") };
            let toml =
                format!("[gpu]\n{}[supervise]\n{}", key("detect_timeout", detect), key("prepare_timeout", prepare));
            let config = Config::parse(&toml, Path::new("x")).unwrap();
            let total = config.supervise.prepare_timeout();
            let budget = Budget::begin(total);
            pairs.extend([
                ("detection", detection(&config), "the work", work(total)),
                ("the key of another container", budget.timeout(key::TIMEOUT), "the preparation", total),
                ("slurmd -G", budget.check_timeout(), "the work", work(total)),
                ("a command in a reload", budget.timeout(limit::RELOAD), "the preparation", total),
                ("the work and its undoing", work(total) + cleanup(total), "the preparation", total),
            ]);
            if prepare.is_empty() {
                let configured = config.gpu.detect_timeout;
                assert_eq!(config.supervise.detect_timeout(configured), configured, "a slow driver gets its time");
            }
        }
        for (inner, shorter, outer, longer) in pairs {
            assert!(shorter < longer, "{inner} ({shorter:?}) in {outer} ({longer:?})");
        }
    }

    #[test]
    fn no_step_outlasts_the_work() {
        let spent = Budget { total: Duration::from_secs(30), work_until: Instant::now() };
        assert_eq!((spent.timeout(limit::RELOAD), spent.check_timeout()), (Duration::ZERO, Duration::ZERO));
    }
}
