//! How slurmd obtains a user's login environment.
//!
//! The environment is needed for `sbatch --export=NONE`, `--export=NAME=VALUE`, `--get-user-env` and scrontab. slurmd runs `su -
//! USER` in a new PID and mount namespace; if the kernel refuses these namespaces, slurmd exits (`env.c`:
//! `fatal("clone")`). With `GetEnvTimeout=0`, which 25.05 removed, it reads a file that `install` has written.

use model::inventory::{Behavior, Finding, Inventory, Kind};

use super::Setting;

/// The key in slurm.conf. Slurm's default is 2 seconds.
pub(super) const KEY: &str = "GetEnvTimeout";
/// The reason for the value 0.
pub(super) const WHY: &str = "slurmd cannot create namespaces for su here and would exit on `sbatch --export=NONE`; with 0 it reads env_cache/USER instead";

/// Whether a user's request would make slurmd exit, unless the key is 0. An unknown release is assumed to have the key.
pub(super) fn is_fatal(inventory: &Inventory) -> bool {
    !inventory.makes_namespaces && !inventory.slurm.does(Behavior::NoGetEnvTimeout)
}

/// Whether a user's request makes slurmd exit, and no key prevents this.
fn is_always_fatal(inventory: &Inventory) -> bool {
    let slurm = &inventory.slurm;
    !inventory.makes_namespaces && slurm.does(Behavior::NoGetEnvTimeout) && !slurm.forks_for_login
}

/// Reports that a user's request makes slurmd exit, because of Slurm's release or because of the operator's value of the key.
pub(super) fn check(settings: &[Setting], inventory: &Inventory) -> Option<Finding> {
    if is_always_fatal(inventory) {
        let fix = format!(
            "build Slurm from source (docker/build-slurm patches slurmd to work without namespaces), or start the container with {PRIVILEGE}"
        );
        return Some(Finding::warning(Kind::Settings, WHAT, CAUSE, fix));
    }
    let own = Setting::find(settings, KEY);
    let value = own.map(|setting| setting.value.as_str());
    let what = format!("[slurm.conf] of slurminit.toml overrides {KEY}=0: {WHAT}");
    let fix = format!("remove {KEY} from [slurm.conf], or start the container with {PRIVILEGE}");
    is_fatal_with(value, inventory).then(|| Finding::warning(Kind::Settings, what, CAUSE, fix))
}

/// Whether a user's request would make slurmd exit if the key has this value.
pub(super) fn is_fatal_with(value: Option<&str>, inventory: &Inventory) -> bool {
    is_fatal(inventory) && value.map(str::trim) != Some("0")
}

/// The symptom.
pub(super) const WHAT: &str = "`sbatch --export=NONE` makes slurmd exit";
pub(super) const CAUSE: &str =
    "without CAP_SYS_ADMIN the kernel refuses the namespaces in which slurmd runs `su - USER`";
/// The option that lets slurmd create namespaces.
const PRIVILEGE: &str = "--cap-add SYS_ADMIN (almost root on the host)";

#[cfg(test)]
mod tests {
    use super::*;
    use model::inventory::{SlurmInstall, SlurmVersion};

    fn inventory(version: Option<(u16, u16)>, makes_namespaces: bool) -> Inventory {
        let version = version.map(|(year, month)| SlurmVersion { year, month });
        let slurm = SlurmInstall { version, ..SlurmInstall::default() };
        Inventory { slurm, makes_namespaces, ..Inventory::default() }
    }

    #[test]
    fn reports_unpatched_slurm_without_get_env_timeout() {
        let mut inventory = inventory(Some((25, 11)), false);
        assert!(check(&[], &inventory).is_some_and(|finding| finding.what == WHAT));
        inventory.slurm.forks_for_login = true;
        assert_eq!(check(&[], &inventory), None);
        inventory.slurm.forks_for_login = false;
        inventory.makes_namespaces = true;
        assert_eq!(check(&[], &inventory), None);
    }

    #[test]
    fn is_fatal_only_without_namespaces() {
        for (version, makes_namespaces, fatal) in
            [(Some((24, 11)), false, true), (None, false, true), (Some((24, 11)), true, false)]
        {
            assert_eq!(is_fatal(&inventory(version, makes_namespaces)), fatal, "{version:?} {makes_namespaces}");
        }
    }

    #[test]
    fn reports_unsafe_get_env_timeout() {
        let finding = |value: Option<&str>| {
            let setting = |value: &str| Setting { key: KEY.to_lowercase(), value: value.to_owned(), why: None };
            check(&value.map(setting).into_iter().collect::<Vec<_>>(), &inventory(Some((24, 11)), false))
        };
        assert_eq!(finding(Some("0")), None);
        assert!(finding(Some("10")).is_some());
        assert!(finding(None).is_some());
    }
}
