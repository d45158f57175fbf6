//! What a scrape gets.

use super::{cluster, exposition, gpus, own};
use crate::overview::seen::{Files, Slurm};

/// The text of `/metrics`. `slurm` is slurmctld's answer, or why there is none.
pub fn text(files: &Files, slurm: Result<&Slurm, &str>) -> String {
    let gpus = files.report.as_ref().map_or(&[][..], |report| &report.gpus);
    let mut families = own::families(files, slurm);
    families.extend(gpus::families(gpus, !files.is_stale()));
    families.extend(slurm.into_iter().flat_map(cluster::families));
    exposition::text(&families)
}
