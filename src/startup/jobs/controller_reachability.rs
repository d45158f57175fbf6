//! Whether the controller knows a node and reaches it at its registered address, and whether a node name is already in use.
//!
//! slurmctld takes the address that a node registers from, and connects to the node there a while later. A node that it cannot connect to
//! stays idle until then and does not notice: its own connections to the controller work. A slurmctld that lost a node, because it was
//! killed before it saved it, does not ask for it: slurmd registers when it starts. One that lost a change of a node marks it invalid.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use super::{SLURM, STOPS};
use config::DaemonName;
use init::control::client;
use init::control::protocol::Request;
use init::status;
use machine::PhaseName;
use machine::node_report::{OUR_REASON, TWICE};
use model::inventory::{Finding, Kind};
use model::message;
use slurm::node_record::NodeRecord;
use sys::report;

/// Timeout of a connection within a cluster.
const CONNECT: Duration = Duration::from_secs(2);
/// How often the controller is asked whether it reaches the node: slurmctld pings each node every 10 s.
const ASK: Duration = Duration::from_secs(15);
/// Interval of the error message while the controller cannot reach this node.
const REPORT_INTERVAL: Duration = Duration::from_secs(300);
/// Number of equal answers in a row before slurmd is restarted. slurmctld may not have read its saved state yet.
const SURE: u32 = 2;
/// The maximum of that number, which doubles after each restart that did not help.
const MOST: u32 = 128;

/// Watches until the container stops. Logs an error while the controller does not reach this node, and restarts slurmd if the
/// controller does not know it.
pub fn watch(node: &str, port: u16, socket: &Path) -> anyhow::Result<()> {
    let (mut silent, mut unknown, mut reported_at): (u32, u32, Option<Instant>) = (0, 0, None);
    let mut other = OutdatedAnswers::default();
    loop {
        pause();
        let Ok(known) = SLURM.node(node) else { continue };
        let Some(known) = known else {
            unknown += 1;
            // While slurmd is still connecting to the controller, an unknown node proves nothing.
            if unknown >= SURE && answers(Ipv4Addr::LOCALHOST.into(), port) {
                unknown = 0;
                register_again(socket, &format!("the controller has no record of node {node}"));
            }
            continue;
        };
        unknown = 0;
        if is_closed_for_nothing(&known) && is_ready(socket) {
            report::info(message!("node-resumed", "the cause of the drain is gone; resuming the node"));
            let _ = SLURM.update_node(node, &["state=resume"]);
        }
        let registered_line = registered_line(socket);
        if other.is_restart_due(registered_line.is_some_and(|registered_line| is_another(&known, &registered_line))) {
            let hardware = known.hardware();
            register_again(socket, &format!("the controller has outdated hardware for node {node} ({hardware})"));
            continue;
        }
        if !known.is_silent() {
            if reported_at.take().is_some() {
                report::info(message!("node-reachable-again", "connection from the controller to this node restored"));
            }
            silent = 0;
            continue;
        }
        silent += 1;
        // A single failure proves nothing: slurmd may just have been started.
        if silent < 2
            || reported_at.is_some_and(|reported_at| reported_at.elapsed() < REPORT_INTERVAL)
            || !answers(Ipv4Addr::LOCALHOST.into(), port)
        {
            continue;
        }
        reported_at = Some(Instant::now());
        let (address, port) = known.place(port);
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

/// Whether a node is drained by its last stop, or by a duplicate launch: slurmctld was killed before it had saved the removal of
/// the drain, or the start of the job.
fn is_closed_for_nothing(known: &NodeRecord) -> bool {
    known.is(&["DRAIN"]) && (known.has_reason(&format!("{OUR_REASON}{STOPS}")) || known.has_reason(TWICE))
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

/// Whether slurmctld has outdated hardware for a node and can delete it, which requires that no job is there.
fn is_another(known: &NodeRecord, registered_line: &str) -> bool {
    !known.is_in_use() && !known.is_cloud() && (known.is_invalid() || !known.has_hardware(registered_line))
}

/// Counts how often in a row slurmctld had an outdated record.
#[derive(Debug, Default)]
struct OutdatedAnswers {
    answers: u32,
    tries: u32,
}

impl OutdatedAnswers {
    /// Takes one answer of the controller: whether its record is outdated. Returns whether slurmd has to be restarted.
    fn is_restart_due(&mut self, is_another: bool) -> bool {
        if !is_another {
            *self = Self::default();
            return false;
        }
        self.answers += 1;
        let is_due = self.answers >= SURE.saturating_mul(1 << self.tries.min(16)).min(MOST);
        if is_due {
            (self.answers, self.tries) = (0, self.tries + 1);
        }
        is_due
    }
}

/// Restarts slurmd, which makes it register. Jobs continue: the new slurmd finds them.
fn register_again(socket: &Path, why: &str) {
    report::warn(message!("node-registers-again", "{why}; restarting slurmd to register again", why = why));
    let restart = Request::Restart { name: DaemonName::Slurmd.to_string() };
    if let Err(error) = client::ask(socket, &restart) {
        report::error(message!(
            "node-not-registered",
            "{error}; repair: run `slurminit restart slurmd`",
            error = error
        ));
    }
}

/// Why the name is in use: another container answers under it.
pub(super) fn taken(node: &str, known: &NodeRecord, port: u16) -> Option<String> {
    let (address, port) = known.place(port);
    let at: IpAddr = address.parse().ok()?;
    if known.is_silent() || is_own(at) || is_another_nodes(node, address) || !answers(at, port) {
        return None;
    }
    let taken = Finding::error(
        Kind::Container,
        format!("the node name {node} is already in use, by a slurmd at {address}; waiting until the name is free"),
        "two containers have the same host name",
        "give this node another name (--hostname, or -e SLURMINIT_NODE_NAME=NAME with --network host)",
    );
    Some(format!("error: {taken}"))
}

/// Adds the conflict to the controller's log, where slurmctld writes each new reason. An existing reason is kept.
pub(super) fn report_conflict(node: &str, known: &NodeRecord) {
    if known.get("Reason").is_none() {
        let host = nix::unistd::gethostname().unwrap_or_default().to_string_lossy().into_owned();
        let reason = format!(
            "reason={OUR_REASON}another container ({host}) uses the name of this node; give it another host name"
        );
        // This container logs the conflict in any case.
        let _ = SLURM.update_node(node, &[reason]);
    }
}

/// Whether the address is one of this machine's.
fn is_own(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// Whether the address belongs to a node with another name, as it does after another container was given it.
fn is_another_nodes(node: &str, address: &str) -> bool {
    let nodes = SLURM.nodes().unwrap_or_default();
    nodes.iter().any(|other| other.get("NodeName") != Some(node) && other.get("NodeAddr") == Some(address))
}

fn answers(address: IpAddr, port: u16) -> bool {
    TcpStream::connect_timeout(&SocketAddr::new(address, port), CONNECT).is_ok()
}

#[expect(
    clippy::disallowed_methods,
    reason = "this is a child of PID 1; the controller sends no event to a node that it does not reach"
)]
fn pause() {
    std::thread::sleep(ASK);
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
        assert!(is_closed_for_nothing(&node("IDLE+DRAIN", "slurminit: the container stops")));
        assert!(is_closed_for_nothing(&node("MIXED+DRAIN", "Duplicate jobid")));
        assert!(!is_closed_for_nothing(&node("IDLE", "slurminit: the container stops")));
        assert!(!is_closed_for_nothing(&node("IDLE+DRAIN", "fan broken")));
    }

    #[test]
    fn registers_again_after_hardware_change_if_node_is_idle() {
        let registered_line = "CPUs=2 RealMemory=8000 Gres=gpu:nvidia:3 Feature=h200";
        let node = |gres: u32, allocated: u32, state: &str| {
            record(&format!(
                "NodeName=c1 CPUAlloc={allocated} CPUTot=2 Gres=gpu:nvidia:{gres}(S:0) RealMemory=8000 State={state}"
            ))
        };
        assert!(is_another(&node(4, 0, "IDLE+DRAIN+DYNAMIC_NORM+INVALID_REG"), registered_line));
        assert!(is_another(&node(2, 0, "IDLE+DYNAMIC_NORM"), registered_line), "a GPU is back");
        assert!(
            is_another(&node(3, 0, "IDLE+DYNAMIC_NORM+INVALID_REG"), registered_line),
            "slurmctld shows the rejected hardware"
        );
        assert!(!is_another(&node(3, 0, "IDLE+DYNAMIC_NORM"), registered_line));
        for (allocated, state) in [
            (1, "MIXED+DYNAMIC_NORM+INVALID_REG"),
            (0, "IDLE+COMPLETING+DYNAMIC_NORM"),
            (0, "IDLE+DYNAMIC_NORM+RESERVED"),
            (0, "IDLE+CLOUD"),
        ] {
            assert!(!is_another(&node(4, allocated, state), registered_line), "{state}");
        }
    }

    #[test]
    fn outdated_answers_restart_slurmd_with_backoff() {
        let mut outdated = OutdatedAnswers::default();
        let until_restart =
            |outdated: &mut OutdatedAnswers| (1..1000).find(|_| outdated.is_restart_due(true)).unwrap();
        assert_eq!([(); 9].map(|()| until_restart(&mut outdated)), [2, 4, 8, 16, 32, 64, 128, 128, 128]);
        assert!(!outdated.is_restart_due(false) && !outdated.is_restart_due(true) && outdated.is_restart_due(true));
    }

    #[test]
    fn own_address_is_not_reported_as_taken() {
        assert!(is_own([127, 0, 0, 1].into()) && !is_own([192, 0, 2, 1].into()));
        assert_eq!(taken("c1", &record("NodeName=c1 NodeAddr=127.0.0.1 State=IDLE"), 1), None);
        assert_eq!(taken("c1", &record("NodeName=c1 NodeAddr=name State=IDLE"), 1), None);
    }
}
