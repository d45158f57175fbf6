//! The part of the configuration that becomes slurm.conf.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::error::Fault;
use super::value::NodeName;

/// `[slurm]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Slurm {
    /// slurmctld's TCP port.
    pub controller_port: u16,
    /// slurmd's TCP port.
    pub daemon_port: u16,
    /// Keys of slurm.conf that replace or extend what is generated.
    pub conf: SlurmSettings,
}

impl Default for Slurm {
    fn default() -> Self {
        Self { controller_port: 6817, daemon_port: 6818, conf: SlurmSettings::default() }
    }
}

/// Keys and values of slurm.conf, each key once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlurmSettings(Vec<(SlurmKey, SlurmValue)>);

impl SlurmSettings {
    /// In the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = (&SlurmKey, &SlurmValue)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    /// The value of `key`, in any case.
    pub fn get(&self, key: &str) -> Option<&SlurmValue> {
        self.0.iter().find(|(own, _)| own.is(key)).map(|(_, value)| value)
    }

    /// Adds a setting, or tells which spelling of the key is there already.
    fn insert(&mut self, key: SlurmKey, value: SlurmValue) -> Result<(), String> {
        match self.0.iter().find(|(own, _)| own.is(key.as_str())) {
            Some((own, _)) => Err(format!("`{}` and `{}` are the same key of slurm.conf", own.0, key.0)),
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

/// A key of slurm.conf. Slurm reads it in any case.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct SlurmKey(String);

impl SlurmKey {
    /// As the operator wrote it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is the key `name`, in any case.
    pub fn is(&self, name: &str) -> bool {
        self.0.eq_ignore_ascii_case(name)
    }
}

impl TryFrom<String> for SlurmKey {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let valid = text.starts_with(|c: char| c.is_ascii_alphabetic())
            && text.len() <= 64
            && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if valid { Ok(Self(text)) } else { Err(format!("`{}` is not a key of slurm.conf", text.escape_default())) }
    }
}

/// A key that `[slurm.conf]` may set: not one of those that other parts of the file decide, for a second place for them
/// would make one of the two a lie.
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
            "nodename" => "set the keys of [node]; the line itself follows the hardware",
            "partitionname" => "write a [[partition]] table",
            "include" => {
                "put a slurm.conf of your own, with `# USER_CUSTOMIZED=true`, into the configuration directory"
            }
            _ => return Ok(Self(key)),
        };
        Err(format!("`{}` cannot be set in [slurm.conf]; {instead}", key.0))
    }
}

/// A value in slurm.conf, which cannot leave its place: no control character, quote, `#`, or backslash at the end.
/// Empty means "leave the key out, so that Slurm's own default holds".
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SlurmValue(String);

impl SlurmValue {
    /// The text without quotes.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for SlurmValue {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let fault = if text.chars().any(char::is_control) {
            "a line break or another control character"
        } else if text.contains('"') {
            "a quote (slurminit quotes what needs it)"
        } else if text.contains('#') {
            "a `#`, which starts a comment in slurm.conf"
        } else if text.ends_with('\\') {
            "a backslash at its end, which continues the line in slurm.conf"
        } else {
            return Ok(Self(text.trim().to_owned()));
        };
        Err(format!("the value `{}` cannot hold {fault}", text.escape_default()))
    }
}

impl<'de> Deserialize<'de> for SlurmValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Scalar;
        impl<'de> Visitor<'de> for Scalar {
            type Value = SlurmValue;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, a number, true, false, or a list of strings")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<SlurmValue, E> {
                SlurmValue::try_from(text.to_owned()).map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<SlurmValue, E> {
                Ok(SlurmValue(number.to_string()))
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<SlurmValue, E> {
                Ok(SlurmValue(number.to_string()))
            }

            fn visit_bool<E: de::Error>(self, yes: bool) -> Result<SlurmValue, E> {
                Ok(SlurmValue(if yes { "YES" } else { "NO" }.to_owned()))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<SlurmValue, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = list.next_element::<String>()? {
                    items.push(item);
                }
                SlurmValue::try_from(items.join(",")).map_err(de::Error::custom)
            }
        }
        deserializer.deserialize_any(Scalar)
    }
}

/// A partition: its name, and keys of its line in slurm.conf as Slurm spells them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its name.
    pub name: NodeName,
    /// The rest of the line. Without `Nodes` it has this node.
    pub settings: SlurmSettings,
}

impl<'de> Deserialize<'de> for Partition {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Table;
        impl<'de> Visitor<'de> for Table {
            type Value = Partition;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table with `name` and keys of a PartitionName line")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Partition, A::Error> {
                let mut name = None;
                let mut settings = SlurmSettings::default();
                while let Some(key) = map.next_key::<SlurmKey>()? {
                    if key.is("name") || key.is("PartitionName") {
                        if name.replace(map.next_value()?).is_some() {
                            return Err(de::Error::custom("a partition has one name"));
                        }
                    } else {
                        settings.insert(key, map.next_value()?).map_err(de::Error::custom)?;
                    }
                }
                let name = name.ok_or_else(|| de::Error::missing_field("name"))?;
                Ok(Partition { name, settings })
            }
        }
        deserializer.deserialize_map(Table)
    }
}

/// Two lines with the same PartitionName are fatal to slurmctld.
pub(super) fn check_partitions(partitions: &[Partition]) -> Result<(), Fault> {
    let mut seen = BTreeSet::new();
    for (index, partition) in partitions.iter().enumerate() {
        if !seen.insert(partition.name.as_str()) {
            let what = format!("there are two partitions called `{}`", partition.name);
            return Err(Fault::new(vec!["partition".into(), index.into(), "name".into()], what));
        }
    }
    Ok(())
}
