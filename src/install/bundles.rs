//! A directory for each user, in which slurmstepd puts the environment of a step in a container image.
//!
//! slurmstepd creates directories there as the job's user, by predictable names. In a directory that all users can write to, one of them
//! could create another user's directory first.

use std::path::Path;

use nix::unistd::geteuid;
use sys::trusted_path::{self, Dir};

use super::InstallError;
use config::Paths;

/// Creates the directory of each account in `passwd`. Accounts of a directory service are missing there: with
/// `has_nss_users`, users may create directories themselves.
///
/// # Errors
/// A directory cannot be created.
pub fn make_bundle_directories(run: &Path, root: &Path, passwd: &str, has_nss_users: bool) -> Result<(), InstallError> {
    let (mut bundles, _) = trusted_path::make(root, &run.join(Paths::BUNDLES), &mut Vec::new())?;
    let is_root = geteuid().is_root();
    settle(&mut bundles, is_root.then_some((0, 0)), if has_nss_users { 0o1733 } else { 0o711 })?;
    for (uid, gid) in passwd.lines().filter_map(ids) {
        if is_root && uid != 0 {
            settle(&mut bundles.child(&uid.to_string())?.0, Some((uid, gid)), 0o700)?;
        }
    }
    Ok(())
}

fn settle(directory: &mut Dir, owner: Option<(u32, u32)>, mode: u32) -> Result<(), InstallError> {
    let settled = directory.set_owner_and_mode(owner, mode, &mut Vec::new());
    settled.map(drop).map_err(|error| InstallError::directory(directory.path(), error))
}

/// `name:password:uid:gid:...` (passwd(5)).
fn ids(line: &str) -> Option<(u32, u32)> {
    let mut fields = line.split(':').skip(2);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn creates_bundle_directory_for_each_account() {
        let directory = tempfile::tempdir().unwrap();
        let make = |has_nss_users| {
            let passwd = "root:x:0:0::/root:/bin/sh\nalice:x:1000:100::/:/bin/sh\nbroken\n+::::::\n";
            make_bundle_directories(Path::new("/run/slurminit"), directory.path(), passwd, has_nss_users).unwrap();
            directory.path().join("run/slurminit").join(Paths::BUNDLES)
        };
        let bundles = make(false);
        assert_eq!(bundles.metadata().unwrap().mode() & 0o7777, 0o711);
        if geteuid().is_root() {
            let own = bundles.join("1000").metadata().unwrap();
            assert_eq!((own.uid(), own.gid(), own.mode() & 0o7777), (1000, 100, 0o700));
        }
        assert_eq!(make(true).metadata().unwrap().mode() & 0o7777, 0o1733);
    }
}
