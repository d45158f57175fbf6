//! `[users]`: adds the host's users to the container.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use serde::Deserialize;

use super::{AccountName, Config, Fault, association};
use model::value;

/// The first ID of an ordinary user (login.defs(5)). Lower IDs are reserved for system users, on the host and in the image.
const FIRST_ORDINARY_ID: u32 = 1000;

/// The settings of the table `[users]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HostUsers {
    /// The directory with passwd and group of the host; `None` adds no users.
    #[serde(deserialize_with = "value::optional_path")]
    pub from: Option<PathBuf>,
    /// The lowest ID of an ordinary user or group.
    pub min_id: u32,
    /// The highest ID of an ordinary user or group.
    pub max_id: u32,
    /// The users' default account in the accounting database; `None` if they have none.
    pub account: Option<AccountName>,
}

impl Default for HostUsers {
    /// The range of IDs in login.defs(5).
    fn default() -> Self {
        Self { from: None, min_id: FIRST_ORDINARY_ID, max_id: 60_000, account: None }
    }
}

impl HostUsers {
    /// The IDs of ordinary users and groups.
    pub fn ids(&self) -> RangeInclusive<u32> {
        self.min_id..=self.max_id
    }
}

/// Checks the range of IDs, and that `account` is set if host users are added and the configuration has `[[account]]` tables.
pub(super) fn check(config: &Config) -> Result<(), Fault> {
    let users = &config.host_users;
    let fault = |key: &'static str, what: String| Err(Fault::new(vec!["users".into(), key.into()], what));
    if users.min_id < FIRST_ORDINARY_ID {
        return fault("min_id", format!("expected at least {FIRST_ORDINARY_ID}: lower IDs belong to the system"));
    }
    if users.max_id < users.min_id || users.max_id == u32::MAX {
        return fault("max_id", format!("expected min_id ({}) to {}", users.min_id, u32::MAX - 1));
    }
    if users.from.is_some() && users.account.is_none() && association::requires_account(config) {
        let what = "users without an account: set `account` (Slurm requires it if there are [[account]] tables)";
        return fault("from", what.to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::Config;

    #[test]
    fn refuses_system_ids_and_users_without_required_account() {
        let refused = |text: &str| Config::parse(text, Path::new("slurminit.toml")).is_err();
        for text in [
            "[users]\nfrom = 'host'",
            "[users]\nfrom = '/host/../etc'",
            "[users]\nmin_id = 999",
            "[users]\nmax_id = 999",
            "[users]\nmax_id = 4294967295",
            "[users]\nfrom = '/host/etc'\n[[account]]\nname = 'lab'",
        ] {
            assert!(refused(text), "{text}");
        }
        assert!(!refused("[users]\nfrom = '/host/etc'\nmax_id = 200000\naccount = 'lab'\n[[account]]\nname = 'lab'"));
        assert!(!refused("[users]\nmin_id = 1500\nmax_id = 1500"));
        let joined =
            "role = 'compute'\nslurm.controller = 'head'\n[users]\nfrom = '/host/etc'\n[[account]]\nname = 'lab'";
        assert!(!refused(joined), "the accounts of a token");
    }

    #[test]
    fn ordinary_ids_include_both_limits() {
        let config = Config::parse("[users]\nmin_id = 1500\nmax_id = 1600", Path::new("slurminit.toml")).unwrap();
        let is_ordinary = [1499, 1500, 1600, 1601].map(|id| config.host_users.ids().contains(&id));
        assert_eq!(is_ordinary, [false, true, true, false]);
    }

    #[test]
    fn host_users_enable_gpu_isolation() {
        let config = |text: &str| Config::parse(text, Path::new("slurminit.toml")).unwrap();
        assert!(config("[users]\nfrom = '/host/etc'").isolates_gpus());
        assert!(!config("").isolates_gpus());
    }
}
