//! The tables `[slurm]` and `[[partition]]`, which become part of slurm.conf.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use toml::Value;

use super::account::check_unique;
use super::error::Fault;
use model::value::{FeatureName, NodeName};

/// The settings of the table `[slurm]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Slurm {
    /// The controller's host name, in a cluster of several containers. `None` means this container's host name; compute and login containers
    /// require a value.
    pub controller: Option<NodeName>,
    /// The maximum number of nodes of a cluster of several containers.
    #[serde(deserialize_with = "node_count")]
    pub max_nodes: u32,
    /// slurmctld's TCP port.
    pub controller_port: u16,
    /// slurmd's TCP port; with simulated nodes, the first of their ports.
    pub daemon_port: u16,
    /// The mail relay for `--mail-type`; `None` means that slurmctld sends no mail, unless `[slurm.conf]` sets MailProg.
    pub mail_relay: Option<MailRelay>,
    /// The sender of mail; `None` means the user slurm at this host's name.
    pub mail_from: Option<MailAddress>,
    /// Keys of slurm.conf that replace or extend the generated ones.
    pub conf: SlurmSettings,
}

/// The host and port of a mail relay.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct MailRelay(pub String);

impl TryFrom<String> for MailRelay {
    type Error = String;

    /// Parses `HOST` or `HOST:PORT`. The default port is 25.
    fn try_from(text: String) -> Result<Self, String> {
        let (host, port) = text.rsplit_once(':').unwrap_or((&text, "25"));
        let is_name =
            !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte));
        match port.parse::<u16>() {
            Ok(port) if is_name && port > 0 => Ok(Self(format!("{host}:{port}"))),
            _ => {
                Err("expected a host name or IPv4 address, optionally with a port, such as smtp.example.org:25"
                    .to_owned())
            }
        }
    }
}

/// A mail address.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct MailAddress(pub String);

impl TryFrom<String> for MailAddress {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, &'static str> {
        let is_plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_+@".contains(&byte));
        let is_address = text.split_once('@').is_some_and(|(name, host)| !name.is_empty() && !host.is_empty());
        if is_plain && is_address { Ok(Self(text)) } else { Err("expected an address such as slurm@example.org") }
    }
}

impl Default for Slurm {
    fn default() -> Self {
        Self {
            controller: None,
            max_nodes: 1024,
            controller_port: 6817,
            daemon_port: 6818,
            mail_relay: None,
            mail_from: None,
            conf: SlurmSettings::default(),
        }
    }
}

/// Slurm's limit (`MAX_SLURM_NODES`): beyond it slurmctld ignores MaxNodeCount, and no node could join.
const MAX_NODES: u32 = 65_536;

fn node_count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    match u32::deserialize(deserializer)? {
        count if (1..=MAX_NODES).contains(&count) => Ok(count),
        count => Err(de::Error::custom(format_args!("expected 1 to {MAX_NODES} nodes, got {count}"))),
    }
}

/// Keys and values of slurm.conf; each key occurs once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlurmSettings(Vec<(SlurmKey, SlurmValue)>);

impl SlurmSettings {
    /// The settings in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = (&SlurmKey, &SlurmValue)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    /// The value of `key`, ignoring case.
    pub fn get(&self, key: &str) -> Option<&SlurmValue> {
        self.0.iter().find(|(existing, _)| existing.is(key)).map(|(_, value)| value)
    }

    /// Adds a setting. Fails if the key exists already, ignoring case.
    pub(super) fn insert(&mut self, key: SlurmKey, value: SlurmValue) -> Result<(), String> {
        match self.0.iter().find(|(existing, _)| existing.is(key.as_str())) {
            Some((existing, _)) => {
                Err(format!("duplicate key: `{}` and `{}` (upper and lower case are equal)", existing.0, key.0))
            }
            None => {
                self.0.push((key, value));
                Ok(())
            }
        }
    }
}

impl<'de> Deserialize<'de> for SlurmSettings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Table;
        impl<'de> Visitor<'de> for Table {
            type Value = SlurmSettings;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table of slurm.conf keys")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<SlurmSettings, A::Error> {
                let mut settings = SlurmSettings::default();
                while let Some(TopLevelKey(key)) = map.next_key()? {
                    settings.insert(key, map.next_value()?).map_err(de::Error::custom)?;
                }
                Ok(settings)
            }
        }
        deserializer.deserialize_map(Table)
    }
}

/// A key of slurm.conf. Slurm ignores its case.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct SlurmKey(String);

impl SlurmKey {
    /// Whether this is the key `name`, ignoring case.
    pub fn is(&self, name: &str) -> bool {
        self.0.eq_ignore_ascii_case(name)
    }
}

model::text_type!(
    SlurmKey,
    "`{}` is not a valid key: expected a letter, then letters, digits and `_`, at most 64 in all",
    |text| {
        text.starts_with(|c: char| c.is_ascii_alphabetic())
            && text.len() <= 64
            && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    }
);

/// A key that `[slurm.conf]` may set. `Include` is excluded, and so are keys that other parts of the file determine, because the two places
/// could contradict each other.
#[derive(Deserialize)]
#[serde(try_from = "String")]
struct TopLevelKey(SlurmKey);

impl TryFrom<String> for TopLevelKey {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let key = SlurmKey::try_from(text)?;
        let instead = match key.0.to_ascii_lowercase().as_str() {
            "clustername" => "set `cluster_name` at the top of the file",
            "slurmctldport" => "set `controller_port` in [slurm]",
            "slurmdport" => "set `daemon_port` in [slurm]",
            "nodename" => "slurminit writes the NodeName lines: use [node]",
            "partitionname" => "write a [[partition]] table",
            "include" => {
                "put your own slurm.conf with the line `# USER_CUSTOMIZED=true` into the configuration directory"
            }
            _ => return Ok(Self(key)),
        };
        Err(format!("`{}` cannot be set in [slurm.conf]; {instead}", key.0))
    }
}

/// A value in slurm.conf without control characters, quotes, `#`, or a final backslash, so it cannot affect other
/// settings. An empty value means "leave the key out, so that Slurm's default applies".
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value")]
pub struct SlurmValue(String);

model::text_type!(SlurmValue);

impl TryFrom<String> for SlurmValue {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let text = text.trim();
        let fault = if text.chars().any(char::is_control) {
            "a line break or another control character"
        } else if text.contains('"') {
            "a quote (slurminit adds quotes where they are needed)"
        } else if text.contains('#') {
            "a `#`, which starts a comment in slurm.conf"
        } else if text.ends_with('\\') {
            "a backslash at its end, which continues the line in slurm.conf"
        } else {
            return Ok(Self(text.to_owned()));
        };
        Err(format!("invalid value `{}`: it contains {fault}", text.escape_default()))
    }
}

impl TryFrom<Value> for SlurmValue {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, Self::Error> {
        let items = |values: Vec<Value>| values.into_iter().map(Value::try_into).collect::<Result<Vec<String>, _>>();
        match value {
            Value::String(text) => Self::try_from(text),
            Value::Integer(number) => Ok(Self(number.to_string())),
            Value::Float(number) => Ok(Self(number.to_string())),
            Value::Boolean(yes) => Ok(Self(if yes { "YES" } else { "NO" }.to_owned())),
            Value::Array(values) => Self::try_from(items(values).map_err(|_| NOT_A_VALUE)?.join(",")),
            Value::Datetime(_) | Value::Table(_) => Err(NOT_A_VALUE.to_owned()),
        }
    }
}

const NOT_A_VALUE: &str = "expected a string, a number, true, false, or a list of strings";

/// A `[[partition]]`: its name, slurminit's own keys `feature` and `preempt`, and the keys of its line in slurm.conf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// The partition's name.
    pub name: NodeName,
    /// In a cluster of several containers, the feature by which the partition chooses its nodes; `None` means all nodes.
    pub feature: Option<FeatureName>,
    /// What happens to this partition's jobs if jobs of partitions without this key need their resources; `None` if they are not preempted.
    pub preempt: Option<Preempt>,
    /// The other keys of the line. Without `Nodes`, the partition contains the nodes with `feature`, or all nodes.
    pub settings: SlurmSettings,
}

/// What happens to a preempted job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Preempt {
    /// The job is requeued, or cancelled if it cannot be requeued.
    Requeue,
    /// The job is cancelled.
    Cancel,
}

impl<'de> Deserialize<'de> for Partition {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Table;
        impl<'de> Visitor<'de> for Table {
            type Value = Partition;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table with `name` and, optionally, other keys of a PartitionName line")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Partition, A::Error> {
                let (mut name, mut feature, mut preempt) = (None, None, None);
                let mut settings = SlurmSettings::default();
                while let Some(key) = map.next_key::<SlurmKey>()? {
                    if key.is("name") || key.is("PartitionName") {
                        if name.replace(map.next_value()?).is_some() {
                            return Err(de::Error::custom("duplicate key `name` (`PartitionName` is the same key)"));
                        }
                    } else if key.is("feature") {
                        feature = Some(map.next_value()?);
                    } else if key.is("preempt") {
                        preempt = Some(map.next_value()?);
                    } else {
                        settings.insert(key, map.next_value()?).map_err(de::Error::custom)?;
                    }
                }
                let name = name.ok_or_else(|| de::Error::missing_field("name"))?;
                Ok(Partition { name, feature, preempt, settings })
            }
        }
        deserializer.deserialize_map(Table)
    }
}

/// Checks that the partitions' names are unique: slurmctld exits if two lines have the same PartitionName.
pub(super) fn check_partitions(partitions: &[Partition]) -> Result<(), Fault> {
    check_unique("partition", "name", partitions.iter().map(|partition| partition.name.as_str()))
}
