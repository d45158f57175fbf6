//! Prometheus metrics, and the web page.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;

use model::value;

/// The settings of the table `[metrics]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Metrics {
    /// The listen address and port; `None` disables the metrics and the page.
    pub listen: Option<SocketAddr>,
    /// Host names that are allowed in the Host header of requests, in addition to IP addresses, the container's host name and names without
    /// a dot.
    pub hosts: Vec<String>,
    /// Whether GPU metrics are also exported under the names of NVIDIA's dcgm-exporter.
    pub dcgm: bool,
    /// The directory of the GPU-to-job map for exporters on the host; `None` means that no map is written.
    #[serde(deserialize_with = "value::optional_path")]
    pub job_map: Option<PathBuf>,
}
