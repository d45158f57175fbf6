//! Slurm's accounts and QOS, which are stored in the accounting database.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor};

use super::account::check_unique;
use super::error::Fault;
use super::{AccountName, Config, Role, SlurmKey, SlurmSettings};

/// `[[account]]` or `[[qos]]`: a name and its `sacctmgr` settings, in Slurm's spelling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The account's or QOS's name.
    pub name: AccountName,
    /// Settings such as `Fairshare`, `GrpTRES` and `MaxTRESPU`.
    pub settings: SlurmSettings,
}

impl<'de> Deserialize<'de> for Limits {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Table;
        impl<'de> Visitor<'de> for Table {
            type Value = Limits;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table with `name` and, optionally, sacctmgr settings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Limits, A::Error> {
                let (mut name, mut settings) = (None, SlurmSettings::default());
                while let Some(key) = map.next_key::<SlurmKey>()? {
                    if key.is("name") {
                        name = Some(map.next_value()?);
                    } else {
                        settings.insert(key, map.next_value()?).map_err(de::Error::custom)?;
                    }
                }
                Ok(Limits { name: name.ok_or_else(|| de::Error::missing_field("name"))?, settings })
            }
        }
        deserializer.deserialize_map(Table)
    }
}

/// Whether Slurm's users need an account. Only the controller's container adds them to the accounting database.
pub(super) fn requires_account(config: &Config) -> bool {
    !config.accounts.is_empty() && !matches!(config.role, Role::Compute | Role::Login)
}

/// Checks that names are unique, and that every `[[user]]` has an account if this container defines accounts.
pub(super) fn check(config: &Config) -> Result<(), Fault> {
    for (table, all) in [("account", &config.accounts), ("qos", &config.qos)] {
        // slurmdbd converts names to lower case.
        check_unique(table, "name", all.iter().map(|entry| entry.name.as_str().to_ascii_lowercase()))?;
    }
    let user_without_account = config.users.iter().position(|user| user.account.is_none());
    match user_without_account.filter(|_| requires_account(config)) {
        Some(index) => {
            let what =
                "user without an account: set `account` (Slurm requires it if there are [[account]] tables)".to_owned();
            Err(Fault::new(vec!["user".into(), index.into(), "name".into()], what))
        }
        None => Ok(()),
    }
}
