//! The script that srun, sbatch and salloc run before they submit.
//!
//! It chooses the MPI plugin of a step. slurmstepd needs about 20 ms for PMIx, and MPI libraries start a single task without it. MPICH
//! from PyPI and Debian is built without PMIx support: with Slurm's PMIx plugin, each of its tasks would run as a separate MPI
//! program of one rank.
//!
//! It also warns of requests that Slurm accepts without a message but does not fulfill.

use config::Config;
use model::inventory::Inventory;

use super::mail;

/// The key in slurm.conf that makes the commands run the script.
pub(super) const KEY: &str = "CliFilterPlugins";

/// The parts of the script that depend on other settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CliFilter {
    /// Whether the script chooses the MPI plugin of a step, because slurminit made PMIx the default.
    pub chooses_mpi: bool,
    /// Whether `--mail-type` has no effect.
    pub without_mail: bool,
    /// Whether the jobs of a node share /tmp.
    pub shares_tmp: bool,
}

impl CliFilter {
    /// Plans the script; `None` if Slurm cannot run it, or if the operator sets CliFilterPlugins.
    pub(super) fn plan(config: &Config, inventory: &Inventory) -> Option<Self> {
        let own = |key: &str| config.slurm.conf.get(key);
        let is_planned = inventory.slurm.has_plugin("cli_filter_lua") && own(KEY).is_none();
        is_planned.then(|| Self {
            chooses_mpi: inventory.slurm.has_plugin("mpi_pmix") && own("MpiDefault").is_none(),
            without_mail: mail::is_off(config),
            shares_tmp: own("JobContainerType").is_none(),
        })
    }

    /// The reason for the script.
    pub(super) const fn why(self) -> &'static str {
        if self.chooses_mpi {
            "starts a single task without PMIx (about 20 ms sooner) and MPICH with PMI-2; warns about options without effect"
        } else {
            "warns about options without effect"
        }
    }
}
