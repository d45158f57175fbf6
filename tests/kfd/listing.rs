//! KFD topology listings in the format of `grep -r '' .` in `/sys/class/kfd/kfd/topology/nodes`: lines of PATH:TEXT.
//! The listings in this directory are synthetic; run that command to record a real one.

use std::collections::BTreeMap;

/// 8 unpartitioned MI210 on two sockets, with a kernel that lists no memory banks.
pub(crate) const EIGHT_MI210: &str = include_str!("eight-mi210.txt");

/// 4 MI308X with 4 partitions each, on two sockets and in two PCI domains that share one bus number. The render node
/// numbers are not in the order of the topology nodes.
pub(crate) const FOUR_MI308X_IN_FOUR_PARTITIONS: &str = include_str!("four-mi308x-in-four-partitions.txt");

/// Content of each file, by path below `nodes`.
pub(crate) fn files(listing: &str) -> BTreeMap<&str, String> {
    let mut files: BTreeMap<&str, String> = BTreeMap::new();
    for line in listing.lines() {
        let (path, text) = line.split_once(':').expect("PATH:TEXT");
        *files.entry(path).or_default() += &format!("{text}\n");
    }
    files
}
