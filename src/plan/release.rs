//! Which releases of Slurm a cluster can start with.

use model::exit_code;
use model::inventory::Inventory;
use model::inventory::slurm::RELEASES;

use super::Refusal;

/// Refuses a release older than the oldest supported one. An unknown release is assumed to be a new one.
pub(super) fn check(inventory: &Inventory) -> Result<(), Refusal> {
    let [oldest, .., newest] = RELEASES;
    match inventory.slurm.version {
        Some(version) if version < oldest.version => Err(Refusal::new(
            exit_code::CONFIG,
            format!("Slurm {version} is not supported"),
            format!("the oldest supported release is {}; nobody patches older ones", oldest.version),
            format!("build the image on Debian 13 (the default), or with {} on this base", newest.argument()),
        )),
        _ => Ok(()),
    }
}
