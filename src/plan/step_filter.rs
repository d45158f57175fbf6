//! The script with which srun starts a step of one task without PMIx.
//!
//! slurmstepd needs about 20 ms for PMIx. MPI libraries start a single task without it, and MPICH 5 of PyPI only without it.

use config::Config;
use model::inventory::Inventory;

/// The key in slurm.conf that has srun run the script.
pub(super) const KEY: &str = "CliFilterPlugins";
/// The reason for the script.
pub(super) const WHY: &str = "a step of one task starts without PMIx, about 20 ms sooner";

/// Whether PMIx is the default, by slurminit's choice, and Slurm can run the script.
pub(super) fn is_planned(config: &Config, inventory: &Inventory) -> bool {
    let can = ["mpi_pmix", "cli_filter_lua"].iter().all(|plugin| inventory.slurm.has_plugin(plugin));
    can && !["MpiDefault", KEY].iter().any(|key| config.slurm.conf.get(key).is_some())
}
