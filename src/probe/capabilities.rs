//! The capabilities of root in this container.

use std::path::Path;

use super::regular;
use model::inventory::{Finding, Kind};
use sys::proc::parse;

/// `CAP_SYS_ADMIN` of `linux/capability.h`.
pub(super) const SYS_ADMIN: u32 = 21;
/// `CAP_SYS_NICE` of `linux/capability.h`.
pub(super) const SYS_NICE: u32 = 23;

/// The capabilities that Slurm and its supervision need (docs/security.md), with the numbers of `linux/capability.h`.
const NEEDED: [(u32, &str); 5] = [(0, "CHOWN"), (1, "DAC_OVERRIDE"), (5, "KILL"), (6, "SETGID"), (7, "SETUID")];

/// This process's effective capabilities; `None` if the kernel does not report them.
fn effective(root: &Path) -> Option<u64> {
    parse::capabilities(&regular::text(&root.join("proc/self/status")).ok()?)
}

/// Whether this process has the capability; `None` if the kernel does not report it.
pub(super) fn has(root: &Path, capability: u32) -> Option<bool> {
    effective(root).map(|set| set & (1 << capability) != 0)
}

/// Reports missing capabilities of root. Returns `None` for other users, who usually have no capabilities.
pub fn detect(root: &Path) -> Option<Finding> {
    let status = regular::text(&root.join("proc/self/status")).ok()?;
    let [_, 0] = parse::numbers(&status, "Uid")? else { return None };
    let set = parse::capabilities(&status)?;
    let missing: Vec<&str> = NEEDED.iter().filter(|(bit, _)| set & (1 << bit) == 0).map(|(_, name)| *name).collect();
    if missing.is_empty() {
        return None;
    }
    Some(Finding::warning(
        Kind::Container,
        format!("missing capabilities of root in this container: {}", missing.join(", ")),
        "they were dropped when the container was started (--cap-drop, or securityContext of a pod); starting the daemons requires CHOWN, DAC_OVERRIDE, SETGID and SETUID, and stopping them requires KILL",
        format!(
            "start the container with --cap-add {} (in a pod: securityContext.capabilities.add)",
            missing.join(" --cap-add ")
        ),
    ))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn finding(uid: u32, set: u64) -> Option<Finding> {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("proc/self")).unwrap();
        let status = format!("Name:\tslurminit\nUid:\t1000\t{uid}\t1000\t1000\nCapEff:\t{set:016x}\n");
        fs::write(root.path().join("proc/self/status"), status).unwrap();
        detect(root.path())
    }

    #[test]
    fn names_missing_capability_with_fix() {
        assert_eq!(finding(0, 0b1110_0011), None);
        let finding = finding(0, 0b0100_0011).unwrap();
        assert!(finding.what.contains("KILL, SETUID"), "{finding:?}");
        assert_eq!(
            finding.fix,
            "start the container with --cap-add KILL --cap-add SETUID (in a pod: securityContext.capabilities.add)"
        );
    }

    #[test]
    fn reports_nothing_for_non_root_user() {
        assert_eq!(finding(1234, 0), None);
        assert_eq!(detect(tempfile::tempdir().unwrap().path()), None);
    }
}
