//! The health of GPUs: their faults, the consequences of each fault for the node, and the report.
//!
//! `watch::agent` samples the GPUs and executes the decisions made here.

#![forbid(unsafe_code)]

pub mod controller;
pub mod fault;
pub mod report;
pub mod sample;
pub mod usage;
pub mod xid;
