//! The file system that holds jobs' temporary files.

use std::path::Path;

use nix::sys::statfs::{FsType, statfs};

/// The size of a ZFS dataset includes the free space of its pool, so it changes with other datasets (`ZFS_SUPER_MAGIC`
/// of OpenZFS).
const ZFS: FsType = FsType(0x2fc1_2fc1);

/// The size of /tmp in MiB, as slurmd reports it (`get_tmp_disk`, Slurm 24.11); `None` if the size is not
/// fixed, or cannot be read.
pub fn detect(root: &Path) -> Option<u64> {
    let file_system = statfs(&root.join("tmp")).ok().filter(|file_system| file_system.filesystem_type() != ZFS)?;
    Some(file_system.blocks().saturating_mul(u64::try_from(file_system.block_size()).ok()?) >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_of_tmp_is_in_mib() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(detect(root.path()), None);
        std::fs::create_dir(root.path().join("tmp")).unwrap();
        let size = detect(root.path());
        // Between a MiB and an EiB.
        assert!(size.is_some_and(|mib| (1..1 << 40).contains(&mib)), "{size:?}");
    }
}
