//! The node's state as the controller tells it, and what it means for the container.
//!
//! PURE.

use serde::{Deserialize, Serialize};

use crate::printable;

/// What `sinfo` is asked to print: the state, then the reason, which may hold anything but a newline.
pub const SINFO_FORMAT: &str = "%T|%E";

/// One answer of the controller about the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReport {
    /// Slurm's word for its state, without the flags: `idle`, `drained`, `inval`.
    pub state: String,
    /// Whether slurmd has answered the controller.
    pub responding: bool,
    /// Why it is not used; empty where there is no reason.
    pub reason: String,
}

/// What to do about the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeVerdict {
    /// Jobs can run.
    Usable,
    /// It is drained for a cause that this start has repaired: take the drain back.
    Repaired,
    /// A person drained it: their decision stands.
    Drained,
    /// Wait.
    NotYet,
}

/// How the reasons begin that Slurm itself gives when a node registers with less than slurm.conf promises. The files
/// of this start promise what there is, so such a reason is history. So is a full spool: one that is still full is drained
/// again by the next batch job. Slurm 22.05 to 25.11, `node_mgr.c` and `gres.c`.
const REPAIRED_BY_A_START: [&str; 7] =
    ["gres/", "Low ", OUR_REASON, "CPUs ", "RealMemory ", "SlurmdSpoolDir is full", TWICE];

/// A slurmctld that was killed before it had saved that a batch job runs has its successor start it again, and drain the node as
/// the job is there (`agent.c`). The job is requeued, and what slurmd has of the first one ends soon.
pub const TWICE: &str = "Duplicate jobid";

/// The reason that slurmctld gives when the node's Epilog failed (Slurm 22.05 to 25.11, `job_mgr.c`). One that slurmd's stop or the
/// kernel killed counts as that.
const EPILOG_FAILED: &str = "Epilog error";

/// How the reasons begin that slurminit gives.
pub const OUR_REASON: &str = "slurminit: ";

/// How much of a reason is kept, in characters: an operator of Slurm writes what he likes.
const LONGEST_REASON: usize = 400;

impl NodeReport {
    /// Reads one line of `sinfo --format='%T|%E'`.
    pub fn parse(line: &str) -> Option<Self> {
        let (state, reason) = line.trim().split_once('|')?;
        let word = state.trim_end_matches(|c: char| !c.is_ascii_alphabetic());
        if word.is_empty() {
            return None;
        }
        let reason = if reason == "none" { "" } else { reason };
        Some(Self {
            state: word.to_ascii_lowercase(),
            responding: !state.contains('*'),
            reason: printable::short(reason.trim(), LONGEST_REASON),
        })
    }

    /// What the state means.
    pub fn verdict(&self) -> NodeVerdict {
        if !self.responding {
            return NodeVerdict::NotYet;
        }
        match self.state.as_str() {
            "idle" | "mixed" | "allocated" | "completing" | "reserved" | "planned" | "maint" => NodeVerdict::Usable,
            "down" if self.reason.starts_with(OUR_REASON) => NodeVerdict::Repaired,
            "drained" | "draining" | "drain" if self.is_repaired() => NodeVerdict::Repaired,
            "drained" | "draining" | "drain" => NodeVerdict::Drained,
            _ => NodeVerdict::NotYet,
        }
    }

    /// Whether it is drained, for Slurm took the end of an Epilog for a failure.
    pub fn blames_the_epilog(&self) -> bool {
        self.verdict() == NodeVerdict::Drained && self.reason == EPILOG_FAILED
    }

    fn is_repaired(&self) -> bool {
        REPAIRED_BY_A_START.iter().any(|start| self.reason.starts_with(start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(line: &str) -> NodeVerdict {
        NodeReport::parse(line).unwrap().verdict()
    }

    #[test]
    fn a_node_that_answers_and_is_not_drained_is_usable() {
        assert_eq!(verdict("idle|none"), NodeVerdict::Usable);
        assert_eq!(verdict("mixed-|none\n"), NodeVerdict::Usable);
        assert_eq!(verdict("idle*|none"), NodeVerdict::NotYet);
        assert_eq!(verdict("unknown*|none"), NodeVerdict::NotYet);
        assert_eq!(verdict("inval|gres/gpu count reported lower than configured (0 < 1)"), NodeVerdict::NotYet);
        assert_eq!(verdict("down|Not responding"), NodeVerdict::NotYet);
    }

    #[test]
    fn only_a_drain_that_this_start_repaired_is_taken_back() {
        assert_eq!(verdict("drained|gres/gpu count reported lower than configured (0 < 1)"), NodeVerdict::Repaired);
        assert_eq!(verdict("drained|Low RealMemory (reported:900 < 90.00% of configured:1000)"), NodeVerdict::Repaired);
        assert_eq!(verdict("drained*|gres/gpu count"), NodeVerdict::NotYet);
        assert_eq!(verdict("down|slurminit: the container stops"), NodeVerdict::Repaired);
        assert_eq!(verdict("drained|SlurmdSpoolDir is full"), NodeVerdict::Repaired);
        assert_eq!(verdict("draining|fan broken, ask Eve"), NodeVerdict::Drained);
        assert_eq!(verdict("drained|none"), NodeVerdict::Drained);
    }

    #[test]
    fn an_epilogs_failure_is_told_from_a_persons_drain() {
        let blames = |line| NodeReport::parse(line).unwrap().blames_the_epilog();
        assert!(blames("drained|Epilog error") && blames("draining|Epilog error"));
        assert!(
            !blames("drained|Epilog error, ask Eve")
                && !blames("idle|Epilog error")
                && !blames("drained*|Epilog error")
        );
    }

    #[test]
    fn a_reason_is_one_short_line_that_does_nothing() {
        let reason = NodeReport::parse(&format!("drained|\u{202e}\x1b[2J {}", "x".repeat(1000))).unwrap().reason;
        assert!(reason.starts_with("\\u{202e}\\x1b[2J x") && reason.len() < 500, "{reason}");
    }

    #[test]
    fn nonsense_is_no_report() {
        for bad in ["", "|", "idle", "*|x", "slurm_load_partitions: Unable to contact slurm controller"] {
            assert_eq!(NodeReport::parse(bad), None, "{bad}");
        }
    }
}
