//! Writes compose.gpus.yaml and .env beside compose.yaml, or prints the changes.

use std::fs;
use std::path::Path;

use anyhow::Context as _;

use super::gpu_file::{self, WantedGpus};
use super::{env_file, text};
use install::replace_users_file;

/// The directory of compose.yaml, and whether anything may be written there.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The directory of compose.yaml.
    pub directory: &'a Path,
    /// Whether nothing is written.
    pub is_dry_run: bool,
}

/// Writes both files, or prints the changes. Returns the text, and whether everything succeeded.
pub fn write_both(place: Place<'_>, wanted: &WantedGpus) -> anyhow::Result<(String, bool)> {
    let mut lines = String::from("\nFiles\n");
    let text = gpu_file::render(wanted);
    let path = place.directory.join(gpu_file::NAME);
    let old = read(&path)?;
    let has_it_all = people_give_it(place, wanted)?;
    let is_theirs = old.as_deref().is_some_and(|old| !gpu_file::is_ours(old));
    let is_met = match (has_it_all, is_theirs) {
        (Some(name), _) => {
            lines += &text::foreign_and_well(name);
            true
        }
        (None, true) if wanted.is_met_by(old.as_deref().unwrap_or_default()) => {
            lines += &text::foreign_and_well(gpu_file::NAME);
            true
        }
        (None, true) => {
            lines += &text::foreign(gpu_file::NAME, &text);
            false
        }
        (None, false) => {
            lines += &write(place, &path, gpu_file::NAME, old.as_deref(), &text)?;
            true
        }
    };
    let path = place.directory.join(env_file::NAME);
    let old = read(&path)?;
    let text = env_file::with_gpus(old.as_deref().unwrap_or_default(), wanted.gpu_type, has_it_all.is_none());
    let needs_it = !wanted.is_plain() && has_it_all.is_none();
    let unread = if needs_it { unread(place, &text)? } else { None };
    // Never shown: it can hold passwords.
    let is_changed = old.as_deref() != Some(&text);
    if !place.is_dry_run && is_changed {
        replace_users_file(&path, &text)?;
    }
    lines += &text::env(wanted.gpu_type, has_it_all.is_none(), is_changed, place.is_dry_run);
    let is_read = unread.is_none();
    lines += &unread.map(|cause| text::unread(&cause)).unwrap_or_default();
    Ok((lines, is_met && is_read))
}

/// Skips the extension of compose.yaml if the user's own override file already passes the GPUs.
fn people_give_it(place: Place<'_>, wanted: &WantedGpus) -> anyhow::Result<Option<&'static str>> {
    for name in gpu_file::OVERRIDES.into_iter().filter(|_| !wanted.is_plain()) {
        let text = read(&place.directory.join(name))?;
        if text.is_some_and(|text| !gpu_file::is_ours(&text) && wanted.is_met_by(&text)) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// Why compose does not read our file, if so: `COMPOSE_FILE` omits the file that extends it, or compose.yaml is
/// an older version or the user's own.
fn unread(place: Place<'_>, env: &str) -> anyhow::Result<Option<String>> {
    let listed = env_file::compose_file(env);
    for name in listed.unwrap_or("compose.yaml").split([':', ',']).map(str::trim) {
        let text = read(&place.directory.join(name))?.unwrap_or_default();
        if name == gpu_file::NAME || text.contains(gpu_file::VARIABLE) || text.contains(gpu_file::NAME) {
            return Ok(None);
        }
    }
    Ok(Some(match listed {
        Some(files) => format!("COMPOSE_FILE={files} in .env selects other files"),
        None => format!("the service in compose.yaml does not extend ${{{}}}", gpu_file::VARIABLE),
    }))
}

fn write(place: Place<'_>, path: &Path, name: &str, old: Option<&str>, text: &str) -> anyhow::Result<String> {
    if place.is_dry_run {
        return Ok(text::would_write(name, old, text));
    }
    let is_changed = replace_users_file(path, text)?;
    Ok(text::written(name, is_changed))
}

/// The file's text, if there is one.
fn read(path: &Path) -> anyhow::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            Err(error).with_context(|| format!("cannot read {}; fix its permissions or move it away", path.display()))
        }
    }
}
