//! Whether the controller knows a node, and reaches it at the address that it has of it; and whether a name is another node's.
//!
//! slurmctld takes the address that a node registers from, and calls the node there a while later. A node that it cannot call was idle
//! until then, and knows nothing: its own connections to the controller work. One that has lost what it knew of a node, because it was killed
//! before it had saved it, does not ask for it: slurmd registers when it starts. One that has lost how the node changed calls it invalid.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use super::join::{flags, hardware, has_hardware, is_cloud, is_invalid, show, value};
use super::{STOPS, slurm};
use config::DaemonName;
use init::control::client;
use init::control::protocol::Request;
use init::status;
use machine::PhaseName;
use machine::node_report::{OUR_REASON, TWICE};

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
        let Ok(known) = show(node) else { continue };
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
            let _ = slurm("scontrol", &["update", &format!("nodename={node}"), "state=resume"]);
        }
        let told = told(socket);
        if other.is_to_be_told(told.is_some_and(|told| is_another(&known, &told))) {
            let hardware = hardware(&known).join(" ");
            register_again(socket, &format!("the controller knows {node} as it is not any more ({hardware})"));
            continue;
        }
        if !is_silent(&known) {
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
        let (address, port) = place(&known, port);
        eprintln!(
            "error: the controller does not reach this node: it calls {address}, port {port}, and slurmd, which listens here on that port, \
             hears nothing; cause: {address} is not this machine's for the controller, or something between them lets nothing through; repair: \
             open port {port} from the controller to this machine, or let both use one network (--network host on both)"
        );
    }
}

/// Whether a node is drained by its last stop, or because a job was started again there: slurmctld was killed before it had saved that
/// the drain was taken back, or that the job had started.
fn is_closed_for_nothing(known: &str) -> bool {
    let is_over = |reason: &str| known.contains(&format!(" Reason={reason} ["));
    flags(known).any(|flag| flag == "DRAIN") && (is_over(&format!("{OUR_REASON}{STOPS}")) || is_over(TWICE))
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
fn is_another(known: &str, told: &str) -> bool {
    let is_free =
        value(known, "CPUAlloc") == Some("0") && !flags(known).any(|flag| ["COMPLETING", "RESERVED"].contains(&flag));
    is_free && !is_cloud(known) && (is_invalid(known) || !has_hardware(known, told))
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
pub(super) fn taken(node: &str, known: &str, port: u16) -> Option<String> {
    let (address, port) = place(known, port);
    let at: IpAddr = address.parse().ok()?;
    if is_silent(known) || is_own(at) || is_another_nodes(node, address) || !answers(at, port) {
        return None;
    }
    Some(format!(
        "error: the name {node} is taken: the controller knows a node {node} at {address}, and its slurmd answers there; cause: two containers \
         have one host name; repair: give this one another (--hostname, or -e SLURMINIT_NODE_NAME=NAME with --network host), or stop the other \
         one. Waiting until it is gone"
    ))
}

/// Has the controller's log say it, too: slurmctld logs each reason that it is given. A reason that is there is somebody's.
pub(super) fn tell_controller(node: &str, known: &str) {
    if value(known, "Reason").is_none() {
        let host = nix::unistd::gethostname().unwrap_or_default().to_string_lossy().into_owned();
        let reason = format!(
            "reason={OUR_REASON}another container ({host}) wants the name of this node; give it another host name"
        );
        // The log of this container says it in any case.
        let _ = slurm("scontrol", &["update", &format!("nodename={node}"), &reason]);
    }
}

/// The address and port that slurmctld calls.
fn place(known: &str, port: u16) -> (&str, u16) {
    let port = value(known, "Port").and_then(|port| port.parse().ok()).unwrap_or(port);
    (value(known, "NodeAddr").unwrap_or("an address that it does not say"), port)
}

/// Whether slurmctld hears nothing of the node.
fn is_silent(known: &str) -> bool {
    let state = value(known, "State").unwrap_or_default();
    state.contains("NOT_RESPONDING") || state.contains('*') || state.starts_with("DOWN")
}

/// Whether the address is one of this machine's.
fn is_own(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// Whether the address belongs to a node of another name by now, as it does after a container has got it anew.
fn is_another_nodes(node: &str, address: &str) -> bool {
    let nodes = super::output("scontrol", &["--oneliner", "show", "nodes"]).unwrap_or_default();
    nodes.lines().any(|other| value(other, "NodeName") != Some(node) && value(other, "NodeAddr") == Some(address))
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

    #[test]
    fn where_the_controller_calls_and_whether_it_hears_anything() {
        let known = "NodeName=c1 NodeAddr=172.18.0.3 NodeHostName=c1 Port=7000 State=IDLE+DYNAMIC_NORM+NOT_RESPONDING";
        assert_eq!(place(known, 6818), ("172.18.0.3", 7000));
        assert_eq!(place("NodeName=c1 NodeAddr=172.18.0.3", 6818), ("172.18.0.3", 6818));
        assert!(is_silent(known) && is_silent("State=DOWN+DYNAMIC_NORM") && is_silent("State=IDLE*"));
        assert!(!is_silent("State=IDLE+DYNAMIC_NORM") && !is_silent("State=MIXED+DRAIN"));
    }

    #[test]
    fn takes_back_only_drains_whose_cause_is_over() {
        let known =
            |state: &str, reason: &str| format!("NodeName=c1 State={state}+DYNAMIC_NORM Reason={reason} [root@x]");
        assert!(is_closed_for_nothing(&known("IDLE+DRAIN", "slurminit: the container stops")));
        assert!(is_closed_for_nothing(&known("MIXED+DRAIN", "Duplicate jobid")));
        assert!(!is_closed_for_nothing(&known("IDLE", "slurminit: the container stops")));
        assert!(!is_closed_for_nothing(&known("IDLE+DRAIN", "fan broken")));
    }

    #[test]
    fn a_controller_that_lost_how_a_node_changed_is_told_again_while_no_job_is_there() {
        let told = "CPUs=2 RealMemory=8000 Gres=gpu:nvidia:3 Feature=h200";
        let known = |gres: u32, allocated: u32, state: &str| {
            format!(
                "NodeName=c1 CPUAlloc={allocated} CPUTot=2 Gres=gpu:nvidia:{gres}(S:0) RealMemory=8000 State={state}"
            )
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
        let known = "NodeName=c1 NodeAddr=127.0.0.1 State=IDLE";
        assert!(is_own([127, 0, 0, 1].into()) && !is_own([192, 0, 2, 1].into()));
        assert_eq!(taken("c1", known, 1), None);
        assert_eq!(taken("c1", "NodeName=c1 NodeAddr=name State=IDLE", 1), None);
    }
}
