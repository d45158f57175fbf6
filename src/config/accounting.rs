//! Slurm's accounting database.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{Config, DaemonName, Fault};
use model::value::NodeName;

/// The settings of the table `[accounting]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Accounting {
    /// The location of the database; `None` means [`AccountingMode::None`].
    pub mode: Option<AccountingMode>,
    /// slurmdbd's TCP port.
    pub port: u16,
    /// The host of an external database; `None` if there is none.
    pub database_host: Option<NodeName>,
    /// The external database's TCP port.
    pub database_port: u16,
    /// The name of the external database.
    pub database_name: NodeName,
    /// The user of the external database.
    pub database_user: NodeName,
    /// The file with the password of that user.
    pub password_secret: PathBuf,
}

impl Default for Accounting {
    fn default() -> Self {
        let name = |text: &str| NodeName::try_from(text.to_owned()).unwrap_or_default();
        Self {
            mode: None,
            port: 6819,
            database_host: None,
            database_port: 3306,
            database_name: name("slurm_acct_db"),
            database_user: name("slurm"),
            password_secret: PathBuf::from("/run/secrets/accounting_password"),
        }
    }
}

impl Accounting {
    /// The location of the database.
    pub fn mode(&self) -> AccountingMode {
        self.mode.unwrap_or_default()
    }

    /// Whether accounting is on.
    pub fn is_on(&self) -> bool {
        self.mode() != AccountingMode::None
    }
}

/// Checks that an external database has a host, and that slurmctld runs as slurmdbd's user.
pub(super) fn check(config: &Config) -> Result<(), Fault> {
    let user = config.daemons.get(&DaemonName::Slurmctld).and_then(|daemon| daemon.user.as_deref());
    match config.accounting.mode() {
        AccountingMode::None => Ok(()),
        AccountingMode::External if config.accounting.database_host.is_none() => {
            let path = vec!["accounting".into(), "mode".into()];
            Err(Fault::new(path, "an external database requires `database_host` (name or address)".to_owned()))
        }
        _ if user.is_some_and(|user| user != "slurm") => {
            let path = vec!["daemon".into(), "slurmctld".into(), "user".into()];
            Err(Fault::new(path, "[accounting] requires that slurmctld runs as `slurm`: remove this line".to_owned()))
        }
        _ => Ok(()),
    }
}

/// The location of the accounting database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AccountingMode {
    /// No database: `sacct` shows finished jobs only with `-c`.
    #[default]
    None,
    /// In the controller's container: mariadbd, supervised by slurminit.
    Embedded,
    /// A MariaDB or MySQL server outside the controller's container.
    External,
}

model::shown_as_serialized!(AccountingMode);
