//! The table of entries. Each file except cuda.rs contains the entries under one heading.

pub(super) mod cuda;
mod given;
mod gpus;
mod host;
mod joining;
mod node;
mod start;
mod users;
pub(super) mod work;

use super::Part;

/// All entries, in report order: a fault comes before the faults that it causes.
pub const PARTS: &[Part] = &[
    Part { title: "The host", entries: host::ENTRIES },
    Part { title: "GPUs in the container", entries: gpus::ENTRIES },
    Part { title: "Container settings", entries: given::ENTRIES },
    Part { title: "GPUs at work", entries: work::ENTRIES },
    Part { title: "The start", entries: start::ENTRIES },
    Part { title: "Users", entries: users::ENTRIES },
    Part { title: "Slurm and the node", entries: node::ENTRIES },
    Part { title: "A node of another container's cluster", entries: joining::ENTRIES },
];
