//! The script that hands mail about jobs to a relay: `MailProg -s SUBJECT ADDRESS`.

use crate::{HEADER, MailScript};

/// The text of the script. slurmctld runs it as its own user, without a PATH. Relay and sender contain no special characters.
pub(super) fn text(script: &MailScript) -> String {
    let from = script.from.as_ref().map(|from| format!(" --from={from}")).unwrap_or_default();
    format!(
        "#!/bin/sh\n{HEADER}\n# To change it: mail_relay in [slurm] in /config/slurminit.toml.\n\
         PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin exec slurminit mail --relay={}{from} \"$@\"\n",
        script.relay
    )
}
