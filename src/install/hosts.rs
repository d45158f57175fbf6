//! The names of nodes in /etc/hosts.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nix::fcntl::{Flock, FlockArg};

use super::InstallError;
use sys::trusted_path;

/// Whether /etc/hosts contains the name.
///
/// # Errors
/// The file cannot be read.
pub fn has_host_name(root: &Path, name: &str) -> io::Result<bool> {
    Ok(has_name(&read_hosts(root)?, name))
}

/// The text of /etc/hosts, one character per byte, so that comments in any encoding are written back unchanged; empty if the file is missing.
fn read_hosts(root: &Path) -> io::Result<String> {
    let etc = trusted_path::open(root, Path::new("/etc")).map_err(io::Error::other)?;
    match etc.read("hosts") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        bytes => Ok(bytes?.into_iter().map(char::from).collect()),
    }
}

/// Changes /etc/hosts, and returns whether its text changed. The engine mounts this file, so it cannot be replaced by a rename. With a read-only root
/// it cannot be written at all.
fn change_hosts(root: &Path, change: impl Fn(&str) -> String) -> io::Result<bool> {
    let is_current = |text: &str| change(text) == text;
    if is_current(&read_hosts(root)?) {
        return Ok(false);
    }
    let _lock = lock_hosts(root)?;
    let new: Vec<u8> = change(&read_hosts(root)?).chars().filter_map(|byte| u8::try_from(byte).ok()).collect();
    let etc = trusted_path::open(root, Path::new("/etc")).map_err(io::Error::other)?;
    // The file is overwritten without being truncated first, so that a concurrent reader still finds the unchanged lines at the beginning.
    let mut file = etc.open_or_create("hosts", 0o644)?;
    file.seek(SeekFrom::Start(0))?;
    file.write_all(&new)?;
    file.set_len(u64::try_from(new.len()).unwrap_or(u64::MAX))?;
    Ok(true)
}

/// Adds `name` with this address to /etc/hosts, unless the file already contains the name. Returns whether it was added.
///
/// Slurm itself uses NodeAddr instead. But programs in jobs use the first name of `scontrol show hostnames` as the address of the job's first node
/// (PyTorch's MASTER_ADDR, MPI). No name server is queried first: an unreachable one would delay the start, and its answer could be an unrelated host
/// of the same name.
///
/// # Errors
/// The file cannot be read or written.
pub fn install_host_name(root: &Path, name: &str, address: IpAddr) -> Result<bool, InstallError> {
    let added = change_hosts(root, |text| {
        let break_line = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        match has_name(text, name) {
            true => text.to_owned(),
            false => format!("{text}{break_line}{address}\t{name}\n"),
        }
    });
    added.map_err(|error| InstallError::Hosts { path: "/etc/hosts".into(), hosts: format!("{name}:{address}"), error })
}

/// The lock file in /run, writable only by root.
const LOCK: &str = "slurminit.hosts.lock";

/// The suffix of the lines that [`install_node_names`] adds.
const MARK: &str = "# slurminit: a node of this cluster";

/// The writer of the nodes' names in /etc/hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostsWriter {
    /// Another program wrote all names, none of them with a loopback address.
    OtherProgram,
    /// slurminit wrote at least one name.
    Slurminit,
    /// At least one name is missing or has a loopback address, and slurminit wrote none.
    Missing,
}

/// Determines the writer of the nodes' names in /etc/hosts.
///
/// # Errors
/// The file cannot be read.
pub fn node_names_writer(root: &Path, names: &[&str]) -> io::Result<HostsWriter> {
    let text = read_hosts(root)?;
    let (ours, theirs): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.ends_with(MARK));
    Ok(match (ours.join("\n"), theirs.join("\n")) {
        (ours, _) if names.iter().any(|name| has_name(&ours, name)) => HostsWriter::Slurminit,
        (_, theirs) if names.iter().all(|name| is_reachable(&theirs, name)) => HostsWriter::OtherProgram,
        _ => HostsWriter::Missing,
    })
}

/// Whether a name has a loopback address in /etc/hosts, such as the one that Debian assigns to the host's own name. Such an address does not lead
/// other nodes to this host.
///
/// # Errors
/// The file cannot be read.
pub fn is_loopback_name(root: &Path, name: &str) -> io::Result<bool> {
    Ok(has_loopback(&read_hosts(root)?, name))
}

/// Adds the nodes' names and addresses to /etc/hosts, and corrects slurminit's earlier entries: a node may return with another address. Names written
/// by other programs stay unchanged, except for a loopback address of a node.
///
/// # Errors
/// The file cannot be read or written.
pub fn install_node_names(root: &Path, nodes: &[(String, String)]) -> Result<(), InstallError> {
    let hosts = || {
        let each = nodes.iter().map(|(name, address)| format!("{name}:{address}"));
        each.collect::<Vec<_>>().join(" --add-host ")
    };
    let changed = change_hosts(root, |old| render_hosts(old, nodes));
    changed.map(drop).map_err(|error| InstallError::Hosts { path: "/etc/hosts".into(), hosts: hosts(), error })
}

/// Takes a lock, because jobs start concurrently. The lock is not on /etc/hosts itself: any reader could lock that file and block job starts.
fn lock_hosts(root: &Path) -> io::Result<Flock<File>> {
    let (run, _) = trusted_path::make(root, Path::new("/run"), &mut Vec::new())?;
    if run.metadata_of(LOCK).is_ok_and(|found| !found.is_file() || !trusted_path::is_ours(found.uid())) {
        run.remove(LOCK)?;
    }
    let file = run.open_or_create(LOCK, 0o600)?;
    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| error.into())
}

/// Renders /etc/hosts with the addresses of the nodes. Outdated lines of this program and loopback addresses of nodes are removed: lookups return the
/// addresses of all lines, loopback first.
fn render_hosts(old: &str, nodes: &[(String, String)]) -> String {
    let (mut text, mut removed) = (String::new(), Vec::new());
    for line in old.lines() {
        let address = line.split_whitespace().next().unwrap_or_default();
        let node = nodes.iter().find(|(name, _)| has_name(line, name));
        let stays = match node {
            Some((_, current)) if line.ends_with(MARK) => address == current,
            Some(_) => !is_loopback(address),
            None => true,
        };
        if stays {
            text.push_str(&format!("{line}\n"));
            continue;
        }
        let (loopback_aliases, others): (Vec<&str>, Vec<&str>) = names(line).partition(|name| is_loopback_alias(name));
        if !loopback_aliases.is_empty() {
            text.push_str(&format!("{address}\t{}\n", loopback_aliases.join(" ")));
        }
        removed.extend(node.map(|node| (node, others)));
    }
    for node in nodes {
        let aliases = removed.iter().filter(|(owner, _)| *owner == node).flat_map(|(_, names)| names.iter().copied());
        let mut missing: Vec<&str> = Vec::new();
        for name in std::iter::once(node.0.as_str()).chain(aliases).filter(|name| !has_name(&text, name)) {
            if !missing.iter().any(|known| known.eq_ignore_ascii_case(name)) {
                missing.push(name);
            }
        }
        if !missing.is_empty() {
            text.push_str(&format!("{}\t{} {MARK}\n", node.1, missing.join(" ")));
        }
    }
    text
}

/// Makes `name` resolve to `address`, with precedence over other lines of /etc/hosts. Returns whether the file changed.
///
/// # Errors
/// The file cannot be read or written.
pub fn install_address(root: &Path, name: &str, address: &str) -> io::Result<bool> {
    change_hosts(root, |text| {
        let current = text.lines().find(|line| has_name(line, name)).and_then(|line| line.split_whitespace().next());
        if current == Some(address) { text.to_owned() } else { format!("{address}\t{name}\n{text}") }
    })
}

/// Whether a name has addresses, and none of them is a loopback address.
fn is_reachable(text: &str, name: &str) -> bool {
    has_name(text, name) && !has_loopback(text, name)
}

fn has_loopback(text: &str, name: &str) -> bool {
    text.lines().any(|line| has_name(line, name) && line.split_whitespace().next().is_some_and(is_loopback))
}

fn is_loopback(address: &str) -> bool {
    address.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

/// Whether a name is a standard alias of loopback addresses, such as `localhost` or `ip6-loopback`.
fn is_loopback_alias(name: &str) -> bool {
    name.starts_with("localhost") || name.starts_with("ip6-")
}

/// The host names in a line of /etc/hosts.
fn names(line: &str) -> impl Iterator<Item = &str> {
    line.split('#').next().unwrap_or_default().split_whitespace().skip(1)
}

/// Whether any line in the text of /etc/hosts (hosts(5)) contains the name, in upper or lower case.
fn has_name(text: &str, name: &str) -> bool {
    text.lines().any(|line| names(line).any(|word| word.eq_ignore_ascii_case(name)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn identifies_writer_of_node_names() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("etc")).unwrap();
        let text = format!("10.0.0.2\tc2.lab c2\n10.0.0.3\tc3 {MARK}\n10.0.0.4 c4\n");
        fs::write(root.path().join("etc/hosts"), text).unwrap();
        let writer = |names: &[&str]| node_names_writer(root.path(), names).unwrap();
        assert_eq!(writer(&["c2", "C4"]), HostsWriter::OtherProgram);
        assert_eq!(writer(&["c2", "c3"]), HostsWriter::Slurminit);
        assert_eq!(writer(&["c2", "c5"]), HostsWriter::Missing);
    }

    #[test]
    fn adds_missing_name_once() {
        let address = IpAddr::from([127, 0, 0, 1]);
        let root = tempfile::tempdir().unwrap();
        let hosts = root.path().join("etc/hosts");
        fs::create_dir(root.path().join("etc")).unwrap();
        let engines = "127.0.0.1\tlocalhost\n172.17.0.2\tbox.lab Box # gpu1\n#127.0.0.1 gpu1";
        fs::write(&hosts, engines).unwrap();
        for known in ["localhost", "box"] {
            assert!(!install_host_name(root.path(), known, address).unwrap(), "{known}");
            assert!(has_host_name(root.path(), known).unwrap());
        }
        assert!(!has_host_name(root.path(), "gpu1").unwrap());
        assert!(install_host_name(root.path(), "gpu1", address).unwrap());
        assert!(!install_host_name(root.path(), "gpu1", address).unwrap());
        assert_eq!(fs::read_to_string(&hosts).unwrap(), format!("{engines}\n127.0.0.1\tgpu1\n"));
    }

    #[test]
    fn keeps_bytes_that_are_not_utf8() {
        let root = tempfile::tempdir().unwrap();
        let hosts = root.path().join("etc/hosts");
        fs::create_dir(root.path().join("etc")).unwrap();
        let latin1 = b"127.0.0.1\tlocalhost # caf\xe9 \xc3\xa9\n";
        fs::write(&hosts, latin1).unwrap();
        assert!(install_host_name(root.path(), "box", IpAddr::from([10, 0, 0, 1])).unwrap());
        assert_eq!(fs::read(&hosts).unwrap(), [&latin1[..], b"10.0.0.1\tbox\n"].concat());
    }

    #[test]
    fn adds_and_corrects_nodes_and_keeps_foreign_entries() {
        let root = tempfile::tempdir().unwrap();
        let hosts = root.path().join("etc/hosts");
        fs::create_dir(root.path().join("etc")).unwrap();
        let engines = "127.0.0.1\tlocalhost\n172.17.0.2\tlogin\n";
        fs::write(&hosts, engines).unwrap();
        let node = |name: &str, address: &str| (name.to_owned(), address.to_owned());
        let install = |nodes: &[(String, String)]| {
            install_node_names(root.path(), nodes).unwrap();
            fs::read_to_string(&hosts).unwrap()
        };
        let (c1, c2) = (format!("172.17.0.3\tc1 {MARK}\n"), format!("172.17.0.4\tc2 {MARK}\n"));
        let both = [node("c1", "172.17.0.3"), node("c2", "172.17.0.4"), node("login", "172.17.0.9")];
        assert_eq!(install(&both), format!("{engines}{c1}{c2}"));
        assert_eq!(install(&both), format!("{engines}{c1}{c2}"));
        assert_eq!(install(&[node("c1", "10.0.0.5")]), format!("{engines}{c2}10.0.0.5\tc1 {MARK}\n"));
    }

    #[test]
    fn error_about_nodes_names_their_addresses() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("etc/hosts")).unwrap();
        let nodes = [("c1".to_owned(), "172.17.0.3".to_owned())];
        let error = install_node_names(root.path(), &nodes).unwrap_err().to_string();
        assert!(error.ends_with("--add-host c1:172.17.0.3"), "{error}");
    }

    /// Debian maps the host's own name to 127.0.1.1, and a container in the host network uses the host's file.
    #[test]
    fn reachable_address_replaces_loopback_address_of_node() {
        let root = tempfile::tempdir().unwrap();
        let hosts = root.path().join("etc/hosts");
        fs::create_dir(root.path().join("etc")).unwrap();
        let (local, c2) = ("127.0.0.1\tlocalhost\n", "10.0.0.4\tc2\n");
        let nodes = |address: &str| [("c1".to_owned(), address.to_owned()), ("c2".to_owned(), "10.0.0.4".to_owned())];
        let install = |old: &str, address: &str| {
            fs::write(&hosts, old).unwrap();
            assert!(is_loopback_name(root.path(), "c1").unwrap() && !is_loopback_name(root.path(), "c2").unwrap());
            assert_eq!(node_names_writer(root.path(), &["c2"]).unwrap(), HostsWriter::OtherProgram);
            assert_eq!(node_names_writer(root.path(), &["c1", "c2"]).unwrap(), HostsWriter::Missing);
            install_node_names(root.path(), &nodes(address)).unwrap();
            let new = fs::read_to_string(&hosts).unwrap();
            install_node_names(root.path(), &nodes(address)).unwrap();
            assert_eq!(fs::read_to_string(&hosts).unwrap(), new, "second call");
            assert!(!is_loopback_name(root.path(), "c1").unwrap());
            new
        };
        let debian = format!("{local}127.0.1.1\tc1.lab c1\n{c2}");
        assert_eq!(install(&debian, "10.0.0.3"), format!("{local}{c2}10.0.0.3\tc1 c1.lab {MARK}\n"));
        install_node_names(root.path(), &nodes("10.0.0.9")).unwrap();
        assert_eq!(fs::read_to_string(&hosts).unwrap(), format!("{local}{c2}10.0.0.9\tc1 c1.lab {MARK}\n"));
        let engines = format!("{local}127.0.1.1\tc1\n{c2}10.0.0.3\tc1\n");
        assert_eq!(install(&engines, "10.0.0.3"), format!("{local}{c2}10.0.0.3\tc1\n"));
        let one_line = format!("127.0.0.1\tlocalhost c1\n{c2}");
        assert_eq!(install(&one_line, "10.0.0.3"), format!("{local}{c2}10.0.0.3\tc1 {MARK}\n"));
    }

    #[test]
    fn address_precedes_other_entries_of_name() {
        let root = tempfile::tempdir().unwrap();
        let hosts = root.path().join("etc/hosts");
        fs::create_dir(root.path().join("etc")).unwrap();
        fs::write(&hosts, "127.0.0.1\tlocalhost\n127.0.1.1\thead\n").unwrap();
        assert!(install_address(root.path(), "head", "10.0.0.1").unwrap());
        assert!(!install_address(root.path(), "head", "10.0.0.1").unwrap());
        let text = fs::read_to_string(&hosts).unwrap();
        assert_eq!(text, "10.0.0.1\thead\n127.0.0.1\tlocalhost\n127.0.1.1\thead\n");
        assert!(install_address(root.path(), "head", "10.0.0.2").unwrap());
        assert!(fs::read_to_string(&hosts).unwrap().starts_with("10.0.0.2\thead\n10.0.0.1\thead\n"));
    }

    #[test]
    fn creates_missing_hosts_file() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("etc")).unwrap();
        assert!(install_host_name(root.path(), "gpu1", [10, 0, 0, 1].into()).unwrap());
        assert_eq!(fs::read_to_string(root.path().join("etc/hosts")).unwrap(), "10.0.0.1\tgpu1\n");
    }
}
