//! Reports the users other than the cluster's own whose connections keep a daemon busy.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::free_port::{name_of, named};
use config::ReadinessTest;
use sys::proc;
use sys::proc::parse;
use sys::socket_owners;
use sys::sockets;
use sys::sockets::Unix;

/// From this number on, connections of other users count as high load. A daemon that hangs collects a few, from commands
/// that wait for it.
const MANY: usize = 8;
/// Reading the descriptors of many processes must not delay the round too much.
const NAMING: Duration = Duration::from_secs(1);
/// Maximum number of users named in a message.
const USERS: usize = 3;

/// The sockets at the other ends, by user; `None` if unknown (Unix sockets before Linux 5.3).
type Ends = BTreeMap<Option<u32>, Vec<u32>>;

/// Describes a high load on this socket; `None` if there is none. `own` are the users of the daemons themselves.
pub(super) fn at(door: &ReadinessTest, own: &BTreeSet<u32>) -> Option<String> {
    let (mut ends, place) = match door {
        ReadinessTest::Port(port) => (at_port(*port)?, format!("port {port}")),
        ReadinessTest::Socket(path) => (at_socket(path, &sockets::unix()?), path.display().to_string()),
        ReadinessTest::Started | ReadinessTest::Command(_) => return None,
    };
    ends.retain(|uid, _| uid.is_none_or(|uid| !own.contains(&uid)));
    let count: usize = ends.values().map(Vec::len).sum();
    if count < MANY {
        return None;
    }
    let mut users: Vec<_> = ends.into_iter().collect();
    users.sort_by_key(|(_, inodes)| std::cmp::Reverse(inodes.len()));
    let begin = Instant::now();
    let told = |(uid, inodes)| told(uid, inodes, begin.elapsed() < NAMING);
    let told: Vec<String> = users.into_iter().take(USERS).map(told).collect();
    Some(format!("{count} connections to {place} are held by other users: {}", told.join("; ")))
}

/// Describes one user: `60 by www-data (uid 33), process 123 (perl); to kill all processes of that user: pkill -KILL -U 33`.
fn told(uid: Option<u32>, inodes: Vec<u32>, has_time: bool) -> String {
    let Some(uid) = uid else { return format!("{} by an unknown user (needs Linux 5.3)", inodes.len()) };
    let count = inodes.len();
    let of_user = socket_owners::processes().into_iter().filter(|process| has_time && process.uid == uid).collect();
    let found = socket_owners::find(of_user, &inodes.into_iter().collect()).proven;
    let who = if found.is_empty() { "whose processes were not found".to_owned() } else { named(&found) };
    format!(
        "{count} by {}, {who}; to end all that runs as that user in the container: `pkill -KILL -U {uid}`",
        name_of(uid)
    )
}

fn at_port(port: u16) -> Option<Ends> {
    let mut ends = Ends::new();
    for client in sockets::connected_to(port)?.into_iter().filter(|client| client.inode != 0) {
        ends.entry(Some(client.uid)).or_default().push(client.inode);
    }
    Some(ends)
}

/// An accepted connection has the name of the listening socket.
fn at_socket(path: &Path, all: &[Unix]) -> Ends {
    let here: Vec<&Unix> = all.iter().filter(|socket| socket.name == path.as_os_str().as_bytes()).collect();
    let accepted: BTreeSet<u32> = here.iter().filter(|socket| !socket.listens).map(|socket| socket.inode).collect();
    let waiting: BTreeSet<u32> = here.iter().flat_map(|socket| socket.waiting.iter().copied()).collect();
    let mut ends = Ends::new();
    for client in all {
        if waiting.contains(&client.inode) || client.peer.is_some_and(|peer| accepted.contains(&peer)) {
            ends.entry(client.uid).or_default().push(client.inode);
        }
    }
    ends
}

/// The users of the daemons.
pub(super) fn own_users(pids: impl Iterator<Item = i32>) -> BTreeSet<u32> {
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
            Unix { listens: true, waiting: vec![30], ..socket(1, "/a", None) },
            socket(2, "/a", Some(20)),
            socket(3, "/b", Some(40)),
            socket(20, "", Some(2)),
            socket(30, "", None),
            socket(40, "", Some(3)),
        ];
        assert_eq!(at_socket(Path::new("/a"), &all), Ends::from([(Some(7), vec![20, 30])]));
    }

    #[test]
    fn reports_load_only_for_many_foreign_connections() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let door = ReadinessTest::Port(address.port());
        let mut clients: Vec<_> = (1..MANY).map(|_| std::net::TcpStream::connect(address).unwrap()).collect();
        assert_eq!(at(&door, &BTreeSet::new()), None);
        clients.push(std::net::TcpStream::connect(address).unwrap());
        let own = nix::unistd::Uid::current().as_raw();
        let said = at(&door, &BTreeSet::new()).unwrap();
        assert!(said.contains("8 by") && said.contains(&format!("uid {own}")), "{said}");
        assert_eq!(at(&door, &BTreeSet::from([own])), None);
    }
}
