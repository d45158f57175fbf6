//! The name of this host, which munged and Slurm's daemons and clients look up. Engines write it to /etc/hosts, except with
//! `docker run --network host` and `podman run --no-hosts`. Without an address each lookup takes 10 s or more.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::path::Path;

use config::Config;
use model::inventory::{Finding, Kind};
use probe::{name_service, network};

/// An address reserved for documentation (RFC 5737), which no host has. Connecting a UDP socket sends nothing.
const ELSEWHERE: (Ipv4Addr, u16) = (Ipv4Addr::new(192, 0, 2, 1), 9);

/// Adds the host's name to /etc/hosts if it is missing there and, in a cluster of several containers, also in DNS. Runs before the daemons
/// start.
pub(super) fn install(config: &Config, root: &Path) -> Option<Finding> {
    let host = probe::hostname();
    if host.is_empty() || install::has_host_name(root, &host).unwrap_or(false) {
        return None;
    }
    let address = match config.shares_a_cluster() {
        // Other hosts read this address in this host's credentials, so it must not be a loopback address.
        true if name_service::is_in_dns(&host) => return None,
        true => routed_address(),
        false if network::has_only_ipv6(root) => Some(Ipv6Addr::LOCALHOST.into()),
        false => Some(Ipv4Addr::LOCALHOST.into()),
    };
    let Some(address) = address else { return Some(unresolvable(&host, "there is no IPv4 default route", "ADDRESS")) };
    let short = host.split('.').next().filter(|short| *short != host);
    for name in std::iter::once(host.as_str()).chain(short) {
        match install::install_host_name(root, name, address) {
            Err(error) if !name_service::resolves(&host) => {
                return Some(unresolvable(&host, &error.to_string(), &address.to_string()));
            }
            _ => {}
        }
    }
    None
}

fn unresolvable(host: &str, why: &str, address: &str) -> Finding {
    Finding::warning(
        Kind::Files,
        format!(
            "this host's name {host} has no address ({why}); the start takes 10 s longer, and srun and salloc take 10 to 60 s longer if they wait for resources"
        ),
        "munged and Slurm look up this name, but neither /etc/hosts nor a name server contains it",
        format!(
            "start the container with --add-host {host}:{address} (podman: without --no-hosts), or mount a hosts file with this name"
        ),
    )
}

/// The address from which this host connects to IPv4 hosts outside of its networks; `None` without a default route.
fn routed_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect(ELSEWHERE).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn adds_missing_host_name_with_loopback_address() {
        let host = probe::hostname();
        let config = Config::parse("role = 'all'\n", Path::new("slurminit.toml")).unwrap();
        for (ipv6, address) in [("", "127.0.0.1"), ("fd000000000000000000000000000002 2a 40 00 80 eth0\n", "::1")] {
            let root = tempfile::tempdir().unwrap();
            let path = |path: &str| root.path().join(path);
            fs::create_dir_all(path("etc")).and_then(|()| fs::create_dir_all(path("proc/net"))).unwrap();
            fs::write(path("proc/net/if_inet6"), ipv6).unwrap();
            fs::write(path("etc/hosts"), "10.0.0.9 other\n").unwrap();
            assert_eq!(install(&config, root.path()), None);
            let short = host.split_once('.').map(|(short, _)| format!("{address}\t{short}\n")).unwrap_or_default();
            let expected = format!("10.0.0.9 other\n{address}\t{host}\n{short}");
            assert_eq!(fs::read_to_string(path("etc/hosts")).unwrap(), expected);
            // A name with an address is kept, also in a file that slurminit cannot write.
            assert_eq!(install(&config, root.path()), None);
            assert_eq!(fs::read_to_string(path("etc/hosts")).unwrap(), expected);
        }
    }

    #[test]
    fn reports_host_name_that_stays_without_address() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("etc/hosts")).unwrap();
        let finding = install(&Config::default(), root.path());
        let host = probe::hostname();
        assert_eq!(finding.is_none(), name_service::resolves(&host), "{finding:?}");
        let finding = unresolvable("box", "read-only", "127.0.0.1");
        assert!(finding.what.starts_with("this host's name box has no address (read-only); "), "{finding}");
        assert!(finding.fix.starts_with("start the container with --add-host box:127.0.0.1 "), "{finding}");
    }
}
