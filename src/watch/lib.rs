//! Monitoring of GPUs, memory and jobs: the agent, metrics, the page, `top` and job mail.

pub mod agent;
pub mod mail;
pub mod memory_guard;
pub mod metrics;
pub mod overview;
pub mod top;
