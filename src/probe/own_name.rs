//! What the engine calls a container whose host name is only its id.
//!
//! Replicas of one compose service (`docker compose up --scale compute=5`) cannot have host names of their own, and the engine
//! gives them their ids. Its name server knows the container's name by its address: `lab-compute-3.lab_default`.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::io;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use super::regular;
use model::inventory::{Finding, Kind};

/// Docker's name server in every network that a person made. The default network has none.
const NAME_SERVER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 11);
/// How long an answer may take, of two. The server runs on the same machine.
const PATIENCE: Duration = Duration::from_secs(1);

/// Whether a host name is a container's id, cut to 12 digits as Docker does where nobody gave it a host name.
pub fn is_container_id(hostname: &str) -> bool {
    hostname.len() == 12 && hostname.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The container's name without that of its project, or why it is not known. `None` where the host name is no id.
pub fn ask(root: &Path, hostname: &str) -> Option<Result<String, Finding>> {
    if !is_container_id(hostname) {
        return None;
    }
    let unknown = |cause: String| {
        Finding::warning(
            Kind::Files,
            format!("nobody says what this container is called, and its node is called by its id, {hostname}"),
            cause,
            "start the container with --hostname NAME, or set SLURMINIT_NODE_NAME",
        )
    };
    Some(look_up(root, hostname).map_err(unknown))
}

fn look_up(root: &Path, hostname: &str) -> Result<String, String> {
    let text = |path: &str| regular::text(&root.join(path)).unwrap_or_default();
    if !serves_names(&text("etc/resolv.conf")) {
        return Err("the container is in no network with Docker's name server".to_owned());
    }
    let mut why = format!("/etc/hosts has no address of {hostname}");
    for address in addresses(&text("etc/hosts"), hostname) {
        let answer = query(address).map_err(|error| format!("Docker's name server does not answer: {error}"));
        match answer.map(|answer| answer.and_then(|answer| name(&answer))) {
            Ok(Some(name)) if name != hostname => return Ok(name),
            Ok(_) => why = format!("Docker's name server has no name for {address}"),
            Err(error) => why = error,
        }
    }
    Err(why)
}

fn serves_names(resolv_conf: &str) -> bool {
    let server = NAME_SERVER.to_string();
    resolv_conf.lines().any(|line| line.split_whitespace().eq(["nameserver", server.as_str()]))
}

/// The engine writes a line for each of the container's networks.
fn addresses(hosts: &str, hostname: &str) -> Vec<IpAddr> {
    let own = |line: &str| {
        let mut words = line.split('#').next()?.split_whitespace();
        let address = words.next()?.parse().ok()?;
        words.any(|word| word == hostname).then_some(address)
    };
    hosts.lines().filter_map(own).filter(|address: &IpAddr| !address.is_loopback()).collect()
}

/// What the container is called: its name, without that of its compose project. `lab-compute-3.lab_default` is compute-3, and
/// `gpu7.lab` is gpu7. A network of the project is called after it, too.
fn name(answer: &str) -> Option<String> {
    let (container, network) = answer.trim_end_matches('.').split_once('.')?;
    let ends = network.match_indices('_').map(|(at, _)| at).rev();
    let service = ends
        .filter_map(|end| container.strip_prefix(&network[..end])?.strip_prefix(['-', '_']))
        .find(|service| !service.is_empty());
    Some(service.unwrap_or(container).to_owned()).filter(|name| !name.is_empty())
}

/// The name of an address; `None` if there is none.
fn query(address: IpAddr) -> io::Result<Option<String>> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.connect((NAME_SERVER, 53))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let id = RandomState::new().hash_one(address).to_be_bytes();
    let question = question([id[0], id[1]], &reverse(address));
    let mut last = io::Error::from(io::ErrorKind::TimedOut);
    for _ in 0..2 {
        let mut answer = [0; 1500];
        match socket.send(&question).and_then(|_| socket.recv(&mut answer)) {
            Ok(length) => return Ok(pointer(answer.get(..length).unwrap_or_default(), &question)),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The name by which an address is asked for (RFC 1035, 3.5; RFC 3596, 2.5).
fn reverse(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa")
        }
        IpAddr::V6(address) => {
            let digits = address.octets().into_iter().rev().map(|byte| format!("{:x}.{:x}.", byte & 15, byte >> 4));
            digits.collect::<String>() + "ip6.arpa"
        }
    }
}

/// The length of a message's head (RFC 1035, 4.1.1).
const HEAD: usize = 12;
/// The type PTR, the class IN.
const PTR_IN: [u8; 4] = [0, 12, 0, 1];

/// A message with one question, which wants recursion.
fn question(id: [u8; 2], name: &str) -> Vec<u8> {
    let mut message = vec![id[0], id[1], 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        message.push(u8::try_from(label.len()).unwrap_or_default());
        message.extend(label.bytes());
    }
    message.push(0);
    message.extend(PTR_IN);
    message
}

/// The name in the first PTR record of the answer to the question.
fn pointer(answer: &[u8], question: &[u8]) -> Option<String> {
    let is_answer = answer.get(..2) == question.get(..2) && answer.get(2)? & 0x80 != 0;
    let asked = answer.get(HEAD..question.len())?.eq_ignore_ascii_case(question.get(HEAD..)?);
    let count = u16::from_be_bytes([*answer.get(6)?, *answer.get(7)?]);
    let mut at = question.len();
    for _ in 0..count.min(16).min(if is_answer && asked { u16::MAX } else { 0 }) {
        let (_, fields) = labels(answer, at)?;
        let data = fields + 10;
        let length = u16::from_be_bytes([*answer.get(fields + 8)?, *answer.get(fields + 9)?]);
        if answer.get(fields..fields + 4)? == PTR_IN {
            return labels(answer, data).map(|(name, _)| name);
        }
        at = data + usize::from(length);
    }
    None
}

/// The name at a place of the message, and where what follows it begins. A name may end with a pointer to an earlier one (RFC 1035, 4.1.4).
fn labels(message: &[u8], mut at: usize) -> Option<(String, usize)> {
    let (mut name, mut end) = (String::new(), None);
    // A name has at most 255 bytes; pointers that lead in a circle end here, too.
    for _ in 0..128 {
        let length = usize::from(*message.get(at)?);
        match length {
            0 => return Some((name, end.unwrap_or(at + 1))),
            1..=63 => {
                let label = std::str::from_utf8(message.get(at + 1..at + 1 + length)?).ok()?;
                name.push_str(if name.is_empty() { "" } else { "." });
                name.push_str(label);
                at += 1 + length;
            }
            192.. => {
                end.get_or_insert(at + 2);
                at = (length & 63) << 8 | usize::from(*message.get(at + 1)?);
            }
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_has_the_name_of_its_service_and_number() {
        for (answer, expected) in [
            ("lab-compute-3.lab_default.", Some("compute-3")),
            ("lab-compute-3.lab_default", Some("compute-3")),
            ("my_lab-compute-3.my_lab_default", Some("compute-3")),
            ("a-b-compute-12.a-b_inner_net", Some("compute-12")),
            // Compose 1.
            ("lab_compute_3.lab_default", Some("compute_3")),
            // Another project's network, or none's.
            ("lab-compute-3.other_default", Some("lab-compute-3")),
            ("gpu7.lab", Some("gpu7")),
            ("lab-.lab_default", Some("lab-")),
            ("localhost", None),
            (".lab", None),
            ("", None),
        ] {
            assert_eq!(name(answer).as_deref(), expected, "{answer}");
        }
        assert!(is_container_id("3feeba991c75") && !is_container_id("gpu7") && !is_container_id("3FEEBA991C75"));
    }

    #[test]
    fn addresses_are_those_of_the_host_name() {
        let hosts = "127.0.0.1\tlocalhost\n172.19.0.2\t3feeba991c75\n# 172.19.0.9 3feeba991c75\nfd00::2 x 3feeba991c75\n::1 3feeba991c75\n";
        let found: Vec<String> = addresses(hosts, "3feeba991c75").iter().map(IpAddr::to_string).collect();
        assert_eq!(found, ["172.19.0.2", "fd00::2"]);
        assert_eq!(reverse("172.19.0.2".parse().unwrap()), "2.0.19.172.in-addr.arpa");
        let six = reverse("fd00::2".parse().unwrap());
        assert!(six.starts_with("2.0.0.0.") && six.ends_with(".0.0.d.f.ip6.arpa") && six.len() == 72, "{six}");
        assert!(serves_names("search lab\nnameserver 127.0.0.11\noptions ndots:0\n"));
        assert!(!serves_names("# nameserver 127.0.0.11\nnameserver 127.0.0.1\n"));
    }

    #[test]
    fn an_answer_is_read_whatever_it_holds() {
        let asked = question([7, 9], "2.0.19.172.in-addr.arpa");
        let mut answer = asked.clone();
        (answer[2], answer[3], answer[7]) = (0x81, 0x80, 2);
        // A record of another type comes first; both names point to the question.
        answer.extend([0xc0, 12, 0, 16, 0, 1, 0, 0, 0, 9, 0, 1, 0]);
        answer.extend([0xc0, 12, 0, 12, 0, 1, 0, 0, 2, 88, 0, 8]);
        answer.extend(b"\x04gpu7\x03lab\x00");
        assert_eq!(pointer(&answer, &asked).as_deref(), Some("gpu7.lab"));
        for length in 0..answer.len() {
            assert_eq!(pointer(&answer[..length], &asked), None, "{length}");
        }
        assert_eq!(pointer(&answer, &question([7, 8], "2.0.19.172.in-addr.arpa")), None);
        assert_eq!(pointer(&answer, &question([7, 9], "3.0.19.172.in-addr.arpa")), None);
        let circle = [asked.as_slice(), &[0xc0, u8::try_from(asked.len()).unwrap()]].concat();
        assert_eq!(labels(&circle, asked.len()), None);
    }

    #[test]
    fn without_dockers_name_server_the_id_stays_and_is_said() {
        let root = tempfile::tempdir().unwrap();
        assert!(ask(root.path(), "gpu7").is_none());
        let finding = ask(root.path(), "3feeba991c75").unwrap().unwrap_err();
        assert!(finding.repair.contains("--hostname"), "{finding}");
    }
}
