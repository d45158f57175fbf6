//! The scripts with which slurmctld starts and stops nodes: `ResumeProgram NODES`.

use crate::{HEADER, PowerScript};

use super::quoted;

/// The text of the script. slurmctld runs it as its own user, without a PATH.
pub(super) fn text(script: &PowerScript) -> String {
    let command: Vec<String> = script.command.iter().map(|word| quoted(word)).collect();
    format!(
        "#!/bin/sh\n{HEADER}\n# To change it: [autoscale] in /config/slurminit.toml.\n\
         PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin exec slurminit power {} --limit {} \"$1\" -- {}\n",
        script.name,
        script.limit,
        command.join(" ")
    )
}
