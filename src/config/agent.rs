//! The agent that monitors the GPUs, the memory and the limited directories while the container runs.

use std::time::Duration;

use serde::Deserialize;
use serde::de::Error as _;

use model::value;

/// The settings of the table `[agent]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Agent {
    /// The interval between two samples; `None` disables the agent.
    #[serde(deserialize_with = "interval")]
    pub interval: Option<Duration>,
    /// The driver's timeout per GPU.
    #[serde(deserialize_with = "value::probe_seconds")]
    pub timeout: Duration,
}

impl Default for Agent {
    fn default() -> Self {
        Self { interval: Some(Duration::from_secs(5)), timeout: Duration::from_secs(10) }
    }
}

/// Reads the interval; 0 means off.
fn interval<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let seconds = f64::deserialize(from)?;
    match seconds {
        _ if seconds == 0.0 => Ok(None),
        _ if (0.1..=3600.0).contains(&seconds) => Ok(Some(Duration::from_secs_f64(seconds))),
        _ => Err(D::Error::custom("expected a number of seconds from 0.1 to 3600, or 0 to disable the agent")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use faults::fault::{FaultKind, Policy};

    fn parse(text: &str) -> Result<Config, super::super::ConfigError> {
        Config::parse(text, std::path::Path::new("t"))
    }

    #[test]
    fn configured_policy_overrides_default() {
        let config = parse("[faults]\nheat = 'drain'\n[faults.xid]\n79 = 'warn'\n").unwrap();
        let policy = |kind| config.faults.policy(kind);
        assert_eq!(policy(FaultKind::Xid(79)), Policy::Warn);
        assert_eq!(policy(FaultKind::Xid(48)), Policy::Drain);
        assert_eq!(policy(FaultKind::Heat), Policy::Drain);
        assert_eq!(policy(FaultKind::Lost), Policy::Drain);
        assert!(parse("[faults.xid]\nx = 'warn'\n").is_err());
        assert!(parse("[faults]\nheat = 'panic'\n").is_err());
        assert_eq!(parse("[agent]\ninterval = 0\n").unwrap().agent.interval, None);
        assert!(parse("[agent]\ninterval = -1\n").is_err());
        assert!(parse("[agent]\ntimeout = 0\n").is_err(), "every GPU would count as hanging");
    }
}
