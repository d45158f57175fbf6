//! Reads the operator's configuration from its file and the environment: the first step of most verbs.

use config::token;
use config::{Config, ConfigError, DEFAULT_FILE, Fault, Layers, Paths, TokenSettings, given};
use model::inventory::Finding;
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use sys::secret_variables;
use sys::trusted_path::{self, UntrustedPath, read};

/// The configuration file: `path`, otherwise the one named by `SLURMINIT_CONFIG`, otherwise the default.
pub fn file(path: Option<&Path>) -> PathBuf {
    named(path).unwrap_or_else(|| PathBuf::from(DEFAULT_FILE))
}

/// The run directory. If the configuration cannot be loaded, this is the default directory, so that `status` still works for a cluster that runs with
/// the previous configuration.
///
/// # Errors
/// `path` does not exist.
pub fn run_directory(path: Option<&Path>) -> Result<PathBuf, ConfigError> {
    match load(path) {
        Ok(config) => Ok(config.paths.run),
        Err(error) if is_missing(path) => Err(error),
        Err(_) => Ok(Paths::default().run),
    }
}

/// Whether the command line names a missing file. The file named by `SLURMINIT_CONFIG` is not checked, because it may
/// have disappeared since the start.
pub fn is_missing(path: Option<&Path>) -> bool {
    path.is_some_and(|path| matches!(path.try_exists(), Ok(false)))
}

/// Reads the configuration of [`source`], and applies the settings of a join token and this process's environment. Without a
/// configuration, the defaults apply.
///
/// # Errors
/// The configuration or the token's settings cannot be read, or contain an error. Verbs then exit with [`model::exit_code::CONFIG`].
pub fn load(path: Option<&Path>) -> Result<Config, ConfigError> {
    layers(path).map(|layers| layers.config)
}

/// The configuration of [`load`] with the origin of each value.
///
/// # Errors
/// Those of [`load`].
pub fn layers(path: Option<&Path>) -> Result<Layers, ConfigError> {
    let Source { text, origin } = source(path)?;
    let variable = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    Layers::merge(&text, &origin, joined()?.as_ref(), &variable)
}

/// The operator's configuration as text.
#[derive(Debug)]
pub struct Source {
    /// The text; empty without a configuration.
    pub text: String,
    /// The origin for messages: a file, or the variable that held the text.
    pub origin: PathBuf,
}

/// The file at `path`; otherwise the value of `SLURMINIT_TOML`; otherwise the file named by `SLURMINIT_CONFIG`;
/// otherwise the value that PID 1 saved from `SLURMINIT_TOML`; otherwise the default file.
///
/// # Errors
/// The configuration cannot be read, or both variables are set.
pub fn source(path: Option<&Path>) -> Result<Source, ConfigError> {
    source_in(Path::new("/"), path, Variables::of_this_process())
}

/// The variables that determine the configuration.
#[derive(Clone, Debug, Default)]
struct Variables {
    /// The value of `SLURMINIT_TOML`.
    toml: Option<OsString>,
    /// The value of `SLURMINIT_CONFIG`.
    file: Option<OsString>,
}

impl Variables {
    /// An empty variable counts as unset, because Compose turns an unset variable into an empty one.
    fn of_this_process() -> Self {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        Self { toml: variable(secret_variables::TOML), file: variable("SLURMINIT_CONFIG") }
    }

    /// The value of `SLURMINIT_TOML`; `None` if it is unset or blank.
    fn text(self) -> Result<Option<String>, ConfigError> {
        let invalid = |what: &str| Err(ConfigError { place: secret_variables::TOML.to_owned(), what: what.to_owned() });
        match self.toml.map(OsString::into_string) {
            Some(Err(_)) => invalid("not UTF-8 text"),
            Some(Ok(text)) if !text.trim().is_empty() => match self.file {
                Some(_) => invalid("SLURMINIT_CONFIG is also set; remove one of them"),
                None => Ok(Some(text)),
            },
            _ => Ok(None),
        }
    }
}

fn source_in(root: &Path, path: Option<&Path>, variables: Variables) -> Result<Source, ConfigError> {
    let named = path.map(Path::to_owned).or_else(|| variables.file.clone().map(PathBuf::from));
    if path.is_none() {
        if let Some(text) = variables.text()? {
            return Ok(Source { text, origin: secret_variables::TOML.into() });
        }
    }
    let saved_toml = Path::new(given::DIRECTORY).join(given::TOML_FILE);
    let default_file = || root.join(DEFAULT_FILE.trim_start_matches('/'));
    // `read` rejects a pipe instead of blocking on it: PID 1 reads the configuration, too.
    let (bytes, origin) = match &named {
        Some(file) if *file != saved_toml => (read(file), file.clone()),
        named => match read_saved(root, &saved_toml) {
            Some(bytes) => (bytes, PathBuf::from(secret_variables::TOML)),
            None => {
                let origin = named.clone().unwrap_or_else(|| DEFAULT_FILE.into());
                (read(&named.clone().unwrap_or_else(default_file)), origin)
            }
        },
    };
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).map_err(|_| ErrorKind::InvalidData.into()));
    match text {
        Ok(text) => Ok(Source { text, origin }),
        Err(error) if named.is_none() && error.kind() == ErrorKind::NotFound => {
            Ok(Source { text: String::new(), origin })
        }
        Err(error) => Err(unreadable(&origin, &error)),
    }
}

fn unreadable(origin: &Path, error: &io::Error) -> ConfigError {
    let what = match error.kind() {
        ErrorKind::NotFound => "file not found; correct --config (or SLURMINIT_CONFIG)".to_owned(),
        ErrorKind::InvalidData => "not UTF-8 text; save it as UTF-8".to_owned(),
        ErrorKind::PermissionDenied if origin == Path::new(secret_variables::TOML) => {
            "only root may read the configuration from this variable; run this as root (docker exec -u root, or sudo)"
                .to_owned()
        }
        _ => format!("cannot read the file: {error}"),
    };
    ConfigError { place: origin.display().to_string(), what }
}

/// The value of `SLURMINIT_TOML`; `None` if it is unset or blank.
///
/// # Errors
/// The variable is not text, or `SLURMINIT_CONFIG` is set, too.
pub fn variable() -> Result<Option<String>, ConfigError> {
    Variables::of_this_process().text()
}

/// The content of a file that PID 1 stored; `None` if there is none. A file in a directory that others may change was not stored by slurminit: a
/// start makes sure that only root can write to /run before it stores a file there.
fn read_saved(root: &Path, file: &Path) -> Option<io::Result<Vec<u8>>> {
    match trusted_path::open_file(root, file) {
        Ok(file) => Some(trusted_path::read_whole(&file)),
        Err(error @ UntrustedPath::Io { .. }) if !error.is_missing() => Some(Err(error.into())),
        Err(_) => None,
    }
}

/// The settings that this container took from a token, if any.
///
/// # Errors
/// The file cannot be read, or contains a setting that is not allowed.
pub fn joined() -> Result<Option<TokenSettings>, ConfigError> {
    let path = Path::new(token::DIRECTORY).join(token::SETTINGS_FILE);
    let Some(bytes) = read_saved(Path::new("/"), &path) else { return Ok(None) };
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).map_err(|_| ErrorKind::InvalidData.into()));
    match text {
        Ok(text) => TokenSettings::parse(&text).map(Some),
        Err(error) => {
            Err(ConfigError { place: path.display().to_string(), what: format!("cannot read the file: {error}") })
        }
    }
}

/// The error for an invalid value of the configuration, with its origin and line.
pub fn locate(path: Option<&Path>, fault: Fault) -> ConfigError {
    let source = source(path).unwrap_or_else(|_| Source { text: String::new(), origin: file(path) });
    fault.at(&source.text, &source.origin)
}

/// Findings about the variables of this process: see [`config::unknown_variables`].
pub fn unknown_variables() -> Vec<Finding> {
    let text = |text: OsString| text.into_string().unwrap_or_default();
    let variables: Vec<(String, String)> = std::env::vars_os().map(|(name, value)| (text(name), text(value))).collect();
    config::unknown_variables(variables.iter().map(|(name, value)| (name.as_str(), value.as_str())))
}

/// The file named by `path` or `SLURMINIT_CONFIG`, if any.
pub fn named(path: Option<&Path>) -> Option<PathBuf> {
    path.map(Path::to_owned).or_else(|| Variables::of_this_process().file.map(PathBuf::from))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// A root directory with a configuration file in each place. Its text is a comment with the name of the place.
    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new(places: &[&str]) -> Self {
            let machine = Self(tempfile::tempdir().unwrap());
            for place in places {
                let file = machine.place(place);
                std::fs::create_dir_all(file.parent().unwrap()).unwrap();
                std::fs::write(file, format!("# {place}")).unwrap();
            }
            machine
        }

        fn place(&self, name: &str) -> PathBuf {
            let place = match name {
                "kept" => Path::new(given::DIRECTORY).join(given::TOML_FILE),
                "default" => PathBuf::from(DEFAULT_FILE),
                other => PathBuf::from(other),
            };
            self.0.path().join(place.strip_prefix("/").unwrap_or(&place))
        }

        /// Reads the configuration, given `--config`, `SLURMINIT_CONFIG` and `SLURMINIT_TOML`.
        fn read(&self, path: Option<&str>, file: Option<&str>, toml: Option<&str>) -> Result<Source, ConfigError> {
            let variables =
                Variables { toml: toml.map(OsString::from), file: file.map(|file| self.place(file).into_os_string()) };
            source_in(self.0.path(), path.map(|path| self.place(path)).as_deref(), variables)
        }

        fn text(&self, path: Option<&str>, file: Option<&str>, toml: Option<&str>) -> String {
            self.read(path, file, toml).map_or_else(|error| error.to_string(), |source| source.text)
        }
    }

    #[test]
    fn command_line_precedes_variables_saved_and_default_file() {
        let all = Machine::new(&["line", "named", "kept", "default"]);
        assert_eq!(all.text(Some("line"), Some("named"), None), "# line");
        // At startup this is an error; other subcommands prefer `--config`.
        assert_eq!(all.text(Some("line"), None, Some("# variable")), "# line");
        assert_eq!(all.text(None, None, Some("# variable")), "# variable");
        assert_eq!(all.text(None, Some("named"), None), "# named");
        assert_eq!(all.text(None, None, None), "# kept");
        // Compose passes an unset variable as an empty one.
        assert_eq!(all.text(None, None, Some(" \n")), "# kept");
        assert_eq!(Machine::new(&["default"]).text(None, None, None), "# default");
        assert_eq!(Machine::new(&[]).text(None, None, None), "");
    }

    #[test]
    fn names_variable_as_origin_of_saved_configuration() {
        let machine = Machine::new(&["kept", "default"]);
        assert_eq!(machine.read(None, None, None).unwrap().origin, Path::new(secret_variables::TOML));
        // PID 1 passes this path when it re-executes itself.
        let kept = Path::new(given::DIRECTORY).join(given::TOML_FILE);
        let source = source_in(machine.0.path(), Some(&kept), Variables::default()).unwrap();
        assert_eq!((source.text.as_str(), source.origin.as_path()), ("# kept", Path::new(secret_variables::TOML)));
    }

    #[test]
    fn ignores_saved_configuration_that_others_may_have_written() {
        let machine = Machine::new(&["kept", "default"]);
        let saved = machine.place("kept");
        let set_mode = |mode| std::fs::set_permissions(saved.parent().unwrap(), Permissions::from_mode(mode)).unwrap();
        set_mode(0o777);
        assert_eq!(machine.text(None, None, None), "# default");
        set_mode(0o700);
        assert_eq!(machine.text(None, None, None), "# kept");
        std::fs::remove_file(&saved).unwrap();
        std::fs::create_dir(&saved).unwrap();
        assert!(machine.text(None, None, None).contains("SLURMINIT_TOML: cannot read the file"));
    }

    #[test]
    fn rejects_conflicting_missing_or_non_utf8_sources() {
        let machine = Machine::new(&["named"]);
        assert!(machine.text(None, Some("named"), Some("# variable")).contains("remove one of them"));
        assert!(machine.text(None, Some("gone"), None).contains("file not found"));
        assert!(machine.text(Some("gone"), None, None).contains("correct --config"));
        std::fs::write(machine.place("named"), b"\xff").unwrap();
        assert!(machine.text(None, Some("named"), None).contains("named: not UTF-8"));
        let toml = Some(std::os::unix::ffi::OsStringExt::from_vec(vec![0xff]));
        let error = source_in(machine.0.path(), None, Variables { toml, file: None }).unwrap_err().to_string();
        assert!(error.contains("SLURMINIT_TOML") && error.contains("not UTF-8"), "{error}");
    }

    #[test]
    fn explains_missing_permission_for_saved_configuration() {
        let denied = io::Error::from(ErrorKind::PermissionDenied);
        let error = unreadable(Path::new(secret_variables::TOML), &denied).to_string();
        assert!(
            error.contains("only root") && error.contains("sudo") && !error.contains("Permission denied"),
            "{error}"
        );
        assert!(unreadable(Path::new("/x.toml"), &denied).to_string().contains("cannot read the file"));
    }

    #[test]
    fn rejects_pipe_or_directory_without_blocking() {
        let root = tempfile::tempdir().unwrap();
        let pipe = root.path().join("slurminit.toml");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for path in [pipe.as_path(), root.path()] {
            let error = load(Some(path)).unwrap_err();
            assert!(error.to_string().contains("cannot read the file"), "{error}");
        }
    }
}
