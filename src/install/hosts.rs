//! The node's name in /etc/hosts.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use super::InstallError;
use sys::trusted_path;

/// The node's address inside the container.
const ADDRESS: &str = "127.0.0.1";

/// Adds `name` to /etc/hosts, unless it is there. Returns whether it did.
///
/// Slurm itself uses NodeAddr. Programs in jobs use the first name of `scontrol show hostnames` as the address of the
/// job's first node (PyTorch's MASTER_ADDR, MPI). No name server is asked: an unreachable one would delay the start,
/// and one that knows such a name means another host.
///
/// # Errors
/// The file cannot be read or written.
pub fn install_host_name(root: &Path, name: &str) -> Result<bool, InstallError> {
    let path = Path::new("/etc/hosts");
    add(root, path, name).map_err(|source| InstallError::Hosts {
        path: PathBuf::from(path),
        name: name.to_owned(),
        source,
    })
}

fn add(root: &Path, path: &Path, name: &str) -> io::Result<bool> {
    let etc = trusted_path::open(root, path.parent().unwrap_or(path)).map_err(io::Error::other)?;
    let text = match etc.read("hosts") {
        Ok(text) => String::from_utf8_lossy(&text).into_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error),
    };
    if has(&text, name) {
        return Ok(false);
    }
    // The engine mounts this file, so it cannot be replaced by a rename. With a read-only root it cannot be written at
    // all.
    let mut file = match etc.open_to_write("hosts") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => etc.create("hosts", 0o644)?,
        outcome => outcome?,
    };
    file.seek(SeekFrom::End(0))?;
    let break_line = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    file.write_all(format!("{break_line}{ADDRESS}\t{name}\n").as_bytes())?;
    Ok(true)
}

/// The lock file in /run, writable only for root.
const LOCK: &str = "slurminit.hosts.lock";

/// The suffix that marks lines of this program for other nodes.
const MARK: &str = "# slurminit: a node of this cluster";

/// The writer of the nodes' names in /etc/hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    /// All names were written by another program.
    Others,
    /// At least one name was written by this program.
    Us,
    /// At least one name is missing.
    Missing,
}

/// Determines the writer of the nodes' names in /etc/hosts.
///
/// # Errors
/// The file cannot be read.
pub fn writer_of_nodes_names(root: &Path, names: &[&str]) -> io::Result<Writer> {
    let etc = trusted_path::open(root, Path::new("/etc")).map_err(io::Error::other)?;
    let text = String::from_utf8_lossy(&etc.read("hosts")?).into_owned();
    let (ours, theirs): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.ends_with(MARK));
    Ok(match (ours.join("\n"), theirs.join("\n")) {
        (ours, _) if names.iter().any(|name| has(&ours, name)) => Writer::Us,
        (_, theirs) if names.iter().all(|name| has(&theirs, name)) => Writer::Others,
        _ => Writer::Missing,
    })
}

/// Adds the nodes' names and addresses to /etc/hosts, and corrects what it added before: a node may come back with another address.
/// Names written by other programs stay unchanged.
///
/// # Errors
/// The file cannot be read or written.
pub fn install_nodes_names(root: &Path, nodes: &[(String, String)]) -> Result<(), InstallError> {
    let path = PathBuf::from("/etc/hosts");
    let name = nodes.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
    with_nodes(root, nodes).map_err(|source| InstallError::Hosts { path, name, source })
}

fn with_nodes(root: &Path, nodes: &[(String, String)]) -> io::Result<()> {
    let etc = trusted_path::open(root, Path::new("/etc")).map_err(io::Error::other)?;
    let mut file = etc.open_to_write("hosts")?;
    let _alone = alone(root)?;
    let old = String::from_utf8_lossy(&etc.read("hosts")?).into_owned();
    let new = nodes_text(&old, nodes);
    if new == old {
        return Ok(());
    }
    // The text before the first change stays the same, so that a concurrent reader still finds it.
    file.seek(SeekFrom::Start(0))?;
    file.write_all(new.as_bytes())?;
    file.set_len(u64::try_from(new.len()).unwrap_or(u64::MAX))
}

/// Takes a lock, because jobs start concurrently. It is not on /etc/hosts itself: any reader could lock that file and block job starts.
fn alone(root: &Path) -> io::Result<Flock<File>> {
    let (run, _) = trusted_path::make(root, Path::new("/run"), &mut Vec::new())?;
    if run.metadata_of(LOCK).is_ok_and(|found| !found.is_file() || !trusted_path::is_ours(found.uid())) {
        run.remove(LOCK)?;
    }
    let file = run.open_or_create(LOCK, 0o600)?;
    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| error.into())
}

/// The text with a line added for each missing node, and without outdated lines of this program.
fn nodes_text(old: &str, nodes: &[(String, String)]) -> String {
    let is_ours = |line: &str| line.ends_with(MARK);
    let theirs: String = old.lines().filter(|line| !is_ours(line)).map(|line| format!("{line}\n")).collect();
    let ours = |(name, address): &(String, String)| format!("{address}\t{name} {MARK}\n");
    let mut text: String = old
        .lines()
        .filter(|line| !is_ours(line) || nodes.iter().all(|node| !has(line, &node.0) || ours(node).trim_end() == *line))
        .map(|line| format!("{line}\n"))
        .collect();
    for node in nodes.iter().filter(|(name, _)| !has(&theirs, name)) {
        if !has(&text, &node.0) {
            text.push_str(&ours(node));
        }
    }
    text
}

/// Makes `name` resolve to `address`, with precedence over other lines of /etc/hosts. Returns whether something changed.
///
/// # Errors
/// The file cannot be read or written.
pub fn install_address(root: &Path, name: &str, address: &str) -> io::Result<bool> {
    let etc = trusted_path::open(root, Path::new("/etc")).map_err(io::Error::other)?;
    let mut file = etc.open_or_create("hosts", 0o644)?;
    let text = String::from_utf8_lossy(&trusted_path::read_whole(&file)?).into_owned();
    if text.lines().find(|line| has(line, name)).is_some_and(|line| line.split_whitespace().next() == Some(address)) {
        return Ok(false);
    }
    // The new text is longer, so nothing of the old one is left behind it.
    file.seek(SeekFrom::Start(0))?;
    file.write_all(format!("{address}\t{name}\n{text}").as_bytes())?;
    Ok(true)
}

/// Whether a line of /etc/hosts (hosts(5)) contains the name, in any case.
fn has(text: &str, name: &str) -> bool {
    text.lines().any(|line| {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        words.next().is_some() && words.any(|own| own.eq_ignore_ascii_case(name))
    })
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
        let writer = |names: &[&str]| writer_of_nodes_names(root.path(), names).unwrap();
        assert_eq!(writer(&["c2", "C4"]), Writer::Others);
        assert_eq!(writer(&["c2", "c3"]), Writer::Us);
        assert_eq!(writer(&["c2", "c5"]), Writer::Missing);
    }

    #[test]
    fn adds_missing_name_once() {
        let root = tempfile::tempdir().unwrap();
        let hosts = root.path().join("etc/hosts");
        fs::create_dir(root.path().join("etc")).unwrap();
        let engines = "127.0.0.1\tlocalhost\n172.17.0.2\tbox.lab Box # gpu1\n#127.0.0.1 gpu1";
        fs::write(&hosts, engines).unwrap();
        for known in ["localhost", "box"] {
            assert!(!install_host_name(root.path(), known).unwrap(), "{known}");
        }
        assert!(install_host_name(root.path(), "gpu1").unwrap());
        assert!(!install_host_name(root.path(), "gpu1").unwrap());
        assert_eq!(fs::read_to_string(&hosts).unwrap(), format!("{engines}\n127.0.0.1\tgpu1\n"));
    }

    #[test]
    fn nodes_are_added_and_corrected_and_what_others_wrote_stays() {
        let root = tempfile::tempdir().unwrap();
        let hosts = root.path().join("etc/hosts");
        fs::create_dir(root.path().join("etc")).unwrap();
        let engines = "127.0.0.1\tlocalhost\n172.17.0.2\tlogin\n";
        fs::write(&hosts, engines).unwrap();
        let node = |name: &str, address: &str| (name.to_owned(), address.to_owned());
        let install = |nodes: &[(String, String)]| {
            install_nodes_names(root.path(), nodes).unwrap();
            fs::read_to_string(&hosts).unwrap()
        };
        let (c1, c2) = (format!("172.17.0.3\tc1 {MARK}\n"), format!("172.17.0.4\tc2 {MARK}\n"));
        let both = [node("c1", "172.17.0.3"), node("c2", "172.17.0.4"), node("login", "172.17.0.9")];
        assert_eq!(install(&both), format!("{engines}{c1}{c2}"));
        assert_eq!(install(&both), format!("{engines}{c1}{c2}"));
        assert_eq!(install(&[node("c1", "10.0.0.5")]), format!("{engines}{c2}10.0.0.5\tc1 {MARK}\n"));
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
    fn container_without_file_gets_one() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("etc")).unwrap();
        assert!(install_host_name(root.path(), "gpu1").unwrap());
        assert_eq!(fs::read_to_string(root.path().join("etc/hosts")).unwrap(), "127.0.0.1\tgpu1\n");
    }
}
