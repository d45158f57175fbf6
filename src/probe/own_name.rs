//! The engine's name for this container, if the host name is only the container ID.
//!
//! Replicas of one compose service (`docker compose up --scale compute=5`) cannot be given individual host names, and the engine uses their
//! IDs as host names. Its name server resolves a container's address to its name: `lab-compute-3.lab_default`.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::Duration;

use super::regular;
use model::inventory::{Finding, Kind};
use sys::tool::{self, answer::Answer};

/// Docker's name server in user-defined networks. The default network has none.
const NAME_SERVER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 11);
/// The timeout of one lookup. The server runs on the same machine.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Whether a host name is a container ID of 12 hexadecimal digits, Docker's default host name.
pub fn is_container_id(hostname: &str) -> bool {
    hostname.len() == 12 && hostname.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The container's name without its project, or why it is unknown. `None` if the host name is not an ID.
pub fn query_container_name(root: &Path, hostname: &str) -> Option<Result<String, Finding>> {
    if !is_container_id(hostname) {
        return None;
    }
    let unknown = |cause: String| {
        Finding::warning(
            Kind::Files,
            format!("container name unknown; the node is named after the container ID, {hostname}"),
            cause,
            "start the container with --hostname NAME, or set SLURMINIT_NODE_NAME",
        )
    };
    // `-s dns` skips /etc/hosts, which contains only the ID.
    let getent = |address: IpAddr| tool::ask("getent", &["-s", "dns", "hosts", &address.to_string()], TIMEOUT);
    Some(look_up(root, hostname, getent).map_err(unknown))
}

fn look_up(root: &Path, hostname: &str, getent: impl Fn(IpAddr) -> Answer) -> Result<String, String> {
    let text = |path: &str| regular::text(&root.join(path)).unwrap_or_default();
    if !has_docker_name_server(&text("etc/resolv.conf")) {
        return Err(
            "/etc/resolv.conf does not list Docker's name server 127.0.0.11 (only user-defined networks have it)"
                .to_owned(),
        );
    }
    let mut why = format!("/etc/hosts has no address for {hostname}");
    for address in addresses(&text("etc/hosts"), hostname) {
        match dns_name(getent(address)).map(|answer| answer.and_then(|answer| service_name(&answer))) {
            Ok(Some(name)) if name != hostname => return Ok(name),
            Ok(_) => why = format!("Docker's name server has no other name for {address}"),
            Err(error) => why = error.to_owned(),
        }
    }
    Err(why)
}

fn has_docker_name_server(resolv_conf: &str) -> bool {
    let server = NAME_SERVER.to_string();
    resolv_conf.lines().any(|line| line.split_whitespace().eq(["nameserver", server.as_str()]))
}

/// The container's addresses in /etc/hosts, where the engine writes a line for each network.
fn addresses(hosts: &str, hostname: &str) -> Vec<IpAddr> {
    let address_of_line = |line: &str| {
        let mut words = line.split('#').next()?.split_whitespace();
        let address = words.next()?.parse().ok()?;
        words.any(|word| word == hostname).then_some(address)
    };
    hosts.lines().filter_map(address_of_line).filter(|address: &IpAddr| !address.is_loopback()).collect()
}

/// The container's name without its compose project. `lab-compute-3.lab_default` becomes compute-3, and `gpu7.lab` becomes gpu7. A
/// project's network is also named after the project.
fn service_name(answer: &str) -> Option<String> {
    let (container, network) = answer.trim_end_matches('.').split_once('.')?;
    let prefix_ends = network.match_indices('_').map(|(at, _)| at).rev();
    let service = prefix_ends
        .filter_map(|end| container.strip_prefix(&network[..end])?.strip_prefix(['-', '_']))
        .find(|service| !service.is_empty());
    Some(service.unwrap_or(container).to_owned()).filter(|name| !name.is_empty())
}

/// The DNS name in getent's answer for an address; `None` if the address has no name.
fn dns_name(answer: Answer) -> Result<Option<String>, &'static str> {
    match answer {
        Answer::Ended { stdout, .. } => Ok(stdout.split_whitespace().nth(1).map(str::to_owned)),
        Answer::Silent => Err("Docker's name server does not answer"),
        Answer::Missing => Err("getent is not installed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derives_replica_name_from_service_and_number() {
        for (answer, expected) in [
            ("lab-compute-3.lab_default.", Some("compute-3")),
            ("lab-compute-3.lab_default", Some("compute-3")),
            ("my_lab-compute-3.my_lab_default", Some("compute-3")),
            ("a-b-compute-12.a-b_inner_net", Some("compute-12")),
            // Compose 1.
            ("lab_compute_3.lab_default", Some("compute_3")),
            // The network belongs to another project, or to none.
            ("lab-compute-3.other_default", Some("lab-compute-3")),
            ("gpu7.lab", Some("gpu7")),
            ("lab-.lab_default", Some("lab-")),
            ("localhost", None),
            (".lab", None),
            ("", None),
        ] {
            assert_eq!(service_name(answer).as_deref(), expected, "{answer}");
        }
        assert!(is_container_id("3feeba991c75") && !is_container_id("gpu7") && !is_container_id("3FEEBA991C75"));
    }

    #[test]
    fn finds_host_addresses_and_docker_name_server() {
        let hosts = "127.0.0.1\tlocalhost\n172.19.0.2\t3feeba991c75\n# 172.19.0.9 3feeba991c75\nfd00::2 x 3feeba991c75\n::1 3feeba991c75\n";
        let found: Vec<String> = addresses(hosts, "3feeba991c75").iter().map(IpAddr::to_string).collect();
        assert_eq!(found, ["172.19.0.2", "fd00::2"]);
        assert!(has_docker_name_server("search lab\nnameserver 127.0.0.11\noptions ndots:0\n"));
        assert!(!has_docker_name_server("# nameserver 127.0.0.11\nnameserver 127.0.0.1\n"));
    }

    #[test]
    fn reports_container_id_as_host_name_without_docker_dns() {
        let root = tempfile::tempdir().unwrap();
        assert!(query_container_name(root.path(), "gpu7").is_none());
        let finding = query_container_name(root.path(), "3feeba991c75").unwrap().unwrap_err();
        assert!(finding.fix.contains("--hostname"), "{finding}");
    }

    #[test]
    fn name_is_that_of_the_first_network_that_has_one() {
        let id = "3feeba991c75";
        let hosts = format!("172.19.0.2 {id}\n172.20.0.2 {id}\n");
        let root = crate::tests::tree(&[("etc/resolv.conf", "nameserver 127.0.0.11\n"), ("etc/hosts", hosts.as_str())]);
        let answer = |name: &str| Answer::Ended {
            succeeded: !name.is_empty(),
            stdout: if name.is_empty() { String::new() } else { format!("172.19.0.2      {name}\n") },
            stderr: String::new(),
        };
        let names =
            |first: Answer, second: Answer| {
                look_up(root.path(), id, |address| {
                    if address.to_string() == "172.19.0.2" { first.clone() } else { second.clone() }
                })
            };
        let second = || answer("lab-compute-3.lab_default");
        assert_eq!(names(answer("lab-gpu-1.lab_inner"), second()).as_deref(), Ok("gpu-1"));
        assert_eq!(names(answer(&format!("{id}.lab")), second()).as_deref(), Ok("compute-3"), "only the ID again");
        assert_eq!(names(Answer::Silent, second()).as_deref(), Ok("compute-3"));
        for (last, why) in [
            (answer(""), "no other name for 172.20.0.2"),
            (Answer::Silent, "name server does not answer"),
            (Answer::Missing, "getent is not installed"),
        ] {
            let failure = names(answer(""), last).unwrap_err();
            assert!(failure.contains(why), "{failure}");
        }
    }
}
