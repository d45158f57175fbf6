//! Slurm's REST API.

use std::net::SocketAddr;

use serde::Deserialize;

/// `[rest]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rest {
    /// The listen address and port of slurmrestd; `None` disables it.
    pub listen: Option<SocketAddr>,
}
