//! Joins a node to a cluster whose controller runs in another container, and removes the node at the stop.
//!
//! A dynamic node (`slurmd -Z --conf`) reports its hardware to slurmctld, which keeps that record for as long as it lists the node. A node
//! that returns with fewer GPUs becomes INVAL (Slurm 24.11, "gres/gpu count reported lower than configured"). So an outdated record is
//! deleted before slurmd starts. At a start of the container it is deleted even if slurmctld lists jobs on the node; at a restart of slurmd,
//! only if there are none.

use std::time::{Duration, Instant};

use super::{SLURM, STOP_REASON, controller_reachability, own_group, persistent_drain, requeue_orphans, wanted};
use machine::node_report::OUR_REASON;
use model::inventory::{Finding, Kind};
use model::message;
use plan::in_use;
use slurm::error::QueryError;
use slurm::node_record::NodeRecord;
use slurm::nodes;
use sys::report;

/// Interval between two queries of the controller.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Interval between repeated messages, for example that the controller does not respond.
const REPORT_INTERVAL: Duration = Duration::from_secs(30);
/// How long a restart of slurmd waits for the controller's record of the node. slurmd itself waits longer.
const RESTART_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the controller may take to delete a node, including the end of the node's jobs.
const DELETE_TIMEOUT: Duration = Duration::from_secs(15);

/// How long the controller may take to delete a node without jobs.
const IDLE_DELETE_TIMEOUT: Duration = Duration::from_secs(2);

/// When a repeated report was last made.
#[derive(Default)]
struct LastReport(Option<Instant>);

impl LastReport {
    /// Returns whether a report is due, and if so, records it as made.
    fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.0.is_none_or(|at| now.duration_since(at) >= REPORT_INTERVAL);
        if is_due {
            self.0 = Some(now);
        }
        is_due
    }
}

/// Waits for the controller, deletes an outdated node record there, and execs slurmd. At a start, also waits until the node name is free, and
/// requeues lost jobs. `is_restart`: a slurmd of this container was ready before.
pub fn run(
    node: &str,
    mut conf: String,
    gpus: &str,
    is_restart: bool,
    port: u16,
    command: &[String],
) -> anyhow::Result<()> {
    let mut record = if is_restart { await_record(node, Some(RESTART_TIMEOUT))? } else { await_free_name(node, port)? };
    if record.as_ref().is_some_and(NodeRecord::is_cloud) {
        record = await_promised_resources(node, record, &conf)?;
    }
    let is_known = record.is_some();
    let is_cloud = record.as_ref().is_some_and(NodeRecord::is_cloud);
    // Jobs wait for a node that is powering up; they have not started.
    let is_awaited = record.as_ref().is_some_and(|record| record.has_state(&["POWERING_UP"]));
    // At a restart of slurmd, features are not compared: an administrator may have changed them.
    let is_current = |record: &NodeRecord| {
        !record.is_invalid() && record.has_hardware(&conf) && (is_restart || record.has_features(&conf))
    };
    if let Some(record) = record.filter(|record| !is_cloud && !is_current(record)) {
        report::info(message!(
            "node-record-outdated",
            "the controller's record of this node is outdated ({hardware}); deleting the record",
            hardware = record.hardware()
        ));
        if let Some(reason) = reason_to_keep(node, &record, is_restart)? {
            conf.push_str(&format!(" State=DRAIN Reason=\"{reason}\""));
        }
        if is_restart { delete_idle(node) } else { force_delete(node)? }
    } else if is_known && !is_restart && !is_awaited {
        // If a batch job started less than 20 s ago, slurmctld detects that it is missing only at a later registration. It never detects this
        // for the allocation of an srun.
        requeue_orphans(node, Some(node))?;
    }
    let mut slurmd = command.to_vec();
    slurmd.extend(["-N", node, "--extra", gpus].map(str::to_owned));
    match (is_cloud, is_restart) {
        (false, _) => slurmd.extend(["-Z".to_owned(), "--conf".to_owned(), conf]),
        // slurmctld requires a boot after the power-up request, but a container has the uptime of its host. With -b, slurmd reports a boot.
        (true, false) => slurmd.push("-b".to_owned()),
        (true, true) => {}
    }
    own_group::execute(&slurmd)
}

/// The controller's record of the node, once the node has the resources of that record. Until then slurmd does not start: slurmctld
/// would mark the node invalid without an explanation.
fn await_promised_resources(node: &str, first: Option<NodeRecord>, conf: &str) -> anyhow::Result<Option<NodeRecord>> {
    let (mut record, mut last_report) = (first, LastReport::default());
    while let Some(shortfall) = record.as_ref().and_then(|record| record.shortfall(conf)) {
        if last_report.0.is_none() {
            // slurmctld requeues the jobs of a node that is down, and assigns it no new ones.
            let reason = format!("reason={}{shortfall}", nodes::shortfall_reason_prefix());
            SLURM.update_node(node, &["state=down", &reason])?;
        }
        if last_report.is_due(Instant::now()) {
            let down = Finding::error(
                Kind::Container,
                format!(
                    "this node is down, because it has fewer resources than [[autoscale.nodes]] promises ({shortfall})"
                ),
                "[[autoscale.nodes]] does not match this machine",
                format!(
                    "correct [[autoscale.nodes]] for all containers, restart the controller, then run `slurminit resume {node}` in the controller's container"
                ),
            );
            report::error(down.message("node-lacks-resources"));
        }
        (0..10).for_each(|_| pause());
        record = await_record(node, None)?;
    }
    Ok(record)
}

/// The controller's record of the node, once no slurmd in another container uses the node's name.
fn await_free_name(node: &str, port: u16) -> anyhow::Result<Option<NodeRecord>> {
    let mut last_report = LastReport::default();
    loop {
        let Some(record) = await_record(node, None)? else { return Ok(None) };
        let Some(why) = controller_reachability::name_conflict(node, &record, port) else { return Ok(Some(record)) };
        if last_report.0.is_none() {
            controller_reachability::report_conflict(node, &record);
        }
        if last_report.is_due(Instant::now()) {
            report::error(message!("node-name-taken", "{why}", why));
        }
        (0..10).for_each(|_| pause());
    }
}

/// The controller's record of the node, once the controller responds; `None` if it has no such record, or at the timeout.
fn await_record(node: &str, timeout: Option<Duration>) -> anyhow::Result<Option<NodeRecord>> {
    let begin = Instant::now();
    let mut last_report = LastReport::default();
    loop {
        let why = match SLURM.node(node) {
            Ok(record) => return Ok(record),
            Err(why) => why,
        };
        if timeout.is_some_and(|timeout| begin.elapsed() >= timeout) {
            return Ok(None);
        }
        // Logs nothing at first: a controller that starts at the same time is not ready yet.
        if begin.elapsed() > Duration::from_secs(2) && last_report.is_due(Instant::now()) {
            report::warn(message!(
                "waiting-for-controller",
                "waiting for the controller: {cause}",
                cause = cause(&why)
            ));
        }
        pause();
    }
}

/// Why the controller does not respond, and how to fix it.
fn cause(error: &QueryError) -> String {
    let output = match error {
        QueryError::Failed { output, .. } => output.trim().replace('\n', "; "),
        error => error.to_string(),
    };
    let fix =
        FIXES.iter().find(|(pattern, _)| output.contains(pattern)).map_or(
            "see the log of the controller's container (docker logs), and `slurminit doctor` there",
            |(_, fix)| fix,
        );
    format!("{output}; fix: {fix}")
}

/// Slurm's messages for two programs that cannot communicate (24.11, `slurm_errno.c`, `auth_munge.c`), and their fixes.
const FIXES: [(&str, &str); 6] = [
    (
        "Invalid credential",
        "use one munge key in all containers: one secret at /run/secrets/munge.key, or a new token (slurminit join-command)",
    ),
    (
        "Rewound credential",
        "synchronize the clocks of this machine and the controller's machine (chrony, systemd-timesyncd)",
    ),
    (
        "Expired credential",
        "synchronize the clocks of this machine and the controller's machine (chrony, systemd-timesyncd)",
    ),
    (
        "authentication",
        "use one munge key in all containers (one secret at /run/secrets/munge.key), and synchronize the clocks",
    ),
    (
        "resolve",
        "set SLURMINIT_CONTROLLER to a name that resolves in this container: connect both containers to one network, or use --add-host NAME:ADDRESS",
    ),
    (
        "Unable to contact slurm controller",
        "start the controller's container, and allow this container to connect to the controller's port (6817 unless configured)",
    ),
];

/// The reason of a drain that must survive the deletion of the node. At a start, this is a drain that a start does not remove; later,
/// any drain except one for outdated hardware. An invalid node shows its drain only in its flags. An administrator's FAIL becomes a drain
/// with the same reason.
fn reason_to_keep(node: &str, record: &NodeRecord, is_restart: bool) -> anyhow::Result<Option<String>> {
    let is_drained = record.has_state(&["DRAIN", "FAIL"]);
    let report = match is_restart {
        // A drain for outdated hardware is deleted with the record.
        true => SLURM.node_reports(node)?.into_iter().find(|report| is_drained && !report.has_hardware_reason()),
        false => persistent_drain(node)?,
    };
    Ok(report.map(|report| quotable(&report.reason)))
}

fn quotable(reason: &str) -> String {
    reason.chars().map(|c| if c.is_control() || matches!(c, '"' | '\\' | '=') { ' ' } else { c }).collect()
}

/// Deletes the node from the controller. A node with a job cannot be deleted, so the node is set down first, which ends its jobs.
fn force_delete(node: &str) -> anyhow::Result<()> {
    let begin = Instant::now();
    let name = format!("nodename={node}");
    loop {
        let reason = format!("reason={OUR_REASON}the node returns with other hardware or features");
        let deleted =
            SLURM.update(&name, &["state=down", &reason]).and_then(|()| SLURM.run("scontrol", &["delete", &name]));
        match deleted {
            Ok(()) => return Ok(()),
            Err(error) if begin.elapsed() >= DELETE_TIMEOUT => return Err(error.into()),
            Err(_) => pause(),
        }
    }
}

/// Deletes the node from the controller, unless a job is running on it.
fn delete_idle(node: &str) {
    let begin = Instant::now();
    while let Err(error) = SLURM.run("scontrol", &["delete", &format!("nodename={node}")]) {
        if begin.elapsed() >= IDLE_DELETE_TIMEOUT {
            return report::warn(message!(
                "node-record-kept",
                "cannot delete the controller's old record of this node: {error}",
                error
            ));
        }
        pause();
    }
}

/// Deletes a node for an operator, unless jobs name it: slurmctld would end these jobs at its own next start ("Invalid req_nodes").
pub fn delete_for_operator(node: &str) -> anyhow::Result<()> {
    let Some(record) = SLURM.node(node)? else { return Ok(()) };
    let jobs = wanted::jobs_naming(&record)?;
    anyhow::ensure!(
        jobs.is_empty(),
        "{node} is drained but not deleted, because jobs request or exclude it by name: {}; slurmctld would end these jobs at its next \
         start; wait for them or cancel them with scancel, then run this command again",
        in_use::job_list(&jobs)
    );
    Ok(SLURM.run("scontrol", &["delete", &format!("nodename={node}")])?)
}

/// Removes the node from the cluster: the controller requeues its jobs, and its name becomes free. A node with a drain that a start does not
/// remove is not deleted but becomes unresponsive, so that it keeps its drain. A node that a job requests or excludes by name is not deleted
/// either: slurmctld would end the job at its own next start ("Invalid req_nodes"). A cloud node is powered down instead.
pub(super) fn leave(node: &str) -> anyhow::Result<()> {
    if persistent_drain(node)?.is_some() {
        return Ok(());
    }
    let name = format!("nodename={node}");
    let reason = format!("reason={OUR_REASON}{STOP_REASON}");
    let record = SLURM.node(node)?;
    if let Some(record) = record.as_ref().filter(|record| record.is_cloud()) {
        // A node that is down for a lack of resources stays down. If slurmctld is already powering this node down, only the drain that this
        // stop has set is removed.
        return match record.has_state(&["POWERING_DOWN", "POWER_DOWN", "POWERED_DOWN"]) {
            _ if record.reason_contains(&nodes::shortfall_reason_prefix()) => Ok(()),
            true if record.has_state(&["DRAIN"]) => Ok(SLURM.update(&name, &["state=undrain"])?),
            true => Ok(()),
            false => Ok(SLURM.update(&name, &["state=power_down_force", &reason])?),
        };
    }
    SLURM.update(&name, &["state=down", &reason])?;
    match record.map_or_else(|| Ok(Vec::new()), |record| wanted::jobs_naming(&record))? {
        jobs if jobs.is_empty() => Ok(SLURM.run("scontrol", &["delete", &name])?),
        jobs => {
            report::info(message!(
                "node-kept",
                "the node is not removed from the cluster, because jobs request or exclude it by name: {jobs}",
                jobs = in_use::job_list(&jobs)
            ));
            // The drain is kept, because a late response from slurmd ends the state DOWN (`_node_did_resp`).
            Ok(())
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "this is a child of PID 1; there is no event for a controller that becomes reachable"
)]
fn pause() {
    std::thread::sleep(POLL_INTERVAL);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_report_once_per_interval() {
        let mut last = LastReport::default();
        let begin = Instant::now();
        let due = [0, 1, 29, 30, 31, 59, 60].map(|second| last.is_due(begin + Duration::from_secs(second)));
        assert_eq!(due, [true, false, false, true, false, false, true]);
    }

    #[test]
    fn removes_quoting_characters_from_reason() {
        assert_eq!(quotable("fan broken"), "fan broken");
        assert_eq!(quotable("x\" Gres=gpu:9 \\\n"), "x  Gres gpu:9   ");
    }

    #[test]
    fn names_fix_for_unreachable_controller() {
        let cause = |output: &str| cause(&QueryError::Failed { program: "scontrol", output: output.to_owned() });
        assert!(cause("Invalid credential").contains("one munge key"));
        assert!(cause("slurm_load_node error: Unable to contact slurm controller (connect failure)").contains("6817"));
    }
}
