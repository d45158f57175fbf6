//! Metrics for Prometheus, and the page.

use std::net::SocketAddr;

use serde::Deserialize;

/// `[metrics]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Metrics {
    /// The address and port that they are served on; `None` means that they are not.
    pub listen: Option<SocketAddr>,
}
