//! Renders slurmdbd.conf.

use std::fmt::Write as _;

use crate::{HEADER, authentication};
use config::{Accounting, AccountingMode, Config, DaemonName};

/// The text of slurmdbd.conf. `password` is the password of an external database's user.
///
/// # Errors
/// The password contains a character that slurmdbd.conf does not support.
pub fn slurmdbd_conf(config: &Config, password: Option<&str>) -> Result<String, &'static str> {
    let Accounting { port, database_host, database_port, database_name, database_user, .. } = &config.accounting;
    let user = config.daemons.get(&DaemonName::Slurmctld).and_then(|settings| settings.user.as_deref());
    let user = user.unwrap_or("slurm");
    let mut text = format!(
        "{HEADER}\n# To change it: [accounting] in /config/slurminit.toml.\n\n\
         AuthType=auth/munge\nAuthInfo=socket={}\n\
         # slurmctld is in the same container.\nDbdHost=localhost\nDbdPort={port}\nSlurmUser={user}\n\
         PidFile={}/slurm/slurmdbd.pid\nDebugLevel=info\nStorageType=accounting_storage/mysql\n",
        config.paths.munge_socket.display(),
        config.paths.run.display(),
    );
    for (key, value) in authentication(config).into_iter().flatten() {
        let _ = writeln!(text, "{key}={value}");
    }
    if config.accounting.mode() == AccountingMode::External {
        let host = database_host.as_ref().map_or("localhost", |host| host.as_str());
        let _ = writeln!(text, "StorageHost={host}\nStoragePort={database_port}\nStorageLoc={database_name}");
        let _ = writeln!(text, "StorageUser={database_user}");
        if let Some(password) = password {
            if password.contains(|c: char| c.is_control() || c.is_whitespace() || "#\"'\\".contains(c)) {
                return Err("slurmdbd.conf does not support blanks, control characters, quotes, # or \\ in a password");
            }
            let _ = writeln!(text, "StoragePass={password}");
        }
    } else {
        text.push_str("# Authenticated by the database's Unix socket; no password.\n");
        let _ = writeln!(text, "StorageHost=localhost\nStorageLoc=slurm_acct_db\nStorageUser={user}");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn external_database_gets_host_user_and_password() {
        let conf = |toml: &str, password| slurmdbd_conf(&Config::parse(toml, Path::new("x")).unwrap(), password);
        let external = "[accounting]\nmode = 'external'\ndatabase_host = 'db.lab'\ndatabase_user = 'acct'\n";
        let text = conf(external, Some("s3cret")).unwrap();
        for line in ["StorageHost=db.lab\n", "StoragePort=3306\n", "StorageUser=acct\n", "StoragePass=s3cret\n"] {
            assert!(text.contains(line), "{text}");
        }
        for bad in ["a b", "a#b", "a\nStorageUser=root", "a\"b"] {
            assert!(conf(external, Some(bad)).is_err(), "{bad:?}");
        }
        let embedded = conf("[accounting]\nmode = 'embedded'\n", None).unwrap();
        assert!(embedded.contains("StorageUser=slurm\n") && !embedded.contains("StoragePass"), "{embedded}");
    }
}
