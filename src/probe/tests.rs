use std::fs;
use std::path::Path;

/// A root directory with these kernel files (path, content).
pub(super) fn tree<'a, P: AsRef<Path> + 'a, C: AsRef<[u8]> + 'a>(
    files: impl IntoIterator<Item = &'a (P, C)>,
) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, content) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    root
}
