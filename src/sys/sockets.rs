//! The sockets of this network namespace, and their owners.
//!
//! Uses netlink (sock_diag(7)). `/proc/net/tcp` shows less data, and each read makes the kernel scan its whole connection table: on a
//! machine with 24 GiB of memory this takes 6 ms, while a netlink request for one port takes 25 microseconds.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::libc;
use nix::sys::socket::{AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket};

/// `SOCK_DIAG_BY_FAMILY` of `linux/sock_diag.h`.
const BY_FAMILY: u16 = 20;
/// `TCP_LISTEN` of `net/tcp_states.h`; listening Unix sockets have it too.
const LISTEN: u8 = 10;
/// All states, including those added by newer kernels.
const ANY_STATE: u32 = u32::MAX;
/// The size of `struct nlmsghdr`.
const HEADER: usize = 16;
/// Large enough for one reply: the kernel cuts replies at one to eight pages.
const BUFFER: usize = 32 * 1024;
/// The maximum number of replies per dump; enough for several hundred thousand sockets.
const MAX_REPLIES: usize = 4096;

/// A TCP socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tcp {
    /// The local address.
    pub local: SocketAddr,
    /// The remote address; unspecified for a listening socket.
    pub peer: SocketAddr,
    /// Whether the socket is listening.
    pub is_listening: bool,
    /// The user that created the socket; 0 also for a connection not yet accepted.
    pub uid: u32,
    /// The inode, as in `/proc/PID/fd`; 0 if no process has the socket open.
    pub inode: u32,
}

/// The owner of the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherEnd {
    /// A process of this user in this network namespace.
    User(u32),
    /// The other end is closed.
    Closed,
    /// The other end is on another machine or in another network namespace, or the kernel does not support the request.
    Unknown,
}

/// A Unix socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unix {
    /// Whether the socket is listening.
    pub is_listening: bool,
    /// The path, or the name in the abstract namespace.
    pub name: Vec<u8>,
    /// The user that created the socket (Linux 5.3 and later).
    pub uid: Option<u32>,
}

/// The TCP sockets that listen on `port`; `None` if the request fails, for example because the kernel does not support it.
pub fn listeners(port: u16) -> Option<Vec<Tcp>> {
    tcp(1 << LISTEN, port)
}

/// All TCP sockets with this local port; `None` as for [`listeners`]. Before Linux 6.8, sockets that are bound but neither listening nor
/// connected are missing.
pub fn bound(port: u16) -> Option<Vec<Tcp>> {
    tcp(ANY_STATE, port)
}

fn tcp(states: u32, port: u16) -> Option<Vec<Tcp>> {
    let families = [libc::AF_INET, libc::AF_INET6];
    let mut replies = families.into_iter().map(|family| {
        let mut found = Vec::new();
        dump(&inet_request(u8::try_from(family).ok()?, states, port), |body| found.extend(inet(body)))?;
        Some(found)
    });
    let first = replies.next()??;
    // A kernel without IPv6 sends no reply for IPv6, and has no IPv6 sockets.
    let all = first.into_iter().chain(replies.next().flatten().unwrap_or_default());
    Some(all.filter(|tcp| tcp.local.port() == port).collect())
}

/// The owner of the other end of a connection. A user can close its end while this end is still waiting for accept(2).
pub fn other_end(stream: &TcpStream) -> OtherEnd {
    let (Ok(own), Ok(peer)) = (stream.local_addr(), stream.peer_addr()) else { return OtherEnd::Closed };
    let (own, peer) = (canonical(own), canonical(peer));
    let Some(sockets) = bound(peer.port()) else { return OtherEnd::Unknown };
    find_other_end(own, peer, &sockets)
}

/// The owner of the end `peer` of a connection, among the sockets of this network namespace.
fn find_other_end(own: SocketAddr, peer: SocketAddr, sockets: &[Tcp]) -> OtherEnd {
    match sockets.iter().find(|socket| (socket.local, socket.peer) == (peer, own)) {
        Some(socket) if socket.inode != 0 => OtherEnd::User(socket.uid),
        None if !peer.ip().is_loopback() && peer.ip() != own.ip() => OtherEnd::Unknown,
        _ => OtherEnd::Closed,
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// All Unix sockets; `None` as for [`listeners`].
pub fn unix() -> Option<Vec<Unix>> {
    let mut found = Vec::new();
    dump(&unix_request(), |body| found.extend(unix_message(body)))?;
    Some(found)
}

/// Sends a request and passes the body of each message in the replies to `take`.
fn dump(request: &[u8], mut take: impl FnMut(&[u8])) -> Option<()> {
    let netlink =
        socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkSockDiag).ok()?;
    sendto(netlink.as_raw_fd(), request, &NetlinkAddr::new(0, 0), MsgFlags::empty()).ok()?;
    let mut buffer = vec![0; BUFFER];
    for _ in 0..MAX_REPLIES {
        if read_reply(&netlink, &mut buffer, &mut take)? {
            return Some(());
        }
    }
    None
}

/// Reads one reply and returns whether it was the last. The kernel prepares the next reply while this one is read, so a missing reply is an
/// error.
fn read_reply(netlink: &OwnedFd, buffer: &mut [u8], take: &mut impl FnMut(&[u8])) -> Option<bool> {
    let length = recv(netlink.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT).ok()?;
    parse_messages(buffer.get(..length)?, take)
}

/// Passes each message of a reply to `take` and returns whether it was the last; `None` on an error or a malformed
/// message.
fn parse_messages(mut bytes: &[u8], take: &mut impl FnMut(&[u8])) -> Option<bool> {
    while let Some(header) = bytes.get(..HEADER) {
        let length = u32_at(header, 0)? as usize;
        let kind = u16_at(header, 4)?;
        let body = bytes.get(HEADER..length)?;
        match kind {
            BY_FAMILY => take(body),
            kind if i32::from(kind) == libc::NLMSG_DONE => return Some(true),
            _ => return None,
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(false)
}

fn header(length: u32) -> Vec<u8> {
    let flags = u16::try_from(libc::NLM_F_REQUEST | libc::NLM_F_DUMP).unwrap_or_default();
    let mut bytes = Vec::with_capacity(length as usize);
    bytes.extend(length.to_ne_bytes());
    bytes.extend(BY_FAMILY.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes
}

/// Builds a request for a local port: `struct nlmsghdr` and `struct inet_diag_req_v2`.
fn inet_request(family: u8, states: u32, port: u16) -> Vec<u8> {
    const LENGTH: u32 = 16 + 56;
    let mut bytes = header(LENGTH);
    bytes.extend([family, u8::try_from(libc::IPPROTO_TCP).unwrap_or_default(), 0, 0]);
    bytes.extend(states.to_ne_bytes());
    bytes.extend(port.to_be_bytes());
    bytes.resize(LENGTH as usize, 0);
    bytes
}

/// Parses `struct inet_diag_msg`: family, state, timer, retransmits; ports and addresses; then times, queues, owner and
/// inode.
fn inet(body: &[u8]) -> Option<Tcp> {
    let is_listening = *body.get(1)? == LISTEN;
    let is_ipv4 = i32::from(*body.first()?) == libc::AF_INET;
    let end = |port: usize, address: usize| {
        let port = u16::from_be_bytes(body.get(port..port + 2)?.try_into().ok()?);
        let bytes: [u8; 16] = body.get(address..address + 16)?.try_into().ok()?;
        let ip = match is_ipv4 {
            true => IpAddr::from(<[u8; 4]>::try_from(bytes.get(..4)?).ok()?),
            // An IPv6 socket reports IPv4 addresses in mapped form.
            false => Ipv6Addr::from(bytes).to_canonical(),
        };
        Some(SocketAddr::new(ip, port))
    };
    Some(Tcp { local: end(4, 8)?, peer: end(6, 24)?, is_listening, uid: u32_at(body, 64)?, inode: u32_at(body, 68)? })
}

/// Builds a request for the name and owner of all Unix sockets: `struct nlmsghdr` and `struct unix_diag_req`.
fn unix_request() -> Vec<u8> {
    const LENGTH: u32 = 16 + 24;
    const SHOW: u32 = 1 | 64;
    let mut bytes = header(LENGTH);
    bytes.extend([u8::try_from(libc::AF_UNIX).unwrap_or_default(), 0, 0, 0]);
    bytes.extend(ANY_STATE.to_ne_bytes());
    bytes.extend(0_u32.to_ne_bytes());
    bytes.extend(SHOW.to_ne_bytes());
    bytes.resize(LENGTH as usize, 0);
    bytes
}

/// Parses `struct unix_diag_msg`: family, type, state, inode and a cookie; then attributes, each with length and kind.
fn unix_message(body: &[u8]) -> Option<Unix> {
    let mut socket = Unix { is_listening: *body.get(2)? == LISTEN, ..Unix::default() };
    for (kind, value) in attributes(body.get(16..)?) {
        match kind {
            0 => socket.name = value.strip_suffix(&[0]).unwrap_or(value).to_vec(),
            7 => socket.uid = u32_at(value, 0),
            _ => {}
        }
    }
    Some(socket)
}

/// `struct nlattr`: the kind and value of each attribute.
fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (length, kind) = (usize::from(u16_at(rest, 0)?), u16_at(rest, 2)?);
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn kernel_reports_own_listening_port() {
        let own = nix::unistd::Uid::current().as_raw();
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let socket = std::net::TcpListener::bind(address).unwrap();
            let port = socket.local_addr().unwrap().port();
            let found = listeners(port).unwrap();
            assert_eq!((found.len(), found[0].uid), (1, own));
            assert!(found[0].inode != 0 && found[0].is_listening, "{found:?}");
            let client = std::net::TcpStream::connect(socket.local_addr().unwrap()).unwrap();
            let ends = bound(port).unwrap();
            assert!(ends.iter().any(|end| !end.is_listening && end.peer == client.local_addr().unwrap()), "{ends:?}");
            let stream = socket.accept().unwrap().0;
            assert_eq!(other_end(&stream), OtherEnd::User(own));
            drop((client, socket));
            // A child forked by another test holds a copy until it calls exec.
            let begin = std::time::Instant::now();
            while !listeners(port).unwrap().is_empty() || other_end(&stream) != OtherEnd::Closed {
                assert!(begin.elapsed().as_secs() < 60, "{:?}", listeners(port));
            }
        }
    }

    #[test]
    fn kernel_reports_own_unix_sockets() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let uid = Some(nix::unistd::Uid::current().as_raw());
        let own = Unix { is_listening: true, name: path.as_os_str().as_encoded_bytes().to_vec(), uid };
        // The kernel needs several pages for all of them.
        let name = |number: u8| directory.path().join(number.to_string());
        let more: Vec<_> =
            (0..100).map(|number| std::os::unix::net::UnixListener::bind(name(number)).unwrap()).collect();
        let found = unix().unwrap();
        assert!(found.contains(&own));
        for number in 0..100 {
            let name = name(number).as_os_str().as_encoded_bytes().to_vec();
            assert!(found.contains(&Unix { name, ..own.clone() }), "{number}");
        }
        drop((listener, more));
    }

    #[test]
    fn other_end_without_socket_is_closed_only_if_it_was_in_this_namespace() {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        for (own, peer, expected) in [
            ("127.0.0.1:1", "127.0.0.1:2", OtherEnd::Closed),
            ("127.0.0.1:1", "127.0.0.2:2", OtherEnd::Closed),
            ("10.0.0.1:1", "10.0.0.1:2", OtherEnd::Closed),
            ("10.0.0.1:1", "10.0.0.2:2", OtherEnd::Unknown),
            ("[fd00::1]:1", "[fd00::2]:2", OtherEnd::Unknown),
        ] {
            let (own, peer) = (address(own), address(peer));
            assert_eq!(find_other_end(own, peer, &[]), expected, "{own} {peer}");
            let socket = |inode| Tcp { local: peer, peer: own, is_listening: false, uid: 7, inode };
            assert_eq!(find_other_end(own, peer, &[socket(9)]), OtherEnd::User(7));
            assert_eq!(find_other_end(own, peer, &[socket(0)]), OtherEnd::Closed);
        }
    }

    proptest! {
        #[test]
        fn arbitrary_input_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_messages(&bytes, &mut |body| { let _ = (inet(body), unix_message(body)); });
            let _ = (inet(&bytes), unix_message(&bytes));
        }

        #[test]
        fn parsing_ends_despite_wrong_message_length(length in any::<u32>(), kind in any::<u16>()) {
            let mut bytes = [length.to_ne_bytes().as_slice(), &kind.to_ne_bytes()].concat();
            bytes.resize(64, 0);
            let _ = parse_messages(&bytes, &mut |_| {});
        }
    }
}
