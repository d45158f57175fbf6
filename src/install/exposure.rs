//! Secrets in the environment of the container.
//!
//! PID 1 re-executes itself without the variables that hold secrets, so that daemons and services do not inherit them. But the engine passes the
//! container's environment to each process of `docker exec`, whatever its user. So a secret in the environment is refused if the container has
//! ordinary users.

use std::io;
use std::path::Path;

use config::{Config, given};
use model::exit_code;
use plan::Refusal;
use sys::container::Container;
use sys::secret_variables::{self, SecretVariable};
use sys::{trusted_path, under, users};

/// The environment of the container's first process: `NAME=VALUE` pairs, each terminated by a NUL; empty if it cannot be read.
pub fn container_environment() -> Vec<u8> {
    let pid = Container::of_this_process().first_process();
    std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default()
}

/// Records which of `names` are set and not blank in `environment`, that of the container's first process. The record is never removed: the engine
/// passes this environment to `docker exec` as long as the container exists.
pub fn record(root: &Path, environment: &[u8], names: &[&str]) -> io::Result<()> {
    let is_exposed = |name: &&&str| {
        let value = |pair: &[u8]| pair.strip_prefix(name.as_bytes())?.strip_prefix(b"=").map(<[u8]>::to_vec);
        environment.split(|byte| *byte == 0).filter_map(value).any(|value| !value.trim_ascii().is_empty())
    };
    for name in names.iter().filter(is_exposed) {
        let mut repaired = Vec::new();
        let (mut directory, _) = trusted_path::make(root, Path::new(given::DIRECTORY), &mut repaired)?;
        directory.set_owner_and_mode(nix::unistd::geteuid().is_root().then_some((0, 0)), 0o755, &mut repaired)?;
        directory.remove(name)?;
        directory.create(name, 0o444)?;
    }
    Ok(())
}

/// The recorded variables that hold a secret.
pub fn exposed(config: &Config, root: &Path) -> Vec<SecretVariable> {
    let directory = trusted_path::open(root, Path::new(given::DIRECTORY));
    let is_recorded = |name: &str| directory.as_ref().is_ok_and(|directory| directory.metadata_of(name).is_ok());
    let has_secret = |name: &str| name != secret_variables::TOML || config.has_secrets();
    let is_exposed = |secret: &SecretVariable| is_recorded(secret.name) && has_secret(secret.name);
    secret_variables::ALL.into_iter().filter(is_exposed).collect()
}

/// Refuses an exposed secret if there are ordinary users. Without such users, `slurminit doctor` and the start only warn.
///
/// # Errors
/// The first exposed secret, and the file to use instead of its variable.
pub fn check(config: &Config, root: &Path) -> Result<(), Refusal> {
    let Some(SecretVariable { name, content, file }) = exposed(config, root).into_iter().next() else { return Ok(()) };
    let Some(user) = ordinary_user(config, root) else { return Ok(()) };
    let what = format!("{name} exposes {content} to ordinary users ({user})");
    let cause = "the engine passes the container's variables to every process of `docker exec`, whatever its user";
    Err(Refusal::new(exit_code::CONFIG, what, cause, format!("remove {name}, and mount {file}, readable only by root")))
}

/// The first reason why ordinary users can run processes in this container; `None` if there are no such users.
pub fn ordinary_user(config: &Config, root: &Path) -> Option<String> {
    if let Some(user) = config.users.first() {
        return Some(format!("`{}` of slurminit.toml or of the host", user.name));
    }
    if config.host_users.from.is_some() {
        return Some("`[users] from`".to_owned());
    }
    if config.runs_sshd() {
        return Some("logins with SSH".to_owned());
    }
    if !users::is_nss_local() {
        return Some("a directory service in /etc/nsswitch.conf".to_owned());
    }
    let passwd = trusted_path::read(&under(root, Path::new("/etc/passwd"))).unwrap_or_default();
    users::first_ordinary(&String::from_utf8_lossy(&passwd)).map(|name| format!("`{name}` of the image"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result and the exposed variables, with this environment of the container, configuration and /etc/passwd.
    fn checked(environment: &[u8], toml: &str, passwd: &str) -> (Result<(), Refusal>, Vec<&'static str>) {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("etc")).unwrap();
        std::fs::write(root.path().join("etc/passwd"), passwd).unwrap();
        record(root.path(), environment, &secret_variables::ALL.map(|secret| secret.name)).unwrap();
        let config = Config::parse(toml, Path::new("x")).unwrap();
        (check(&config, root.path()), exposed(&config, root.path()).iter().map(|secret| secret.name).collect())
    }

    const KEY: &[u8] = b"PATH=/bin\0SLURMINIT_MUNGE_KEY=secret\0SLURMINIT_JOIN= \0SLURMINIT_TOML=role = 'all'\0";
    const SYSTEM: &str = "root:x:0:0::/root:/bin/bash\nmunge:x:640:640::/:/bin/sh\nubuntu:x:1000:1000::/home/ubuntu:/bin/bash\n\
                          nobody:x:65534:65534::/:/bin/sh\ngames:x:1002:1002::/:/bin/false\n";

    #[test]
    fn refuses_exposed_secret_only_where_users_can_read_it() {
        assert_eq!(checked(KEY, "", SYSTEM), (Ok(()), vec!["SLURMINIT_MUNGE_KEY"]));
        for (toml, passwd) in [
            ("[[user]]\nname = 'alice'\nuid = 1001\n", SYSTEM),
            ("[users]\nfrom = '/host/etc'\n", SYSTEM),
            ("[login]\nport = 22\n", SYSTEM),
            ("", "alice:x:1001:1001::/home/alice:/bin/bash\n"),
        ] {
            let refusal = checked(KEY, toml, passwd).0.unwrap_err();
            assert_eq!(refusal.exit_code, exit_code::CONFIG, "{toml}{passwd}");
            assert!(refusal.finding.fix.contains("/run/secrets/munge.key"), "{refusal:?}");
            assert_eq!(checked(b"PATH=/bin\0SLURMINIT_JOIN= \0", toml, passwd), (Ok(()), Vec::new()));
        }
    }

    #[test]
    fn configuration_in_variable_is_exposed_only_with_secrets() {
        let user = "[[user]]\nname = 'alice'\nuid = 1001\n";
        for secret in [
            "[[notify]]\nurl = 'https://x/secret'",
            "[slurm.conf]\nJobCompPass = 'x'",
            "[daemon.slurmd]\nenv = { A = 'x' }",
        ] {
            let (result, exposed) = checked(b"SLURMINIT_TOML=x", &format!("{user}{secret}\n"), "");
            assert!(result.unwrap_err().finding.fix.contains("/config/slurminit.toml"), "{secret}");
            assert_eq!(exposed, ["SLURMINIT_TOML"]);
        }
        let file = "[[notify]]\nurl_file = '/run/secrets/webhook'\n[slurm.conf]\nMailProg = '/x'\n";
        assert_eq!(checked(b"SLURMINIT_TOML=x", &format!("{user}{file}"), ""), (Ok(()), Vec::new()));
    }
}
