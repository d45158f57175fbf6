//! Autoscaled nodes: started for jobs, stopped when idle.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::error::Fault;
use super::{Config, Step};
use model::hostlist;
use model::value;
use model::value::FeatureName;

/// The settings of the table `[autoscale]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Autoscale {
    /// The nodes; if empty, autoscaling is off.
    pub nodes: Vec<CloudNodes>,
    /// The operator's command that starts nodes; the node names are appended.
    pub resume: Vec<String>,
    /// The operator's command that stops nodes; the node names are appended.
    pub suspend: Vec<String>,
    /// How long a node is idle before it is stopped.
    #[serde(deserialize_with = "value::seconds")]
    pub idle: Duration,
    /// How long a node may take to start.
    #[serde(deserialize_with = "value::seconds")]
    pub resume_timeout: Duration,
    /// How long a node may take to stop.
    #[serde(deserialize_with = "value::seconds")]
    pub suspend_timeout: Duration,
}

impl Default for Autoscale {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            resume: Vec::new(),
            suspend: Vec::new(),
            idle: Duration::from_secs(300),
            resume_timeout: Duration::from_secs(600),
            suspend_timeout: Duration::from_secs(60),
        }
    }
}

impl Autoscale {
    /// Whether this is the name of an autoscaled node.
    pub fn has(&self, node: &str) -> bool {
        self.nodes.iter().any(|nodes| nodes.name.names().iter().any(|name| name == node))
    }
}

/// Autoscaled nodes of one kind, with the minimum resources of each.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CloudNodes {
    /// The names of these nodes.
    pub name: NodeRange,
    /// CPUs of each node.
    pub cpus: u32,
    /// Memory for jobs, in MiB.
    pub memory_mib: u64,
    /// GPUs of each node; `None` means no GPU.
    #[serde(default)]
    pub gpus: Option<GpuCount>,
    /// Features, by which partitions choose nodes.
    #[serde(default)]
    pub features: Vec<FeatureName>,
}

/// Names of nodes: `burst-[1-4,7]`, or one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct NodeRange(String);

model::text_type!(NodeRange, "`{}` is not a node name: expected a name, or a range such as burst-[1-4]", |text| {
    hostlist::range(text).is_some()
});

impl NodeRange {
    /// The individual names in the range.
    pub fn names(&self) -> Vec<String> {
        hostlist::range(&self.0).unwrap_or_default()
    }
}

/// GPUs in the syntax of job requests: `nvidia:2`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct GpuCount {
    /// The GRES type, as shown by `slurminit detect` on such a node.
    pub gres_type: FeatureName,
    /// The number of GPUs.
    pub count: u32,
}

impl TryFrom<String> for GpuCount {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let parts = text.split_once(':');
        let gres_type = parts.and_then(|(name, _)| FeatureName::try_from(name.to_owned()).ok());
        let count = parts.and_then(|(_, count)| count.parse().ok()).filter(|count| (1..=1024).contains(count));
        let error = || {
            format!(
                "`{}` is not a GPU count: expected TYPE:COUNT with a count from 1 to 1024, such as nvidia:2",
                text.escape_default()
            )
        };
        gres_type.zip(count).map(|(gres_type, count)| Self { gres_type, count }).ok_or_else(error)
    }
}

/// Checks for duplicate names, which make slurmctld exit, and for nodes without CPUs or without memory.
pub(super) fn check(config: &Config) -> Result<(), Fault> {
    let mut seen = BTreeSet::new();
    for (index, nodes) in config.autoscale.nodes.iter().enumerate() {
        let fault = |key: &'static str, what: String| {
            let path: Vec<Step> = vec!["autoscale".into(), "nodes".into(), index.into(), key.into()];
            Err(Fault::new(path, what))
        };
        if let Some(name) = nodes.name.names().into_iter().find(|name| !seen.insert(name.clone())) {
            return fault("name", format!("duplicate node name `{name}`"));
        }
        for (key, value, unit) in [("cpus", u64::from(nodes.cpus), "CPU"), ("memory_mib", nodes.memory_mib, "MiB")] {
            if value == 0 {
                return fault(key, format!("a node needs at least 1 {unit}"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const NODES: &str = "[[autoscale.nodes]]\nname = 'burst-[1-2]'\ncpus = 4\nmemory_mib = 1000\n";

    #[test]
    fn expands_node_ranges_like_slurm() {
        for (text, expected) in [
            ("burst", Some(vec!["burst"])),
            ("b[1-3,7]", Some(vec!["b1", "b2", "b3", "b7"])),
            ("b[08-10]", Some(vec!["b08", "b09", "b10"])),
            ("b[3-1]", None),
            ("b[1-]", None),
            ("b[1-2", None),
            ("b[+1]", None),
            ("b[1-99999999]", None),
            ("b 1", None),
            ("b\n[1-2]", None),
            ("ALL", None),
            ("", None),
        ] {
            let names = NodeRange::try_from(text.to_owned()).ok().map(|range| range.names());
            assert_eq!(names, expected.map(|names| names.into_iter().map(str::to_owned).collect()), "{text}");
        }
    }

    #[test]
    fn rejects_values_invalid_for_slurm_with_position() {
        let parse = |more: &str| Config::parse(&format!("{NODES}{more}"), Path::new("x.toml"));
        let autoscale = parse("gpus = 'h200:8'").unwrap().autoscale;
        assert_eq!(autoscale.nodes[0].gpus.as_ref().unwrap().count, 8);
        assert!(autoscale.has("burst-2") && !autoscale.has("burst-3"));
        for (more, expected) in [
            ("gpus = '8'", "TYPE:COUNT"),
            ("gpus = 'h200:0'", "TYPE:COUNT"),
            ("[[autoscale.nodes]]\nname = 'burst-2'\ncpus = 1\nmemory_mib = 1", "duplicate node name `burst-2`"),
            ("[[autoscale.nodes]]\nname = 'b'\ncpus = 0\nmemory_mib = 1", "in `cpus = 0`: a node needs at least 1"),
            (
                "[[autoscale.nodes]]\nname = 'b'\ncpus = 1\nmemory_mib = 0",
                "in `memory_mib = 0`: a node needs at least 1",
            ),
        ] {
            let error = parse(more).unwrap_err().to_string();
            assert!(error.starts_with("x.toml:") && error.contains(expected), "{error}");
        }
    }
}
