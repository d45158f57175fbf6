//! Makes slurmctld contact nodes that were unresponsive and are reachable again.
//!
//! slurmctld pings a node that is down and unresponsive only in every twentieth of its rounds, which is every three minutes if
//! SlurmdTimeout is 30 s (Slurm 24.11, `ping_nodes.c`), and slurmd registers by itself only when it starts. So a network
//! outage of one minute would make the affected nodes unusable for up to four minutes. `State=RESUME` makes slurmctld request
//! a registration at once (`_require_node_reg` in `node_mgr.c`).
//!
//! When a node registers, it ends its processes of jobs that were requeued meanwhile. slurmd refuses to start a job in the
//! same second in which it has ended that job, and slurmctld then fails the job. So the node is drained until the next round.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::thread;
use std::time::Duration;

use super::SLURM;
use machine::node_report::OUR_REASON;
use model::message;
use sys::report;

/// slurmctld's down reason for an unresponsive node. Any other reason was set by an administrator or slurminit, or has another cause.
const UNRESPONSIVE_REASON: &str = "Not responding";
/// Drain reason of a node from the request to register again until the first round after its registration.
const RETURN_REASON: &str = "the node was unresponsive and is registering again";
/// Connection timeout for each address. Unreachable nodes must not delay the reachable ones.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// Maximum number of nodes tried in one round, each in a thread. If there are more, the round begins at a random one.
const MAX_CONCURRENT: usize = 64;

/// The action that a node needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum NodeAction {
    /// Request a registration, if the node is reachable.
    Register,
    /// Request a registration again, because the node did not register after the first request.
    RegisterAgain,
    /// Remove the drain, because the node has registered.
    Undrain,
}

/// One round: resumes the nodes that have registered, and requests a registration from those that are reachable again.
pub fn run(port: u16) -> anyhow::Result<()> {
    let list = SLURM.output("sinfo", &["--noheader", "--Node", "--states=down,drain", "--format=%N|%o|%T|%E"])?;
    let mut nodes: Vec<(NodeAction, &str, &str)> = list.lines().filter_map(parse_line).collect();
    // A node has a line for each of its partitions.
    nodes.sort_unstable();
    nodes.dedup();
    let open = nodes.iter().filter(|node| node.0 == NodeAction::Undrain).map(|node| node.1);
    let open = open.collect::<Vec<_>>().join(",");
    if !open.is_empty() {
        SLURM.update_node(&open, &["state=undrain"])?;
    }
    nodes.retain(|node| node.0 != NodeAction::Undrain);
    let random = usize::try_from(RandomState::new().hash_one(port) >> 32).unwrap_or_default();
    let first = random.checked_rem(nodes.len()).unwrap_or_default();
    nodes.rotate_left(first);
    let reachable: Vec<(NodeAction, &str)> = thread::scope(|scope| {
        let connect = |(action, name, address)| accepts_connection(address, port).then_some((action, name));
        // If the container has reached its process limit, the remaining nodes wait for a later round.
        let tried = nodes.iter().copied().take(MAX_CONCURRENT);
        let threads: Vec<_> =
            tried.filter_map(|node| thread::Builder::new().spawn_scoped(scope, move || connect(node)).ok()).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok().flatten()).collect()
    });
    let names = |is_selected: &dyn Fn(NodeAction) -> bool| {
        reachable.iter().filter(|node| is_selected(node.0)).map(|node| node.1).collect::<Vec<_>>().join(",")
    };
    let (new, all) = (names(&|action| action == NodeAction::Register), names(&|_| true));
    if !new.is_empty() {
        report::info(message!(
            "nodes-reachable-again",
            "unresponsive nodes are reachable again on port {port}: {nodes}; requesting registration",
            port,
            nodes = new
        ));
    }
    if all.is_empty() {
        return Ok(());
    }
    SLURM.update_node(&all, &["state=resume"])?;
    Ok(SLURM.update_node(&all, &["state=drain", &format!("reason={OUR_REASON}{RETURN_REASON}")])?)
}

/// The action, name and address of a node that slurmctld marked as unresponsive, or that was requested to register again.
fn parse_line(line: &str) -> Option<(NodeAction, &str, &str)> {
    let mut fields = line.splitn(4, '|');
    let (name, address, state, reason) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?.trim_end());
    let is_returning = reason.strip_prefix(OUR_REASON) == Some(RETURN_REASON);
    match state {
        // slurmctld keeps an existing reason. If it is one of slurminit's reasons, its cause is gone by now.
        "down*" if reason == UNRESPONSIVE_REASON || reason.starts_with(OUR_REASON) => {
            Some((NodeAction::Register, name, address))
        }
        "drained*" if is_returning => Some((NodeAction::RegisterAgain, name, address)),
        "drained" | "draining" if is_returning => Some((NodeAction::Undrain, name, address)),
        _ => None,
    }
}

fn accepts_connection(address: &str, port: u16) -> bool {
    let addresses: Vec<SocketAddr> = (address, port).to_socket_addrs().map(Iterator::collect).unwrap_or_default();
    addresses.iter().any(|address| TcpStream::connect_timeout(address, CONNECT_TIMEOUT).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contacts_only_unresponsive_nodes() {
        assert_eq!(parse_line("c1|10.0.0.2|down*|Not responding"), Some((NodeAction::Register, "c1", "10.0.0.2")));
        let own_reason = "slurminit: the node was unresponsive and is registering again";
        assert_eq!(parse_line(&format!("c1|a|drained*|{own_reason}")), Some((NodeAction::RegisterAgain, "c1", "a")));
        // Another container requested this node name.
        assert_eq!(parse_line("c1|a|down*|slurminit: another container"), Some((NodeAction::Register, "c1", "a")));
        assert_eq!(parse_line(&format!("c1|a|drained|{own_reason}\n")), Some((NodeAction::Undrain, "c1", "a")));
        for other in [
            "c1|10.0.0.2|down*|fan broken",
            "c1|10.0.0.2|down|Not responding",
            "c1|10.0.0.2|drained*|Not responding",
            "c1|10.0.0.2|drained|slurminit: the container stops",
            "c1|10.0.0.2|down*",
            "",
        ] {
            assert_eq!(parse_line(other), None, "{other}");
        }
    }

    #[test]
    fn detects_open_port() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(accepts_connection("127.0.0.1", port));
        drop(listener);
        assert!(!accepts_connection("127.0.0.1", port) && !accepts_connection("no.such.host.invalid", port));
    }
}
