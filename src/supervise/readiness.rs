//! Whether a socket listens, as the kernel's tables tell it: without a connection, so no daemon logs a visitor that says
//! nothing.
//!
//! EDGE.

use std::path::Path;

use super::listening;
use crate::config::ReadinessTest;

/// Whether what `test` names is there. A command is not run here.
pub(super) fn is_ready(test: &ReadinessTest) -> bool {
    let read = |path| std::fs::read(path).unwrap_or_default();
    match test {
        ReadinessTest::Started => true,
        // With the host's network the table has the host's sockets too; the file is in this container.
        ReadinessTest::Socket(path) => path.exists() && unix_socket_listens(&read("/proc/self/net/unix"), path),
        ReadinessTest::Port(port) => listening::tcp_port(*port).unwrap_or_else(|| {
            ["/proc/self/net/tcp", "/proc/self/net/tcp6"].into_iter().any(|table| tcp_port_listens(&read(table), *port))
        }),
        ReadinessTest::Command(_) => false,
    }
}

/// `/proc/net/unix`: `Num RefCount Protocol Flags Type St Inode Path`; the flag `__SO_ACCEPTCON` is 00010000
/// (Documentation of the kernel, `proc_net_unix` in proc(5)).
fn unix_socket_listens(table: &[u8], path: &Path) -> bool {
    String::from_utf8_lossy(table).lines().any(|line| {
        let mut fields = line.split_ascii_whitespace();
        fields.nth(3) == Some("00010000") && fields.nth(3).is_some_and(|listening| Path::new(listening) == path)
    })
}

/// `/proc/net/tcp`: `sl local_address rem_address st ...`; the state 0A is LISTEN (`include/net/tcp_states.h`).
fn tcp_port_listens(table: &[u8], port: u16) -> bool {
    let suffix = format!(":{port:04X}");
    String::from_utf8_lossy(table).lines().any(|line| {
        let mut fields = line.split_ascii_whitespace();
        fields.nth(1).is_some_and(|local| local.ends_with(&suffix)) && fields.nth(1) == Some("0A")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listening_port_is_told_from_a_connected_one() {
        let table = b"  sl  local_address rem_address   st tx_queue rx_queue\n\
            0: 00000000:1AA1 00000000:0000 0A 00000000:00000000 00:00000000\n\
            1: 0100007F:1AA2 0100007F:9C40 01 00000000:00000000 00:00000000\n";
        assert!(tcp_port_listens(table, 6817));
        assert!(!tcp_port_listens(table, 6818));
        assert!(!tcp_port_listens(b"", 6817));
    }

    #[test]
    fn the_kernel_agrees_about_sockets_of_our_own() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let test = ReadinessTest::Socket(path.clone());
        assert!(!is_ready(&test));
        let _unix = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(is_ready(&test));
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let test = ReadinessTest::Port(tcp.local_addr().unwrap().port());
        assert!(is_ready(&test));
        drop(tcp);
        assert!(!is_ready(&test));
    }
}
