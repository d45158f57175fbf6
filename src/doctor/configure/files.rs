//! Writes compose.gpus.yaml and .env beside compose.yaml, or describes the changes.

use std::fs;
use std::path::Path;

use anyhow::Context as _;

use super::gpu_file::{self, ContainerGpus};
use super::{env_file, text};
use install::replace_users_file;

/// The directory of compose.yaml, and whether files may be written to it.
#[derive(Clone, Copy, Debug)]
pub struct Destination<'a> {
    /// The directory of compose.yaml.
    pub directory: &'a Path,
    /// Whether the changes are only described in the report.
    pub is_dry_run: bool,
}

/// Writes .env, and compose.gpus.yaml unless a compose file of the user passes the GPUs or has this name; a dry run only
/// describes the changes. Returns the report's lines about the files, and whether compose will pass the GPUs.
pub fn write_files(destination: Destination<'_>, container_gpus: &ContainerGpus) -> anyhow::Result<(String, bool)> {
    let mut lines = String::from("\nFiles\n");
    let text = gpu_file::render(container_gpus);
    let path = destination.directory.join(gpu_file::NAME);
    let old = read(&path)?;
    let user_override = override_with_gpus(destination, container_gpus)?;
    let is_user_file = old.as_deref().is_some_and(|old| !gpu_file::is_generated(old));
    let is_complete = match (user_override, is_user_file) {
        (Some(name), _) => {
            lines += &text::complete_user_file(name);
            true
        }
        (None, true) if container_gpus.is_covered_by(old.as_deref().unwrap_or_default()) => {
            lines += &text::complete_user_file(gpu_file::NAME);
            true
        }
        (None, true) => {
            lines += &text::incomplete_user_file(gpu_file::NAME, &text);
            false
        }
        (None, false) => {
            lines += &write(destination, &path, gpu_file::NAME, old.as_deref(), &text)?;
            true
        }
    };
    let path = destination.directory.join(env_file::NAME);
    let old = read(&path)?;
    let reads_gpu_file = user_override.is_none();
    let text = env_file::with_gpus(old.as_deref().unwrap_or_default(), container_gpus.gpu_type, reads_gpu_file);
    let needs_gpu_file = !container_gpus.has_no_gpus() && reads_gpu_file;
    let unread_cause = if needs_gpu_file { unread_cause(destination, &text)? } else { None };
    // The text of .env is never printed, because it can contain passwords.
    let is_changed = old.as_deref() != Some(&text);
    if !destination.is_dry_run && is_changed {
        replace_users_file(&path, &text)?;
    }
    lines += &text::env_lines(container_gpus.gpu_type, reads_gpu_file, is_changed, destination.is_dry_run);
    let is_read = unread_cause.is_none();
    lines += &unread_cause.map(|cause| text::gpu_file_not_read(&cause)).unwrap_or_default();
    Ok((lines, is_complete && is_read))
}

/// The user's override file that already passes the GPUs, if there is one. Then compose.yaml needs no extension.
fn override_with_gpus(
    destination: Destination<'_>,
    container_gpus: &ContainerGpus,
) -> anyhow::Result<Option<&'static str>> {
    for name in gpu_file::OVERRIDES.into_iter().filter(|_| !container_gpus.has_no_gpus()) {
        let text = read(&destination.directory.join(name))?;
        if text.is_some_and(|text| !gpu_file::is_generated(&text) && container_gpus.is_covered_by(&text)) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// Why compose does not read the generated file; `None` if it does. `COMPOSE_FILE` may omit the compose file whose
/// service extends the generated file, and compose.yaml may be an older version or written by the user.
fn unread_cause(destination: Destination<'_>, env: &str) -> anyhow::Result<Option<String>> {
    let listed = env_file::compose_file(env);
    for name in listed.unwrap_or("compose.yaml").split([':', ',']).map(str::trim) {
        let text = read(&destination.directory.join(name))?.unwrap_or_default();
        let mut settings = text.lines().filter(|line| !line.trim_start().starts_with('#'));
        let is_named = |line: &str| line.contains(gpu_file::VARIABLE) || line.contains(gpu_file::NAME);
        if name == gpu_file::NAME || settings.any(is_named) {
            return Ok(None);
        }
    }
    Ok(Some(match listed {
        Some(files) => {
            format!("no file in COMPOSE_FILE={files} (set in .env) extends ${{{}}}", gpu_file::VARIABLE)
        }
        None => format!("the service in compose.yaml does not extend ${{{}}}", gpu_file::VARIABLE),
    }))
}

fn write(
    destination: Destination<'_>,
    path: &Path,
    name: &str,
    old: Option<&str>,
    text: &str,
) -> anyhow::Result<String> {
    if destination.is_dry_run {
        return Ok(text::would_write(name, old, text));
    }
    let is_changed = replace_users_file(path, text)?;
    Ok(text::written(name, is_changed))
}

/// The file's text; `None` if the file does not exist.
fn read(path: &Path) -> anyhow::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            Err(error).with_context(|| format!("cannot read {} (fix its permissions, or move it away)", path.display()))
        }
    }
}
