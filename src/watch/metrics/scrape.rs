//! The text of a scrape.

use super::{cluster, dcgm, exposition, gpus, own};
use crate::overview::seen::{Files, Slurm};

/// The text of `/metrics`. `slurm` is slurmctld's answer, or why there is none; `dcgm` is the machine's name, if DCGM's names are enabled.
pub fn text(files: &Files, slurm: Result<&Slurm, &str>, dcgm: Option<&str>) -> String {
    let gpus = files.report.as_ref().map_or(&[][..], |report| &report.gpus);
    let mut families = own::families(files, slurm);
    families.extend(gpus::families(gpus, !files.is_stale()));
    families.extend(dcgm.into_iter().flat_map(|host| dcgm::families(gpus, !files.is_stale(), host)));
    families.extend(slurm.into_iter().flat_map(cluster::families));
    exposition::text(&families)
}
