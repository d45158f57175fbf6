//! Slurm's checksum of slurm.conf.
//!
//! slurmctld compares each node's checksum with its own, and reports a node whose slurm.conf differs (24.11 to 26.05,
//! `_slurm_rpc_node_registration`). A node may choose ProctrackType and TaskPlugin by its own cgroup support: only its
//! slurmd and slurmstepd load these plugins. A comment at the end of such a node's file restores the checksum of the shared file, so that
//! slurmctld still reports every other difference.

/// The checksum after `text`, which follows a text with the checksum `before` (`_compute_hash_val` in `parse_config.c`; `char` is signed).
fn checksum(before: u32, text: &str) -> u32 {
    text.bytes().fold(before, |sum, byte| {
        let signed = if byte < 0x80 { u32::from(byte) } else { u32::from(byte) | 0xffff_ff00 };
        let sum = sum ^ (signed << 8);
        (0..8).fold(sum, |sum, _| if sum & 0x8000 == 0 { sum << 1 } else { (sum << 1) ^ 4129 })
    })
}

/// Adds a comment line that gives the text the checksum of `other`. The line ends with the last two bytes of `other`, and the number before
/// them is found by trial.
pub(super) fn with_checksum_of(text: String, other: &str) -> String {
    const COMMENT: &str =
        "# This node's cgroups decide ProctrackType and TaskPlugin; checksum of the other nodes' file: ";
    let (target, begin) = (checksum(0, other), checksum(checksum(0, &text), COMMENT));
    let Some((at, _)) = other.char_indices().rev().nth(1) else { return text };
    let end = other.get(at..).unwrap_or_default();
    let found = (0..1_u32 << 22).map(|number| format!("{number:x} {end}")).find(|line| checksum(begin, line) == target);
    found.map_or(text.clone(), |line| text + COMMENT + &line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_plugins_keep_cluster_checksum() {
        let shared = "TaskPlugin=task/none\nPartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n";
        let own = shared.replace("task/none", "task/cgroup");
        let adjusted = with_checksum_of(own.clone(), shared);
        assert_ne!(checksum(0, &own), checksum(0, shared));
        assert_eq!(checksum(0, &adjusted), checksum(0, shared));
        assert!(adjusted.starts_with(&own) && adjusted.lines().count() == 3 && adjusted.ends_with("P\n"), "{adjusted}");
        // Other differences still change the checksum.
        let other_partition = with_checksum_of(own, &shared.replace("debug", "short"));
        assert_ne!(checksum(0, &other_partition), checksum(0, shared));
    }
}
