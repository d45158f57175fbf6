//! The health of GPUs while they run: faults, what each means for the node, and the report of it.
//!
//! `agent` samples the GPUs and executes the decisions made here.

pub mod controller;
pub mod fault;
pub mod look;
pub mod report;
pub mod xid;
