//! The table of entries, a heading in each file. PURE.

pub(super) mod gpus;
mod host;
mod node;
mod start;
pub(super) mod work;

use super::Part;

/// Every entry, in the order of the report: what a fault makes others fail for comes first.
pub const PARTS: &[Part] = &[
    Part { title: "The host", entries: host::ENTRIES },
    Part { title: "GPUs in the container", entries: gpus::ENTRIES },
    Part { title: "GPUs at work", entries: work::ENTRIES },
    Part { title: "The start", entries: start::ENTRIES },
    Part { title: "Slurm and the node", entries: node::ENTRIES },
];
