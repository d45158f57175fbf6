//! The mail program of slurmctld.

use std::path::PathBuf;

use config::{Address, Config, Relay};

use super::{FileName, HostName};

/// A script that passes mail to a server, or reports that there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MailProg {
    /// Where it is installed.
    pub path: PathBuf,
    /// The mail server; `None` if none is configured.
    pub relay: Option<Relay>,
    /// The sender's address.
    pub from: String,
    /// The directory in which slurmctld's user records that the missing server was reported.
    pub state: PathBuf,
}

impl MailProg {
    /// The reason for the script.
    pub(super) const WHY: &'static str = "the image has no mail program: this hands job mail to the relay of [mail], or says in the log that there is none";

    pub(super) fn plan(config: &Config, host: &HostName) -> Self {
        let from = config.mail.from.as_ref().map_or_else(|| format!("slurm@{host}"), Address::to_string);
        Self {
            path: config.paths.slurm.join(FileName::Mail.as_str()),
            relay: config.mail.relay.clone(),
            from,
            state: config.paths.state.join("slurmctld"),
        }
    }
}
