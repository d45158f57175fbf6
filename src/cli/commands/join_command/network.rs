//! This container's network, and the address at which others reach it.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs as _, UdpSocket};

/// A documentation address (RFC 5737) for finding the source address of the default route; no packet is sent to it.
const DOCUMENTATION_ADDRESS: (Ipv4Addr, u16) = (Ipv4Addr::new(192, 0, 2, 1), 9);

/// The source address of the default route; without one, an address of the host name.
pub(super) fn address() -> Option<Ipv4Addr> {
    let is_reachable = |address: &Ipv4Addr| !address.is_loopback() && !address.is_unspecified();
    let from_route = || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
        socket.connect(DOCUMENTATION_ADDRESS).ok()?;
        match socket.local_addr().ok()?.ip() {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        }
    };
    let from_host_name = || {
        let host = nix::unistd::gethostname().ok()?.into_string().ok()?;
        let mut found = (host, 0).to_socket_addrs().ok()?.filter_map(|found| match found.ip() {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        });
        found.find(is_reachable)
    };
    from_route().filter(is_reachable).or_else(from_host_name)
}

/// Whether this is a network of the container engine: every interface is a veth whose peer is in another network
/// namespace.
pub(super) fn is_engine_network() -> bool {
    let number = |name: &str, file: &str| -> Option<u32> {
        fs::read_to_string(format!("/sys/class/net/{name}/{file}")).ok()?.trim().parse().ok()
    };
    let names = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let interfaces: Vec<Interface> = names
        .filter_map(|name| {
            Some(Interface {
                index: number(&name, "ifindex")?,
                peer: number(&name, "iflink")?,
                is_loopback: name == "lo",
            })
        })
        .collect();
    are_veths(&interfaces)
}

/// An interface. Its peer (`iflink`) is itself, an interface in this namespace (a VLAN), or one in another namespace.
struct Interface {
    index: u32,
    peer: u32,
    is_loopback: bool,
}

fn are_veths(interfaces: &[Interface]) -> bool {
    let is_here = |number: u32| interfaces.iter().any(|interface| interface.index == number);
    let mut external = interfaces.iter().filter(|interface| !interface.is_loopback).peekable();
    external.peek().is_some() && external.all(|interface| interface.index != interface.peer && !is_here(interface.peer))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn veths(interfaces: &[(u32, u32)]) -> bool {
        let external =
            interfaces.iter().map(|(index, peer)| Interface { index: *index, peer: *peer, is_loopback: false });
        are_veths(&external.chain([Interface { index: 1, peer: 1, is_loopback: true }]).collect::<Vec<_>>())
    }

    #[test]
    fn distinguishes_container_network_from_host_network() {
        assert!(veths(&[(42, 43)]) && veths(&[(42, 43), (44, 45)]));
        // A NIC; a NIC with a VLAN; a NIC with Docker's bridge and a veth; no interface.
        assert!(!veths(&[(2, 2)]) && !veths(&[(2, 2), (3, 2)]) && !veths(&[(2, 2), (4, 4), (43, 42)]) && !veths(&[]));
    }
}
