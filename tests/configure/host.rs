//! A test host: a root directory, fake tools, and the directory with compose.yaml.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use model::inventory::{Access, Gpu, Inventory, Vendor};
use nix::unistd::geteuid;
use serde_json::json;
use tempfile::TempDir;

pub(crate) struct Host {
    directory: TempDir,
    arguments: Vec<&'static str>,
    /// Whether the report depends on the groups of device files, which only root can set.
    pub(crate) has_groups: bool,
    /// How often the command runs; only the report of the last run is checked.
    pub(crate) runs: usize,
}

impl Host {
    /// Debian without Docker and without GPUs.
    pub(crate) fn new() -> Self {
        let host = Self { directory: TempDir::new().unwrap(), arguments: Vec::new(), has_groups: false, runs: 1 };
        for name in ["root", "tools", "answers", "project"] {
            fs::create_dir(host.path(name)).unwrap();
        }
        host.file("etc/os-release", "NAME=Debian\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n")
            .file("proc/version", "Linux version 6.1.0-18-amd64 (debian-kernel@lists.debian.org)\n")
            .project("compose.yaml", include_str!("../../compose.yaml"))
    }

    /// Like `new`, plus a healthy engine with these runtimes, and Compose 2.
    pub(crate) fn with_docker(runtimes: &[&str]) -> Self {
        Self::new().engine(runtimes, json!({})).answer("docker", "compose", "2.29.7\n")
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.directory.path().join(path)
    }

    /// Adds a file below the root.
    pub(crate) fn file(self, path: &str, text: &str) -> Self {
        write(&self.path("root").join(path), text);
        self
    }

    /// Adds a file beside compose.yaml.
    pub(crate) fn project(self, name: &str, text: &str) -> Self {
        write(&self.path("project").join(name), text);
        self
    }

    pub(crate) fn argument<const N: usize>(mut self, arguments: [&'static str; N]) -> Self {
        self.arguments.extend(arguments);
        self
    }

    pub(crate) fn twice(mut self) -> Self {
        self.runs = 2;
        self
    }

    /// Installs a fake tool and the output of one of its commands.
    pub(crate) fn answer(self, tool: &str, name: &str, stdout: &str) -> Self {
        // Uses a link, because a file that was just written cannot be executed while another thread's child still holds it open.
        let link = self.path("tools").join(tool);
        if !link.is_symlink() {
            symlink(harness::root().join("tests/configure/fake-tool"), link).unwrap();
        }
        write(&self.path(&format!("answers/{name}.out")), stdout);
        self
    }

    /// Makes the tool command with this output name fail with this exit code and standard error.
    pub(crate) fn failure(self, tool: &str, name: &str, code: u8, stderr: &str) -> Self {
        let host = self.answer(tool, name, "");
        write(&host.path(&format!("answers/{name}.err")), stderr);
        write(&host.path(&format!("answers/{name}.code")), &code.to_string());
        host
    }

    /// Makes the tool command with this output name hang.
    pub(crate) fn hangs(self, name: &str) -> Self {
        write(&self.path(&format!("answers/{name}.hangs")), "");
        self
    }

    /// Sets the output of `docker info`; `more` overrides fields.
    pub(crate) fn engine(self, runtimes: &[&str], more: serde_json::Value) -> Self {
        let runtimes: BTreeMap<&str, _> = runtimes.iter().map(|name| (*name, json!({ "path": name }))).collect();
        let mut info = json!({
            "ServerVersion": "27.3.1",
            "OperatingSystem": "Debian GNU/Linux 12 (bookworm)",
            "KernelVersion": "6.1.0-18-amd64",
            "Runtimes": runtimes,
            "SecurityOptions": ["name=seccomp,profile=builtin", "name=cgroupns"],
            "CDISpecDirs": [],
            "ServerErrors": null,
        });
        for (key, value) in more.as_object().unwrap() {
            info[key] = value.clone();
        }
        self.answer("docker", "info", &info.to_string())
    }

    /// Adds the image, and makes a container with the vendor's GPUs report this number of usable GPUs.
    pub(crate) fn trial(self, vendor: Vendor, usable: u32) -> Self {
        let gpus = (0..usable).map(|index| gpu(vendor, index, Access::Usable)).collect();
        self.trial_inventory(vendor, &Inventory { gpus, ..Inventory::default() })
    }

    pub(crate) fn trial_inventory(self, vendor: Vendor, inventory: &Inventory) -> Self {
        let text = serde_json::to_string(inventory).unwrap();
        self.answer("docker", "image", "sha256:1c1d\n").answer("docker", &format!("trial-{vendor}"), &text)
    }

    /// Adds NVIDIA GPUs with their driver, as shown by the kernel's files and nvidia-smi.
    pub(crate) fn nvidia(self, count: usize, model: &str, driver: &str) -> Self {
        let mut list = String::new();
        let mut host = self.file(
            "proc/driver/nvidia/version",
            &format!("NVRM version: NVIDIA UNIX x86_64 Kernel Module  {driver}  Thu Dec 28 15:37:48 UTC 2023\n"),
        );
        for index in 0..count {
            let uuid = format!("GPU-1c1d0000-0000-0000-0000-{index:012}");
            let address = format!("0000:{:02x}:00.0", 0x17 + index);
            list += &format!("GPU {index}: {model} (UUID: {uuid})\n");
            host = host.pci(&address, "0x10de", "0x030200").file(&format!("dev/nvidia{index}"), "").file(
                &format!("proc/driver/nvidia/gpus/{address}/information"),
                &format!("Model: \t\t {model}\nGPU UUID: \t {uuid}\nDevice Minor: \t {index}\n"),
            );
        }
        host.answer("nvidia-smi", "list", &list)
    }

    pub(crate) fn pci(self, address: &str, vendor: &str, class: &str) -> Self {
        self.file(&format!("sys/bus/pci/devices/{address}/vendor"), &format!("{vendor}\n"))
            .file(&format!("sys/bus/pci/devices/{address}/class"), &format!("{class}\n"))
    }

    /// Adds the programs of NVIDIA's container toolkit and, if `is_configured`, its runtime in `daemon.json`.
    pub(crate) fn toolkit(self, is_configured: bool) -> Self {
        let host = self.file("usr/bin/nvidia-ctk", "").file("usr/bin/nvidia-container-runtime", "");
        if !is_configured {
            return host;
        }
        host.file("etc/docker/daemon.json", r#"{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}"#)
    }

    /// Adds an integrated GPU of another vendor, and then AMD GPUs. /dev/kfd and the AMD render nodes get these groups.
    pub(crate) fn amd(mut self, count: usize, kfd_group: u32, render_group: u32) -> Self {
        self.has_groups = true;
        let mut host = self
            .file("sys/class/drm/renderD128/device/vendor", "0x8086\n")
            .file("dev/dri/renderD128", "")
            .device("dev/kfd", kfd_group);
        for index in 0..count {
            let node = format!("renderD{}", 129 + index);
            host = host
                .pci(&format!("0000:{:02x}:00.0", 0x43 + index), "0x1002", "0x120000")
                .file(&format!("sys/class/drm/{node}/device/vendor"), "0x1002\n")
                .device(&format!("dev/dri/{node}"), render_group);
        }
        host
    }

    /// Adds an Intel GPU at this PCI address, with its render node.
    pub(crate) fn intel(mut self, address: &str, device_id: &str, minor: u32, group: u32) -> Self {
        self.has_groups = true;
        let node = format!("renderD{minor}");
        let host = self
            .pci(address, "0x8086", "0x030000")
            .file(&format!("sys/bus/pci/devices/{address}/device"), &format!("{device_id}\n"))
            .file(&format!("sys/class/drm/{node}/dev"), "")
            .device(&format!("dev/dri/{node}"), group);
        symlink(
            format!("../../../bus/pci/devices/{address}"),
            host.path("root/sys/class/drm").join(node).join("device"),
        )
        .unwrap();
        host
    }

    fn device(self, path: &str, group: u32) -> Self {
        let host = self.file(path, "");
        let path = host.path("root").join(path);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o660)).unwrap();
        if geteuid().is_root() {
            chown(path, None, Some(group)).unwrap();
        }
        host
    }

    /// Runs the command `runs` times and returns the last output.
    pub(crate) fn configure(&self) -> Output {
        let mut output = self.command().output().unwrap();
        for _ in 1..self.runs {
            output = self.command().output().unwrap();
        }
        output
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(harness::slurminit());
        command.arg("configure").arg("--root").arg(self.path("root")).arg("--directory").arg(self.path("project"));
        command.args(&self.arguments).env("PATH", self.path("tools"));
        command
    }

    /// The content of a file beside compose.yaml, if it exists.
    pub(crate) fn written(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.path("project").join(name)).ok()
    }

    /// The tool commands that were run, with `PID` for the number in the container's name.
    pub(crate) fn calls(&self) -> String {
        let calls = fs::read_to_string(self.path("calls")).unwrap_or_default();
        let without_pid = |word: &str| match word.strip_prefix("slurminit-trial-") {
            Some(_) => "slurminit-trial-PID".to_owned(),
            None => word.to_owned(),
        };
        let line = |line: &str| line.split(' ').map(without_pid).collect::<Vec<_>>().join(" ") + "\n";
        calls.lines().map(line).collect()
    }
}

/// A GPU in the inventory of a container.
pub(crate) fn gpu(vendor: Vendor, index: u32, access: Access) -> Gpu {
    Gpu {
        vendor,
        index,
        minor: Some(index),
        device_file: Some(format!("/dev/nvidia{index}").into()),
        uuid: None,
        model: None,
        pci_address: None,
        memory_mib: None,
        shares_memory: false,
        memory_node: None,
        integrated: false,
        compute: None,
        cpus: None,
        numa_node: None,
        links: BTreeMap::new(),
        mig: None,
        condition: None,
        nvlink_domain: None,
        access,
    }
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}
