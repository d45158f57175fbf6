//! Timeouts of Slurm's commands, by caller.

use std::time::Duration;

/// For `status` and `health`.
pub const STATUS: Duration = Duration::from_secs(3);
/// For a scrape of the metrics, or a refresh of the page. Prometheus waits for 10 s.
pub const SCRAPE: Duration = Duration::from_secs(4);
/// The part of [`SCRAPE`] for fair shares. No other result has to wait for the accounting database.
pub const SHARES: Duration = Duration::from_secs(1);
/// For each command of a reload.
pub const RELOAD: Duration = Duration::from_secs(5);
/// For a command of an administrator, and for any caller without its own limit.
pub const COMMAND: Duration = Duration::from_secs(10);
/// For all commands that create accounts, together. PID 1 ends them [`machine::ASSOCIATIONS_TIMEOUT`] after their start.
pub const ASSOCIATIONS: Duration = machine::ASSOCIATIONS_TIMEOUT.saturating_sub(Duration::from_secs(5));
/// For each command of PID 1's children that handle jobs. PID 1 limits the time of each child as a whole.
pub const JOBS: Duration = Duration::from_secs(60);
/// For sacct, which may list the jobs of a month.
pub const HISTORY: Duration = Duration::from_secs(60);

/// How long a result may be shown to further readers.
pub const CACHE_LIFETIME: Duration = Duration::from_secs(5);
