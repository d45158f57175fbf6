//! Timeouts of Slurm's commands, by caller.

use std::time::Duration;

/// For commands that report the current state, such as `status` and `health`.
pub const STATUS: Duration = Duration::from_secs(3);
/// For all queries of a scrape of the metrics, or of a refresh of the page, together. Prometheus waits for 10 s by default.
pub const SCRAPE: Duration = Duration::from_secs(4);
/// The part of [`SCRAPE`] for fair shares, which are queried last. If the query fails, only they are missing.
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

/// How long a cached result may be reused.
pub const CACHE_LIFETIME: Duration = Duration::from_secs(5);
