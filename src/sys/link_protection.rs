//! The kernel's protections against links, pipes and files that another user made in a directory such as /tmp (proc_sys_fs(5)).

use std::path::Path;

use crate::under;

/// The settings in /proc/sys/fs. They are the host's, because containers share its kernel.
pub const NAMES: [&str; 4] = ["protected_symlinks", "protected_hardlinks", "protected_fifos", "protected_regular"];

/// The settings that are off.
pub fn missing(root: &Path) -> Vec<&'static str> {
    let is_off = |name: &&str| {
        let file = under(root, &Path::new("/proc/sys/fs").join(name));
        std::fs::read_to_string(file).is_ok_and(|value| value.trim() == "0")
    };
    NAMES.into_iter().filter(is_off).collect()
}
