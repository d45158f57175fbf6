//! Saves a join token when a container starts. This comes before PID 1 starts anything.
//!
//! The token holds the munge key. All users of the container can read PID 1's command line, and all daemons and jobs inherit
//! its environment. So the token is saved to files, and PID 1 re-executes itself without it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::parent_id;
use std::path::Path;

use config::token::{DIRECTORY, SETTINGS_FILE, TOKEN_FILE, Token, TokenError};
use config::{ConfigError, TokenSettings};
use install::exposure;
use sys::inherited::{Inherited, reexecute};
use sys::secret_variables::{JOIN, JOIN_SECRET as SECRET};
use sys::trusted_path;
use sys::trusted_path::UntrustedPath;

/// Option that carries the token.
const OPTION: &str = "--join";

/// Why the token cannot be used.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message states it")]
pub enum TokenRejection {
    #[error("{place}: {error}")]
    Token { place: &'static str, error: TokenError },
    #[error("{0} requires a token; run `slurminit join-command` in the controller's container to get one")]
    MissingValue(&'static str),
    #[error("{0} and {1} contain different tokens; remove one of them")]
    DifferentTokens(&'static str, &'static str),
    #[error("{place}: {error}")]
    Settings { place: &'static str, error: Box<ConfigError> },
    #[error(
        "other users can read the token {SECRET} (uid {uid}, mode {mode:04o}); run chown root and chmod 0400 on its source (in a pod: defaultMode: 0400)"
    )]
    ReadableByOthers { uid: u32, mode: u32 },
    #[error(
        "the parent process shows the token in its command line; start without docker run --init, or use the file {SECRET}"
    )]
    VisibleInParent,
    #[error("cannot read the token {SECRET}: {0}")]
    Secret(#[from] UntrustedPath),
    #[error(
        "cannot save the token in {DIRECTORY}: {0}; start the container as root, with /run writable (--tmpfs /run)"
    )]
    NotSaved(io::Error),
    #[error("cannot re-execute slurminit with the token removed from its command line and environment: {0}")]
    ExecFailed(io::Error),
}

/// Saves the token, if there is one. `option`: `--join` on the command line, with or without a value. If the token came from the
/// command line or the environment, this process re-executes itself without the token, so this function returns only on error.
pub fn take_token(option: Option<Option<&OsStr>>, inherited: Option<&Inherited>) -> Result<(), TokenRejection> {
    let option = match option {
        Some(None) => return Err(TokenRejection::MissingValue(OPTION)),
        option => option.flatten().map(|text| (OPTION, text.to_string_lossy().into_owned())),
    };
    let variable = std::env::var_os(JOIN).map(|text| text.to_string_lossy().into_owned());
    // Compose turns an unset variable into an empty one.
    let variable = variable.filter(|text| !text.trim().is_empty()).map(|text| (JOIN, text));
    let is_exposed = option.is_some() || variable.is_some();
    let secret = secret()?.map(|text| (SECRET, text));
    let sources: Vec<(&'static str, String)> = [option, variable, secret].into_iter().flatten().collect();
    let Some((place, text)) = sources.first() else { return Ok(()) };
    let decoded = |(place, text): &(&'static str, String)| {
        Token::decode(text).map_err(|error| TokenRejection::Token { place, error })
    };
    let token = decoded(&sources[0])?;
    for other in &sources[1..] {
        if decoded(other)? != token {
            return Err(TokenRejection::DifferentTokens(place, other.0));
        }
    }
    TokenSettings::parse(&token.contents.settings)
        .map_err(|error| TokenRejection::Settings { place, error: Box::new(error) })?;
    if *place == OPTION && is_in_parent_command_line(text) {
        return Err(TokenRejection::VisibleInParent);
    }
    save(&token)
        .and_then(|()| exposure::record(Path::new("/"), &exposure::container_environment(), &[JOIN]))
        .map_err(TokenRejection::NotSaved)?;
    let has_option = sources.iter().any(|(place, _)| *place == OPTION);
    if is_exposed { Err(TokenRejection::ExecFailed(execute_without_token(has_option, inherited))) } else { Ok(()) }
}

/// The token in the file that an orchestrator mounts; `None` if the file is missing, empty or untrusted.
fn secret() -> Result<Option<String>, TokenRejection> {
    let file = match trusted_path::open_file(Path::new("/"), Path::new(SECRET)) {
        Ok(file) => file,
        Err(untrusted) if untrusted.is_missing() => return Ok(None),
        // A file that other users can write must not prevent the start of the cluster.
        Err(untrusted) if !matches!(untrusted, UntrustedPath::Io { .. }) => {
            if std::fs::symlink_metadata(SECRET).is_ok() {
                eprintln!("slurminit: ignoring the token {SECRET}: {}", untrusted.reason());
            }
            return Ok(None);
        }
        Err(untrusted) => return Err(untrusted.into()),
    };
    let failed = |error| TokenRejection::Secret(UntrustedPath::Io { path: SECRET.into(), error });
    let metadata = file.metadata().map_err(failed)?;
    let (uid, mode) = (metadata.uid(), metadata.mode() & 0o7777);
    if uid != 0 || mode & 0o077 != 0 {
        return Err(TokenRejection::ReadableByOthers { uid, mode });
    }
    read(&file).map_err(failed)
}

fn read(file: &File) -> io::Result<Option<String>> {
    let text = String::from_utf8_lossy(&trusted_path::read_whole(file)?).into_owned();
    Ok((!text.trim().is_empty()).then_some(text))
}

/// Whether the parent process, such as an init that started slurminit, has the token in its command line.
fn is_in_parent_command_line(token: &str) -> bool {
    let command = std::fs::read(format!("/proc/{}/cmdline", parent_id())).unwrap_or_default();
    String::from_utf8_lossy(&command).contains(token.trim())
}

fn save(token: &Token) -> io::Result<()> {
    let mut repaired = Vec::new();
    let (mut directory, _) = trusted_path::make(Path::new("/"), Path::new(DIRECTORY), &mut repaired)?;
    directory.set_owner_and_mode(Some((0, 0)), 0o755, &mut repaired)?;
    for (name, text, mode) in
        [(SETTINGS_FILE, token.contents.settings.as_str(), 0o644), (TOKEN_FILE, &token.encode(), 0o400)]
    {
        directory.remove(name)?;
        directory.create(name, mode)?.write_all(text.as_bytes())?;
    }
    Ok(())
}

/// Executes this program again without the token. Returns only if that fails.
fn execute_without_token(has_option: bool, inherited: Option<&Inherited>) -> io::Error {
    let words: Vec<OsString> = std::env::args_os().collect();
    // If the token did not come from the option, a `--join` among the arguments belongs to the container's command and is kept.
    let words = if has_option { without_option(words) } else { words };
    reexecute(words, &[JOIN], inherited)
}

/// The arguments without the first `--join TOKEN` or `--join=TOKEN`.
fn without_option(mut words: Vec<OsString>) -> Vec<OsString> {
    let is_option = |word: &OsString| {
        let word = word.to_string_lossy();
        word == OPTION || word.starts_with("--join=")
    };
    if let Some(at) = words.iter().position(is_option) {
        let takes_next = words[at] == OPTION && at + 1 < words.len();
        words.drain(at..=at + usize::from(takes_next));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removes_only_token_from_command_line() {
        let without = |words: &[&str]| {
            let words = without_option(words.iter().map(OsString::from).collect());
            words.into_iter().map(|word| word.into_string().unwrap()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(without(&["run", "--", "--join", "sj1-x"]), "run --");
        assert_eq!(without(&["run", "--", "--join=sj1-x", "srun", "--join", "y"]), "run -- srun --join y");
        assert_eq!(without(&["run", "--role", "login", "--join", "sj1-x", "--", "sh"]), "run --role login -- sh");
        assert_eq!(without(&["run", "--"]), "run --");
        assert_eq!(without(&["run", "--join"]), "run", "the token is missing");
    }
}
