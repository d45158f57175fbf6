//! What watches the GPUs, the memory and the jobs while they run, and shows them.

pub mod agent;
pub mod mail;
pub mod memory_guard;
pub mod metrics;
pub mod overview;
pub mod top;
