//! The health of GPUs while they run: faults, what each means for the node, and the report of it.
//!
//! `agent` looks at the GPUs and does what is decided here.

#![forbid(unsafe_code)]

pub mod fault;
pub mod look;
pub mod policies;
pub mod policy;
pub mod report;
pub mod ward;
