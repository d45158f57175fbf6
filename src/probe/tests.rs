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

#[test]
fn platform_is_in_the_kernels_release() {
    use model::inventory::Platform;
    for (release, expected) in [
        ("6.6.87.2-microsoft-standard-WSL2\n", Platform::Wsl2),
        ("6.10.14-linuxkit\n", Platform::DockerDesktop),
        ("6.12.0-amd64\n", Platform::Linux),
    ] {
        let root = tree(&[("proc/sys/kernel/osrelease", release)]);
        assert_eq!(super::platform(root.path()), expected, "{release}");
    }
}
