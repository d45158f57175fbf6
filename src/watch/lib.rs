//! Monitoring of GPUs: the agent, metrics and the page.

#![forbid(unsafe_code)]

pub mod agent;
pub mod metrics;
pub mod overview;
