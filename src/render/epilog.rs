//! The script that Slurm runs when a job ends.

use crate::plan::HEADER;

/// Slurm drains a node whose epilog fails, even if the program was killed or is missing. So the script always succeeds.
pub(super) fn text() -> String {
    format!(
        "#!/bin/sh\n{HEADER}\n# Slurm gives no PATH, and drains the node if this fails, also where slurmd ends it with TERM as it stops.\ntrap 'exit 0' TERM\nPATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin slurminit epilog\nexit 0\n"
    )
}
