//! Finds the process that listens on a port. Slow, because it reads all connections and processes: only called if the
//! port is taken.

use std::fs;
use std::path::{Path, PathBuf};

use crate::facts::PortOwner;

/// TCP_LISTEN in the kernel's tables (net/tcp_states.h).
const LISTEN: &str = "0A";

/// The process that listens on `port`, if visible. In a container, not even root can see the files of
/// another user's process. In that case a running `daemon` is assumed to own the port.
pub(super) fn port_owner(root: &Path, port: u16, daemon: &str) -> PortOwner {
    let inodes: Vec<String> = ["proc/net/tcp", "proc/net/tcp6"]
        .into_iter()
        .filter_map(|table| fs::read_to_string(root.join(table)).ok())
        .flat_map(|table| table.lines().filter_map(|line| listening_inode(line, port)).collect::<Vec<_>>())
        .collect();
    let processes = processes(root);
    // Debian's daemons are links to `slurmctld-wlm` and `slurmd-wlm`, and use these names after a reconfiguration.
    let name = |process: &PathBuf| {
        let name = fs::read_to_string(process.join("comm")).ok()?;
        let name = name.trim();
        Some(name.strip_suffix("-wlm").unwrap_or(name).to_owned())
    };
    let confirmed = processes.iter().find(|process| owns_socket(process, &inodes) == Some(true)).and_then(name);
    let hidden = || processes.iter().filter(|process| owns_socket(process, &inodes).is_none()).filter_map(name);
    let assumed = || hidden().find(|name| name == daemon);
    confirmed.or_else(assumed).map_or(PortOwner::External, PortOwner::Process)
}

fn processes(root: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(root.join("proc")).into_iter().flatten().flatten();
    let is_number = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    entries.filter(|entry| is_number(&entry.file_name().to_string_lossy())).map(|entry| entry.path()).collect()
}

/// Whether the process has one of these sockets open; `None` if its open files are not visible.
fn owns_socket(process: &Path, inodes: &[String]) -> Option<bool> {
    let files = fs::read_dir(process.join("fd")).ok()?.flatten();
    // Without CAP_SYS_PTRACE the directory can be listed, but its links cannot be read.
    let links: Vec<_> = files.map(|file| fs::read_link(file.path())).collect();
    let is_listed = |link: &str| {
        let inode = link.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'));
        inode.is_some_and(|inode| inodes.iter().any(|listed| listed == inode))
    };
    let is_unreadable = |link: &std::io::Result<PathBuf>| {
        link.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
    };
    match links.iter().flatten().any(|link| is_listed(&link.to_string_lossy())) {
        false if links.iter().any(is_unreadable) => None,
        is_owner => Some(is_owner),
    }
}

/// The inode, if this line of /proc/net/tcp is a socket listening on `port`.
fn listening_inode(line: &str, port: u16) -> Option<String> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (_, local_port) = fields.get(1)?.rsplit_once(':')?;
    let is_listening = *fields.get(3)? == LISTEN && u16::from_str_radix(local_port, 16).ok()? == port;
    is_listening.then(|| fields.get(9).map(|inode| (*inode).to_owned())).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_process_that_listens_on_port() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let own = fs::read_to_string("/proc/self/comm").unwrap();
        assert_eq!(port_owner(Path::new("/"), port, "slurmctld"), PortOwner::Process(own.trim().to_owned()));
        drop(listener);
        assert_eq!(port_owner(Path::new("/"), port, "no such daemon"), PortOwner::External);
    }
}
