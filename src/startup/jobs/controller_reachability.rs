//! Whether the controller lists a node and reaches it at its registered address, and whether a node name is already in use.
//!
//! slurmctld takes the address from which a node registers, and connects to the node there some time later. Until then a node that it
//! cannot reach stays idle and does not notice, because the node's own connections to the controller work. If slurmctld is killed before
//! it has saved a node, its successor does not list the node and does not contact it: slurmd registers only when it starts. If it is
//! killed before it has saved a change of a node, its successor marks the node invalid.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use super::{SLURM, STOP_REASON};
use config::DaemonName;
use control::client;
use control::status;
use machine::PhaseName;
use machine::node_report::{DUPLICATE_JOB_REASON, OUR_REASON};
use machine::protocol::Request;
use model::inventory::{Finding, Kind};
use model::message;
use slurm::node_record::NodeRecord;
use sys::report;

/// Timeout of a connection within a cluster.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How often to ask the controller whether it reaches the node. slurmctld pings each node every 10 s.
const POLL_INTERVAL: Duration = Duration::from_secs(15);
/// Interval of the error message while the controller cannot reach this node.
const REPORT_INTERVAL: Duration = Duration::from_secs(300);
/// Number of equal answers in a row before slurmd is restarted. slurmctld may not have read its saved state yet.
const MIN_ANSWERS: u32 = 2;
/// The maximum of that number, which doubles after each restart that did not help.
const MAX_ANSWERS: u32 = 128;

/// Watches until the container stops. Logs an error while the controller does not reach this node, and restarts slurmd if the controller
/// does not list it.
pub fn watch(node: &str, port: u16, socket: &Path) -> anyhow::Result<()> {
    let (mut silent_count, mut unknown_count, mut reported_at): (u32, u32, Option<Instant>) = (0, 0, None);
    let mut outdated = OutdatedRecord::default();
    loop {
        pause();
        let Ok(record) = SLURM.node(node) else { continue };
        let Some(record) = record else {
            unknown_count += 1;
            // While slurmd is still connecting to the controller, an unknown node proves nothing.
            if unknown_count >= MIN_ANSWERS && accepts_connection(Ipv4Addr::LOCALHOST.into(), port) {
                unknown_count = 0;
                register_again(socket, &format!("the controller has no record of node {node}"));
            }
            continue;
        };
        unknown_count = 0;
        if has_obsolete_drain(&record) && is_ready(socket) {
            report::info(message!("node-resumed", "the cause of the drain is gone; resuming the node"));
            let _ = SLURM.update_node(node, &["state=resume"]);
        }
        let registered_line = registered_line(socket);
        if outdated.is_restart_due(registered_line.is_some_and(|line| is_outdated(&record, &line))) {
            let hardware = record.hardware();
            register_again(socket, &format!("the controller has outdated hardware for node {node} ({hardware})"));
            continue;
        }
        if !record.is_unresponsive() {
            if reported_at.take().is_some() {
                report::info(message!("node-reachable-again", "connection from the controller to this node restored"));
            }
            silent_count = 0;
            continue;
        }
        silent_count += 1;
        // A single failure proves nothing: slurmd may just have been started.
        if silent_count < 2
            || reported_at.is_some_and(|reported_at| reported_at.elapsed() < REPORT_INTERVAL)
            || !accepts_connection(Ipv4Addr::LOCALHOST.into(), port)
        {
            continue;
        }
        reported_at = Some(Instant::now());
        let (address, port) = record.address(port);
        let unreachable = Finding::error(
            Kind::Container,
            "the controller does not reach this node",
            format!("{address} is not this machine's address for the controller, or a firewall blocks port {port}"),
            format!(
                "open port {port} from the controller to this machine, or use one network for both (--network host)"
            ),
        );
        report::error(unreachable.message("node-unreachable"));
    }
}

/// Whether a node still has the drain of its last stop or of a duplicate launch. This happens if slurmctld was killed
/// before it had saved the removal of the drain, or the start of the job.
fn has_obsolete_drain(record: &NodeRecord) -> bool {
    let is_drained_by_stop = || record.has_reason(&format!("{OUR_REASON}{STOP_REASON}"));
    record.has_state(&["DRAIN"]) && (is_drained_by_stop() || record.has_reason(DUPLICATE_JOB_REASON))
}

/// Whether this container serves jobs and is not stopping.
fn is_ready(socket: &Path) -> bool {
    let status = socket.parent().and_then(|run| status::read(run).ok());
    status.is_some_and(|status| status.snapshot.phase == PhaseName::Ready)
}

/// The node line with which slurmd registered this node.
fn registered_line(socket: &Path) -> Option<String> {
    status::read(socket.parent()?).ok()?.snapshot.prepared?.dynamic_node
}

/// Whether slurmctld's record of a node has outdated hardware and can be deleted, which requires that the node has no job.
fn is_outdated(record: &NodeRecord, registered_line: &str) -> bool {
    !record.is_in_use() && !record.is_cloud() && (record.is_invalid() || !record.has_hardware(registered_line))
}

/// Counts how often in a row slurmctld had an outdated record.
#[derive(Debug, Default)]
struct OutdatedRecord {
    answers: u32,
    restarts: u32,
}

impl OutdatedRecord {
    /// Counts one answer of the controller: whether its record is outdated. Returns whether slurmd has to be restarted.
    fn is_restart_due(&mut self, is_outdated: bool) -> bool {
        if !is_outdated {
            *self = Self::default();
            return false;
        }
        self.answers += 1;
        let is_due = self.answers >= MIN_ANSWERS.saturating_mul(1 << self.restarts.min(16)).min(MAX_ANSWERS);
        if is_due {
            (self.answers, self.restarts) = (0, self.restarts + 1);
        }
        is_due
    }
}

/// Restarts slurmd, which makes it register. Jobs continue: the new slurmd finds them.
fn register_again(socket: &Path, why: &str) {
    report::warn(message!("node-registers-again", "{why}; restarting slurmd to register again", why));
    let restart = Request::Restart { name: DaemonName::Slurmd.to_string() };
    if let Err(error) = client::ask(socket, &restart) {
        report::error(message!("node-not-registered", "{error}; fix: run `slurminit restart slurmd`", error));
    }
}

/// The reason if another running container has registered the same node name.
pub(super) fn name_conflict(node: &str, record: &NodeRecord, port: u16) -> Option<String> {
    let (address, port) = record.address(port);
    let at: IpAddr = address.parse().ok()?;
    if record.is_unresponsive()
        || is_local_address(at)
        || belongs_to_other_node(node, address)
        || !accepts_connection(at, port)
    {
        return None;
    }
    let conflict = Finding::error(
        Kind::Container,
        format!("the node name {node} is already in use, by a slurmd at {address}; waiting until the name is free"),
        "two containers have the same host name",
        "give this node another name (--hostname, or -e SLURMINIT_NODE_NAME=NAME with --network host)",
    );
    Some(format!("error: {conflict}"))
}

/// Adds the conflict to the controller's log, where slurmctld writes each new reason. An existing reason is kept.
pub(super) fn report_conflict(node: &str, record: &NodeRecord) {
    if record.get("Reason").is_none() {
        let host = nix::unistd::gethostname().unwrap_or_default().to_string_lossy().into_owned();
        let reason = format!(
            "reason={OUR_REASON}another container ({host}) uses the name of this node; give it another host name"
        );
        // This container logs the conflict in any case.
        let _ = SLURM.update_node(node, &[reason]);
    }
}

/// Whether the address is one of this machine's.
fn is_local_address(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// Whether the address belongs to a node with another name. This happens if another container was given the address.
fn belongs_to_other_node(node: &str, address: &str) -> bool {
    let nodes = SLURM.nodes().unwrap_or_default();
    nodes.iter().any(|other| other.get("NodeName") != Some(node) && other.get("NodeAddr") == Some(address))
}

fn accepts_connection(address: IpAddr, port: u16) -> bool {
    TcpStream::connect_timeout(&SocketAddr::new(address, port), CONNECT_TIMEOUT).is_ok()
}

#[expect(
    clippy::disallowed_methods,
    reason = "this is a child of PID 1; the controller sends no event to a node that it does not reach"
)]
fn pause() {
    std::thread::sleep(POLL_INTERVAL);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(line: &str) -> NodeRecord {
        NodeRecord::parse(line).unwrap()
    }

    #[test]
    fn resumes_only_drains_whose_cause_is_gone() {
        let node = |state: &str, reason: &str| {
            record(&format!("NodeName=c1 State={state}+DYNAMIC_NORM Reason={reason} [root@x]"))
        };
        assert!(has_obsolete_drain(&node("IDLE+DRAIN", "slurminit: the container stops")));
        assert!(has_obsolete_drain(&node("MIXED+DRAIN", "Duplicate jobid")));
        assert!(!has_obsolete_drain(&node("IDLE", "slurminit: the container stops")));
        assert!(!has_obsolete_drain(&node("IDLE+DRAIN", "fan broken")));
    }

    #[test]
    fn registers_again_after_hardware_change_if_node_is_idle() {
        let registered_line = "CPUs=2 RealMemory=8000 Gres=gpu:nvidia:3 Feature=h200";
        let node = |gres: u32, allocated: u32, state: &str| {
            record(&format!(
                "NodeName=c1 CPUAlloc={allocated} CPUTot=2 Gres=gpu:nvidia:{gres}(S:0) RealMemory=8000 State={state}"
            ))
        };
        assert!(is_outdated(&node(4, 0, "IDLE+DRAIN+DYNAMIC_NORM+INVALID_REG"), registered_line));
        assert!(is_outdated(&node(2, 0, "IDLE+DYNAMIC_NORM"), registered_line), "a GPU is back");
        assert!(
            is_outdated(&node(3, 0, "IDLE+DYNAMIC_NORM+INVALID_REG"), registered_line),
            "slurmctld shows the rejected hardware"
        );
        assert!(!is_outdated(&node(3, 0, "IDLE+DYNAMIC_NORM"), registered_line));
        for (allocated, state) in [
            (1, "MIXED+DYNAMIC_NORM+INVALID_REG"),
            (0, "IDLE+COMPLETING+DYNAMIC_NORM"),
            (0, "IDLE+DYNAMIC_NORM+RESERVED"),
            (0, "IDLE+CLOUD"),
        ] {
            assert!(!is_outdated(&node(4, allocated, state), registered_line), "{state}");
        }
    }

    #[test]
    fn outdated_answers_restart_slurmd_with_backoff() {
        let mut outdated = OutdatedRecord::default();
        let until_restart = |outdated: &mut OutdatedRecord| (1..1000).find(|_| outdated.is_restart_due(true)).unwrap();
        assert_eq!([(); 9].map(|()| until_restart(&mut outdated)), [2, 4, 8, 16, 32, 64, 128, 128, 128]);
        assert!(!outdated.is_restart_due(false) && !outdated.is_restart_due(true) && outdated.is_restart_due(true));
    }

    #[test]
    fn own_address_is_not_reported_as_taken() {
        assert!(is_local_address([127, 0, 0, 1].into()) && !is_local_address([192, 0, 2, 1].into()));
        assert_eq!(name_conflict("c1", &record("NodeName=c1 NodeAddr=127.0.0.1 State=IDLE"), 1), None);
        assert_eq!(name_conflict("c1", &record("NodeName=c1 NodeAddr=name State=IDLE"), 1), None);
    }
}
