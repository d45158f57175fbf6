//! This container's network, and the address at which others reach it.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs as _, UdpSocket};

/// A documentation address (RFC 5737) for finding the source address of the default route; no packet is sent to it.
const ANYWHERE: (Ipv4Addr, u16) = (Ipv4Addr::new(192, 0, 2, 1), 9);

/// The address of the default route, else one of the host name's.
pub(super) fn address() -> Option<Ipv4Addr> {
    let is_reachable = |address: &Ipv4Addr| !address.is_loopback() && !address.is_unspecified();
    let route = || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
        socket.connect(ANYWHERE).ok()?;
        match socket.local_addr().ok()?.ip() {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        }
    };
    let named = || {
        let host = nix::unistd::gethostname().ok()?.into_string().ok()?;
        let mut found = (host, 0).to_socket_addrs().ok()?.filter_map(|found| match found.ip() {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        });
        found.find(is_reachable)
    };
    route().filter(is_reachable).or_else(named)
}

/// Whether every interface is a veth whose peer is in another network namespace.
pub(super) fn is_the_engines() -> bool {
    let number = |name: &str, file: &str| -> Option<u32> {
        fs::read_to_string(format!("/sys/class/net/{name}/{file}")).ok()?.trim().parse().ok()
    };
    let names = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let interfaces: Vec<Interface> = names
        .filter_map(|name| {
            Some(Interface {
                own: number(&name, "ifindex")?,
                other: number(&name, "iflink")?,
                is_loopback: name == "lo",
            })
        })
        .collect();
    are_pairs(&interfaces)
}

/// An interface, and the index of its linked interface: itself, one in this namespace (a VLAN), or one in another.
struct Interface {
    own: u32,
    other: u32,
    is_loopback: bool,
}

fn are_pairs(interfaces: &[Interface]) -> bool {
    let is_here = |number: u32| interfaces.iter().any(|interface| interface.own == number);
    let mut real = interfaces.iter().filter(|interface| !interface.is_loopback).peekable();
    real.peek().is_some() && real.all(|interface| interface.own != interface.other && !is_here(interface.other))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(interfaces: &[(u32, u32)]) -> bool {
        let real = interfaces.iter().map(|(own, other)| Interface { own: *own, other: *other, is_loopback: false });
        are_pairs(&real.chain([Interface { own: 1, other: 1, is_loopback: true }]).collect::<Vec<_>>())
    }

    #[test]
    fn distinguishes_container_network_from_host_network() {
        assert!(pairs(&[(42, 43)]) && pairs(&[(42, 43), (44, 45)]));
        // A NIC; a NIC with a VLAN; a NIC with Docker's bridge and a veth; no interface.
        assert!(!pairs(&[(2, 2)]) && !pairs(&[(2, 2), (3, 2)]) && !pairs(&[(2, 2), (4, 4), (43, 42)]) && !pairs(&[]));
    }
}
