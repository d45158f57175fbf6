//! Patterns for file names, approximately as interpreted by glob(3).

use std::fs;
use std::path::{Path, PathBuf};

/// Whether a path with patterns matches any file.
pub(crate) fn has_match(pattern: &Path) -> bool {
    let mut found = vec![PathBuf::new()];
    for component in pattern {
        let name = component.to_string_lossy();
        found = match name.contains(['*', '?', '[']) {
            false => found.into_iter().map(|path| path.join(component)).collect(),
            true => found.iter().flat_map(|path| matching(path, &name)).collect(),
        };
    }
    found.iter().any(|path| path.exists())
}

fn matching(directory: &Path, pattern: &str) -> Vec<PathBuf> {
    let paths = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let fits = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        name.starts_with(b".") <= pattern.starts_with('.') && matches(pattern.as_bytes(), name)
    };
    paths.filter(fits).collect()
}

/// Whether the pattern matches the name. A set such as `[a-z]` counts as matching any character, so the result can be true without a match.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern, name) {
        ([], []) => true,
        ([b'*', rest @ ..], _) => (0..=name.len()).any(|skipped| matches(rest, &name[skipped..])),
        ([b'[', set @ ..], [_, name @ ..]) => {
            set.iter().skip(1).position(|byte| *byte == b']').is_some_and(|end| matches(&set[end + 2..], name))
        }
        ([b'?', rest @ ..], [_, name @ ..]) => matches(rest, name),
        ([byte, rest @ ..], [first, name @ ..]) => byte == first && matches(rest, name),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_needs_a_file_that_it_matches() {
        let root = tempfile::tempdir().unwrap();
        for name in ["a/10-gpu.sh", "b/README", "b/.hidden"] {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        for (pattern, expected) in [
            ("a/*", true),
            ("a/*.sh", true),
            ("*/10-???.sh", true),
            ("a/[0-9]*-gpu.s[h]", true),
            ("b/*.sh", false),
            ("b/?", false),
            ("b/R[", false),
            ("c/*", false),
            ("*/20*", false),
            ("b/*n", false),
            ("a/10-gpu.sh/*", false),
        ] {
            assert_eq!(has_match(&root.path().join(pattern)), expected, "{pattern}");
        }
    }
}
