//! The accounting database: checks, and its keys in slurm.conf.

use config::{AccountingMode, Config};
use model::exit_code;
use model::inventory::{Inventory, Kind};

use super::names::HostName;
use super::settings::Settings;
use super::{Reasons, Refusal, cluster};

/// Slurm's plugin between slurmdbd and the database.
const PLUGIN: &str = "accounting_storage_mysql";

/// Checks that slurmdbd's plugin is installed, if slurmdbd runs here.
///
/// # Errors
/// The plugin is not installed.
pub fn can_account(config: &Config, inventory: &Inventory) -> Result<(), Refusal> {
    if !config.runs_accounting() || inventory.slurm.has_plugin(PLUGIN) {
        return Ok(());
    }
    let mode = config.accounting.mode();
    Err(Refusal::new(
        exit_code::CONFIG,
        format!("accounting mode is `{mode}`, but slurmdbd cannot run in this image"),
        format!("Slurm's plugin {PLUGIN} is not installed"),
        match mode {
            AccountingMode::External => "build the image with --target full, or install slurmdbd in your own image",
            _ => "build the image with --target full, or set `mode = \"none\"` in [accounting]",
        },
    ))
}

/// Warns of `[[account]]` and `[[qos]]` tables that have no effect. This is not an error, so that an operator can switch a broken
/// database off and still start the cluster.
pub(super) fn check(config: &Config, reasons: &mut Reasons) {
    if config.accounts.is_empty() && config.qos.is_empty() {
        return;
    }
    if !config.accounting.is_on() {
        let cause = "Slurm stores accounts and QOS in its database, and this cluster has no database";
        let fix = "use an image built with --target full, and do not set `mode = \"none\"` in [accounting]";
        reasons.warn(Kind::Settings, "[[account]] and [[qos]] have no effect", cause, fix);
    } else if config.accounts.is_empty() {
        let cause = "Slurm enforces them only if every user has an account";
        let fix = "add an [[account]], and `account` to each [[user]]";
        reasons.warn(Kind::Settings, "limits of [[qos]] have no effect", cause, fix);
    }
}

/// The weights of a job's priority: first its QOS, then the usage of its user and account, then its age. Each factor is between 0 and 1.
/// Slurm's default is 0 for all: jobs start in the order of their submission, and Fairshare and Priority have no effect.
const WEIGHTS: [(&str, u32, &str); 3] = [
    (
        "PriorityWeightQOS",
        1_000_000,
        "a job of a QOS with a higher Priority starts before others; Slurm's default is 0",
    ),
    (
        "PriorityWeightFairshare",
        100_000,
        "then jobs of users and accounts that used less of their Fairshare start first",
    ),
    ("PriorityWeightAge", 10_000, "then jobs that have waited longer, counted up to a week (PriorityMaxAge)"),
];

/// Adds the keys for accounting. slurmdbd runs in the same container as slurmctld.
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
        let why = "jobs need an account, and cannot exceed its limits or those of their QOS";
        settings.add_because("AccountingStorageEnforce", "associations,limits,qos", why);
    }
    for (key, weight, why) in WEIGHTS {
        settings.add_because(key, weight, why);
    }
    settings.add_because("JobAcctGatherType", "jobacct_gather/linux", "records how much memory jobs use, for `sacct`");
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn warns_of_limits_without_effect() {
        let warnings = |toml: &str| {
            let config = Config::parse(toml, Path::new("slurminit.toml")).unwrap();
            let inventory = Inventory { hostname: "box".to_owned(), ..Inventory::default() };
            let findings = crate::plan(&config, &inventory).unwrap().findings;
            findings.into_iter().map(|finding| finding.what).filter(|what| what.contains("[[qos]]")).collect::<Vec<_>>()
        };
        let (on, account, qos) = (
            "[accounting]\nmode = 'embedded'\n",
            "[[account]]\nname = 'lab'\n",
            "[[qos]]\nname = 'short'\nMaxTRESPU = 'gres/gpu=2'\n",
        );
        for effective in [String::new(), on.to_owned(), format!("{on}{account}"), format!("{on}{account}{qos}")] {
            assert_eq!(warnings(&effective), [""; 0], "{effective}");
        }
        assert_eq!(warnings(account), ["[[account]] and [[qos]] have no effect"]);
        assert_eq!(warnings(qos), ["[[account]] and [[qos]] have no effect"]);
        assert_eq!(warnings(&format!("{on}{qos}")), ["limits of [[qos]] have no effect"]);
    }

    #[test]
    fn accounting_requires_plugin_only_where_slurmdbd_runs() {
        let fix = |toml: &str, plugins: &[&str]| {
            let config = Config::parse(toml, std::path::Path::new("x")).unwrap();
            let mut inventory = Inventory::default();
            inventory.slurm.plugins = plugins.iter().map(ToString::to_string).collect();
            can_account(&config, &inventory).err().map(|refusal| refusal.finding.fix)
        };
        assert_eq!(fix("", &[]), None);
        assert_eq!(fix("[accounting]\nmode = 'embedded'", &[PLUGIN]), None);
        assert!(fix("[accounting]\nmode = 'embedded'", &["auth_jwt"]).unwrap().contains("mode = \"none\""));
        assert!(fix("[accounting]\nmode = 'external'\ndatabase_host = 'db'", &[]).unwrap().contains("your own image"));
    }
}
