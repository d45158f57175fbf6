//! Metrics for Prometheus, and the page.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;

use model::value;

/// `[metrics]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Metrics {
    /// The address and port that they are served on; `None` means that they are not.
    pub listen: Option<SocketAddr>,
    /// The names by which they may be requested, beside IP addresses, the hostname and names without a dot.
    pub hosts: Vec<String>,
    /// Whether GPUs also have the names of NVIDIA's dcgm-exporter.
    pub dcgm: bool,
    /// The directory where exporters on the host learn which job has which GPU.
    #[serde(deserialize_with = "value::optional_directory")]
    pub job_map: Option<PathBuf>,
}
