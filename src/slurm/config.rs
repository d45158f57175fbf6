//! The configuration that slurmctld runs with, as `scontrol show config` prints it.

use std::path::PathBuf;
use std::time::Duration;

use plan::last_value;

/// slurmctld's running configuration.
#[derive(Clone, Debug, Default)]
pub struct RunningConfig(String);

impl RunningConfig {
    /// Wraps the output of `scontrol show config`.
    pub const fn new(text: String) -> Self {
        Self(text)
    }

    /// The first line, with the time of the answer: `Configuration data as of 2026-11-28T09:13:07`.
    pub(crate) fn first_line(&self) -> String {
        self.0.lines().next().unwrap_or_default().trim().to_owned()
    }

    /// The value of a key; `None` if it is missing or empty.
    pub fn get(&self, key: &str) -> Option<String> {
        last_value(&self.0, key)
    }

    /// The value of a key, as a number; `None` if it is not one.
    pub fn number<N: std::str::FromStr>(&self, key: &str) -> Option<N> {
        self.get(key)?.parse().ok()
    }

    /// Whether there is an accounting database.
    pub fn has_accounting(&self) -> bool {
        self.get("AccountingStorageType").is_some_and(|storage| storage.ends_with("slurmdbd"))
    }

    /// slurmctld's state directory.
    pub fn state_directory(&self) -> Option<PathBuf> {
        self.get("StateSaveLocation").map(PathBuf::from)
    }

    /// slurmd's spool directory on a node, with `%n` replaced by its name; empty if unknown. The path may contain blanks.
    pub fn spool_directory(&self, node: &str) -> String {
        let spool = self.0.lines().find_map(|line| line.strip_prefix("SlurmdSpoolDir")?.split_once("= "));
        spool.map(|(_, spool)| spool.trim().replace("%n", node)).unwrap_or_default()
    }

    /// The maximum number of nodes (MaxNodeCount) in a cluster with dynamic nodes.
    pub fn max_node_count(&self) -> Option<u64> {
        self.number("MaxNodeCount")
    }

    /// How long after a job's start Slurm waits for its batch script: `BatchStartTimeout       = 10 sec`.
    pub fn batch_start_timeout(&self) -> Option<Duration> {
        self.number("BatchStartTimeout").map(Duration::from_secs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_numbers_with_unit() {
        let config = "BOOT_TIME = x\nBatchStartTimeout       = 10 sec\nBurstBufferType = (null)\nMaxNodeCount            = 1024\n";
        let config = RunningConfig::new(config.to_owned());
        assert_eq!(
            (config.batch_start_timeout(), config.max_node_count()),
            (Some(Duration::from_secs(10)), Some(1024))
        );
        let none = RunningConfig::new("Configuration data as of\n".to_owned());
        assert_eq!((none.batch_start_timeout(), none.max_node_count()), (None, None));
    }

    #[test]
    fn expands_node_name_in_spool_directory() {
        let text = "Configuration data as of 2026-11-28T09:13:07 \nAccountingStorageType   = accounting_storage/slurmdbd\n\
            SlurmdSpoolDir          = /var/spool/my slurm/%n\nStateSaveLocation       = /var/spool/slurmctld\n";
        let config = RunningConfig::new(text.to_owned());
        assert_eq!(config.spool_directory("c1"), "/var/spool/my slurm/c1");
        assert_eq!(config.state_directory(), Some("/var/spool/slurmctld".into()));
        assert_eq!(config.first_line(), "Configuration data as of 2026-11-28T09:13:07");
        assert!(config.has_accounting());
        let without = RunningConfig::new("AccountingStorageType = (null)\n".to_owned());
        assert_eq!((without.spool_directory("c1"), without.has_accounting()), (String::new(), false));
    }
}
