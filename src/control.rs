//! The control socket: how an operator asks the running PID 1 for something.
//!
//! A stream socket in the run directory, root's alone. A client sends one line of JSON, a [`protocol::Request`], and gets
//! one line back, a [`protocol::Reply`], which log lines may follow; then the connection ends. `protocol` is PURE; `server`
//! runs in PID 1, `client` in the verbs: both EDGE.

pub mod client;
pub mod protocol;
pub mod server;

use std::path::{Path, PathBuf};

/// The socket in the run directory.
pub fn socket(run_directory: &Path) -> PathBuf {
    run_directory.join("control")
}
