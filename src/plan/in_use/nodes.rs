//! The nodes that jobs use or request by name.

use std::collections::BTreeMap;

use super::saved::names as names_of;
use super::{InUse, ids, refusal};
use crate::Refusal;
use crate::customized::{last_value, own_node, parse};
use model::queued_job::QueuedJob;

/// An unused port, because slurmctld also pings nodes that are down.
const NO_PORT: &str = "1";

/// The keys of a kept node's line that slurminit sets.
const KEPT_NODE_KEYS: [&str; 6] = ["NodeName", "NodeHostname", "NodeAddr", "Port", "State", "Reason"];

/// A node of the previous slurm.conf that is missing from the new one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovedNode {
    /// The node's name, or the host name by which a job may have requested the node.
    pub name: String,
    /// Whether the previous slurm.conf contained the node only for the jobs that use or request it.
    pub is_kept: bool,
    /// The keys of the node's line after its name, with their values.
    pub settings: Vec<(String, String)>,
    /// Whether this is the container's name, by which slurmctld finds localhost. It is kept together with localhost: if localhost were
    /// the only node in slurm.conf, slurmctld would find it by the name of any node that registers.
    is_name_of_localhost: bool,
}

const LOCALHOST: &str = "localhost";

/// The nodes that are missing from the new slurm.conf.
pub fn removed_nodes(former: &str, now: &str) -> Vec<RemovedNode> {
    let (old, new) = (Nodes::parse(former), Nodes::parse(now));
    let named = old.known.into_iter().chain(old.by_host);
    // slurmctld exits if a node has the name of another node's host.
    let gone = named.filter(|(name, _)| !new.resolves(name) && !new.by_host.contains_key(name));
    let mut gone: Vec<_> = gone.map(|(name, pairs)| RemovedNode::of(name, &pairs)).collect();
    // The line of localhost must be the last: while localhost is the only node, slurmctld finds it by every name, and would exit at
    // the next line.
    gone.sort_by_key(|node| node.name == LOCALHOST);
    gone
}

impl RemovedNode {
    fn of(name: String, pairs: &[(String, String)]) -> Self {
        let is_own = |key: &str| KEPT_NODE_KEYS.iter().any(|own| own.eq_ignore_ascii_case(key));
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        // A fictitious host name, because slurmd finds its own node by the host name.
        let host = format!("gone-{name}");
        let settings = [pair("NodeHostname", &host), pair("NodeAddr", "127.0.0.1"), pair("Port", NO_PORT)]
            .into_iter()
            .chain(pairs.iter().filter(|(key, _)| !is_own(key)).cloned())
            .chain([pair("State", "DOWN"), pair("Reason", "no longer configured")]);
        let settings = settings.collect();
        let has =
            |known: &str, value: &str| pairs.iter().any(|(key, own)| key.eq_ignore_ascii_case(known) && own == value);
        let is_name_of_localhost = name != LOCALHOST && has("NodeName", LOCALHOST);
        Self { name, is_kept: has("Port", NO_PORT), settings, is_name_of_localhost }
    }

    /// The jobs that use or request the node; `None` if there are none. Without a list of jobs from slurmctld, returns an empty list
    /// if the saved state contains the node.
    pub fn using_jobs(&self, used: &InUse) -> Option<Vec<String>> {
        let is_own = |name: &str| name == self.name || (self.is_name_of_localhost && name == LOCALHOST);
        let Some(jobs) = &used.jobs else {
            let is_saved =
                [&self.name, LOCALHOST].into_iter().any(|name| is_own(name) && used.saved.contains_node(name));
            return is_saved.then(Vec::new);
        };
        let names = |list: &str| names_of(list).any(|name| is_own(&name));
        let ids = ids(jobs.iter().filter(|job| names(&job.nodes) || names(&job.required)));
        (!ids.is_empty()).then_some(ids)
    }
}

/// Whether a node was removed. A name that was also missing from the previous file belongs to a dynamic node or a NodeSet.
fn is_gone(name: &str, old: &Nodes, new: &Nodes) -> bool {
    old.is_requestable(name) && !new.resolves(name)
}

/// The list without the nodes that are missing from the new slurm.conf; `None` if none is missing.
pub(super) fn without_missing(list: &str, former: &str, now: &str) -> Option<String> {
    let (old, new) = (Nodes::parse(former), Nodes::parse(now));
    let names: Vec<String> = names_of(list).collect();
    let present: Vec<&str> = names.iter().map(String::as_str).filter(|name| !is_gone(name, &old, &new)).collect();
    (present.len() < names.len()).then(|| present.join(","))
}

/// Whether both files have the same nodes and SelectType, so that no job can lose its nodes.
pub fn has_same_nodes(former: &str, now: &str) -> bool {
    Nodes::parse(former) == Nodes::parse(now)
}

/// Rejects a change that would make slurmctld end jobs because of their nodes. `now` is a reload's slurm.conf.
///
/// # Errors
/// The reason, with the affected jobs.
pub fn check_nodes(former: &str, now: &str, jobs: &[QueuedJob]) -> Result<(), Refusal> {
    let (old, new) = (Nodes::parse(former), Nodes::parse(now));
    if old.select.as_ref().zip(new.select.as_ref()).is_some_and(|(old, new)| old != new) && !jobs.is_empty() {
        return Err(refusal("SelectType changed; slurmctld would lose all jobs", &ids(jobs.iter())));
    }
    let has_gone_node = |list: &str| names_of(list).any(|name| is_gone(&name, &old, &new));
    let lost = ids(jobs.iter().filter(|job| has_gone_node(&job.nodes) || has_gone_node(&job.required)));
    if !lost.is_empty() {
        return Err(refusal("nodes that jobs use or request are missing from slurm.conf", &lost));
    }
    let differs = |name: String| {
        old.known.get(&name).zip(new.known.get(&name)).is_some_and(|(old, new)| cores(old) != cores(new))
    };
    let affected = ids(jobs.iter().filter(|job| !job.is_pending() && names_of(&job.nodes).any(differs)));
    if !affected.is_empty() {
        return Err(refusal(
            "the CPUs, boards, sockets, cores or threads of a node changed while jobs run on it",
            &affected,
        ));
    }
    Ok(())
}

/// The keys that determine a node's cores. slurmctld compares their values with the cores of a running job.
const CORES: [&str; 6] = ["CPUs", "Boards", "Sockets", "SocketsPerBoard", "CoresPerSocket", "ThreadsPerCore"];

/// The nodes of a slurm.conf by name and by host name, with the keys and values of their lines, and SelectType.
#[derive(PartialEq, Eq)]
struct Nodes {
    known: BTreeMap<String, Vec<(String, String)>>,
    by_host: BTreeMap<String, Vec<(String, String)>>,
    select: Option<String>,
}

impl Nodes {
    fn parse(text: &str) -> Self {
        let (mut known, mut by_host) = (BTreeMap::new(), BTreeMap::new());
        for line in own_node::nodes(&parse::lines(text)) {
            let pairs = line.pairs().to_vec();
            let names = line.get("NodeName").into_iter().flat_map(names_of);
            known.extend(names.map(|name| (name, pairs.clone())));
            let hosts = line.get("NodeHostname").into_iter().flat_map(names_of);
            by_host.extend(hosts.map(|name| (name, pairs.clone())));
        }
        // If localhost is the only node, a job can request it by any name, most likely by the container's.
        let controller = last_value(text, "SlurmctldHost").unwrap_or_default();
        let container = controller.split('(').next().filter(|name| !name.is_empty() && is_localhost(&known));
        by_host.extend(container.and_then(|name| Some((name.to_owned(), known.get(LOCALHOST)?.clone()))));
        by_host.retain(|name, _| !known.contains_key(name));
        let select = last_value(text, "SelectType").map(|select| select.to_ascii_lowercase());
        Self { known, by_host, select }
    }

    /// Whether slurmctld finds a node by this name; if localhost is the only node, by any name (24.11, `_find_node_record`).
    fn resolves(&self, name: &str) -> bool {
        self.known.contains_key(name) || is_localhost(&self.known)
    }

    /// Whether a job may have requested a node by this name.
    fn is_requestable(&self, name: &str) -> bool {
        self.known.contains_key(name) || self.by_host.contains_key(name)
    }
}

fn is_localhost(nodes: &BTreeMap<String, Vec<(String, String)>>) -> bool {
    nodes.keys().eq([LOCALHOST])
}

fn cores(pairs: &[(String, String)]) -> [Option<&str>; 6] {
    CORES.map(|key| Some(pairs.iter().find(|(own, _)| own.eq_ignore_ascii_case(key))?.1.as_str()))
}
