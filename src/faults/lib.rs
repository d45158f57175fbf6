//! The health of GPUs while they run: faults, what each means for the node, and the report of it.
//!
//! `watch::agent` samples the GPUs and executes the decisions made here.

#![forbid(unsafe_code)]

pub mod controller;
pub mod fault;
pub mod report;
pub mod sample;
pub mod usage;
pub mod xid;
