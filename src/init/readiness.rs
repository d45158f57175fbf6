//! Whether a socket is listening, according to the kernel's tables. slurminit does not connect to it, so no daemon logs
//! an empty connection.

use std::path::Path;

use model::daemons::ReadinessTest;
use sys::sockets;

/// The lowest user ID of people; lower IDs belong to daemons (the usual `UID_MIN` in login.defs).
const UID_MIN: u32 = 1000;

/// Whether the socket or port of `test` is listening. `Started` is always true; `Command` never is, because commands are not run here. With an
/// `owner`, a port must be owned by that user or by a user ID below [`UID_MIN`]: a person's port must not be mistaken for a daemon's.
pub(super) fn is_ready(test: &ReadinessTest, owner: Option<u32>) -> bool {
    match test {
        ReadinessTest::Started => true,
        // With the host's network the table includes the host's sockets, but the file exists only in this container.
        ReadinessTest::Socket(path) => path.exists() && unix_socket_listens(&read("/proc/self/net/unix"), path),
        ReadinessTest::Port(port) => {
            port_listens(*port, &|uid| owner.is_none_or(|owner| uid == owner || uid < UID_MIN))
        }
        ReadinessTest::Command(_) => false,
    }
}

/// Whether a socket whose user satisfies `is_owner` listens on `port`.
pub(super) fn port_listens(port: u16, is_owner: &dyn Fn(u32) -> bool) -> bool {
    match sockets::listeners(port) {
        Some(found) => found.iter().any(|socket| is_owner(socket.uid)),
        None => ["/proc/self/net/tcp", "/proc/self/net/tcp6"]
            .into_iter()
            .any(|table| tcp_port_listens(&read(table), port, is_owner)),
    }
}

fn read(path: &str) -> Vec<u8> {
    std::fs::read(path).unwrap_or_default()
}

/// `/proc/net/unix`: `Num RefCount Protocol Flags Type St Inode Path`; the flag `__SO_ACCEPTCON` is 00010000
/// (`include/uapi/linux/net.h`).
fn unix_socket_listens(table: &[u8], path: &Path) -> bool {
    String::from_utf8_lossy(table).lines().any(|line| {
        let mut fields = line.split_ascii_whitespace();
        fields.nth(3) == Some("00010000") && fields.nth(3).is_some_and(|listening| Path::new(listening) == path)
    })
}

/// `/proc/net/tcp`: `sl local_address rem_address st tx:rx tr:when retransmits uid ...`; state 0A is LISTEN
/// (`include/net/tcp_states.h`).
fn tcp_port_listens(table: &[u8], port: u16, is_owner: &dyn Fn(u32) -> bool) -> bool {
    let suffix = format!(":{port:04X}");
    String::from_utf8_lossy(table).lines().any(|line| {
        let mut fields = line.split_ascii_whitespace();
        fields.nth(1).is_some_and(|local| local.ends_with(&suffix))
            && fields.nth(1) == Some("0A")
            && fields.nth(3).and_then(|uid| uid.parse().ok()).is_some_and(is_owner)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinguishes_listening_ports_and_their_users() {
        let table =
            b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 00000000:1AA1 00000000:0000 0A 00000000:00000000 00:00000000 00000000   996        0 12 1\n\
            1: 0100007F:1AA2 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 13 1\n";
        assert!(tcp_port_listens(table, 6817, &|_| true));
        assert!(tcp_port_listens(table, 6817, &|uid| uid == 996));
        assert!(!tcp_port_listens(table, 6817, &|uid| uid == 0));
        assert!(!tcp_port_listens(table, 6818, &|_| true));
        assert!(!tcp_port_listens(b"", 6817, &|_| true));
    }

    #[test]
    fn kernel_reports_own_sockets() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let test = ReadinessTest::Socket(path.clone());
        assert!(!is_ready(&test, None));
        let _unix = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(is_ready(&test, None));
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let test = ReadinessTest::Port(tcp.local_addr().unwrap().port());
        let own = nix::unistd::Uid::current().as_raw();
        assert!(is_ready(&test, None) && is_ready(&test, Some(own)));
        assert!(!port_listens(tcp.local_addr().unwrap().port(), &|uid| uid != own));
        drop(tcp);
        assert!(!is_ready(&test, None));
    }
}
