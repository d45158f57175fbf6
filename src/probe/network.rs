//! Whether this container has only IPv6 addresses.

use std::net::Ipv4Addr;
use std::path::Path;

use super::regular;

/// Whether this container has an IPv6 address of global scope, and no IPv4 address except loopback. Then getaddrinfo(3) with
/// AI_ADDRCONFIG, which Slurm uses, finds no IPv4 address, not even 127.0.0.1.
pub fn has_only_ipv6(root: &Path) -> bool {
    let text = |path: &str| regular::text(&root.join(path)).unwrap_or_default();
    has_global_ipv6(&text("proc/net/if_inet6")) && !has_ipv4(&text("proc/net/fib_trie"))
}

/// `fd000000000000000000000000000002 2a 40 00 80 eth0`: the fourth field is the scope, 00 for global.
fn has_global_ipv6(if_inet6: &str) -> bool {
    if_inet6.lines().any(|line| line.split_whitespace().nth(3) == Some("00"))
}

/// The line after `|-- 172.17.0.2` is `/32 host LOCAL` for a local address.
fn has_ipv4(fib_trie: &str) -> bool {
    let lines: Vec<&str> = fib_trie.lines().map(str::trim).collect();
    let is_local_address = |pair: &[&str]| match pair {
        [address, kind] if kind.ends_with("host LOCAL") => {
            let address = address.strip_prefix("|-- ").and_then(|address| address.parse::<Ipv4Addr>().ok());
            address.is_some_and(|address| !address.is_loopback())
        }
        _ => false,
    };
    lines.windows(2).any(is_local_address)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOPBACK: &str = "Main:\n  +-- 127.0.0.0/8 2 0 2\n     |-- 127.0.0.0\n        /8 host LOCAL\n     |-- 127.0.0.1\n        /32 host LOCAL\n";
    const LINK_LOCAL: &str = "fe800000000000000042acfffe1f1902 698 40 20 80     eth0\n00000000000000000000000000000001 01 80 10 80       lo\n";
    const GLOBAL: &str = "fd00dead000200000000000000000002 698 40 00 82     eth0\n";

    #[test]
    fn ignores_loopback_and_link_local_addresses() {
        let has_ipv6_only = |ipv6: &str, ipv4: &str| {
            let root = tempfile::tempdir().unwrap();
            std::fs::create_dir_all(root.path().join("proc/net")).unwrap();
            std::fs::write(root.path().join("proc/net/if_inet6"), ipv6).unwrap();
            std::fs::write(root.path().join("proc/net/fib_trie"), ipv4).unwrap();
            has_only_ipv6(root.path())
        };
        assert!(has_ipv6_only(&format!("{LINK_LOCAL}{GLOBAL}"), LOOPBACK));
        assert!(!has_ipv6_only(LINK_LOCAL, LOOPBACK), "no network at all");
        let docker = format!("{LOOPBACK}        |-- 172.31.25.2\n           /32 host LOCAL\n");
        assert!(!has_ipv6_only(GLOBAL, &docker));
        assert!(!has_ipv6_only("", ""));
    }
}
