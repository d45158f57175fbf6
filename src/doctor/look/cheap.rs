//! Observations that are fast enough for every start: a few files, the space of file systems, and the kernel's list of
//! listening sockets.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use nix::sys::statvfs::{FsFlags, statvfs};

use crate::facts::{
    CheapFacts, ContainerSettings, CudaFacts, Disk, KeyFacts, Limit, MemoryKills, Observed, Port, PortOwner,
};
use crate::root_only::unreadable;
use config::{Config, Role};
use install::exposure;
use model::inventory::Inventory;
use model::oom_kill;
use sys::open_files::{self, SearchTarget};
use sys::proc::parse::Mount;
use sys::proc::{Process, plain_name};
use sys::trusted_path::{self, Dir};
use sys::{link_protection, sockets, under};

/// The cheap observations with this configuration.
pub fn cheap_facts(root: &Path, config: &Config, inventory: &Inventory, cluster: &str) -> CheapFacts {
    let state = &config.paths.state;
    // With the host network, another container of this host may run the other daemon and use its port.
    let (runs_controller, runs_node) = match config.role {
        Role::Compute => (false, true),
        Role::Controller => (true, false),
        role => (role != Role::Login, role != Role::Login),
    };
    let port = |daemon, number| Port { daemon, number, owner: port_owner(number, daemon) };
    // Ports of this machine are unrelated to another root directory.
    let examines_ports = root == Path::new("/");
    CheapFacts {
        key: key(root, &config.paths.munge_key),
        cluster: cluster.to_owned(),
        saved_cluster: saved_cluster(&under(root, &state.join("slurmctld"))).map_err(|error| unreadable(&error)),
        state: state.display().to_string(),
        state_disk: disk(&under(root, state)),
        ports: [
            (examines_ports && runs_controller).then(|| port("slurmctld", config.slurm.controller_port)),
            (examines_ports && runs_node).then(|| port("slurmd", config.slurm.daemon_port)),
        ]
        .into_iter()
        .flatten()
        .collect(),
        // Without a driver, the search for CUDA (about a hundred paths) is skipped.
        cuda: if inventory.cuda_driver().is_some() { cuda(root) } else { CudaFacts::default() },
        memory_kills: memory_kills(root, &config.paths.run),
        has_oom_group: !probe::memory::oom_groups(root).is_empty(),
        has_kfd: root.join("dev/kfd").exists(),
        settings: container_settings(root),
        exposed_secrets: exposure::exposed(config, root),
    }
}

/// The process that listens on `port`. The descriptors of some processes cannot be read; if no other process has the port, and one of
/// these is named `daemon`, that one is assumed to have it.
fn port_owner(port: u16, daemon: &str) -> PortOwner {
    let listeners = sockets::listeners(port).unwrap_or_default();
    if listeners.is_empty() {
        return PortOwner::Free;
    }
    let inodes = listeners.iter().map(|socket| socket.inode).collect();
    let owners = open_files::find(open_files::container_processes(), &SearchTarget::Sockets(inodes));
    let name = |process: &Process| plain_name(&process.name).to_owned();
    let assumed = || owners.hidden.iter().map(name).find(|name| name == daemon);
    owners.proven.first().map(name).or_else(assumed).map_or(PortOwner::External, PortOwner::Process)
}

fn container_settings(root: &Path) -> ContainerSettings {
    let limits = read(&root.join("proc/self/limits")).unwrap_or_default();
    ContainerSettings {
        has_infiniband: root.join("dev/infiniband").exists(),
        shared_memory_mib: disk(&root.join("dev/shm")).ok().map(|disk| disk.total_mib),
        locked_memory: limit(&limits, "Max locked memory"),
        stack: limit(&limits, "Max stack size"),
        unprotected: link_protection::missing(root),
        sharing_library: sharing_library(root),
    }
}

/// The soft limit of this name in proc(5)'s format: `Max stack size   8388608   unlimited   bytes`.
fn limit(limits: &str, name: &str) -> Option<Limit> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(Limit::Unlimited),
        bytes => bytes.parse().ok().map(Limit::Bytes),
    }
}

/// The libraries of HAMi-core and nvshare, from their READMEs.
const SHARING_LIBRARIES: [&str; 2] = ["libvgpu.so", "libnvshare.so"];

fn sharing_library(root: &Path) -> Option<String> {
    let list = read(&root.join("etc/ld.so.preload")).unwrap_or_default();
    // ld.so(8): entries are separated by spaces or colons.
    let mut libraries = list.split(|c: char| c.is_whitespace() || c == ':');
    let library = libraries.find(|path| SHARING_LIBRARIES.iter().any(|name| path.ends_with(name)))?;
    Some(library.to_owned())
}

fn read(path: &Path) -> Option<String> {
    trusted_path::read(path).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

fn key(root: &Path, path: &Path) -> Observed<Option<KeyFacts>> {
    let metadata = match fs::metadata(under(root, path)) {
        Ok(metadata) if metadata.len() > 0 => metadata,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(unreadable(&error)),
        Ok(_) | Err(_) => return Ok(None),
    };
    // The engine writes one of these files when it creates the container.
    let mut markers = ["/.dockerenv", "/run/.containerenv"].into_iter();
    let marker = markers.find_map(|path| fs::metadata(under(root, Path::new(path))).ok());
    let created = marker.map(|marker| marker.mtime());
    let is_older = created.is_some_and(|created| metadata.mtime() < created);
    Ok(Some(KeyFacts {
        path: path.display().to_string(),
        mode: metadata.permissions().mode() & 0o7777,
        is_from_image: is_older && !is_mounted(root, path),
    }))
}

/// Whether the path, or one of its parent directories other than the root directory, is a mount point.
fn is_mounted(root: &Path, path: &Path) -> bool {
    let table = read(&root.join("proc/self/mountinfo")).unwrap_or_default();
    Mount::all(&table).any(|mount| mount.at != "/" && path.starts_with(mount.at))
}

/// The cluster's name from slurmctld's file `clustername`, which contains `slurminit`, or `slurminit|89` since 24.05. `None` without a usable file.
///
/// # Errors
/// This user may not read the file.
pub fn saved_cluster(controller: &Path) -> io::Result<Option<String>> {
    // The directory is owned by the user slurm, so links in it are not followed.
    let bytes = match Dir::open_unchecked(controller).and_then(|dir| dir.read("clustername")) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(error),
        bytes => bytes.unwrap_or_default(),
    };
    let text = String::from_utf8_lossy(&bytes);
    let name = text.lines().next().and_then(|line| line.split('|').next()).unwrap_or_default().trim();
    Ok((!name.is_empty()).then(|| name.to_owned()))
}

fn disk(path: &Path) -> Observed<Disk> {
    let stats = statvfs(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mib = |blocks: u64| blocks.saturating_mul(stats.fragment_size()) >> 20;
    Ok(Disk {
        free_mib: mib(stats.blocks_available()),
        total_mib: mib(stats.blocks()),
        is_read_only: stats.flags().contains(FsFlags::ST_RDONLY),
    })
}

/// Library directories of Debian, Ubuntu and RHEL, and those of CUDA images, WSL2 and NixOS.
const LIBRARY_DIRECTORIES: [&str; 10] = [
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/local/nvidia/lib64",
    "usr/local/cuda/lib64",
    "usr/local/cuda/compat",
    "usr/lib/wsl/lib",
    "run/opengl-driver/lib",
    "usr/local/lib",
];
/// Directories that can contain `nvidia-smi`.
const PROGRAM_DIRECTORIES: [&str; 4] = ["usr/bin", "usr/local/bin", "usr/local/nvidia/bin", "usr/lib/wsl/lib"];

/// Searches the container for CUDA.
pub fn cuda(root: &Path) -> CudaFacts {
    let is_installed = |directory: &&str, name: &str| root.join(directory).join(name).exists();
    let driver_library = LIBRARY_DIRECTORIES.iter().find(|directory| is_installed(directory, "libcuda.so.1"));
    CudaFacts {
        driver_library: driver_library.map(|directory| format!("/{directory}/libcuda.so.1")),
        toolkit: toolkit(root),
        has_smi: PROGRAM_DIRECTORIES.iter().any(|directory| is_installed(directory, "nvidia-smi")),
    }
}

/// The version of the toolkit, or otherwise the major version of its runtime library: `12.4.1`, `12`.
fn toolkit(root: &Path) -> Option<String> {
    let toolkit_version = read(&root.join("usr/local/cuda/version.json"))
        .and_then(|text| serde_json::from_str::<serde_json::Value>(&text).ok())
        .and_then(|json| json.pointer("/cuda/version")?.as_str().map(str::to_owned));
    let majors = [13_u32, 12, 11, 10].into_iter();
    let has_library = |major: &u32| {
        // Up to CUDA 11 the name also contains the minor version: libcudart.so.11.0 in all releases of CUDA 11.
        let names = [format!("libcudart.so.{major}"), format!("libcudart.so.{major}.0")];
        LIBRARY_DIRECTORIES.iter().any(|directory| names.iter().any(|name| root.join(directory).join(name).exists()))
    };
    toolkit_version.or_else(|| majors.into_iter().find(has_library).map(|major| major.to_string()))
}

fn memory_kills(root: &Path, run: &Path) -> Observed<MemoryKills> {
    let files = ["sys/fs/cgroup/memory.events", "sys/fs/cgroup/memory/memory.oom_control"];
    let text = files.into_iter().find_map(|file| read(&root.join(file)));
    let text = text.ok_or("the container's cgroup has neither memory.events nor memory.oom_control")?;
    let count = text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok());
    let count = count.ok_or("this kernel does not count OOM kills")?;
    let job_kills = read(&under(root, run).join(oom_kill::FILE)).and_then(|text| serde_json::from_str(&text).ok());
    Ok(MemoryKills { count, job_kills: job_kills.unwrap_or_default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_process_that_listens_on_port() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let own = fs::read_to_string("/proc/self/comm").unwrap();
        assert_eq!(port_owner(port, "slurmctld"), PortOwner::Process(own.trim().to_owned()));
        drop(listener);
        assert_eq!(port_owner(port, "slurmctld"), PortOwner::Free);
    }

    #[test]
    fn key_is_from_image_if_older_than_container_and_not_mounted() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let key = |path: &str| key(root.path(), Path::new(path)).unwrap().map(|key| key.is_from_image);
        let set_mtime = |path: &str, seconds: i64| {
            let time = nix::sys::time::TimeVal::new(seconds, 0);
            nix::sys::stat::utimes(&root.path().join(path), &time, &time).unwrap();
        };
        assert_eq!(key("/etc/munge/munge.key"), None);
        write("etc/munge/munge.key", "secret");
        write("proc/self/mountinfo", "1 0 0:1 / / rw - overlay o rw\n");
        assert_eq!(key("/etc/munge/munge.key"), Some(false), "the container's age is unknown");
        write(".dockerenv", "");
        set_mtime("etc/munge/munge.key", 1_000);
        assert_eq!(key("/etc/munge/munge.key"), Some(true));
        set_mtime(".dockerenv", 900);
        assert_eq!(key("/etc/munge/munge.key"), Some(false));
        set_mtime(".dockerenv", 2_000);
        write("proc/self/mountinfo", "1 0 0:1 / / rw - overlay o rw\n2 1 8:1 /v /etc/munge rw - ext4 /dev/a rw\n");
        assert_eq!(key("/etc/munge/munge.key"), Some(false), "the key is on a volume");
    }

    #[test]
    fn parses_saved_cluster_name_with_and_without_id() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(saved_cluster(root.path()).unwrap(), None);
        for (text, expected) in [("lab", Some("lab")), ("lab|89\n", Some("lab")), ("", None)] {
            fs::write(root.path().join("clustername"), text).unwrap();
            assert_eq!(saved_cluster(root.path()).unwrap().as_deref(), expected);
        }
    }
}
