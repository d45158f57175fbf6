//! Writes a machine as the files that `slurminit detect --root` reads.

use std::fs;
use std::io;
use std::path::Path;

use super::machine::Machine;

impl Machine {
    /// Writes the container's view of `/sys` and `/proc` below `root`.
    pub(crate) fn write_tree(&self, root: &Path) -> io::Result<()> {
        let all = format!("0-{}", self.cpus() - 1);
        let allowed = if self.allowed_cpus.is_empty() { all.as_str() } else { self.allowed_cpus };
        let cpus = "sys/devices/system/cpu";
        for name in ["online", "present", "possible"] {
            write(root, &format!("{cpus}/{name}"), &all)?;
        }
        for core in 0..self.cores() {
            for thread in 0..self.threads_per_core {
                self.write_cpu(root, core, thread)?;
            }
        }
        for socket in 0..self.sockets {
            write(root, &format!("sys/devices/system/node/node{socket}/cpulist"), &self.socket_cpus(socket))?;
        }
        for (file, text) in [
            ("cgroup.controllers", "cpuset cpu memory pids"),
            ("cpuset.cpus.effective", allowed),
            ("cpu.max", "max 100000"),
            ("memory.max", "max"),
        ] {
            write(root, &format!("sys/fs/cgroup/{file}"), text)?;
        }
        write(root, "proc/meminfo", "MemTotal:       65536000 kB\nMemAvailable:   60000000 kB")?;
        write(root, "proc/self/status", &format!("Name:\tslurminit\nCpus_allowed_list:\t{allowed}"))?;
        write(root, "proc/driver/nvidia-caps/mig-minors", &self.mig_minors())?;
        write(root, "proc/self/cgroup", "0::/")?;
        write(root, "proc/mounts", "cgroup2 /sys/fs/cgroup cgroup2 ro 0 0")?;
        write(root, "proc/self/mountinfo", "30 29 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup2 ro")?;
        write(root, "proc/sys/kernel/hostname", "localhost")
    }

    fn write_cpu(&self, root: &Path, core: u32, thread: u32) -> io::Result<()> {
        let socket = core / self.cores_per_socket;
        let siblings: Vec<_> = (0..self.threads_per_core).map(|thread| self.cpu(core, thread).to_string()).collect();
        let siblings = siblings.join(",");
        let package = self.socket_cpus(socket);
        let topology = format!("sys/devices/system/cpu/cpu{}/topology", self.cpu(core, thread));
        for (file, text) in [
            ("physical_package_id", socket.to_string()),
            ("core_id", (core % self.cores_per_socket).to_string()),
            ("thread_siblings_list", siblings.clone()),
            ("core_cpus_list", siblings),
            ("core_siblings_list", package.clone()),
            ("package_cpus_list", package),
        ] {
            write(root, &format!("{topology}/{file}"), &text)?;
        }
        Ok(())
    }

    fn socket_cpus(&self, socket: u32) -> String {
        let first = socket * self.cores_per_socket;
        let last = first + self.cores_per_socket - 1;
        let thread_cpus = |thread| format!("{}-{}", self.cpu(first, thread), self.cpu(last, thread));
        (0..self.threads_per_core).map(thread_cpus).collect::<Vec<_>>().join(",")
    }
}

fn write(root: &Path, file: &str, text: &str) -> io::Result<()> {
    let path = root.join(file);
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    fs::write(path, format!("{text}\n"))
}
