//! Reports the users other than the cluster's own whose connections keep a daemon busy.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::free_port::process_names;
use config::ReadinessTest;
use sys::open_files::{self, SearchTarget};
use sys::proc;
use sys::proc::parse;
use sys::sockets;
use sys::sockets::{Tcp, Unix};
use sys::users;

/// From this number on, connections of other users count as high load. A daemon that hangs collects a few, from commands
/// that wait for it.
const HIGH_LOAD: usize = 8;
/// Reading the descriptors of many processes must not delay the round too much.
const NAMING_TIME: Duration = Duration::from_secs(1);
/// Maximum number of clients named in a message.
const MAX_CLIENTS: usize = 3;

/// Who holds a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Client {
    /// A user of this container.
    User(u32),
    /// A user of this container; before Linux 5.3 the kernel does not report that of a Unix socket.
    Unknown,
    /// Another machine or container.
    Address(IpAddr),
}

/// The sockets at the other ends, by client; the own ends for an address.
type RemoteSockets = BTreeMap<Client, Vec<u32>>;

/// Describes a high load on this socket; `None` if there is none. `daemon_uids` are the users of the daemons themselves.
pub(super) fn describe_load(readiness: &ReadinessTest, daemon_uids: &BTreeSet<u32>) -> Option<String> {
    let (mut ends, place) = match readiness {
        ReadinessTest::Port(port) => (clients_of_port(*port)?, format!("port {port}")),
        ReadinessTest::Socket(path) => (clients_of_socket(path, &sockets::unix()?), path.display().to_string()),
        ReadinessTest::Started | ReadinessTest::Command(_) => return None,
    };
    // A node of the cluster has few connections to a daemon, each for a moment.
    ends.retain(|client, ends| match client {
        Client::User(uid) => !daemon_uids.contains(uid),
        Client::Unknown => true,
        Client::Address(_) => ends.len() >= HIGH_LOAD,
    });
    let count: usize = ends.values().map(Vec::len).sum();
    if count < HIGH_LOAD {
        return None;
    }
    let mut clients: Vec<_> = ends.into_iter().collect();
    clients.sort_by_key(|(_, inodes)| std::cmp::Reverse(inodes.len()));
    let begin = Instant::now();
    let described = |(client, inodes)| describe(client, inodes, begin.elapsed() < NAMING_TIME);
    let described: Vec<String> = clients.into_iter().take(MAX_CLIENTS).map(described).collect();
    Some(format!("{count} connections to {place} are held by other clients: {}", described.join("; ")))
}

/// Describes one client: `60 by www-data (uid 33), process 123 (perl); to kill all processes of that user: pkill -KILL -U 33`.
fn describe(client: Client, inodes: Vec<u32>, has_time: bool) -> String {
    let count = inodes.len();
    let uid = match client {
        Client::User(uid) => uid,
        Client::Unknown => return format!("{count} by an unknown user (needs Linux 5.3)"),
        Client::Address(address) => {
            return format!(
                "{count} from {address}, another machine or container; end what connects there, or its network"
            );
        }
    };
    let of_user = open_files::user_processes().into_iter().filter(|process| has_time && process.uid == uid).collect();
    let found = open_files::find(of_user, &SearchTarget::Sockets(inodes.into_iter().collect())).proven;
    let owner_processes = match found.is_empty() {
        true => "whose processes were not found".to_owned(),
        false => process_names(&found),
    };
    format!(
        "{count} by {}, {owner_processes}; to end all that runs as that user in the container: `pkill -KILL -U {uid}`",
        users::display_name(uid)
    )
}

fn clients_of_port(port: u16) -> Option<RemoteSockets> {
    Some(by_client(&sockets::connected_to(port)?, &sockets::bound(port)?))
}

/// `clients` are the client ends in this network namespace, `servers` the daemon's ends of all connections.
fn by_client(clients: &[Tcp], servers: &[Tcp]) -> RemoteSockets {
    let mut ends = RemoteSockets::new();
    for client in clients.iter().filter(|client| client.inode != 0) {
        ends.entry(Client::User(client.uid)).or_default().push(client.inode);
    }
    let local_ports: BTreeSet<u16> = clients.iter().map(|client| client.local).collect();
    let is_remote = |server: &&Tcp| !server.is_listening && server.remote != 0 && !local_ports.contains(&server.remote);
    for server in servers.iter().filter(is_remote) {
        ends.entry(Client::Address(server.peer)).or_default().push(server.inode);
    }
    ends
}

/// An accepted connection has the name of the listening socket.
fn clients_of_socket(path: &Path, all: &[Unix]) -> RemoteSockets {
    let own_sockets: Vec<&Unix> = all.iter().filter(|socket| socket.name == path.as_os_str().as_bytes()).collect();
    let accepted: BTreeSet<u32> =
        own_sockets.iter().filter(|socket| !socket.is_listening).map(|socket| socket.inode).collect();
    let backlog: BTreeSet<u32> = own_sockets.iter().flat_map(|socket| socket.backlog.iter().copied()).collect();
    let mut ends = RemoteSockets::new();
    for client in all {
        if backlog.contains(&client.inode) || client.peer.is_some_and(|peer| accepted.contains(&peer)) {
            let user = client.uid.map_or(Client::Unknown, Client::User);
            ends.entry(user).or_default().push(client.inode);
        }
    }
    ends
}

/// The users of the daemons.
pub(super) fn daemon_uids(pids: impl Iterator<Item = i32>) -> BTreeSet<u32> {
    let uid = |pid| parse::numbers(&proc::status(pid)?, "Uid").map(|[uid]| uid);
    pids.filter_map(uid).chain([0]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_waiting_and_accepted_connections() {
        let socket = |inode, name: &str, peer| Unix {
            inode,
            name: name.as_bytes().to_vec(),
            peer,
            uid: Some(7),
            ..Unix::default()
        };
        let all = [
            Unix { is_listening: true, backlog: vec![30], ..socket(1, "/a", None) },
            socket(2, "/a", Some(20)),
            socket(3, "/b", Some(40)),
            socket(20, "", Some(2)),
            socket(30, "", None),
            socket(40, "", Some(3)),
        ];
        assert_eq!(clients_of_socket(Path::new("/a"), &all), RemoteSockets::from([(Client::User(7), vec![20, 30])]));
    }

    #[test]
    fn reports_load_only_for_many_foreign_connections() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let readiness = ReadinessTest::Port(address.port());
        let mut clients: Vec<_> = (1..HIGH_LOAD).map(|_| std::net::TcpStream::connect(address).unwrap()).collect();
        assert_eq!(describe_load(&readiness, &BTreeSet::new()), None);
        clients.push(std::net::TcpStream::connect(address).unwrap());
        let own = nix::unistd::Uid::current().as_raw();
        let text = describe_load(&readiness, &BTreeSet::new()).unwrap();
        assert!(text.contains("8 by") && text.contains(&format!("uid {own}")), "{text}");
        assert_eq!(describe_load(&readiness, &BTreeSet::from([own])), None);
    }

    #[test]
    fn counts_connections_from_other_containers() {
        let [here, there] = [[127, 0, 0, 1], [172, 17, 0, 9]].map(IpAddr::from);
        let tcp = |local, remote, peer, inode| Tcp {
            local,
            remote,
            peer,
            inode,
            is_listening: remote == 0,
            backlog: 0,
            uid: 5,
            cgroup: None,
        };
        let clients = [tcp(40_000, 6817, here, 1), tcp(40_001, 6817, here, 2)];
        let servers = [
            tcp(6817, 0, here, 9),
            tcp(6817, 40_000, here, 10),
            tcp(6817, 40_001, here, 0),
            tcp(6817, 50_000, there, 11),
            tcp(6817, 50_001, there, 0),
        ];
        let ends = RemoteSockets::from([(Client::User(5), vec![1, 2]), (Client::Address(there), vec![11, 0])]);
        assert_eq!(by_client(&clients, &servers), ends);
    }
}
