//! The script that Slurm runs before a job's first process on a node.

use crate::plan::HEADER;

/// Slurm drains a node whose prolog fails, so the script always succeeds. A job on one node needs nothing.
pub(super) fn text() -> String {
    format!(
        "#!/bin/sh\n{HEADER}\n# Slurm gives no PATH, and drains the node if this fails, also where slurmd ends it with TERM as it stops.\ntrap 'exit 0' TERM\ncase \"$SLURM_JOB_NODELIST\" in\n    *[,[]*) PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin slurminit prolog ;;\nesac\nexit 0\n"
    )
}
