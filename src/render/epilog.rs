//! The script that Slurm runs at a job's end.

use super::HEADER;

/// Slurm takes a node whose epilog fails out of service, also where the program was killed or is not there.
pub(super) fn text() -> String {
    format!(
        "#!/bin/sh\n{HEADER}\n# Slurm gives no PATH, and drains the node if this fails, also where slurmd ends it with TERM as it stops.\ntrap 'exit 0' TERM\nPATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin slurminit epilog\nexit 0\n"
    )
}
