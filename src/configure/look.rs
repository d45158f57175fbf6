//! Looks at the host, below a root directory, and asks its programs. EDGE. Changes nothing.

mod amd;
mod docker;
mod nvidia;

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::answer::Answer;
use super::situation::{Engine, Platform, PlatformKind, Situation};
use super::tool;
use crate::inventory::Inventory;

/// Programs of the host are looked for in PATH and get this long each.
#[derive(Clone, Copy, Debug)]
pub struct Tools {
    /// How long a program may take.
    pub deadline: Duration,
}

impl Tools {
    /// Asks a program.
    pub fn ask(&self, program: &str, arguments: &[&str]) -> Answer {
        tool::ask(program, arguments, self.deadline)
    }
}

/// Everything that can be seen. `inventory` is what detection found below the same root.
pub fn look(root: &Path, tools: Tools, inventory: &Inventory) -> Situation {
    let engine = docker::engine(root, tools);
    Situation {
        platform: platform(root, &engine),
        compose: docker::compose(tools, &engine),
        nvidia: nvidia::look(root, tools, inventory),
        amd: amd::look(root),
        engine,
    }
}

/// Whether the engine has the image.
pub fn has_image(tools: Tools, image: &str) -> bool {
    tools.ask("docker", &["image", "inspect", "--format", "{{.Id}}", image]).output().is_some()
}

fn platform(root: &Path, engine: &Engine) -> Platform {
    if root.join("System/Library/CoreServices/SystemVersion.plist").exists() {
        return Platform { kind: PlatformKind::MacOs, name: "macOS".to_owned() };
    }
    let kernel = read(root, "proc/version").to_lowercase();
    let engines_kernel = engine.info().map(|info| info.kernel.as_str()).unwrap_or_default();
    let kind = if kernel.contains("microsoft") {
        PlatformKind::Wsl2
    } else if kernel.contains("linuxkit") || engines_kernel.contains("linuxkit") {
        PlatformKind::DesktopVm
    } else {
        PlatformKind::Linux
    };
    let release = read(root, "etc/os-release");
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let name = name.map_or("Linux", |name| name.trim_matches(['"', '\'']));
    Platform { kind, name: name.to_owned() }
}

/// The file's text; empty where it cannot be read.
fn read(root: &Path, path: &str) -> String {
    fs::read(root.join(path)).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// The names in a directory, sorted.
fn names(root: &Path, path: &str) -> Vec<String> {
    let entries = fs::read_dir(root.join(path)).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// How many GPUs of this maker are on the PCI bus.
fn gpus_on_pci(root: &Path, vendor: &str) -> usize {
    let devices = names(root, "sys/bus/pci/devices");
    let is_gpu = |name: &&String| {
        let file = |file: &str| read(root, &format!("sys/bus/pci/devices/{name}/{file}"));
        // Display controllers, and processing accelerators, as which AMD's Instinct cards show up.
        let class = file("class");
        file("vendor").trim() == vendor && (class.starts_with("0x03") || class.starts_with("0x12"))
    };
    devices.iter().filter(is_gpu).count()
}
