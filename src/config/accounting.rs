//! Slurm's accounting database.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{Config, DaemonName, Fault};
use model::value::NodeName;

/// `[accounting]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Accounting {
    /// Where the database is, if there is one; `None` means what the image was built for.
    pub mode: Option<AccountingMode>,
    /// slurmdbd's TCP port.
    pub port: u16,
    /// An external database's host.
    pub database_host: Option<NodeName>,
    /// Its TCP port.
    pub database_port: u16,
    /// The database's name there.
    pub database_name: NodeName,
    /// The user there.
    pub database_user: NodeName,
    /// The file with that user's password.
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
    /// Where the database is.
    pub fn mode(&self) -> AccountingMode {
        self.mode.unwrap_or_default()
    }

    /// Whether there is a database.
    pub fn is_on(&self) -> bool {
        self.mode() != AccountingMode::None
    }
}

/// An external database needs a host, and slurmdbd takes nothing from a slurmctld of another user.
pub(super) fn check(config: &Config) -> Result<(), Fault> {
    let user = config.daemons.get(&DaemonName::Slurmctld).and_then(|daemon| daemon.user.as_deref());
    match config.accounting.mode() {
        AccountingMode::None => Ok(()),
        AccountingMode::External if config.accounting.database_host.is_none() => {
            let path = vec!["accounting".into(), "mode".into()];
            Err(Fault::new(
                path,
                "an external database needs its host's name or address: write `database_host`".to_owned(),
            ))
        }
        _ if user.is_some_and(|user| user != "slurm") => {
            let path = vec!["daemon".into(), "slurmctld".into(), "user".into()];
            Err(Fault::new(
                path,
                "with [accounting] slurmctld and slurmdbd run as `slurm`: remove this line".to_owned(),
            ))
        }
        _ => Ok(()),
    }
}

/// Where the accounting database is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AccountingMode {
    /// There is none: `sacct -c` knows what ended, and nothing is counted for users.
    #[default]
    None,
    /// In this container: mariadbd, which slurminit keeps alive.
    Embedded,
    /// A MariaDB or MySQL server elsewhere.
    External,
}

model::shown_as_serialized!(AccountingMode);
