//! The client of PID 1: starts it, sends requests to its control socket, and reads its status.

#![forbid(unsafe_code)]

pub mod client;
pub mod launch;
pub mod reload;
pub mod status;
mod status_watcher;

pub use status_watcher::StatusWatcher;
