//! The name of this host, which munged and Slurm's daemons and clients look up. Engines write it to /etc/hosts, except with
//! `docker run --network host` and `podman run --no-hosts`. Without an address each lookup takes 10 s or more.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::path::Path;

use config::Config;
use model::inventory::{Finding, Kind};
use probe::{name_service, network};

/// An address reserved for documentation (RFC 5737), which no host has. Connecting a UDP socket sends nothing.
const ELSEWHERE: (Ipv4Addr, u16) = (Ipv4Addr::new(192, 0, 2, 1), 9);

/// Adds the host's name to /etc/hosts if it has no address. Runs before the daemons start.
pub(super) fn install(config: &Config, root: &Path) -> Option<Finding> {
    let host = probe::hostname();
    if host.is_empty() || install::has_host_name(root, &host).unwrap_or(false) {
        return None;
    }
    let address = match config.shares_a_cluster() {
        // Other hosts read the address in this host's credentials.
        true if name_service::is_in_dns(&host) => return None,
        true => routed_address(),
        false if network::has_only_ipv6(root) => Some(Ipv6Addr::LOCALHOST.into()),
        false => Some(Ipv4Addr::LOCALHOST.into()),
    };
    let Some(address) = address else { return Some(unresolvable(&host, "no network has a default route", "ADDRESS")) };
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
            "this host's name {host} has no address ({why}); the start takes 10 s longer, and srun and salloc 10 to 60 s if they wait for resources"
        ),
        "munged and Slurm look it up; /etc/hosts lacks it, and no name server has it",
        format!("add --add-host {host}:{address} (podman: without --no-hosts), or mount a hosts file with this name"),
    )
}

/// The address that other hosts see.
fn routed_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect(ELSEWHERE).ok()?;
    Some(socket.local_addr().ok()?.ip())
}
