//! The control socket, through which an operator sends requests to PID 1.
//!
//! A stream socket in the run directory, accessible to root only. A client sends one line of JSON, a
//! [`protocol::Request`], and gets one line back, a [`protocol::Reply`]. Log lines may follow; then the connection
//! ends. `server` runs in PID 1, `client` in the verbs.

pub mod client;
pub mod protocol;
pub mod server;

use std::path::{Path, PathBuf};

/// The path of the socket.
pub fn socket(run_directory: &Path) -> PathBuf {
    run_directory.join("control")
}
