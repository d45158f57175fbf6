//! Slurm's REST API.

use std::net::SocketAddr;

use serde::Deserialize;

/// `[rest]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rest {
    /// The address and port that slurmrestd listens on; `None` means that there is none.
    pub listen: Option<SocketAddr>,
}
