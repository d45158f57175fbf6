//! Checks that the release of Slurm is supported.

use model::exit_code;
use model::inventory::Inventory;
use model::inventory::slurm::RELEASES;

use super::Refusal;

/// Refuses a release older than the oldest supported one. An unknown release is accepted.
pub(super) fn check(inventory: &Inventory) -> Result<(), Refusal> {
    let [oldest, .., newest] = RELEASES;
    match inventory.slurm.version {
        Some(version) if version < oldest.version => Err(Refusal::new(
            exit_code::CONFIG,
            format!("Slurm {version} is not supported"),
            format!("the oldest supported release is {}; older ones get no security fixes", oldest.version),
            format!("build the image on Debian 13 (the default), or with {} on this base", newest.argument()),
        )),
        _ => Ok(()),
    }
}
