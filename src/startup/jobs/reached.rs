//! Whether the controller knows a node, and reaches it at the address that it has of it; and whether a name is another node's.
//!
//! slurmctld takes the address that a node registers from, and calls the node there a while later. A node that it cannot call was idle
//! until then, and knows nothing: its own connections to the controller work. One that has lost what it knew of a node, because it was killed
//! before it had saved it, does not ask for it: slurmd registers when it starts. One that has lost how the node changed calls it invalid.

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
use slurm::node_record::NodeRecord;

/// How long a connection within a cluster may take.
const CONNECT: Duration = Duration::from_secs(2);
/// How often the controller is asked whether it reaches the node: slurmctld calls each node every 10 s.
const ASK: Duration = Duration::from_secs(15);
/// How often it is said that it does not.
const SAY: Duration = Duration::from_secs(300);
/// So many questions in a row must have the same answer before slurmd starts again for it. slurmctld may not have read what it saved.
const SURE: u32 = 2;
/// The most, where that did not help.
const MOST: u32 = 128;

/// Watches until the container stops. Says it when the controller does not reach this node, and has slurmd started again when the
/// controller does not know it.
pub fn watch(node: &str, port: u16, socket: &Path) -> anyhow::Result<()> {
    let (mut silent, mut unknown, mut said): (u32, u32, Option<Instant>) = (0, 0, None);
    let mut other = Other::default();
    loop {
        pause();
        let Ok(known) = SLURM.node(node) else { continue };
        let Some(known) = known else {
            unknown += 1;
            // Nor is it a sign while slurmd is still on its way to the controller.
            if unknown >= SURE && answers(Ipv4Addr::LOCALHOST.into(), port) {
                unknown = 0;
                register_again(socket, &format!("the controller does not know {node} any more"));
            }
            continue;
        };
        unknown = 0;
        if is_closed_for_nothing(&known) && is_ready(socket) {
            eprintln!("the node is drained for a cause that is over, so the drain is taken back");
            let _ = SLURM.update_node(node, &["state=resume"]);
        }
        let told = told(socket);
        if other.is_to_be_told(told.is_some_and(|told| is_another(&known, &told))) {
            let hardware = known.hardware();
            register_again(socket, &format!("the controller knows {node} as it is not any more ({hardware})"));
            continue;
        }
        if !known.is_silent() {
            if said.take().is_some() {
                eprintln!("the controller reaches this node again");
            }
            silent = 0;
            continue;
        }
        silent += 1;
        // Once is no sign: slurmd may just have been started.
        if silent < 2 || said.is_some_and(|said| said.elapsed() < SAY) || !answers(Ipv4Addr::LOCALHOST.into(), port) {
            continue;
        }
        said = Some(Instant::now());
        let (address, port) = known.place(port);
        eprintln!(
            "error: the controller does not reach this node: it calls {address}, port {port}, and slurmd, which listens here on that port, \
             hears nothing; cause: {address} is not this machine's for the controller, or something between them lets nothing through; repair: \
             open port {port} from the controller to this machine, or let both use one network (--network host on both)"
        );
    }
}

/// Whether a node is drained by its last stop, or because a job was started again there: slurmctld was killed before it had saved that
/// the drain was taken back, or that the job had started.
fn is_closed_for_nothing(known: &NodeRecord) -> bool {
    known.is(&["DRAIN"]) && (known.has_reason(&format!("{OUR_REASON}{STOPS}")) || known.has_reason(TWICE))
}

/// Whether this container serves, and does not stop.
fn is_ready(socket: &Path) -> bool {
    let status = socket.parent().and_then(|run| status::read(run).ok());
    status.is_some_and(|status| status.snapshot.phase == PhaseName::Ready)
}

/// What slurmd told the controller of this node.
fn told(socket: &Path) -> Option<String> {
    status::read(socket.parent()?).ok()?.snapshot.prepared?.dynamic_node
}

/// Whether slurmctld knows a node with other hardware than it was told, and would forget that: it does not where a job is.
fn is_another(known: &NodeRecord, told: &str) -> bool {
    !known.is_in_use() && !known.is_cloud() && (known.is_invalid() || !known.has_hardware(told))
}

/// How long slurmctld has known another node.
#[derive(Debug, Default)]
struct Other {
    answers: u32,
    tries: u32,
}

impl Other {
    /// Takes an answer. Whether slurmd starts again for it: after two of them, and ever later where that does not help.
    fn is_to_be_told(&mut self, is_another: bool) -> bool {
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

/// Jobs go on: a new slurmd finds them.
fn register_again(socket: &Path, why: &str) {
    eprintln!("warning: {why}; slurmd starts again, and tells it");
    let restart = Request::Restart { name: DaemonName::Slurmd.to_string() };
    if let Err(error) = client::ask(socket, &restart) {
        eprintln!("error: {error}; repair: slurminit restart slurmd");
    }
}

/// Why the name cannot be this container's: another one answers under it.
pub(super) fn taken(node: &str, known: &NodeRecord, port: u16) -> Option<String> {
    let (address, port) = known.place(port);
    let at: IpAddr = address.parse().ok()?;
    if known.is_silent() || is_own(at) || is_another_nodes(node, address) || !answers(at, port) {
        return None;
    }
    Some(format!(
        "error: the name {node} is taken: the controller knows a node {node} at {address}, and its slurmd answers there; cause: two containers \
         have one host name; repair: give this one another (--hostname, or -e SLURMINIT_NODE_NAME=NAME with --network host), or stop the other \
         one. Waiting until it is gone"
    ))
}

/// Has the controller's log say it, too: slurmctld logs each reason that it is given. A reason that is there is somebody's.
pub(super) fn tell_controller(node: &str, known: &NodeRecord) {
    if known.get("Reason").is_none() {
        let host = nix::unistd::gethostname().unwrap_or_default().to_string_lossy().into_owned();
        let reason = format!(
            "reason={OUR_REASON}another container ({host}) wants the name of this node; give it another host name"
        );
        // The log of this container says it in any case.
        let _ = SLURM.update_node(node, &[reason]);
    }
}

/// Whether the address is one of this machine's.
fn is_own(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// Whether the address belongs to a node of another name by now, as it does after a container has got it anew.
fn is_another_nodes(node: &str, address: &str) -> bool {
    let nodes = SLURM.nodes().unwrap_or_default();
    nodes.iter().any(|other| other.get("NodeName") != Some(node) && other.get("NodeAddr") == Some(address))
}

fn answers(address: IpAddr, port: u16) -> bool {
    TcpStream::connect_timeout(&SocketAddr::new(address, port), CONNECT).is_ok()
}

#[expect(
    clippy::disallowed_methods,
    reason = "this is a child of PID 1; the controller tells no node that it does not reach it"
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
    fn takes_back_only_drains_whose_cause_is_over() {
        let known = |state: &str, reason: &str| {
            record(&format!("NodeName=c1 State={state}+DYNAMIC_NORM Reason={reason} [root@x]"))
        };
        assert!(is_closed_for_nothing(&known("IDLE+DRAIN", "slurminit: the container stops")));
        assert!(is_closed_for_nothing(&known("MIXED+DRAIN", "Duplicate jobid")));
        assert!(!is_closed_for_nothing(&known("IDLE", "slurminit: the container stops")));
        assert!(!is_closed_for_nothing(&known("IDLE+DRAIN", "fan broken")));
    }

    #[test]
    fn a_controller_that_lost_how_a_node_changed_is_told_again_while_no_job_is_there() {
        let told = "CPUs=2 RealMemory=8000 Gres=gpu:nvidia:3 Feature=h200";
        let known = |gres: u32, allocated: u32, state: &str| {
            record(&format!(
                "NodeName=c1 CPUAlloc={allocated} CPUTot=2 Gres=gpu:nvidia:{gres}(S:0) RealMemory=8000 State={state}"
            ))
        };
        assert!(is_another(&known(4, 0, "IDLE+DRAIN+DYNAMIC_NORM+INVALID_REG"), told));
        assert!(is_another(&known(2, 0, "IDLE+DYNAMIC_NORM"), told), "the GPU that is back");
        assert!(is_another(&known(3, 0, "IDLE+DYNAMIC_NORM+INVALID_REG"), told), "what it refused, it shows");
        assert!(!is_another(&known(3, 0, "IDLE+DYNAMIC_NORM"), told));
        for (allocated, state) in [
            (1, "MIXED+DYNAMIC_NORM+INVALID_REG"),
            (0, "IDLE+COMPLETING+DYNAMIC_NORM"),
            (0, "IDLE+DYNAMIC_NORM+RESERVED"),
            (0, "IDLE+CLOUD"),
        ] {
            assert!(!is_another(&known(4, allocated, state), told), "{state}");
        }
    }

    #[test]
    fn one_answer_is_no_sign_and_what_does_not_help_is_tried_ever_later() {
        let mut other = Other::default();
        let after = |other: &mut Other| (1..1000).find(|_| other.is_to_be_told(true)).unwrap();
        assert_eq!([(); 9].map(|()| after(&mut other)), [2, 4, 8, 16, 32, 64, 128, 128, 128]);
        assert!(!other.is_to_be_told(false) && !other.is_to_be_told(true) && other.is_to_be_told(true));
    }

    #[test]
    fn what_is_this_machines_own_is_no_other_node() {
        assert!(is_own([127, 0, 0, 1].into()) && !is_own([192, 0, 2, 1].into()));
        assert_eq!(taken("c1", &record("NodeName=c1 NodeAddr=127.0.0.1 State=IDLE"), 1), None);
        assert_eq!(taken("c1", &record("NodeName=c1 NodeAddr=name State=IDLE"), 1), None);
    }
}
