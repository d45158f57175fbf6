//! Slurm's checksum of slurm.conf.
//!
//! slurmctld compares each node's checksum with its own, and reports a node whose slurm.conf differs (24.11 to 26.05,
//! `_slurm_rpc_node_registration`). A node may choose ProctrackType and TaskPlugin by its own support for cgroups and CPU binding: only
//! its slurmd and slurmstepd load these plugins. A comment at the end of such a node's file restores the checksum of the shared file, so
//! that slurmctld still reports every other difference.

/// The feedback of eight steps, by bits 8 to 15 of the sum. A search computes a hundred thousand checksums.
const FEEDBACK: [u32; 256] = {
    let mut table = [0; 256];
    let mut high = 0;
    while high < 256 {
        table[high as usize] = eight_steps(high << 8) ^ (high << 16);
        high += 1;
    }
    table
};

const fn eight_steps(mut sum: u32) -> u32 {
    let mut step = 0;
    while step < 8 {
        sum = if sum & 0x8000 == 0 { sum << 1 } else { (sum << 1) ^ 4129 };
        step += 1;
    }
    sum
}

/// Extends the checksum `before` of the preceding text by `text` (`_compute_hash_val` in `parse_config.c`; `char` is signed).
fn checksum(before: u32, text: &str) -> u32 {
    text.bytes().fold(before, |sum, byte| {
        let signed = if byte < 0x80 { u32::from(byte) } else { u32::from(byte) | 0xffff_ff00 };
        let sum = sum ^ (signed << 8);
        (sum << 8) ^ FEEDBACK[usize::from(sum.to_le_bytes()[1])]
    })
}

/// Appends a comment line so that the text has the same checksum as `other`. The line ends with the last two characters of `other`; the
/// number before them is found by trial and error. Returns `text` unchanged if no number fits.
pub(super) fn with_checksum_of(text: String, other: &str) -> String {
    const COMMENT: &str =
        "# ProctrackType and TaskPlugin depend on this node; suffix for the same checksum as on the other nodes: ";
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
    fn table_replaces_eight_steps() {
        for sum in (0..u32::MAX - 9999).step_by(9973) {
            assert_eq!((sum << 8) ^ FEEDBACK[usize::from(sum.to_le_bytes()[1])], eight_steps(sum), "{sum:x}");
        }
    }

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
