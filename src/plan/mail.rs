//! Mail about jobs.

use std::path::PathBuf;

use config::Config;

use super::FileName;

/// The value of MailProg if slurmctld must not send mail.
const NO_MAIL: &str = "/bin/true";

/// The script that hands mail to a relay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MailScript {
    /// The path of the installed script.
    pub path: PathBuf,
    /// Host and port of the relay.
    pub relay: String,
    /// The sender's address.
    pub from: Option<String>,
}

impl MailScript {
    /// Plans the script; `None` without a relay.
    pub(super) fn plan(config: &Config) -> Option<Self> {
        let relay = config.slurm.mail_relay.as_ref()?;
        let path = config.paths.slurm.join(FileName::Mail.as_str());
        Some(Self { path, relay: relay.0.clone(), from: config.slurm.mail_from.as_ref().map(|from| from.0.clone()) })
    }
}

/// The value of MailProg, and its reason.
pub(super) fn program(config: &Config) -> (String, &'static str) {
    match MailScript::plan(config) {
        Some(script) => (script.path.display().to_string(), "sends mail about jobs through `mail_relay`"),
        None => (
            NO_MAIL.to_owned(),
            "slurmctld sends no mail; to change it, set `mail_relay` in [slurm], or MailProg in [slurm.conf]",
        ),
    }
}

/// Whether `--mail-type` has no effect.
pub(super) fn is_off(config: &Config) -> bool {
    let own = config.slurm.conf.get("MailProg").map(|program| program.as_str() == NO_MAIL);
    own.unwrap_or(config.slurm.mail_relay.is_none()) && !config.notifies_job_ends()
}
