//! Reads the operator's file and the environment, which every verb does first.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::config::{self, Config, ConfigError, DEFAULT_FILE, Fault, Joined, Paths, given};
use crate::inventory::Finding;
use crate::token;
use crate::walk::{self, read};

/// The file to read: `path`, otherwise the one named by `SLURMINIT_CONFIG`, otherwise the default.
pub fn file(path: Option<&Path>) -> PathBuf {
    named(path).unwrap_or_else(|| PathBuf::from(DEFAULT_FILE))
}

/// The run directory. If the file is broken, this is the default one, so that `status` still works for a cluster that
/// runs with the former file.
///
/// # Errors
/// The named file does not exist.
pub fn run_directory(path: Option<&Path>) -> Result<PathBuf, ConfigError> {
    match load(path) {
        Ok(config) => Ok(config.paths.run),
        Err(error) if is_missing(path) => Err(error),
        Err(_) => Ok(Paths::default().run),
    }
}

/// Whether the command line names a missing file. The file named by `SLURMINIT_CONFIG` may have disappeared since the
/// start.
pub fn is_missing(path: Option<&Path>) -> bool {
    path.is_some_and(|path| matches!(path.try_exists(), Ok(false)))
}

/// Reads the configuration of [`source`], and applies this process's environment. Without any, the defaults apply.
///
/// # Errors
/// It cannot be read, or contains an error. Verbs then exit with [`crate::exit_code::CONFIG`].
pub fn load(path: Option<&Path>) -> Result<Config, ConfigError> {
    let Source { text, origin } = source(path)?;
    let config = Config::parse(&text, &origin)?;
    let variable = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    match joined()? {
        None => config.apply_environment(&variable),
        Some(joined) => {
            let config = joined.apply(config, &text, &origin)?.apply_environment(&variable)?;
            joined.check(&config).map(|()| config)
        }
    }
}

/// The operator's configuration, as it is written.
#[derive(Debug)]
pub struct Source {
    /// Empty where there is none.
    pub text: String,
    /// What messages call it: a file, or the variable that held it.
    pub origin: PathBuf,
}

/// The file at `path`; otherwise what the variable `SLURMINIT_TOML` holds; otherwise the file named by `SLURMINIT_CONFIG`; otherwise what
/// PID 1 took from `SLURMINIT_TOML`; otherwise the default file.
///
/// # Errors
/// It cannot be read, or both variables are set.
pub fn source(path: Option<&Path>) -> Result<Source, ConfigError> {
    if path.is_none() {
        if let Some(text) = variable()? {
            return Ok(Source { text, origin: given::TOML.into() });
        }
    }
    let named = named(path);
    let kept_file = Path::new(given::DIRECTORY).join(given::TOML_FILE);
    let (bytes, origin) = match &named {
        Some(file) if *file != kept_file => (read(file), file.clone()),
        named => match kept(&kept_file) {
            Some(bytes) => (bytes, PathBuf::from(given::TOML)),
            None => (read(named.as_deref().unwrap_or(Path::new(DEFAULT_FILE))), PathBuf::from(DEFAULT_FILE)),
        },
    };
    // PID 1 reads this first, so a pipe in its place must not block.
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).map_err(|_| ErrorKind::InvalidData.into()));
    match text {
        Ok(text) => Ok(Source { text, origin }),
        Err(error) if named.is_none() && error.kind() == ErrorKind::NotFound => {
            Ok(Source { text: String::new(), origin })
        }
        Err(error) => {
            let what = match error.kind() {
                ErrorKind::NotFound => "there is no such file; correct --config (or SLURMINIT_CONFIG)".to_owned(),
                ErrorKind::InvalidData => "it is not UTF-8 text; save it as UTF-8".to_owned(),
                _ => format!("cannot read it: {error}"),
            };
            Err(ConfigError { place: origin.display().to_string(), what })
        }
    }
}

/// What the variable `SLURMINIT_TOML` holds. Compose turns an unset variable into an empty one.
///
/// # Errors
/// It is no text, or `SLURMINIT_CONFIG` is set, too.
pub fn variable() -> Result<Option<String>, ConfigError> {
    let refused = |what: &str| Err(ConfigError { place: given::TOML.to_owned(), what: what.to_owned() });
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    match std::env::var(given::TOML) {
        Err(std::env::VarError::NotUnicode(_)) => refused("it is not UTF-8 text"),
        Ok(text) if !text.trim().is_empty() => {
            if is_set("SLURMINIT_CONFIG") {
                return refused("SLURMINIT_CONFIG names another configuration: give one of them");
            }
            Ok(Some(text))
        }
        _ => Ok(None),
    }
}

/// What PID 1 took from the variable, root's alone.
fn kept(file: &Path) -> Option<std::io::Result<Vec<u8>>> {
    match walk::open_file(Path::new("/"), file) {
        Ok(file) => Some(walk::read_whole(&file)),
        Err(astray) if astray.is_missing() => None,
        // Where others may write, a former start has put nothing: it closes /run first.
        Err(astray) if !matches!(astray, walk::Astray::Io { .. }) => None,
        Err(astray) => Some(Err(astray.into())),
    }
}

/// What this container took from a token, if it has.
///
/// # Errors
/// It cannot be read, or sets what it may not.
pub fn joined() -> Result<Option<Joined>, ConfigError> {
    let path = Path::new(token::DIRECTORY).join(token::SETTINGS);
    let bytes = match walk::open_file(Path::new("/"), &path) {
        Ok(file) => walk::read_whole(&file),
        Err(astray) if astray.is_missing() => return Ok(None),
        // Where others may write, a former start has put nothing: it closes /run first.
        Err(astray) if !matches!(astray, walk::Astray::Io { .. }) => return Ok(None),
        Err(astray) => Err(astray.into()),
    };
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).map_err(|_| ErrorKind::InvalidData.into()));
    match text {
        Ok(text) => Joined::parse(&text).map(Some),
        Err(error) => Err(ConfigError { place: path.display().to_string(), what: format!("cannot read it: {error}") }),
    }
}

/// Adds the location in what [`load`] reads to an invalid value.
pub fn locate(path: Option<&Path>, fault: Fault) -> ConfigError {
    let source = source(path).unwrap_or_else(|_| Source { text: String::new(), origin: file(path) });
    fault.at(&source.text, &source.origin)
}

/// Findings about unknown `SLURMINIT_*` variables of this process.
pub fn unknown_variables() -> Vec<Finding> {
    let names: Vec<String> = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect();
    config::unknown_variables(names.iter().map(String::as_str))
}

/// The file that was explicitly requested.
pub fn named(path: Option<&Path>) -> Option<PathBuf> {
    let variable = || std::env::var_os("SLURMINIT_CONFIG").filter(|value| !value.is_empty());
    path.map(Path::to_owned).or_else(|| variable().map(PathBuf::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_or_a_directory_in_place_of_the_file_is_refused_at_once() {
        let root = tempfile::tempdir().unwrap();
        let pipe = root.path().join("slurminit.toml");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for path in [pipe.as_path(), root.path()] {
            let error = load(Some(path)).unwrap_err();
            assert!(error.to_string().contains("cannot read it"), "{error}");
        }
    }
}
