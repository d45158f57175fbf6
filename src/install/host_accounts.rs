//! Reads the host's passwd and group (`[users] from`).
//!
//! Anyone who can write these files can create an account with another user's ID. So only root may be able to change the files, or
//! where their paths lead. If the files cannot be used, the host accounts of the previous start are kept.

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

/// Adds the users and groups of the host to `[[user]]` and `[[group]]`, and returns findings for the operator.
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
            let what = format!("cannot use the host's users: {why}");
            let cause = format!("[users] from = {from:?}; users kept from the last start: {}", last.users.len());
            (last, Some(Finding::warning(Kind::Files, what, cause, fix)))
        }
    };
    let rejected_finding = (!rejected.is_empty()).then(|| {
        let what = format!(
            "ignored entries in the host's passwd and group files ({}): {}",
            rejected.len(),
            list_rejected(&rejected, &from)
        );
        let cause = "these entries are not valid, or conflict with the image, slurminit.toml or an earlier entry";
        let fix = "correct the lines, or add these users or groups with other names or IDs as [[user]] or [[group]]";
        Finding::warning(Kind::Files, what, cause, fix)
    });
    config.groups.extend(groups);
    config.users.extend(users);
    Ok(finding.into_iter().chain(rejected_finding).collect())
}

/// The text of a file, or the reason why it cannot be used and the fix. Invalid UTF-8 is accepted, because a user's comment (GECOS) may have any
/// encoding.
fn read(root: &Path, path: &Path) -> Result<String, (String, String)> {
    let shown = path.display();
    let mount = "start the container with --volume /etc/passwd:/host/etc/passwd:ro --volume /etc/group:/host/etc/group:ro, and set from = \"/host/etc\"";
    let chown =
        format!("mount the file read-only, or run `chown root` and `chmod go-w` on {shown} and on its directory");
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
