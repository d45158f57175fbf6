//! Files of a simulated machine, which replace the host's in a container.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

/// A temporary directory with files as in `/sys` and `/proc`.
pub(crate) struct Tree {
    directory: TempDir,
}

impl Tree {
    pub(crate) fn new() -> Self {
        Self { directory: TempDir::with_prefix("slurminit-test-").expect("a temporary directory") }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn file(&mut self, path: &str, text: &str) {
        let path = self.directory.path().join(path);
        fs::create_dir_all(path.parent().expect("a file in a directory")).expect("a directory");
        fs::write(path, format!("{text}\n")).expect("a file");
    }

    pub(crate) fn copy(&mut self, from: &Path, to: &str) {
        let to = self.directory.path().join(to);
        fs::create_dir_all(to.parent().expect("a file in a directory")).expect("a directory");
        fs::copy(from, to).expect("a file");
    }

    /// Writes two CPUs, as two sockets with one core each or as one socket.
    pub(crate) fn sockets(&mut self, sockets: u32) {
        let cpus = "sys/devices/system/cpu";
        for list in ["online", "present", "possible"] {
            self.file(&format!("{cpus}/{list}"), "0-1");
        }
        for cpu in 0..2 {
            let (socket, core) = if sockets == 2 { (cpu, 0) } else { (0, cpu) };
            let package = if sockets == 2 { cpu.to_string() } else { "0-1".to_owned() };
            for (file, text) in [
                ("physical_package_id", socket.to_string()),
                ("core_id", core.to_string()),
                ("thread_siblings_list", cpu.to_string()),
                ("core_cpus_list", cpu.to_string()),
                ("core_siblings_list", package.clone()),
                ("package_cpus_list", package),
            ] {
                self.file(&format!("{cpus}/cpu{cpu}/topology/{file}"), &text);
            }
        }
        for socket in 0..sockets {
            let list = if sockets == 2 { socket.to_string() } else { "0-1".to_owned() };
            self.file(&format!("sys/devices/system/node/node{socket}/cpulist"), &list);
        }
    }
}
