//! This container's network, and the address at which other machines reach it.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs as _, UdpSocket};
use std::path::Path;

/// A documentation address (RFC 5737) for finding the source address of the default route; no packet is sent to it.
const DOCUMENTATION_ADDRESS: (Ipv4Addr, u16) = (Ipv4Addr::new(192, 0, 2, 1), 9);

/// The source address of the default route; without a default route, an address to which the host name resolves.
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

/// Whether this is a network of the container engine: every interface except the loopback interface is a veth whose peer is in another
/// network namespace.
pub(super) fn is_engine_network(root: &Path) -> bool {
    let directory = root.join("sys/class/net");
    let number = |name: &str, file: &str| -> Option<u32> {
        fs::read_to_string(directory.join(name).join(file)).ok()?.trim().parse().ok()
    };
    let names = fs::read_dir(&directory).into_iter().flatten().flatten();
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

/// An interface. Its peer (`iflink`) is the interface itself, another interface in this
/// namespace (the parent of a VLAN), or an interface in another namespace.
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

    /// Whether a network with `lo` and these interfaces is one of the engine.
    fn veths(interfaces: &[(u32, u32)]) -> bool {
        let root = tempfile::tempdir().unwrap();
        for (index, peer) in interfaces.iter().chain(&[(1, 1)]) {
            let name = if *index == 1 { "lo".to_owned() } else { format!("eth{index}") };
            let directory = root.path().join("sys/class/net").join(name);
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("ifindex"), format!("{index}\n")).unwrap();
            fs::write(directory.join("iflink"), format!("{peer}\n")).unwrap();
        }
        is_engine_network(root.path())
    }

    #[test]
    fn distinguishes_container_network_from_host_network() {
        assert!(veths(&[(42, 43)]) && veths(&[(42, 43), (44, 45)]));
        // A NIC; a NIC with a VLAN; a NIC with Docker's bridge and a veth; no interface.
        assert!(!veths(&[(2, 2)]) && !veths(&[(2, 2), (3, 2)]) && !veths(&[(2, 2), (4, 4), (43, 42)]) && !veths(&[]));
    }
}
