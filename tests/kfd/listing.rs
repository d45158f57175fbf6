//! KFD's topology in one text, as `grep -r '' .` prints it in `/sys/class/kfd/kfd/topology/nodes`: a line is PATH:TEXT. The machines
//! beside this file are invented, in the shape of real ones; a real one comes by that command.

use std::collections::BTreeMap;

/// 8 whole MI210 on two sockets. Its kernel lists no memory banks.
pub(crate) const EIGHT_MI210: &str = include_str!("eight-mi210.txt");

/// 4 MI308X in 4 partitions each, on two sockets and in two PCI domains, in which one bus number is used twice. The render nodes do
/// not ascend with the nodes.
pub(crate) const FOUR_MI308X_IN_FOUR_PARTITIONS: &str = include_str!("four-mi308x-in-four-partitions.txt");

/// The text of each file, by its path below `nodes`.
pub(crate) fn files(listing: &str) -> BTreeMap<&str, String> {
    let mut files: BTreeMap<&str, String> = BTreeMap::new();
    for line in listing.lines() {
        let (path, text) = line.split_once(':').expect("PATH:TEXT");
        *files.entry(path).or_default() += &format!("{text}\n");
    }
    files
}
