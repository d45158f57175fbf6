//! The names in a file of slurmctld's state.
//!
//! The file's format differs between releases, but each stores a text as its length (32 bits, big-endian, including the
//! final NUL), followed by the text (24.11, `pack.c`). So all texts are found, including those of ended jobs
//! and other data of this form.

use std::collections::BTreeSet;

use model::hostlist;

/// The maximum length of a list of partitions or nodes, in bytes with the final NUL.
const MAX_TEXT_LENGTH: usize = 64 << 10;

/// The texts of a saved state that may name partitions or nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    texts: BTreeSet<String>,
    is_unreadable: bool,
}

impl Saved {
    /// Adds the texts of a file.
    pub fn add(&mut self, bytes: &[u8]) {
        for at in 0..bytes.len().saturating_sub(4) {
            self.texts.extend(text_at(bytes, at).map(str::to_owned));
        }
    }

    /// Treats any name as contained, because a file cannot be read.
    pub fn mark_unreadable(&mut self) {
        self.is_unreadable = true;
    }

    /// Whether a list contains this partition.
    pub fn contains_partition(&self, partition: &str) -> bool {
        self.is_unreadable || self.texts.iter().any(|list| list.split(',').any(|name| name == partition))
    }

    /// Whether a list contains this partition and others.
    pub(super) fn contains_in_partition_list(&self, partition: &str) -> bool {
        let contains = |list: &String| list.contains(',') && list.split(',').any(|name| name == partition);
        self.is_unreadable || self.texts.iter().any(contains)
    }

    /// Whether a list contains this node.
    pub(super) fn contains_node(&self, node: &str) -> bool {
        let prefix = node.trim_end_matches(|c: char| c.is_ascii_digit());
        let contains = |list: &String| list.contains(prefix) && names(list).any(|name| name == node);
        self.is_unreadable || self.texts.iter().any(contains)
    }
}

/// The text whose length is at this position.
fn text_at(bytes: &[u8], at: usize) -> Option<&str> {
    let length = u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?);
    let length = usize::try_from(length).ok().filter(|length| (2..=MAX_TEXT_LENGTH).contains(length))?;
    let (end, text) = bytes.get(at + 4..at + 4 + length)?.split_last()?;
    let is_name = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'/' | b'"' | b'=');
    (*end == 0 && text.iter().all(is_name)).then(|| std::str::from_utf8(text).ok()).flatten()
}

/// The names of a list such as `node[1-4],big`; empty for other texts.
pub(super) fn names(list: &str) -> impl Iterator<Item = String> {
    hostlist::names(list).unwrap_or_default().into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(texts: &[&str]) -> Vec<u8> {
        let pack = |text: &&str| [&(text.len() as u32 + 1).to_be_bytes()[..], text.as_bytes(), b"\0"].concat();
        texts.iter().flat_map(pack).collect()
    }

    #[test]
    fn finds_partitions_and_nodes_at_any_offset() {
        let mut saved = Saved::default();
        saved.add(&[b"\0\0\x2a\x01".to_vec(), packed(&["debug", "a b", "long,short", "sim[2-3],x"])].concat());
        assert!(["debug", "long", "short"].iter().all(|name| saved.contains_partition(name)));
        assert!(!saved.contains_partition("lon") && !saved.contains_partition("a"));
        assert!(saved.contains_in_partition_list("short") && !saved.contains_in_partition_list("debug"));
        assert!(saved.contains_node("sim3") && saved.contains_node("x") && !saved.contains_node("sim4"));
    }

    #[test]
    fn truncated_file_yields_no_names() {
        let whole = packed(&["debug"]);
        for end in 0..whole.len() {
            let mut saved = Saved::default();
            saved.add(&whole[..end]);
            assert_eq!(saved, Saved::default());
        }
    }
}
