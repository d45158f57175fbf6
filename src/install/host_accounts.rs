//! Reads the host's passwd and group (`[users] from`).
//!
//! Anyone who can write these files can create an account with another user's ID, so only root may control where the path leads and own the
//! files. If they cannot be read, the accounts of the last start stay.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::{InstallError, accounts};
use config::Config;
use model::inventory::{Finding, Kind};
use plan::accounts::{HostAccounts, HostFiles, list_rejected};
use sys::trusted_path::{self, UntrustedPath};
use sys::under;

/// Adds the users and groups of the host to `[[user]]` and `[[group]]`, and returns messages for the operator.
///
/// # Errors
/// The container's own files cannot be read.
pub fn add_host_accounts(config: &mut Config, root: &Path) -> Result<Vec<Finding>, InstallError> {
    let Some(from) = config.host_users.from.clone() else { return Ok(Vec::new()) };
    let image = accounts::read(root, true)?;
    let is_program = |path: &Path| {
        fs::metadata(under(root, path)).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    let read = |name: &str| read(root, &from.join(name));
    let files = read("passwd").and_then(|passwd| Ok(HostFiles { passwd, group: read("group")? }));
    let (HostAccounts { users, groups, rejected }, finding) = match files {
        Ok(files) => (files.accounts(config, &image, &is_program), None),
        Err((why, fix)) => {
            let last = image.previous_host_accounts(config);
            let what = format!("the host's users are not read: {why}");
            let cause = format!("[users] from = {from:?}; accounts of the last start that stay: {}", last.users.len());
            (last, Some(Finding::warning(Kind::Files, what, cause, fix)))
        }
    };
    let rejected_finding = (!rejected.is_empty()).then(|| {
        let what = format!("left out of the host's users ({}): {}", rejected.len(), list_rejected(&rejected, &from));
        let cause = "these entries are not valid, or conflict with the image or slurminit.toml";
        let fix = "correct the lines, or add the users with other names or IDs as [[user]]";
        Finding::warning(Kind::Files, what, cause, fix)
    });
    config.groups.extend(groups);
    config.users.extend(users);
    Ok(finding.into_iter().chain(rejected_finding).collect())
}

/// The text of a file, or the reason and the fix. Comments of users may have any encoding.
fn read(root: &Path, path: &Path) -> Result<String, (String, String)> {
    let shown = path.display();
    let mount =
        "--volume /etc/passwd:/host/etc/passwd:ro --volume /etc/group:/host/etc/group:ro, and from = \"/host/etc\"";
    let chown =
        format!("mount it read-only, or make root the owner: chown root {shown} and its directory, and chmod go-w");
    let file = trusted_path::open_file(root, path).map_err(|untrusted| {
        let is_unreadable = matches!(untrusted, UntrustedPath::Io { .. });
        (untrusted.reason(), if is_unreadable { mount.to_owned() } else { chown.clone() })
    })?;
    let unreadable = |error: io::Error| (format!("{shown}: {error}"), mount.to_owned());
    if let Some(why) = trusted_path::changeable_by_others(&file, None).map_err(unreadable)? {
        return Err((format!("{shown}: {why}"), chown));
    }
    let bytes = trusted_path::read_whole(&file).map_err(unreadable)?;
    if bytes.is_empty() {
        return Err((format!("{shown} is empty"), mount.to_owned()));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
