//! The node's state as the controller reports it, and what it means for the container.

use std::fmt;

use serde::{Deserialize, Serialize};

use model::printable;

/// The output format for `sinfo`: the state, the user who set the reason, then the reason, which can contain anything but a newline.
pub const SINFO_FORMAT: &str = "%T %u|%E";

/// A report from the controller on the node's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReport {
    /// Slurm's name of the state, without flags: `idle`, `drained`, `inval`.
    pub state: String,
    /// Whether slurmd responds to the controller.
    pub responding: bool,
    /// Slurm's reason for the state; may be empty.
    pub reason: String,
    /// Whether root set the reason, as administrators, slurmd and slurminit do. slurmctld sets its own reasons as SlurmUser.
    #[serde(skip)]
    pub is_roots: bool,
}

/// What to do about the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeVerdict {
    /// Jobs can run.
    Usable,
    /// The node was drained, or set down by slurminit, for a cause that this start has repaired. Resume it.
    Repaired,
    /// The node is drained or failing for a cause that this start has not repaired; usually an administrator set the state. Do not resume it.
    Drained,
    /// The node is not usable yet. Wait.
    NotYet,
}

/// slurmd's reason when it has no space for a batch job.
pub const SPOOL_FULL_REASON: &str = "SlurmdSpoolDir is full";

/// The reasons that slurmctld sets, joined by commas, when a node registers with fewer resources than slurm.conf states. A start writes files that
/// match the hardware, so such a reason is outdated. Slurm 24.11 to 26.05, `node_mgr.c`. The comparison is exact, because an administrator may write
/// "Low disk space".
const HARDWARE_REASONS: [&str; 3] = ["Low socket*core*thread count", "Low CPUs", "Low TmpDisk"];
/// The beginning of the reason for too little memory: `Low RealMemory (reported:900 < 90.00% of configured:1000)`.
const MEMORY_REASON_START: &str = "Low RealMemory (reported:";
/// The texts that follow the name of a GRES, such as `gres/gpu`, in the reasons of `gres.c` and `gres_ctld.c`.
const GRES_REASONS: [&str; 7] = [
    " count too low (",
    " type (",
    " type changed and jobs are using them",
    " count reported lower than configured (",
    " count changed and jobs are using them (",
    " GRES autodetected core affinity ",
    " GRES core specification ",
];

/// If slurmctld is killed before it has saved that a batch job started, its successor launches the job again, and
/// drains the node because the job is already there (`agent.c`). The job is requeued, and slurmd's first copy of it
/// ends soon.
pub const DUPLICATE_JOB_REASON: &str = "Duplicate jobid";

/// The reason that slurmctld sets when the node's Epilog failed (Slurm 24.11 to 25.11, `job_mgr.c`). An Epilog that was
/// killed by slurmd's stop or by the kernel also counts as failed.
const EPILOG_FAILED: &str = "Epilog error";

/// The argument of `scontrol update` that clears a node's reason. Slurm keeps the reason of a drain that has ended, and ignores an empty reason
/// (24.11). sinfo prints `none` for a node without a reason.
pub const NO_REASON: &str = "reason=none";

/// Prefix of the reasons that slurminit sets.
pub const OUR_REASON: &str = "slurminit: ";

/// Prefix of the drain reasons that the agent sets because of a GPU. It must never change, because an agent uses it to
/// recognize the reasons that older versions have set.
pub const GPU_REASON: &str = "slurminit: GPU ";
/// Prefix of the drain reasons that the agent sets because of memory. It must never change, either.
pub const MEMORY_REASON: &str = "slurminit: memory ";
/// Prefix of the drain reasons that the agent sets because of a directory; the directory's path follows.
pub const DIRECTORY_REASON: &str = "slurminit: directory ";

/// Prefix of the drain reason of a node on which the test job failed. A start, or a reload that changes the files, resumes the node and tests
/// again.
pub const TEST_JOB_REASON: &str = "slurminit: test job: ";

/// The state reported for a controller that responds.
const UP: &str = "up";

/// How much of a reason is kept, in characters. Slurm does not limit what an operator may write.
const MAX_REASON_CHARS: usize = 400;

impl NodeReport {
    /// Reads one line of `sinfo` with [`SINFO_FORMAT`].
    pub fn parse(line: &str) -> Option<Self> {
        let (state, reason) = line.trim().split_once('|')?;
        let (state, user) = state.split_once(' ').unwrap_or((state, ""));
        let word = state.trim_end_matches(|c: char| !c.is_ascii_alphabetic());
        if word.is_empty() {
            return None;
        }
        let reason = if reason == "none" { "" } else { reason };
        Some(Self {
            state: word.to_ascii_lowercase(),
            responding: !state.contains('*'),
            reason: printable::short(reason.trim(), MAX_REASON_CHARS),
            is_roots: user == "root",
        })
    }

    /// Parses the line of `scontrol ping` for a responding controller, which a container without a node waits for.
    pub fn of_controller(line: &str) -> Option<Self> {
        let up = line.starts_with("Slurmctld(") && line.trim_end().ends_with(" is UP");
        up.then(|| Self { state: UP.to_owned(), responding: true, reason: String::new(), is_roots: false })
    }

    /// Returns the report that decides whether the cluster is ready. The order of precedence is: a node that is not usable yet,
    /// one to resume, one that accepts jobs, one that remains drained.
    pub fn less_ready(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        let rank = |report: &Self| match report.verdict() {
            NodeVerdict::NotYet => 0,
            NodeVerdict::Repaired => 1,
            NodeVerdict::Usable => 2,
            NodeVerdict::Drained => 3,
        };
        // The first of two equal reports.
        [one, other].into_iter().flatten().min_by_key(rank)
    }

    /// The action that the state requires.
    pub fn verdict(&self) -> NodeVerdict {
        if !self.responding {
            return NodeVerdict::NotYet;
        }
        match self.state.as_str() {
            "idle" | "mixed" | "allocated" | "completing" | "reserved" | "planned" | "maint" | UP => {
                NodeVerdict::Usable
            }
            "down" if self.reason.starts_with(OUR_REASON) => NodeVerdict::Repaired,
            _ if self.is_permanently_closed() => NodeVerdict::Drained,
            "drained" | "draining" | "drain" => NodeVerdict::Repaired,
            _ => NodeVerdict::NotYet,
        }
    }

    /// Whether slurmctld refuses the node's registration.
    pub fn is_refused(&self) -> bool {
        self.responding && self.state == "inval"
    }

    /// Whether slurmctld drained the node because it counted the node's Epilog as failed.
    pub fn is_drained_by_epilog(&self) -> bool {
        self.verdict() == NodeVerdict::Drained && self.reason == EPILOG_FAILED && !self.is_roots
    }

    /// Whether the agent drained the node. A start resumes it after its own GPU detection; later the agent resumes it.
    pub fn is_drained_by_agent(&self) -> bool {
        [GPU_REASON, MEMORY_REASON, DIRECTORY_REASON].iter().any(|reason| self.has_drain_reason(reason))
    }

    /// Whether a start resumes the node ([`NodeVerdict::Repaired`]) and the node's reason has this prefix.
    pub fn has_drain_reason(&self, prefix: &str) -> bool {
        self.verdict() == NodeVerdict::Repaired && self.reason.starts_with(prefix)
    }

    /// Whether the node is drained, by slurminit or slurmctld, with a reason that has this prefix. The node need not respond: after a resume or a
    /// restart of slurmctld it counts as not responding for a moment.
    pub fn is_drained_for(&self, prefix: &str) -> bool {
        self.is_drained() && self.is_repaired() && self.reason.starts_with(prefix)
    }

    /// Whether the node was closed by an administrator, or for a cause that no start fixes. In that case, its reason must not be overwritten.
    /// slurminit never sets the state FAIL, and a drain would replace that state.
    pub fn is_permanently_closed(&self) -> bool {
        self.is_failed() || self.is_drained() && !self.is_repaired()
    }

    /// Whether the node accepts no jobs (drained, failed or down) for a cause that neither slurminit set nor a start fixes. A drain would
    /// replace that reason.
    pub fn is_closed_externally(&self) -> bool {
        self.is_permanently_closed() || self.state == "down" && !self.is_repaired()
    }

    fn is_failed(&self) -> bool {
        matches!(self.state.as_str(), "fail" | "failing")
    }

    /// Whether slurmctld set the reason because the node's hardware differed from slurmctld's record.
    pub fn has_hardware_reason(&self) -> bool {
        let is_gres = |reason: &str| {
            let (name, _) = reason.split_once(' ').unwrap_or_default();
            name.starts_with("gres/") && GRES_REASONS.iter().any(|rest| reason[name.len()..].starts_with(rest))
        };
        let is_other = |reason: &str| {
            HARDWARE_REASONS.contains(&reason) || reason.starts_with(MEMORY_REASON_START) && reason.ends_with(')')
        };
        !self.is_roots
            && (is_gres(&self.reason) || self.reason.split(", ").all(|reason| is_other(reason) || is_gres(reason)))
    }

    /// Whether the node is drained or draining, for any reason.
    fn is_drained(&self) -> bool {
        matches!(self.state.as_str(), "drained" | "draining" | "drain")
    }

    fn is_repaired(&self) -> bool {
        self.reason.starts_with(OUR_REASON)
            || self.reason == DUPLICATE_JOB_REASON && !self.is_roots
            // If the directory is still full, the next batch job drains the node again.
            || self.reason == SPOOL_FULL_REASON
            || self.has_hardware_reason()
    }
}

/// Formats the state and reason: `idle`, `drained (fan broken)`.
impl fmt::Display for NodeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = if self.reason.is_empty() { String::new() } else { format!(" ({})", self.reason) };
        write!(f, "{}{reason}", self.state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(line: &str) -> NodeVerdict {
        NodeReport::parse(line).unwrap().verdict()
    }

    #[test]
    fn is_permanently_closed_if_failed_or_drained_by_administrator() {
        let closed = |line: &str| NodeReport::parse(line).unwrap().is_permanently_closed();
        assert!(closed("drained|upgrade") && closed("draining|upgrade") && closed("drained*|upgrade"));
        assert!(closed("fail|disk") && closed("failing|disk") && closed("fail*|slurminit: GPU 1"));
        assert!(
            !closed("idle|upgrade")
                && !closed("drained|slurminit: the container stops")
                && !closed("down*|not responding")
        );
    }

    #[test]
    fn distinguishes_foreign_reasons_from_own() {
        let others = |line: &str| NodeReport::parse(line).unwrap().is_closed_externally();
        for line in
            ["fail|disk", "failing|disk", "drained|fan", "down|fan", "down*|Not responding", "draining@|Reboot ASAP"]
        {
            assert!(others(line), "{line}");
        }
        for line in ["idle|fan", "mixed|none", "drained|slurminit: GPU 1", "down|slurminit: the container stops"] {
            assert!(!others(line), "{line}");
        }
    }

    #[test]
    fn responding_undrained_node_is_usable() {
        assert_eq!(verdict("idle|none"), NodeVerdict::Usable);
        assert_eq!(verdict("mixed-|none\n"), NodeVerdict::Usable);
        assert_eq!(verdict("idle*|none"), NodeVerdict::NotYet);
        assert_eq!(verdict("unknown*|none"), NodeVerdict::NotYet);
        assert_eq!(verdict("inval|gres/gpu count reported lower than configured (0 < 1)"), NodeVerdict::NotYet);
        assert_eq!(verdict("down|Not responding"), NodeVerdict::NotYet);
    }

    #[test]
    fn only_controller_that_is_up_counts() {
        let state = |line| NodeReport::of_controller(line).map(|report| (report.state.clone(), report.verdict()));
        assert_eq!(state("Slurmctld(primary) at head is UP\n"), Some(("up".to_owned(), NodeVerdict::Usable)));
        for line in ["Slurmctld(primary) at head is DOWN", "Slurmdbd(primary) at head is UP", ""] {
            assert_eq!(state(line), None, "{line}");
        }
    }

    #[test]
    fn registration_is_refused_only_if_node_responds() {
        let is_refused = |line| NodeReport::parse(line).unwrap().is_refused();
        assert!(is_refused("inval|Low CPUs") && !is_refused("inval*|Low CPUs") && !is_refused("idle|none"));
    }

    #[test]
    fn removes_only_repaired_drains() {
        assert_eq!(verdict("drained|gres/gpu count reported lower than configured (0 < 1)"), NodeVerdict::Repaired);
        assert_eq!(verdict("drained|Low RealMemory (reported:900 < 90.00% of configured:1000)"), NodeVerdict::Repaired);
        assert_eq!(verdict("drained|Low socket*core*thread count, Low CPUs"), NodeVerdict::Repaired);
        assert_eq!(verdict("drained|gres/gpu count changed and jobs are using them (2 != 1)"), NodeVerdict::Repaired);
        assert_eq!(verdict("drained|gres/gpu:a100 count too low (0 < 2)"), NodeVerdict::Repaired);
        assert_eq!(verdict("drained|gres/gpu type (a100) reported but not configured"), NodeVerdict::Repaired);
        assert_eq!(verdict("drained*|gres/gpu count reported lower than configured (0 < 1)"), NodeVerdict::NotYet);
        for reason in [
            "Low disk space on /data, ask Bob",
            "Low CPUs, ask Bob",
            "CPUs too hot",
            "RealMemory is being replaced",
            "gres/gpu 3 is broken",
            "gres/gpu",
            "SlurmdSpoolDir is full of core dumps, ask Bob",
            "Duplicate jobid? ask Bob",
        ] {
            assert_eq!(verdict(&format!("drained|{reason}")), NodeVerdict::Drained, "{reason}");
        }
        assert_eq!(verdict("down|slurminit: the container stops"), NodeVerdict::Repaired);
        assert_eq!(verdict("drained|SlurmdSpoolDir is full"), NodeVerdict::Repaired);
        assert_eq!(verdict("draining|fan broken, ask Eve"), NodeVerdict::Drained);
        assert_eq!(verdict("drained|none"), NodeVerdict::Drained);
        assert_eq!(verdict("fail|disk"), NodeVerdict::Drained);
    }

    #[test]
    fn keeps_administrators_drain_with_a_sentence_of_slurmctld() {
        for reason in ["Low CPUs", "gres/gpu count reported lower than configured (0 < 1)", DUPLICATE_JOB_REASON] {
            assert_eq!(verdict(&format!("drained root|{reason}")), NodeVerdict::Drained, "{reason}");
            assert_eq!(verdict(&format!("drained slurm|{reason}")), NodeVerdict::Repaired, "{reason}");
        }
        let epilog = |user| NodeReport::parse(&format!("drained {user}|Epilog error")).unwrap().is_drained_by_epilog();
        assert_eq!((epilog("root"), epilog("slurm")), (false, true));
        // slurmd and slurminit are root.
        for reason in [SPOOL_FULL_REASON, "slurminit: GPU 1 is lost"] {
            assert_eq!(verdict(&format!("drained root|{reason}")), NodeVerdict::Repaired, "{reason}");
        }
        assert_eq!(verdict("drained* root|Low CPUs"), NodeVerdict::NotYet);
        let is_drained_for = |line, prefix| NodeReport::parse(line).unwrap().is_drained_for(prefix);
        assert!(is_drained_for("drained* root|slurminit: GPU 1 is lost", GPU_REASON));
        assert!(!is_drained_for("drained root|slurminit: GPU 1 is lost", MEMORY_REASON));
        assert!(!is_drained_for("down* root|slurminit: GPU 1 is lost", GPU_REASON));
        assert!(!is_drained_for("drained root|Low CPUs", "Low"));
        assert_eq!(verdict("idle- root|none"), NodeVerdict::Usable);
    }

    #[test]
    fn distinguishes_failed_epilog_from_administrators_drain() {
        let blames = |line| NodeReport::parse(line).unwrap().is_drained_by_epilog();
        assert!(blames("drained|Epilog error") && blames("draining|Epilog error"));
        assert!(
            !blames("drained|Epilog error, ask Eve")
                && !blames("idle|Epilog error")
                && !blames("drained*|Epilog error")
        );
    }

    #[test]
    fn cluster_state_is_that_of_least_ready_node() {
        let worst = |text: &str| Some(text.lines().map(NodeReport::parse).fold(None, NodeReport::less_ready)?.state);
        assert_eq!(worst("idle|none\nunknown*|none\ndrained|fan"), Some("unknown".to_owned()));
        assert_eq!(worst("drained|fan\nidle|none\nmixed|none"), Some("idle".to_owned()));
        assert_eq!(worst("idle|none\ndown|slurminit: the container stops"), Some("down".to_owned()));
        assert_eq!(worst("drained|fan"), Some("drained".to_owned()));
        assert_eq!(worst(""), None);
    }

    #[test]
    fn reason_is_escaped_and_truncated() {
        let reason = NodeReport::parse(&format!("drained|\u{202e}\x1b[2J {}", "x".repeat(1000))).unwrap().reason;
        assert!(reason.starts_with("\\u{202e}\\x1b[2J x") && reason.len() < 500, "{reason}");
    }

    #[test]
    fn rejects_unparsable_report() {
        for bad in ["", "|", "idle", "*|x", "slurm_load_partitions: Unable to contact slurm controller"] {
            assert_eq!(NodeReport::parse(bad), None, "{bad}");
        }
    }
}
