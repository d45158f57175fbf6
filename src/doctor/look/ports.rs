//! Finds the process that listens on a port. Slow, because it reads all connections and processes: only called if the
//! port is taken.

use std::fs;
use std::path::{Path, PathBuf};

use crate::facts::Holder;

/// TCP_LISTEN in the kernel's tables (net/tcp_states.h).
const LISTEN: &str = "0A";

/// The process that listens on `port`, if visible. In a container, not even root can see the files of
/// another user's process. In that case a `daemon` running here is assumed to be the one.
pub(super) fn holder(root: &Path, port: u16, daemon: &str) -> Holder {
    let inodes: Vec<String> = ["proc/net/tcp", "proc/net/tcp6"]
        .into_iter()
        .filter_map(|table| fs::read_to_string(root.join(table)).ok())
        .flat_map(|table| table.lines().filter_map(|line| inode(line, port)).collect::<Vec<_>>())
        .collect();
    let processes = processes(root);
    // Debian's daemons are links to `slurmctld-wlm` and `slurmd-wlm`, and use these names after a reconfiguration.
    let name = |process: &PathBuf| {
        let name = fs::read_to_string(process.join("comm")).ok()?;
        let name = name.trim();
        Some(name.strip_suffix("-wlm").unwrap_or(name).to_owned())
    };
    let proven = processes.iter().find(|process| holds(process, &inodes) == Some(true)).and_then(name);
    let closed = || processes.iter().filter(|process| holds(process, &inodes).is_none()).filter_map(name);
    let believed = || closed().find(|name| name == daemon);
    proven.or_else(believed).map_or(Holder::Stranger, Holder::Process)
}

fn processes(root: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(root.join("proc")).into_iter().flatten().flatten();
    let is_number = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    entries.filter(|entry| is_number(&entry.file_name().to_string_lossy())).map(|entry| entry.path()).collect()
}

/// Whether the process has one of these sockets; `None` if its files are not visible.
fn holds(process: &Path, inodes: &[String]) -> Option<bool> {
    let files = fs::read_dir(process.join("fd")).ok()?.flatten();
    // Without CAP_SYS_PTRACE the directory can be listed, but its links cannot be read.
    let links: Vec<_> = files.map(|file| fs::read_link(file.path())).collect();
    let is_one = |link: &str| {
        let inode = link.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'));
        inode.is_some_and(|inode| inodes.iter().any(|own| own == inode))
    };
    let is_closed = |link: &std::io::Result<PathBuf>| {
        link.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
    };
    match links.iter().flatten().any(|link| is_one(&link.to_string_lossy())) {
        false if links.iter().any(is_closed) => None,
        holds => Some(holds),
    }
}

/// The inode, if this line of /proc/net/tcp is a socket listening on `port`.
fn inode(line: &str, port: u16) -> Option<String> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (_, own) = fields.get(1)?.rsplit_once(':')?;
    let is_it = *fields.get(3)? == LISTEN && u16::from_str_radix(own, 16).ok()? == port;
    is_it.then(|| fields.get(9).map(|inode| (*inode).to_owned())).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_process_that_listens_on_port() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let own = fs::read_to_string("/proc/self/comm").unwrap();
        assert_eq!(holder(Path::new("/"), port, "slurmctld"), Holder::Process(own.trim().to_owned()));
        drop(listener);
        assert_eq!(holder(Path::new("/"), port, "no such daemon"), Holder::Stranger);
    }
}
