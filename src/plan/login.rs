//! How slurmd learns what a user's login sets.
//!
//! `sbatch --export=NONE`, `--export=NAME=VALUE`, `--get-user-env` and scrontab want it. From 23.11 on slurmd runs `su - USER` for it in a
//! PID and a mount namespace of its own, and a kernel that refuses those ends slurmd (`env.c`: `fatal("clone")`). With
//! `GetEnvTimeout=0` it reads a file that `install` has written.

use crate::inventory::{Finding, Inventory, Severity, SlurmVersion};

use super::Setting;

/// The key of slurm.conf. Its default is 2 seconds.
pub(super) const KEY: &str = "GetEnvTimeout";
/// Why it is 0.
pub(super) const WHY: &str =
    "sbatch --export=NONE would end slurmd, which may not make namespaces here; it reads env_cache/USER instead";
/// The first release that makes namespaces for it (23.11, `env.c`; 23.02 forks).
const MAKES_NAMESPACES: SlurmVersion = SlurmVersion { year: 23, month: 11 };

/// Whether a user's request would end slurmd. An unknown release is taken for new.
pub(super) fn is_fatal(inventory: &Inventory) -> bool {
    !inventory.makes_namespaces && inventory.slurm.version.is_none_or(|version| version >= MAKES_NAMESPACES)
}

/// What goes wrong with what the operator has set.
pub(super) fn check(settings: &[Setting], inventory: &Inventory) -> Option<Finding> {
    let own = settings.iter().find(|setting| setting.key.eq_ignore_ascii_case(KEY));
    let value = own.map(|setting| setting.value.as_str());
    is_fatal_with(value, inventory).then(|| Finding {
        severity: Severity::Warning,
        what: format!("[slurm.conf] of slurminit.toml sets {KEY}, and {WHAT}"),
        cause: CAUSE.to_owned(),
        repair: format!("remove {KEY} from [slurm.conf], or start the container with {PRIVILEGE}"),
    })
}

/// Whether it is so with this value of the key.
pub(super) fn is_fatal_with(value: Option<&str>, inventory: &Inventory) -> bool {
    is_fatal(inventory) && value.map(str::trim) != Some("0")
}

/// What the operator sees.
pub(super) const WHAT: &str = "`sbatch --export=NONE` ends slurmd";
pub(super) const CAUSE: &str =
    "without CAP_SYS_ADMIN the kernel refuses the namespaces in which slurmd runs `su - USER`";
/// With it slurmd can do so.
const PRIVILEGE: &str = "--cap-add SYS_ADMIN (which is next to root on the host)";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::SlurmInstall;

    fn inventory(version: Option<(u16, u16)>, makes_namespaces: bool) -> Inventory {
        let version = version.map(|(year, month)| SlurmVersion { year, month });
        let slurm = SlurmInstall { version, ..SlurmInstall::default() };
        Inventory { slurm, makes_namespaces, ..Inventory::default() }
    }

    #[test]
    fn only_a_new_slurm_without_the_right_to_namespaces_dies_of_it() {
        for (version, makes_namespaces, fatal) in [
            (Some((24, 11)), false, true),
            (Some((23, 11)), false, true),
            (None, false, true),
            (Some((23, 2)), false, false),
            (Some((22, 5)), false, false),
            (Some((24, 11)), true, false),
        ] {
            assert_eq!(is_fatal(&inventory(version, makes_namespaces)), fatal, "{version:?} {makes_namespaces}");
        }
    }

    #[test]
    fn an_operator_who_sets_it_otherwise_is_told() {
        let of = |value: Option<&str>| {
            let setting = |value: &str| Setting { key: KEY.to_lowercase(), value: value.to_owned(), why: None };
            check(&value.map(setting).into_iter().collect::<Vec<_>>(), &inventory(Some((24, 11)), false))
        };
        assert_eq!(of(Some("0")), None);
        assert!(of(Some("10")).is_some());
        assert!(of(None).is_some());
    }
}
