//! What `slurminit --version` prints.

use std::path::Path;
use std::sync::LazyLock;

/// The file in the image with the version of Slurm: `slurm-wlm 24.11.5`. A host does not have it.
pub(crate) const SLURM: &str = "/usr/share/slurminit/slurm-version";
/// The file in the image with the commit that it was built from. The programs do not contain it, so a new commit does
/// not rebuild them.
const COMMIT: &str = "/usr/share/slurminit/commit";

/// The version of slurminit, and, in an image, its commit and the version of Slurm.
pub(crate) static LINE: LazyLock<String> = LazyLock::new(|| line(Path::new(COMMIT), Path::new(SLURM)));

fn line(commit: &Path, slurm: &Path) -> String {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let (commit, slurm) = (read(commit), read(slurm));
    // Twelve digits are enough to find the commit.
    let commit = if commit.is_empty() { commit } else { format!(" (commit {commit:.12})") };
    let slurm = slurm.rsplit_once(' ').map(|(_, version)| format!(", Slurm {version}"));
    format!("{}{commit}{}", env!("CARGO_PKG_VERSION"), slurm.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_commit_and_slurm_version_only_if_known() {
        let directory = tempfile::tempdir().unwrap();
        let (commit, slurm) = (directory.path().join("commit"), directory.path().join("slurm-version"));
        assert_eq!(line(&commit, &slurm), env!("CARGO_PKG_VERSION"));
        std::fs::write(&commit, "\n").unwrap();
        std::fs::write(&slurm, "slurm-wlm 24.11.5\n").unwrap();
        assert_eq!(line(&commit, &slurm), concat!(env!("CARGO_PKG_VERSION"), ", Slurm 24.11.5"));
        std::fs::write(&commit, "0123456789abcdef\n").unwrap();
        assert_eq!(line(&commit, &slurm), concat!(env!("CARGO_PKG_VERSION"), " (commit 0123456789ab), Slurm 24.11.5"));
    }
}
