//! A node of another container's cluster, beside its controller.

use crate::entry::{Entry, Judge};
use crate::facts::{ContainerFacts, NodeFacts};
use config::DaemonName;
use machine::UnitState;
use machine::node_report::NodeVerdict;
use model::inventory::Observations;

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "called",
        symptoms: &[
            "a compute says \"the controller does not reach this node\"",
            "the controller says `Nodes ... not responding` of a compute that runs",
        ],
        looks_at: "the node's state in sinfo, and whether slurmd is ready here",
        cause: "slurmctld calls the node at the address that it registered from, and a firewall or an address translation is in between",
        repair: "open port 6818 (`daemon_port`) from the controller to this machine; one network for both, or `--network host` on both",
        judge: Judge::Container(|_, container| joined(container, called)),
    },
    Entry {
        id: "name-taken",
        symptoms: &["a compute says \"the name ... is taken\", and the controller \"wants the name of this node\""],
        looks_at: "the node's state in sinfo, and whether slurmd has started here",
        cause: "a node of that name lives in another container, and the controller knows it already",
        repair: "another `--hostname` for one of them; with `--network host`, `-e SLURMINIT_NODE_NAME=NAME`",
        judge: Judge::Container(|_, container| joined(container, name)),
    },
];

/// Judges a container that has slurmd and no slurmctld, by the state of its slurmd and the controller's words.
fn joined(container: &ContainerFacts, judge: fn(UnitState, &NodeFacts) -> Observations) -> Observations {
    let unit = |name: DaemonName| {
        let units = container.status.as_ref().map(|status| status.units.as_slice()).unwrap_or_default();
        units.iter().find(|unit| unit.name == name.as_str()).map(|unit| unit.state)
    };
    match (unit(DaemonName::Slurmd), unit(DaemonName::Slurmctld), &container.slurm.node) {
        (Some(slurmd), None, Ok(node)) => judge(slurmd, node),
        (Some(_), None, Err(why)) => Observations::could_not_look(why.as_str()),
        _ => Observations::ok("this container is no node of another one's cluster"),
    }
}

fn called(slurmd: UnitState, node: &NodeFacts) -> Observations {
    if node.report.responding || slurmd != UnitState::Ready {
        return Observations::ok("the controller hears what is here of the node");
    }
    Observations::fail(
        format!("slurmd is ready here, and the controller hears nothing of {}", node.name),
        "it calls the node at the address that the node registered from, and is not let through",
        format!(
            "scontrol show node {} says NodeAddr: open slurmd's port there for the controller, or put both into one network",
            node.name
        ),
    )
}

fn name(slurmd: UnitState, node: &NodeFacts) -> Observations {
    if slurmd == UnitState::Ready || node.report.verdict() != NodeVerdict::Usable {
        return Observations::ok("no other container answers under this node's name");
    }
    Observations::warn(
        format!("the controller hears from a node {}, and slurmd is not ready here", node.name),
        "slurmd has just ended here, or another container has this name",
        "scontrol show node says its address; if that is not this machine's, give one of the two another --hostname",
    )
}
