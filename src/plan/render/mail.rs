//! The program that slurmctld gives mail to: `MailProg -s SUBJECT ADDRESS`.

use crate::{HEADER, MailProg};

use super::quoted;

/// slurmctld runs the script without a PATH.
pub(super) fn text(mail: &MailProg) -> String {
    let mut options = format!("--state {}", quoted(&mail.state.to_string_lossy()));
    if let Some(relay) = &mail.relay {
        options += &format!(" --relay {relay} --from {}", mail.from);
    }
    format!(
        "#!/bin/sh\n{HEADER}\n# To change it: [mail] in /config/slurminit.toml.\n\
         PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin exec slurminit mail {options} \"$@\"\n"
    )
}
