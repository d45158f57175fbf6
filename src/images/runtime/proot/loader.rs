//! PRoot's temporary files, if /tmp is noexec or full.
//!
//! PRoot 5.1 uses a directory in /tmp for mount points that an image does not have. For each step, it also extracts its loader there: the program
//! that the kernel executes in place of the step's program. But Docker mounts `--tmpfs /tmp` noexec, and jobs can fill it. So `PROOT_LOADER` and
//! `PROOT_LOADER_32` name copies of the loaders in memory, which no mount option affects.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, IntoRawFd as _};
use std::path::Path;

use nix::sys::memfd::MFdFlags;
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::mkdtemp;

use super::{PATH, memory_file};
use crate::runtime::Variable;

/// The only directory that PRoot uses for temporary files (`P_tmpdir`).
const TEMPORARY: &str = "/tmp";
/// Free space that suffices for the loaders of a step, in bytes.
const NEEDED: u64 = 1 << 20;

/// `ELFCLASS32` and `ELFCLASS64` (elf(5)): the variable, the offset and width of `e_shoff`, and the offset of `e_shentsize`, which `e_shnum` follows.
const CLASSES: [(u8, &str, (usize, usize), usize); 2] =
    [(1, "PROOT_LOADER_32", (0x20, 4), 0x2e), (2, "PROOT_LOADER", (0x28, 8), 0x3a)];

/// Checks that PRoot can use its directory of temporary files. The error is the reason why it cannot.
pub(super) fn check_directory() -> Result<(), String> {
    let refused = |error: nix::Error| {
        let fix = "docker run --tmpfs /tmp:mode=1777; if /tmp is full, free space";
        format!("a job's user cannot create a directory in {TEMPORARY}: {}; fix: {fix}", error.desc())
    };
    let directory = mkdtemp(&Path::new(TEMPORARY).join("slurminit-XXXXXX")).map_err(refused)?;
    let _ = fs::remove_dir(directory);
    Ok(())
}

/// The variables that name loaders in memory, if programs cannot be written to /tmp or executed there. The descriptors stay open in PRoot.
pub(super) fn variables() -> io::Result<Vec<Variable>> {
    let usable = statvfs(TEMPORARY).is_ok_and(|mount| {
        let is_noexec = mount.flags().contains(FsFlags::ST_NOEXEC);
        !is_noexec && mount.blocks_available() * mount.fragment_size() >= NEEDED
    });
    if usable { Ok(Vec::new()) } else { in_memory(&fs::read(PATH)?) }
}

fn in_memory(proot: &[u8]) -> io::Result<Vec<Variable>> {
    let variable = |(name, loader): (&str, &[u8])| {
        // The path names this process: programs of the step may close the descriptors that they inherit.
        let file = memory_file("slurminit loader", loader, MFdFlags::MFD_CLOEXEC)?;
        let kept = nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty()));
        kept?;
        let path = format!("/proc/{}/fd/{}", nix::unistd::getpid(), file.as_raw_fd());
        let _ = file.into_raw_fd();
        Ok((name.into(), path.into()))
    };
    loaders(proot).into_iter().map(variable).collect()
}

/// The loaders that are embedded in PRoot, each a complete ELF program.
fn loaders(proot: &[u8]) -> Vec<(&'static str, &[u8])> {
    let mut found = Vec::new();
    // The first program is PRoot itself.
    let mut at = 4;
    while let Some(distance) = proot.get(at..).and_then(|rest| rest.windows(4).position(|bytes| bytes == b"\x7fELF")) {
        at += distance;
        let length = program(&proot[at..]).map(|(name, bytes)| {
            found.push((name, bytes));
            bytes.len()
        });
        at += length.unwrap_or(4);
    }
    found
}

/// The program at the start of these bytes. Its last part is the table of sections.
fn program(bytes: &[u8]) -> Option<(&'static str, &[u8])> {
    let (_, name, table, counts) = CLASSES.into_iter().find(|(class, ..)| bytes.get(4) == Some(class))?;
    let number = |(at, width): (usize, usize)| {
        let mut number = [0; 8];
        number[..width].copy_from_slice(bytes.get(at..at + width)?);
        usize::try_from(u64::from_le_bytes(number)).ok()
    };
    let sections = number((counts, 2))?.checked_mul(number((counts + 2, 2))?)?;
    let length = number(table)?.checked_add(sections).filter(|_| sections > 0)?;
    Some((name, bytes.get(..length)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF program of this class: `length` bytes, followed by a table of two sections of 4 bytes.
    fn elf(class: u8, length: u8) -> Vec<u8> {
        let (.., (table, _), counts) = CLASSES.into_iter().find(|(known, ..)| *known == class).unwrap();
        let mut bytes = vec![class; usize::from(length) + 8];
        bytes[..5].copy_from_slice(&[0x7f, b'E', b'L', b'F', class]);
        bytes[table..table + 8].fill(0);
        bytes[table] = length;
        bytes[counts..counts + 4].copy_from_slice(&[4, 0, 2, 0]);
        bytes
    }

    #[test]
    fn finds_programs_that_are_embedded_in_proot() {
        let (wide, narrow) = (elf(2, 100), elf(1, 90));
        let proot = [elf(2, 80), b"\x7fELF is a word here".to_vec(), wide.clone(), narrow.clone(), vec![0; 3]].concat();
        assert_eq!(loaders(&proot), [("PROOT_LOADER", &*wide), ("PROOT_LOADER_32", &*narrow)]);
        let cut = [elf(2, 80), wide[..50].to_vec()].concat();
        for broken in [&b""[..], b"\x7fELF", &proot[..40], &cut] {
            assert_eq!(loaders(broken), []);
        }
    }

    #[test]
    fn loader_in_memory_can_be_executed_by_another_process() {
        let program = fs::read("/bin/true").unwrap();
        let [(name, path)] =
            <[Variable; 1]>::try_from(in_memory(&[b"----".to_vec(), program].concat()).unwrap()).unwrap();
        assert_eq!(name, "PROOT_LOADER");
        let mut command = std::process::Command::new(path);
        assert!(sys::tool::output(&mut command, std::time::Duration::from_secs(10)).unwrap().status.success());
    }
}
