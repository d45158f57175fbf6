//! Draining and resuming of nodes by an administrator.
//!
//! Chooses the update that fits the node's state, and the message about it.

use super::{ClusterNode, ClusterNodes};
use machine::node_report::NodeReport;
use model::printable;

/// The result of a request to drain or resume a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeAction {
    /// No update is necessary, for this reason.
    Unchanged(String),
    /// `scontrol update nodename=NODE` with these arguments, and the message about it.
    Update(Vec<String>, String),
    /// No update is possible, for this reason.
    Refused(String),
}

/// The maximum length of an administrator's reason, in characters.
const MAX_REASON_LENGTH: usize = 400;

/// The reason text for Slurm. When a container starts, slurminit ends its node's drain if slurminit set the reason, or if the start repairs the
/// cause. So an administrator's reason that would have this effect gets a prefix.
pub fn reason(text: &str) -> String {
    let text = printable::short(text.trim(), MAX_REASON_LENGTH);
    let as_drain = NodeReport { state: "drained".to_owned(), responding: true, reason: text.clone(), is_roots: false };
    if as_drain.is_permanently_closed() { text } else { format!("by hand: {text}") }
}

/// The action that drains a node. `reason` is the result of [`reason`], or `None` if the administrator gave no reason.
pub fn drain(node: &ClusterNode, reason: Option<&str>) -> NodeAction {
    let name = &node.name;
    let as_drained = || NodeReport { state: "drained".to_owned(), ..node.report.clone() };
    if node.report.is_permanently_closed() || node.drained && as_drained().is_permanently_closed() {
        return NodeAction::Unchanged(format!("{name} already accepts no new jobs; state: {}", node.report));
    }
    let reason = reason.unwrap_or("drained by an administrator");
    let job_note = match describe_jobs(node).as_str() {
        "" => "no jobs on the node".to_owned(),
        jobs => format!("no new jobs start; running jobs continue: {jobs}"),
    };
    let arguments = vec!["state=drain".to_owned(), format!("reason={reason}")];
    NodeAction::Update(arguments, format!("{name} is drained ({reason}): {job_note}"))
}

/// The action that resumes a node: it ends any drain, and the state DOWN or FAIL of a node that responds.
pub fn resume(node: &ClusterNode) -> NodeAction {
    let (name, report) = (&node.name, &node.report);
    let is_down = matches!(report.state.as_str(), "down" | "fail" | "failing");
    let previous = if node.drained { format!("it was {report}") } else { format!("it was {}", report.state) };
    match (node.drained, report.responding) {
        // `undrain` ends only the drain. slurmctld ends DOWN when the node registers.
        (true, false) => NodeAction::Update(
            vec!["state=undrain".to_owned()],
            format!(
                "{name} is no longer drained ({previous}), but does not respond to the controller; check that its container is running"
            ),
        ),
        (true, true) => {
            NodeAction::Update(vec!["state=resume".to_owned()], format!("{name} accepts jobs again; {previous}"))
        }
        (false, true) if is_down => {
            NodeAction::Update(vec!["state=resume".to_owned()], format!("{name} accepts jobs again; it was {report}"))
        }
        (false, true) if node.accepts_jobs() => {
            NodeAction::Unchanged(format!("{name} is {}; nothing to resume", report.state))
        }
        // slurmctld pings a node that it has just resumed.
        (false, false) if !is_down => {
            NodeAction::Unchanged(format!("{name} is {}; the controller is waiting for its response", report.state))
        }
        (false, _) => NodeAction::Refused(format!(
            "{name} is {report}, not drained; check that its container is running, and see its log (`docker logs`)"
        )),
    }
}

/// The jobs on the node: `17 of alice, 18 of bob`.
pub fn describe_jobs(node: &ClusterNode) -> String {
    const MAX_JOBS: usize = 8;
    let mut names: Vec<String> =
        node.jobs.iter().take(MAX_JOBS).map(|job| format!("{} of {}", job.job, job.user)).collect();
    if let Some(more) = node.jobs.len().checked_sub(MAX_JOBS).filter(|more| *more > 0) {
        names.push(format!("and {more} more"));
    }
    names.join(", ")
}

/// A line for each of these nodes that still has jobs: `NODE: JOBS`.
pub fn unfinished_jobs(cluster: &ClusterNodes, names: &[String]) -> Vec<String> {
    let busy = cluster.nodes.iter().filter(|node| names.contains(&node.name) && !node.jobs.is_empty());
    busy.map(|node| format!("{}: {}", node.name, describe_jobs(node))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::queued_job::OwnedJob;

    fn arguments(step: NodeAction) -> Vec<String> {
        match step {
            NodeAction::Update(arguments, _) => arguments,
            NodeAction::Unchanged(why) => vec!["nothing".to_owned(), why],
            NodeAction::Refused(why) => vec!["refused".to_owned(), why],
        }
    }

    #[test]
    fn marks_reserved_drain_reasons_as_set_by_hand() {
        assert_eq!(reason(" fan broken\n"), "fan broken");
        assert_eq!(reason("a\nb\x1b"), "a\\x0ab\\x1b");
        assert_eq!(reason("Low fan"), "Low fan");
        for reserved in ["Low CPUs", "slurminit: x", "gres/gpu count reported lower than configured (0 < 1)"] {
            assert_eq!(reason(reserved), format!("by hand: {reserved}"));
        }
        assert!(reason(&"x".repeat(999)).chars().count() <= MAX_REASON_LENGTH + 3);
    }

    #[test]
    fn drain_keeps_existing_reason_and_names_jobs() {
        let mut busy = ClusterNode::empty("mixed", true, "");
        busy.jobs = (1..=10).map(|job| OwnedJob { job, user: "eve".to_owned() }).collect();
        let NodeAction::Update(arguments, what) = drain(&busy, Some("fan")) else { panic!() };
        assert_eq!(arguments, ["state=drain", "reason=fan"]);
        assert!(what.contains("1 of eve, 2 of eve") && what.ends_with("8 of eve, and 2 more"), "{what}");
        let already = self::arguments(drain(&ClusterNode::empty("drained", true, "fan"), Some("other")));
        assert_eq!(already, ["nothing", "c1 already accepts no new jobs; state: drained (fan)"]);
        let failed = self::arguments(drain(&ClusterNode::empty("fail", true, "disk"), Some("other")));
        assert_eq!(failed, ["nothing", "c1 already accepts no new jobs; state: fail (disk)"]);
        // The next start removes slurminit's own reason, so it is replaced.
        let own_drain = ClusterNode::empty("drained", true, "slurminit: the container stops");
        assert_eq!(self::arguments(drain(&own_drain, None)), ["state=drain", "reason=drained by an administrator"]);
    }

    #[test]
    fn resume_reports_previous_state() {
        let draining = ClusterNode::empty("draining", true, "fan");
        let NodeAction::Update(arguments, what) = resume(&draining) else { panic!() };
        assert_eq!(
            (arguments, what.as_str()),
            (vec!["state=resume".to_owned()], "c1 accepts jobs again; it was draining (fan)")
        );
        assert_eq!(
            self::arguments(resume(&ClusterNode::empty("drained", false, "fan"))),
            vec!["state=undrain".to_owned()]
        );
        assert_eq!(self::arguments(resume(&ClusterNode::empty("down", true, "x"))), vec!["state=resume".to_owned()]);
        assert_eq!(self::arguments(resume(&ClusterNode::empty("idle", true, "")))[0], "nothing");
        assert_eq!(self::arguments(resume(&ClusterNode::empty("mixed", false, "")))[0], "nothing");
        assert_eq!(self::arguments(resume(&ClusterNode::empty("down", false, "Not responding")))[0], "refused");
    }

    #[test]
    fn unfinished_jobs_are_those_of_the_named_nodes() {
        let node = |name: &str, jobs: &[u64]| ClusterNode {
            name: name.to_owned(),
            jobs: jobs.iter().map(|job| OwnedJob { job: *job, user: "eve".to_owned() }).collect(),
            ..ClusterNode::empty("mixed", true, "")
        };
        let nodes = vec![node("c1", &[1, 2]), node("c2", &[]), node("c3", &[3])];
        let cluster = ClusterNodes { nodes, most_nodes: None };
        let names = ["c1", "c2"].map(str::to_owned);
        assert_eq!(unfinished_jobs(&cluster, &names), ["c1: 1 of eve, 2 of eve"]);
    }
}
