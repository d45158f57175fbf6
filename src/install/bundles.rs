//! A directory for each user, in which slurmstepd puts the environment of a step in a container image.
//!
//! slurmstepd creates directories there as the job's user, with predictable names. So only root creates the users' directories: this module
//! creates those of the local accounts, and slurmstepd creates those of a directory service's accounts before the step switches to its
//! user. slurmstepd makes a directory accessible to the user's primary group; an access control list prevents that.

use std::path::Path;

use nix::unistd::geteuid;
use sys::trusted_path;

use super::InstallError;
use super::directories::{ROOT, settle};
use config::Paths;

/// Creates the directory of each account in `passwd` if this process is root. Returns whether the directories of other accounts,
/// which slurmstepd creates, are inaccessible to the other members of their primary groups.
///
/// # Errors
/// A directory cannot be created, emptied or changed.
pub fn make_bundle_directories(run: &Path, root: &Path, passwd: &str) -> Result<bool, InstallError> {
    let (mut bundles, _) = trusted_path::make(root, &run.join(Paths::BUNDLES), &mut Vec::new())?;
    let is_root = geteuid().is_root();
    let was_open = settle(&mut bundles, ROOT, 0o711)?;
    let failure = |error| InstallError::directory(bundles.path(), error);
    if was_open {
        // In an earlier version users could create these directories, even those of other users.
        bundles.clear().map_err(failure)?;
    }
    let is_closed = bundles.close_new_entries().map_err(failure)?;
    for (uid, gid) in passwd.lines().filter_map(ids).filter(|_| is_root) {
        let name = uid.to_string();
        // slurmstepd may create the directory at the same time, so a second attempt succeeds.
        let (mut directory, _) = bundles.child(&name).or_else(|_| bundles.child(&name))?;
        settle(&mut directory, (uid, gid), 0o700)?;
    }
    Ok(is_closed)
}

/// Parses the user and group ID of a line `name:password:uid:gid:...` (passwd(5)).
fn ids(line: &str) -> Option<(u32, u32)> {
    let mut fields = line.split(':').skip(2);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    use std::path::PathBuf;

    use tempfile::TempDir;

    use super::*;

    const PASSWD: &str = "root:x:0:0::/root:/bin/sh\nalice:x:1000:100::/:/bin/sh\nbroken\n+::::::\n";

    fn make(root: &TempDir) -> PathBuf {
        assert!(make_bundle_directories(Path::new("/run/slurminit"), root.path(), PASSWD).unwrap(), "no lists");
        root.path().join("run/slurminit").join(Paths::BUNDLES)
    }

    #[test]
    fn creates_closed_bundle_directory_for_each_account() {
        let root = tempfile::tempdir().unwrap();
        let bundles = make(&root);
        assert_eq!(bundles.metadata().unwrap().mode() & 0o7777, 0o711);
        assert!(geteuid().is_root(), "requires root to create directories of other users");
        for (uid, gid) in [(0, 0), (1000, 100)] {
            let own = bundles.join(uid.to_string()).metadata().unwrap();
            assert_eq!((own.uid(), own.gid(), own.mode() & 0o7777), (uid, gid, 0o700));
        }
    }

    #[test]
    fn removes_directories_that_users_made_in_earlier_version() {
        let root = tempfile::tempdir().unwrap();
        let bundles = make(&root);
        let planted = bundles.join("2000");
        fs::create_dir(&planted).unwrap();
        fs::write(planted.join("environment"), "LD_PRELOAD=/tmp/x").unwrap();
        make(&root);
        assert!(planted.exists(), "a directory that slurmstepd made");
        fs::set_permissions(&bundles, Permissions::from_mode(0o1733)).unwrap();
        make(&root);
        assert!(!planted.exists());
        assert_eq!(bundles.metadata().unwrap().mode() & 0o7777, 0o711);
    }
}
