//! Slurm's REST API.

use std::net::SocketAddr;
use std::num::NonZeroU32;

use serde::Deserialize;

/// The settings of the table `[rest]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rest {
    /// The listen address and port of slurmrestd; `None` disables it.
    pub listen: Option<SocketAddr>,
    /// The longest lifetime of a token, in seconds.
    pub max_token_lifetime: NonZeroU32,
}

impl Default for Rest {
    fn default() -> Self {
        /// The default limit: 30 days, in seconds.
        const MAX_LIFETIME: NonZeroU32 = NonZeroU32::new(30 * 86_400).expect("it is above 0");
        Self { listen: None, max_token_lifetime: MAX_LIFETIME }
    }
}
