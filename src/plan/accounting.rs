//! The accounting database: what slurm.conf says of it.

use config::{AccountingMode, Config};
use model::exit_code;
use model::inventory::Inventory;

use super::names::HostName;
use super::settings::Settings;
use super::{Refusal, cluster};

/// Slurm's plugin between slurmdbd and the database.
const PLUGIN: &str = "accounting_storage_mysql";

/// Where slurmdbd runs here, its plugin must be installed.
///
/// # Errors
/// The image has no accounting.
pub fn can_account(config: &Config, inventory: &Inventory) -> Result<(), Refusal> {
    if !config.runs_accounting() || inventory.slurm.has_plugin(PLUGIN) {
        return Ok(());
    }
    let mode = config.accounting.mode();
    Err(Refusal::new(
        exit_code::CONFIG,
        format!("accounting is `{mode}`, and this image has no slurmdbd"),
        format!("Slurm's plugin {PLUGIN} is not installed"),
        match mode {
            AccountingMode::External => "build the image with --target accounting, or install slurmdbd in your own",
            _ => "build the image with --target accounting, or set `mode = \"none\"` in [accounting]",
        },
    ))
}

/// slurmdbd is beside slurmctld.
pub(super) fn settings(settings: &mut Settings, config: &Config, host: &HostName) {
    settings.add("AccountingStorageType", "accounting_storage/slurmdbd");
    let host = match config.shares_a_cluster() {
        true => cluster::controller(config, host.as_str()),
        false => "localhost".to_owned(),
    };
    settings.add("AccountingStorageHost", host);
    settings.add("AccountingStoragePort", config.accounting.port);
    settings.add_because(
        "AccountingStorageTRES",
        "gres/gpu",
        "GPUs are counted, and can be limited, like CPUs and memory",
    );
    if !config.accounts.is_empty() {
        let why = "a job needs an account, and no more than it and its QOS allow";
        settings.add_because("AccountingStorageEnforce", "associations,limits,qos", why);
    }
    settings.add_because("JobAcctGatherType", "jobacct_gather/linux", "the memory that a job really used, in `sacct`");
}
