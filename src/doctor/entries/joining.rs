//! Checks of a node whose controller is in another container.

use crate::entry::{Check, Entry};
use crate::facts::{ContainerFacts, NodeFacts};
use config::DaemonName;
use machine::UnitState;
use machine::node_report::NodeVerdict;
use model::inventory::Observations;

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "called",
        symptoms: &[
            "a compute container reports \"the controller cannot reach this node\"",
            "the controller logs `Nodes ... not responding` for a running compute container",
        ],
        examines: "the node's state in sinfo, and whether slurmd is ready in this container",
        cause: "a firewall or NAT blocks connections from slurmctld to the node's registration address",
        fix: "let the controller connect to port 6818 (`daemon_port`) of the node's NodeAddr (`scontrol show node`); or put both containers on one network, or start both \
                 with `--network host`",
        check: Check::Container(|_, container| check_joined_node(container, controller_reachability)),
    },
    Entry {
        id: "name-taken",
        symptoms: &[
            "a compute container reports \"the node name ... is already in use\", and the controller \"uses the name of this node\"",
        ],
        examines: "the node's state in sinfo, and whether slurmd is ready in this container",
        cause: "another container has already registered a node with that name, or slurmd has just exited in this container",
        fix: "if the node's address (`scontrol show node`) is not this machine's, give one of the containers another name with `--hostname NAME` (with `--network host`: `-e SLURMINIT_NODE_NAME=NAME`)",
        check: Check::Container(|_, container| check_joined_node(container, name_conflict)),
    },
];

/// Checks a container with slurmd and without slurmctld, by the state of its slurmd and the controller's report.
fn check_joined_node(container: &ContainerFacts, check: fn(UnitState, &NodeFacts) -> Observations) -> Observations {
    let status = match &container.status {
        Ok(status) => status,
        Err(why) => return Observations::could_not_look(why.as_str()),
    };
    let unit = |name: DaemonName| status.daemon(name).map(|unit| unit.state);
    match (unit(DaemonName::Slurmd), unit(DaemonName::Slurmctld), &container.slurm.node) {
        (Some(slurmd), None, Ok(node)) => check(slurmd, node),
        (Some(_), None, Err(why)) => Observations::could_not_look(why.as_str()),
        _ => Observations::ok("this container is not a node of another container's cluster"),
    }
}

fn controller_reachability(slurmd: UnitState, node: &NodeFacts) -> Observations {
    if node.report.responding || slurmd != UnitState::Ready {
        return Observations::ok("no sign that the controller cannot reach the node");
    }
    Observations::usual_fault(format!(
        "slurmd is ready in this container, but the controller cannot reach {}",
        node.name
    ))
}

fn name_conflict(slurmd: UnitState, node: &NodeFacts) -> Observations {
    if slurmd == UnitState::Ready || node.report.verdict() != NodeVerdict::Usable {
        return Observations::ok("no sign that another container uses this node's name");
    }
    Observations::usual_warning(format!(
        "node {} responds to the controller, but slurmd is not ready in this container",
        node.name
    ))
}
