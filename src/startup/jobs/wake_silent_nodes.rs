//! Makes slurmctld contact nodes that were unresponsive and are reachable again.
//!
//! slurmctld pings a node that is down and unresponsive only in every twentieth of its rounds, three minutes apart with a
//! SlurmdTimeout of 30 s (Slurm 24.11, `ping_nodes.c`), and slurmd registers by itself only when it starts. So a network that
//! was away for a minute would cost its nodes four. `State=RESUME` makes slurmctld ask at once (`_require_node_reg` in
//! `node_mgr.c`).
//!
//! When it registers, the node ends its processes of jobs that were requeued meanwhile, and slurmd refuses a job in the second
//! in which it ended it; slurmctld then fails the job. So the node is drained until the next round.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use super::SLURM;
use machine::node_report::OUR_REASON;
use model::message;
use sys::report;

/// slurmctld's down reason for an unresponsive node. Another reason is a person's, or has another cause.
const SILENT: &str = "Not responding";
/// Drain reason of a node that is about to register again.
const RETURNS: &str = "the node was unresponsive and has registered again";
/// Connection timeout. Unreachable nodes must not delay the reachable ones.
const CONNECT: Duration = Duration::from_millis(500);
/// Maximum number of nodes tried in one round, each in a thread. If more are unreachable, they are chosen at random.
const AT_ONCE: usize = 64;

/// What a node needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum NodeNeed {
    /// A registration request, if it is reachable at this address.
    Asked,
    /// A second registration request: the node did not register after the first one.
    AskedAgain,
    /// The node was resumed because it has registered.
    Opened,
}

/// One round: resumes the nodes that have registered, and requests a registration from those that are reachable again.
pub fn run(port: u16) -> anyhow::Result<()> {
    let list = SLURM.output("sinfo", &["--noheader", "--Node", "--states=down,drain", "--format=%N|%o|%T|%E"])?;
    let mut nodes: Vec<(NodeNeed, &str, &str)> = list.lines().filter_map(need).collect();
    // A node has a line for each of its partitions.
    nodes.sort_unstable();
    nodes.dedup();
    let open = nodes.iter().filter(|node| node.0 == NodeNeed::Opened).map(|node| node.1).collect::<Vec<_>>().join(",");
    if !open.is_empty() {
        SLURM.update_node(&open, &["state=undrain"])?;
    }
    nodes.retain(|node| node.0 != NodeNeed::Opened);
    let chance = usize::try_from(RandomState::new().hash_one(port) >> 32).unwrap_or_default();
    let first = chance.checked_rem(nodes.len()).unwrap_or_default();
    nodes.rotate_left(first);
    let back: Vec<(NodeNeed, &str)> = std::thread::scope(|all| {
        let ask = |(need, name, address)| answers(address, port).then_some((need, name));
        // Under a process limit the other nodes wait for a later round.
        let asked = nodes.iter().copied().take(AT_ONCE);
        let threads: Vec<_> =
            asked.filter_map(|node| std::thread::Builder::new().spawn_scoped(all, move || ask(node)).ok()).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok().flatten()).collect()
    });
    let names = |of: &dyn Fn(NodeNeed) -> bool| {
        back.iter().filter(|node| of(node.0)).map(|node| node.1).collect::<Vec<_>>().join(",")
    };
    let (new, all) = (names(&|need| need == NodeNeed::Asked), names(&|_| true));
    if !new.is_empty() {
        report::info(message!(
            "nodes-reachable-again",
            "unresponsive nodes are reachable again on port {port}: {nodes}; requesting registration",
            port = port,
            nodes = new
        ));
    }
    if all.is_empty() {
        return Ok(());
    }
    SLURM.update_node(&all, &["state=resume"])?;
    Ok(SLURM.update_node(&all, &["state=drain", &format!("reason={OUR_REASON}{RETURNS}")])?)
}

/// Name and address of a node that slurmctld marked as unresponsive, or that is about to register again.
fn need(line: &str) -> Option<(NodeNeed, &str, &str)> {
    let mut fields = line.splitn(4, '|');
    let (name, address, state, reason) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?.trim_end());
    let returns = reason.strip_prefix(OUR_REASON) == Some(RETURNS);
    match state {
        // slurmctld keeps an existing reason, and each of slurminit's reasons has a cause that is gone.
        "down*" if reason == SILENT || reason.starts_with(OUR_REASON) => Some((NodeNeed::Asked, name, address)),
        "drained*" if returns => Some((NodeNeed::AskedAgain, name, address)),
        "drained" | "draining" if returns => Some((NodeNeed::Opened, name, address)),
        _ => None,
    }
}

fn answers(address: &str, port: u16) -> bool {
    let addresses: Vec<SocketAddr> = (address, port).to_socket_addrs().map(Iterator::collect).unwrap_or_default();
    addresses.iter().any(|address| TcpStream::connect_timeout(address, CONNECT).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contacts_only_unresponsive_nodes() {
        assert_eq!(need("c1|10.0.0.2|down*|Not responding"), Some((NodeNeed::Asked, "c1", "10.0.0.2")));
        let own_reason = "slurminit: the node was unresponsive and has registered again";
        assert_eq!(need(&format!("c1|a|drained*|{own_reason}")), Some((NodeNeed::AskedAgain, "c1", "a")));
        // Another container requested this node name.
        assert_eq!(need("c1|a|down*|slurminit: another container"), Some((NodeNeed::Asked, "c1", "a")));
        assert_eq!(need(&format!("c1|a|drained|{own_reason}\n")), Some((NodeNeed::Opened, "c1", "a")));
        for other in [
            "c1|10.0.0.2|down*|fan broken",
            "c1|10.0.0.2|down|Not responding",
            "c1|10.0.0.2|drained*|Not responding",
            "c1|10.0.0.2|drained|slurminit: the container stops",
            "c1|10.0.0.2|down*",
            "",
        ] {
            assert_eq!(need(other), None, "{other}");
        }
    }

    #[test]
    fn detects_open_port() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(answers("127.0.0.1", port));
        drop(listener);
        assert!(!answers("127.0.0.1", port) && !answers("no.such.host.invalid", port));
    }
}
