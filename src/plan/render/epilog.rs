//! The script that Slurm runs when a job ends.

use crate::{Epilog, HEADER};

/// Slurm drains a node whose epilog fails, is killed or is missing. So the script always exits with code 0, unless a hook with
/// `on_failure = "drain"` fails.
pub(super) fn text(epilog: &Epilog) -> String {
    let own = match (epilog.takes_gpus, epilog.ends_leftovers) {
        (true, _) => "slurminit epilog --takes-gpus\n",
        (false, true) => "slurminit epilog\n",
        (false, false) => "",
    };
    let hooks = super::job_hooks::lines("post_job", &epilog.hooks);
    let job_map = super::job_hooks::job_map("end", epilog.job_map.as_deref());
    format!(
        "#!/bin/sh\n{HEADER}\n# Slurm sets no PATH. It drains the node if this script fails, even if the cause is SIGTERM from a stopping slurmd.\ntrap 'exit 0' TERM\nexport PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n{own}{job_map}{hooks}exit 0\n"
    )
}
