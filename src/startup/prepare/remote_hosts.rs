//! The other hosts in the operator's slurm.conf that have no address.

use std::time::Duration;

use model::inventory::{Finding, Kind};
use plan::RemoteHost;
use probe::name_service;

/// How long the lookups of all hosts may take.
pub(super) const TIMEOUT: Duration = Duration::from_secs(3);
/// How long slurmctld tries to look up each host, in seconds (24.11, `xgetaddrinfo`).
const SLURMCTLD_TRIES: u64 = 10;
/// The maximum number of hosts to list.
const MAX_LISTED: usize = 8;

/// Names the hosts without an address, which delay slurmctld's start.
pub(super) fn check(hosts: &[RemoteHost], limit: Duration) -> Option<Finding> {
    let missing = name_service::unresolvable(hosts.iter().map(|host| host.name.as_str()), limit);
    if missing.is_empty() {
        return None;
    }
    let lines = hosts.iter().filter(|host| missing.contains(&host.name.as_str())).take(MAX_LISTED);
    let listed = lines.map(|host| format!("{} ({}:{})", host.name, host.file.display(), host.line));
    let rest =
        if missing.len() > MAX_LISTED { format!(", and {} more", missing.len() - MAX_LISTED) } else { String::new() };
    let what = format!("hosts without an address: {}{rest}", listed.collect::<Vec<_>>().join(", "));
    let seconds = SLURMCTLD_TRIES * u64::try_from(missing.len()).unwrap_or(u64::MAX);
    let cause =
        format!("slurmctld looks up each for {SLURMCTLD_TRIES} s, so its start takes at least {seconds} s longer");
    let fix = "write the address in the line of each host (for a node, NodeAddr=ADDRESS; for a controller, SlurmctldHost=NAME(ADDRESS); for \
               slurmdbd, AccountingStorageHost=ADDRESS or AccountingStorageBackupHost=ADDRESS), start the container with --add-host \
               NAME:ADDRESS, or remove hosts that this cluster does not have";
    Some(Finding::warning(Kind::OwnFiles, what, cause, fix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_hosts_without_address_with_their_line_and_delay() {
        let host = |name: &str, line| RemoteHost { name: name.to_owned(), file: "/config/slurm.conf".into(), line };
        let hosts = [host("localhost", 3), host("far1.invalid", 7), host("far2.invalid", 9)];
        let finding = check(&hosts, 9 * TIMEOUT).unwrap();
        assert!(
            finding.what.ends_with("far1.invalid (/config/slurm.conf:7), far2.invalid (/config/slurm.conf:9)"),
            "{finding}"
        );
        assert!(finding.cause.contains("20 s"), "{finding}");
        assert_eq!(check(&hosts[..1], 9 * TIMEOUT), None);
    }
}
