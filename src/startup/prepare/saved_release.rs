//! Which release of Slurm wrote the state that slurmctld is about to read, and whether the installed release can read it.
//!
//! slurmctld writes the number of its own release into each file. It reads files of the three releases before its own, and converts them a
//! few seconds later. A file of a later or a much older release makes it exit, or is misread, because it compares the number only with a
//! minimum (24.11 to 26.05, `job_mgr.c`, `node_mgr.c`).

use std::path::Path;

use install::planned::state_directory;
use model::inventory::{Inventory, SlurmVersion};
use model::{exit_code, message};
use plan::target::Target;
use plan::{Refusal, Text};
use sys::report;
use sys::trusted_path::Dir;

use config::Config;

/// The length of a string and the string. The release number follows (big-endian, the release in its upper byte).
const MAGIC: &[u8] = b"\x00\x00\x00\x11PROTOCOL_VERSION\0";

/// Announces a conversion of the saved state, and refuses a state that the installed Slurm cannot read.
pub(super) fn check(config: &Config, root: &Path, files: &[Text], inventory: &Inventory) -> Result<(), Refusal> {
    if !Target::of(config).has_state() {
        return Ok(());
    }
    let state = state_directory(config, root, files);
    let (Some(installed), Some((oldest, newest))) = (inventory.slurm.version, releases(&state)) else { return Ok(()) };
    if newest > installed.protocol() {
        return Err(refusal(&state, installed, newest, "that release is newer"));
    }
    if oldest < installed.oldest_protocol() {
        return Err(refusal(&state, installed, oldest, "that release is too old"));
    }
    if newest < installed.protocol() {
        report_upgrade(config, installed, newest);
    }
    Ok(())
}

/// The numbers of the oldest and of the newest release that wrote one of the files. The directory belongs to slurm, so links in it are not
/// followed.
fn releases(state: &Path) -> Option<(u8, u8)> {
    let state = Dir::open_unchecked(state).ok()?;
    // slurmctld reads the older file if the newer one is missing.
    let jobs = state.read("job_state").or_else(|_| state.read("job_state.old"));
    let others = ["node_state", "resv_state"].map(|name| state.read(name));
    let all = others.into_iter().chain([jobs]);
    let numbers: Vec<u8> = all.filter_map(|file| release(&file.ok()?)).collect();
    Some((*numbers.iter().min()?, *numbers.iter().max()?))
}

fn release(file: &[u8]) -> Option<u8> {
    match file.strip_prefix(MAGIC)? {
        [release, 0, ..] => Some(*release),
        _ => None,
    }
}

fn release_name(release: u8) -> String {
    let known = SlurmVersion::of_protocol(release);
    known.map_or_else(|| format!("(protocol {release})"), |version| version.to_string())
}

fn refusal(state: &Path, installed: SlurmVersion, saved: u8, why: &str) -> Refusal {
    let state = state.display();
    let writer = release_name(saved);
    let what = format!("Slurm {installed} cannot read the saved state in {state}, which Slurm {writer} wrote: {why}");
    let cause = "slurmctld would exit, or lose the jobs";
    let discard = "to discard the jobs, remove the state volume";
    let fix = match (saved > installed.protocol(), SlurmVersion::latest_that_reads(saved)) {
        (true, _) => format!(
            "use an image with Slurm {} or newer, or restore the backup from before the upgrade; {discard}",
            release_name(saved)
        ),
        (false, Some(between)) => {
            format!("start an image with Slurm {between} once to convert the saved state; {discard}")
        }
        (false, None) => {
            format!(
                "no supported release can convert it: let the jobs end in the image that wrote the saved state, then remove the state volume; \
                 {discard} now"
            )
        }
    };
    Refusal::new(exit_code::CONFIG, what, cause, fix)
}

fn report_upgrade(config: &Config, installed: SlurmVersion, saved: u8) {
    let what = if config.runs_accounting() { " and the accounting database" } else { "" };
    report::warn(message!(
        "state-upgrade",
        "Slurm {own} converts the state{what} of Slurm {saved}; the only way back is a backup from before this start",
        own = installed,
        what,
        saved = release_name(saved)
    ));
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use model::inventory::{Severity, SlurmInstall};

    /// Start of job_state written by Slurm 24.11.5; 25.11.7 and 26.05.3 differ only in the version number.
    const HEAD: &[u8] = b"\0\0\0\x11PROTOCOL_VERSION\0\x2a\x00\0\0\0\0\x6b\x02\x0a\x11\0\0\0\x05\0\0\0\0\0\0\0\0";

    fn head(release: u8) -> Vec<u8> {
        let mut head = HEAD.to_vec();
        head[MAGIC.len()] = release;
        head
    }

    fn checked(installed: (u16, u16), files: &[(&str, &[u8])]) -> Result<(), Refusal> {
        let root = tempfile::tempdir().unwrap();
        let state = root.path().join("var/lib/slurm/slurmctld");
        fs::create_dir_all(&state).unwrap();
        files.iter().for_each(|(name, bytes)| fs::write(state.join(name), bytes).unwrap());
        let version = Some(SlurmVersion { year: installed.0, month: installed.1 });
        let slurm = SlurmInstall { version, ..SlurmInstall::default() };
        check(&Config::default(), root.path(), &[], &Inventory { slurm, ..Inventory::default() })
    }

    #[test]
    fn accepts_state_of_own_and_three_previous_releases() {
        checked((24, 11), &[]).unwrap();
        checked((24, 11), &[("job_state", HEAD)]).unwrap();
        checked((26, 5), &[("job_state", HEAD)]).unwrap();
        checked((24, 11), &[("job_state", &head(39))]).unwrap();
        checked((24, 11), &[("job_state", b"no state file")]).unwrap();
        checked((24, 11), &[("job_state", &HEAD[..MAGIC.len()])]).unwrap();
    }

    #[test]
    fn refuses_state_of_newer_release_and_names_release() {
        let refusal = checked((24, 11), &[("job_state", &head(44))]).unwrap_err();
        assert_eq!((refusal.exit_code, refusal.finding.severity), (exit_code::CONFIG, Severity::Error));
        assert!(refusal.finding.what.contains("25.11") && refusal.finding.fix.contains("25.11 or newer"));
        // slurmctld died during its first save.
        checked((24, 11), &[("job_state", HEAD), ("node_state", &head(44))]).unwrap_err();
        checked((25, 11), &[("job_state", HEAD), ("node_state", &head(44))]).unwrap();
    }

    #[test]
    fn refuses_too_old_state_and_names_intermediate_release() {
        let refusal = checked((24, 11), &[("job_state", &head(38))]).unwrap_err();
        assert_eq!(refusal.exit_code, exit_code::CONFIG);
        assert!(
            refusal.finding.what.contains("22.05") && refusal.finding.fix.contains("that wrote the saved state"),
            "{refusal:?}"
        );
        let refusal = checked((25, 11), &[("job_state", &head(40))]).unwrap_err();
        assert!(refusal.finding.what.contains("23.11") && refusal.finding.fix.contains("24.11"), "{refusal:?}");
        assert!(checked((26, 5), &[("job_state", &head(41))]).unwrap_err().finding.fix.contains("25.11"));
    }
}
