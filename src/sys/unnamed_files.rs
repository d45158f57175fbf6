//! Files without a name that processes have open: deleted ones, and those of memfd_create(2).

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::open_files::{Process, read_as_owner};

/// A file without a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnnamedFile {
    /// The memory that the file occupies, in bytes.
    pub bytes: u64,
    /// The owner, which only root can change.
    pub owner: u32,
    /// The file system.
    pub device: u64,
    /// The number of the file in its file system.
    pub inode: u64,
    /// Whether it never had a name in a file system.
    pub is_memfd: bool,
}

/// The unnamed files that each of these processes has open. A process whose descriptors cannot be read has none.
pub fn find(processes: Vec<Process>) -> Vec<(Process, Vec<UnnamedFile>)> {
    let all = read_as_owner(processes, |process| files(Path::new(&format!("/proc/{}/task", process.pid))));
    all.into_iter().map(|(process, files)| (process, files.unwrap_or_default())).collect()
}

fn files(threads: &Path) -> Vec<UnnamedFile> {
    let entries = |directory: &Path| fs::read_dir(directory).into_iter().flatten().flatten();
    let descriptors = entries(threads).flat_map(|thread| entries(&thread.path().join("fd")).collect::<Vec<_>>());
    let mut files: Vec<UnnamedFile> = descriptors.filter_map(|descriptor| file(&descriptor.path())).collect();
    files.sort_unstable();
    files.dedup();
    files
}

fn file(descriptor: &Path) -> Option<UnnamedFile> {
    let link = fs::read_link(descriptor).ok()?;
    let name = link.to_str().filter(|name| name.ends_with(" (deleted)"))?;
    let found = fs::metadata(descriptor).ok().filter(fs::Metadata::is_file)?;
    let (bytes, owner, device, inode) = (found.blocks() * 512, found.uid(), found.dev(), found.ino());
    Some(UnnamedFile { bytes, owner, device, inode, is_memfd: name.starts_with("/memfd:") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_deleted_open_file_with_size() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, vec![1; 1 << 20]).unwrap();
        let inode = path.metadata().unwrap().ino();
        let open = fs::File::open(&path).unwrap();
        let found = || files(Path::new("/proc/self/task")).into_iter().find(|file| file.inode == inode);
        assert_eq!(found(), None);
        fs::remove_file(&path).unwrap();
        let file = found().unwrap();
        assert!(file.bytes >= 1 << 20 && !file.is_memfd, "{file:?}");
        assert_eq!(file.owner, nix::unistd::Uid::effective().as_raw());
        drop(open);
        assert_eq!(found(), None);
    }
}
