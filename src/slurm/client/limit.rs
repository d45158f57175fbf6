//! Timeouts of Slurm's commands, by caller.

use std::time::Duration;

/// `status` and `health`.
pub const STATUS: Duration = Duration::from_secs(3);
/// A scrape of the metrics, or a refresh of the page: Prometheus waits for 10 s.
pub const SCRAPE: Duration = Duration::from_secs(4);
/// The part of [`SCRAPE`] for fair shares: no other result waits for an accounting database.
pub const SHARES: Duration = Duration::from_secs(1);
/// A reload, for each command.
pub const RELOAD: Duration = Duration::from_secs(5);
/// A command of an administrator, and any caller without a limit of its own.
pub const COMMAND: Duration = Duration::from_secs(10);
/// All commands together that create accounts: PID 1 ends them [`machine::ASSOCIATIONS_TIMEOUT`] after their start.
pub const ASSOCIATIONS: Duration = machine::ASSOCIATIONS_TIMEOUT.saturating_sub(Duration::from_secs(5));
/// Children of PID 1 that handle jobs, for each command. PID 1 limits the time of each child as a whole.
pub const JOBS: Duration = Duration::from_secs(60);
/// sacct, for the jobs of a month.
pub const HISTORY: Duration = Duration::from_secs(60);

/// How long a result may be shown to further readers.
pub const CACHE_LIFETIME: Duration = Duration::from_secs(5);
