//! Whether the controller lists a node and can reach it at its registered address, and whether a node name is already in use.
//!
//! slurmctld records the address from which a node registers, and connects to the node there some time later. Until then a node that
//! slurmctld cannot reach is listed as idle, and the node cannot detect this, because its own connections to the controller work. If
//! slurmctld is killed before it has saved a node, its successor does not list the node and does not contact it: slurmd registers only when
//! it starts. If slurmctld is killed before it has saved a change of a node's hardware, its successor has an outdated record, and may mark the
//! node invalid.

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
/// Interval between two checks whether the controller can reach the node. With a SlurmdTimeout of 30 s, slurmctld pings
/// each node every 10 s.
const POLL_INTERVAL: Duration = Duration::from_secs(15);
/// Interval of the error message while the controller cannot reach this node.
const REPORT_INTERVAL: Duration = Duration::from_secs(300);
/// Number of equal answers in a row before slurmd is restarted or an error is logged. slurmctld may not have read its saved state yet.
const MIN_ANSWERS: u32 = 2;
/// Maximum number of equal answers before a restart because of an outdated record. The number doubles after each restart that did not help.
const MAX_ANSWERS: u32 = 128;

/// Watches until the container stops. Logs an error while the controller cannot reach this node, restarts slurmd if the controller does not
/// list the node or has outdated hardware for it, and removes an obsolete drain.
pub fn watch(node: &str, port: u16, socket: &Path) -> anyhow::Result<()> {
    let (mut answers, mut outdated) = (Answers::default(), OutdatedRecord::default());
    let is_listening = || accepts_connection(Ipv4Addr::LOCALHOST.into(), port);
    loop {
        pause();
        let Ok(record) = SLURM.node(node) else { continue };
        let Some(record) = record else {
            if answers.is_restart_due(is_listening) {
                register_again(socket, &format!("the controller has no record of node {node}"));
            }
            continue;
        };
        answers.without_record = 0;
        if has_obsolete_drain(&record) && is_ready(socket) {
            report::info(message!("node-resumed", "the cause of the drain is gone; resuming the node"));
            let _ = SLURM.update_node(node, &["state=resume"]);
        }
        let registered_line = registered_line(socket);
        if outdated.is_restart_due(registered_line.is_some_and(|line| is_outdated(&record, &line))) {
            let hardware = record.hardware();
            register_again(socket, &format!("the controller's record of node {node} is outdated ({hardware})"));
            continue;
        }
        match answers.reachability_to_report(record.is_unresponsive(), Instant::now(), is_listening) {
            Some(Reachability::Restored) => {
                report::info(message!("node-reachable-again", "connection from the controller to this node restored"));
            }
            Some(Reachability::Lost) => report_unreachable(record.address(port)),
            None => {}
        }
    }
}

fn report_unreachable((address, port): (&str, u16)) {
    let unreachable = Finding::error(
        Kind::Container,
        "the controller cannot reach this node",
        format!(
            "the controller has no route to this machine at {address} (NAT, separate networks), or a firewall blocks port {port}"
        ),
        format!("open port {port} from the controller to this machine, or use one network for both (--network host)"),
    );
    report::error(unreachable.message("node-unreachable"));
}

/// A change to log: whether the controller can reach this node.
#[derive(Debug, PartialEq, Eq)]
enum Reachability {
    Lost,
    Restored,
}

/// Counts consecutive equal answers of the controller.
#[derive(Debug, Default)]
struct Answers {
    /// Answers that the controller does not list the node.
    without_record: u32,
    /// Answers that the node does not respond.
    unresponsive: u32,
    /// When the controller was last reported to be unable to reach the node.
    reported_at: Option<Instant>,
}

impl Answers {
    /// Counts an answer without a record. Returns whether slurmd has to be restarted.
    fn is_restart_due(&mut self, is_listening: impl FnOnce() -> bool) -> bool {
        self.without_record += 1;
        // While slurmd is still connecting to the controller, a missing record proves nothing.
        let is_due = self.without_record >= MIN_ANSWERS && is_listening();
        if is_due {
            self.without_record = 0;
        }
        is_due
    }

    /// Counts an answer with a record. Returns a change that has to be logged. While the controller cannot reach the node, returns
    /// [`Reachability::Lost`] again after each [`REPORT_INTERVAL`].
    fn reachability_to_report(
        &mut self,
        is_unresponsive: bool,
        now: Instant,
        is_listening: impl FnOnce() -> bool,
    ) -> Option<Reachability> {
        if !is_unresponsive {
            self.unresponsive = 0;
            return self.reported_at.take().map(|_| Reachability::Restored);
        }
        self.unresponsive += 1;
        let is_reported = self.reported_at.is_some_and(|at| now.duration_since(at) < REPORT_INTERVAL);
        // A single failure proves nothing: slurmd may just have been started.
        let is_due = self.unresponsive >= MIN_ANSWERS && !is_reported && is_listening();
        if is_due {
            self.reported_at = Some(now);
        }
        is_due.then_some(Reachability::Lost)
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

/// Whether slurmctld's record of a node has outdated hardware and can be deleted: the node is not in use, and is no cloud node.
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
        report::error(message!(
            "node-not-registered",
            "cannot restart slurmd: {error}; run `slurminit restart slurmd`",
            error
        ));
    }
}

/// The error message if another running container has registered the same node name.
pub(super) fn name_conflict(node: &str, record: &NodeRecord, port: u16) -> Option<String> {
    let (address, port) = record.address(port);
    let at: IpAddr = address.parse().ok()?;
    if record.is_unresponsive()
        || is_local_address(at)
        || belongs_to_other_node(node, address, &SLURM.nodes().unwrap_or_default())
        || !accepts_connection(at, port)
    {
        return None;
    }
    let conflict = Finding::error(
        Kind::Container,
        format!("the node name {node} is already in use, by a slurmd at {address}; waiting until the name is free"),
        "two containers use the same node name, which is the host name unless configured",
        "give this node another name (--hostname, or -e SLURMINIT_NODE_NAME=NAME with --network host)",
    );
    Some(conflict.to_string())
}

/// Sets the conflict as the node's reason, which slurmctld writes to its log. An existing reason is kept.
pub(super) fn report_conflict(node: &str, record: &NodeRecord) {
    if record.get("Reason").is_none() {
        let host = nix::unistd::gethostname().unwrap_or_default().to_string_lossy().into_owned();
        let reason = format!(
            "reason={OUR_REASON}another container ({host}) uses the name of this node; give it another node name"
        );
        // An error is ignored, because this container logs the conflict in any case.
        let _ = SLURM.update_node(node, &[reason]);
    }
}

/// Whether the address belongs to this network namespace.
fn is_local_address(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// Whether the address belongs to a node with another name. This happens if another container was given the address.
fn belongs_to_other_node(node: &str, address: &str, nodes: &[NodeRecord]) -> bool {
    nodes.iter().any(|other| other.get("NodeName") != Some(node) && other.get("NodeAddr") == Some(address))
}

fn accepts_connection(address: IpAddr, port: u16) -> bool {
    TcpStream::connect_timeout(&SocketAddr::new(address, port), CONNECT_TIMEOUT).is_ok()
}

#[expect(
    clippy::disallowed_methods,
    reason = "this is a child of PID 1; the controller sends no event to a node that it cannot reach"
)]
fn pause() {
    std::thread::sleep(POLL_INTERVAL);
}

#[cfg(test)]
mod tests {
    use super::*;
    use machine::{Snapshot, Status};
    use model::prepared::Prepared;

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

    #[test]
    fn loss_is_logged_after_two_answers_and_repeated_until_restored() {
        let (mut answers, begin) = (Answers::default(), Instant::now());
        let mut at = |seconds, is_unresponsive, is_listening| {
            answers.reachability_to_report(is_unresponsive, begin + Duration::from_secs(seconds), || is_listening)
        };
        assert_eq!([at(0, false, true), at(15, true, true)], [None, None]);
        assert_eq!([at(30, false, true), at(45, true, true)], [None, None], "answers in a row count");
        assert_eq!(at(60, true, false), None, "slurmd is not running");
        assert_eq!(at(75, true, true), Some(Reachability::Lost));
        assert_eq!([at(90, true, true), at(374, true, true)], [None, None]);
        assert_eq!(at(375, true, true), Some(Reachability::Lost));
        assert_eq!([at(390, false, true), at(405, false, true)], [Some(Reachability::Restored), None]);
        assert_eq!([at(420, true, true), at(435, true, true)], [None, Some(Reachability::Lost)]);
    }

    #[test]
    fn unknown_node_registers_again_after_two_answers() {
        let mut answers = Answers::default();
        let due = [true, false, true, true, true].map(|is_listening| answers.is_restart_due(|| is_listening));
        assert_eq!(due, [false, false, true, false, true]);
    }

    #[test]
    fn address_of_other_node_is_no_conflict() {
        let nodes = ["NodeName=c1 NodeAddr=192.0.2.1", "NodeName=c2 NodeAddr=192.0.2.2"].map(record);
        let belongs = |address| belongs_to_other_node("c1", address, &nodes);
        assert_eq!(["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(belongs), [false, true, false]);
    }

    #[test]
    fn reads_state_and_node_line_of_pid_1() {
        let run = tempfile::tempdir().unwrap();
        let socket = run.path().join("control");
        assert!(!is_ready(&socket) && registered_line(&socket).is_none());
        for (phase, is_expected) in [(PhaseName::Ready, true), (PhaseName::Stopping, false)] {
            let prepared = Prepared { dynamic_node: Some("CPUs=2".to_owned()), ..Prepared::default() };
            let snapshot = Snapshot { phase, prepared: Some(prepared), ..Snapshot::default() };
            let version = env!("CARGO_PKG_VERSION").to_owned();
            let status = Status { version, process: sys::proc::own_id(), started_ms: 0, snapshot };
            std::fs::write(run.path().join("status.json"), serde_json::to_string(&status).unwrap()).unwrap();
            assert_eq!(is_ready(&socket), is_expected);
            assert_eq!(registered_line(&socket).as_deref(), Some("CPUs=2"));
        }
    }

    #[test]
    fn own_slurmd_is_no_conflict() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (own, port) = (Ipv4Addr::LOCALHOST.into(), listener.local_addr().unwrap().port());
        assert!(is_local_address(own) && accepts_connection(own, port));
        assert_eq!(name_conflict("c1", &record("NodeName=c1 NodeAddr=127.0.0.1 State=IDLE"), port), None);
        drop(listener);
        assert!(!accepts_connection(own, port));
    }
}
