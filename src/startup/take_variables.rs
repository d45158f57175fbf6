//! Saves the values of two environment variables to files: a complete configuration, and the munge key. slurminit does this before it starts
//! any other process.
//!
//! All daemons inherit PID 1's environment, and both values may be secret. So they are saved to root-owned files, and slurminit re-executes
//! itself without the variables.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use config::given::{DIRECTORY, KEY_FILE, TOML_FILE};
use config::{Config, ConfigError};
use install::{exposure, load_config};
use sys::inherited::{Inherited, reexecute};
use sys::secret_variables::{JOIN, MUNGE_KEY, TOML};
use sys::trusted_path;

/// munged's limits on the length of a key, in bytes (munge 0.5.13 and later).
const KEY_LENGTH: std::ops::RangeInclusive<usize> = 32..=1024;

/// Why the variables cannot be used.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message describes the variant")]
pub enum VariableRejection {
    #[error(transparent)]
    Toml(#[from] ConfigError),
    #[error("{TOML} and --config are two complete configurations; use one of them")]
    TwoConfigurations,
    #[error(
        "{MUNGE_KEY} has {0} bytes, but munge requires {min} to {max}; create a key with `openssl rand -base64 48`",
        min = KEY_LENGTH.start(), max = KEY_LENGTH.end()
    )]
    Key(usize),
    #[error(
        "cannot update the files for {TOML} and {MUNGE_KEY} in {DIRECTORY}: {0}; start the container with /run writable (--tmpfs /run)"
    )]
    NotSaved(io::Error),
    #[error("cannot re-execute slurminit with {TOML} and {MUNGE_KEY} removed from its environment: {0}")]
    ExecFailed(io::Error),
}

/// Saves the variables; does nothing for users other than root. If one is set, returns only on error, because this process re-executes itself
/// without them. If none is set, removes the configuration that an earlier start saved. `config_file`: the file named on the command line.
pub fn take_variables(config_file: Option<&Path>, inherited: Option<&Inherited>) -> Result<(), VariableRejection> {
    // Only root can start a cluster, and only root can save the files.
    if !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    let toml = load_config::variable()?;
    let key = std::env::var_os(MUNGE_KEY).map(OsString::into_encoded_bytes).unwrap_or_default();
    let key = Some(key.trim_ascii()).filter(|key| !key.is_empty());
    check(config_file, toml.as_deref(), key)?;
    let root = Path::new("/");
    if toml.is_none() && key.is_none() {
        // If SLURMINIT_TOML was set, `config_file` is the saved file after the re-execution. Any other saved file is from an earlier start.
        let is_saved = config_file == Some(&saved_toml());
        return if is_saved { Ok(()) } else { save(root, TOML_FILE, None).map_err(VariableRejection::NotSaved) };
    }
    let kept = save(root, TOML_FILE, toml.as_deref().map(str::as_bytes))
        .and_then(|()| save(root, KEY_FILE, key))
        .and_then(|()| exposure::record(root, &exposure::container_environment(), &[TOML, MUNGE_KEY]));
    kept.map_err(VariableRejection::NotSaved)?;
    Err(VariableRejection::ExecFailed(execute_without_variables(toml.is_some(), inherited)))
}

/// Checks the values of the variables.
fn check(config_file: Option<&Path>, toml: Option<&str>, key: Option<&[u8]>) -> Result<(), VariableRejection> {
    if toml.is_some() && config_file.is_some() {
        return Err(VariableRejection::TwoConfigurations);
    }
    if let Some(length) = key.map(<[u8]>::len).filter(|length| !KEY_LENGTH.contains(length)) {
        return Err(VariableRejection::Key(length));
    }
    if let Some(toml) = toml {
        Config::parse(toml, Path::new(TOML))?;
    }
    Ok(())
}

/// Path of the saved configuration.
pub fn saved_toml() -> PathBuf {
    Path::new(DIRECTORY).join(TOML_FILE)
}

/// Replaces the saved file; without `bytes`, removes it.
fn save(root: &Path, name: &str, bytes: Option<&[u8]>) -> io::Result<()> {
    let directory = match bytes {
        None => match trusted_path::open(root, Path::new(DIRECTORY)) {
            Ok(directory) => directory,
            // If the directory is missing, nothing was saved. If its path is untrusted, it is left unchanged.
            Err(_) => return Ok(()),
        },
        Some(_) => {
            let mut repaired = Vec::new();
            let (mut directory, _) = trusted_path::make(root, Path::new(DIRECTORY), &mut repaired)?;
            directory.set_owner_and_mode(Some((0, 0)), 0o755, &mut repaired)?;
            directory
        }
    };
    directory.remove(name)?;
    match bytes {
        None => Ok(()),
        Some(bytes) => directory.create(name, 0o400)?.write_all(bytes),
    }
}

/// Executes this program again without the variables of the munge key and the join token, if one is set. Called by verbs that do not start
/// a cluster, because `docker exec` and health checks pass on the container's environment. Root's jobs could otherwise read the secrets in
/// /proc: in the environment of this process while it waits, and in that of each child until the child's own exec.
pub fn drop_keys() {
    if [MUNGE_KEY, JOIN].iter().any(|name| std::env::var_os(name).is_some()) {
        let mut words = std::env::args_os();
        if let (Ok(file), Some(name)) = (std::env::current_exe(), words.next()) {
            // If the exec fails, the verb still works.
            let _ = Command::new(file).arg0(name).args(words).env_remove(MUNGE_KEY).env_remove(JOIN).exec();
        }
    }
}

/// Executes this program again without the variables. Returns only if that fails.
fn execute_without_variables(has_toml: bool, inherited: Option<&Inherited>) -> io::Error {
    let words: Vec<OsString> = std::env::args_os().collect();
    let words = if has_toml { with_config(words, saved_toml().as_os_str()) } else { words };
    reexecute(words, &[TOML, MUNGE_KEY], inherited)
}

/// Adds `--config FILE` after the program and, if there is one, the verb.
fn with_config(mut words: Vec<OsString>, file: &OsStr) -> Vec<OsString> {
    let has_verb = words.get(1).is_some_and(|word| !word.as_encoded_bytes().starts_with(b"-"));
    let position = words.len().min(1 + usize::from(has_verb));
    words.splice(position..position, ["--config".into(), file.to_owned()]);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_invalid_variables_with_fix() {
        let (toml, long) = ("role = 'none'\n", [b'k'; 1025]);
        let refused = |file: Option<&str>, toml: Option<&str>, key: Option<&[u8]>| {
            check(file.map(Path::new), toml, key).map_err(|error| error.to_string())
        };
        for (file, toml, key, expected) in [
            (Some("/x.toml"), Some(toml), None, &["SLURMINIT_TOML and --config", "use one of them"][..]),
            (None, None, Some(&b"short"[..]), &["SLURMINIT_MUNGE_KEY has 5 bytes", "32 to 1024", "openssl rand"]),
            (None, Some(toml), Some(&long[..31]), &["has 31 bytes"]),
            (None, None, Some(&long), &["has 1025 bytes"]),
            // The line number refers to the variable.
            (None, Some("role = 'none'\nroll = 1\n"), None, &["SLURMINIT_TOML:2:1", "roll"]),
            (None, Some("role ="), None, &["SLURMINIT_TOML:1"]),
        ] {
            let error = refused(file, toml, key).unwrap_err();
            assert!(expected.iter().all(|text| error.contains(text)), "{error}");
        }
        assert_eq!(refused(None, Some(toml), Some(&long[..32])), Ok(()));
        assert_eq!(refused(Some("/x.toml"), None, Some(&long[..1024])), Ok(()));
        assert_eq!(refused(None, None, None), Ok(()));
    }

    #[test]
    fn saved_files_are_private_and_removed_by_next_start() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join(DIRECTORY.trim_start_matches('/')).join(TOML_FILE);
        // Nothing was saved, and the directory does not exist.
        save(root.path(), TOML_FILE, None).unwrap();
        std::fs::create_dir(root.path().join("run")).unwrap();
        for text in ["one", "two"] {
            save(root.path(), TOML_FILE, Some(text.as_bytes())).unwrap();
            assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
            assert_eq!(std::os::unix::fs::MetadataExt::mode(&file.metadata().unwrap()) & 0o777, 0o400);
        }
        save(root.path(), TOML_FILE, None).unwrap();
        assert!(!file.exists());
        // A directory that cannot be created.
        std::fs::remove_dir(file.parent().unwrap()).unwrap();
        std::fs::write(file.parent().unwrap(), "").unwrap();
        let error = VariableRejection::NotSaved(save(root.path(), TOML_FILE, Some(b"x")).unwrap_err()).to_string();
        assert!(error.contains(DIRECTORY) && error.contains("--tmpfs /run"), "{error}");
        assert!(
            VariableRejection::ExecFailed(io::ErrorKind::NotFound.into())
                .to_string()
                .contains("cannot re-execute slurminit with SLURMINIT_TOML")
        );
    }

    #[test]
    fn inserts_option_after_subcommand() {
        let with_config = |words: &str| {
            let words = with_config(words.split(' ').map(OsString::from).collect(), OsStr::new("/f"));
            words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(with_config("slurminit up --nodes 2"), "slurminit up --config /f --nodes 2");
        assert_eq!(with_config("slurminit run -- srun --config x"), "slurminit run --config /f -- srun --config x");
    }
}
