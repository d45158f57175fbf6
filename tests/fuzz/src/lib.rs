//! Shared by the targets: a sample inventory, invariants of generated files, and a root directory with fake files.

use std::fs;
use std::path::{Path, PathBuf};

use config::{Config, TypeName};
use model::inventory::Inventory;
use plan::render::render;
use plan::{Plan, Text, plan};

/// Inventory with two NVIDIA GPUs, one of them in MIG mode, and an AMD GPU.
pub fn machine() -> Inventory {
    let text = include_str!("machine.json");
    serde_json::from_str(text).expect("machine.json is an inventory")
}

/// Plans, renders and checks the files with each `type_name`. Returns the last plan, or `None` if planning fails.
pub fn plan_and_check(config: &Config, inventory: &Inventory) -> Option<Plan> {
    let mut last = None;
    for type_name in [TypeName::Vendor, TypeName::Model, TypeName::Index] {
        let mut config = config.clone();
        config.gpu.type_name = type_name;
        let plan = plan(&config, inventory).ok()?;
        check(&render(&plan));
        last = Some(plan);
    }
    last
}

/// Asserts that no file has control characters, which could inject lines, and that gres.conf has only valid GPU lines.
pub fn check(files: &[Text]) {
    for file in files {
        assert!(!file.text.contains(|c: char| c.is_control() && c != '\n'), "{}: {:?}", file.name, file.text);
        if file.name.to_string() != "gres.conf" {
            continue;
        }
        let mut devices = Vec::new();
        for line in file.text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            assert!(line.starts_with("Name=gpu Type=") || line.starts_with("AutoDetect="), "{line}");
            for pair in line.split(' ') {
                let (key, value) = pair.split_once('=').expect("key=value");
                assert!(!value.is_empty() && !value.contains(['=', '#', '"']), "{line}");
                if key == "File" {
                    devices.push(value);
                }
            }
        }
        let all = devices.len();
        devices.sort_unstable();
        devices.dedup();
        assert_eq!(devices.len(), all, "duplicate device: {}", file.text);
    }
}

/// Splits the input into texts at each NUL.
pub fn texts(bytes: &[u8]) -> Vec<String> {
    bytes.split(|byte| *byte == 0).map(|part| String::from_utf8_lossy(part).into_owned()).collect()
}

/// A temporary directory in place of `/`, in memory if possible.
pub struct Root(tempfile::TempDir);

impl Root {
    /// Creates an empty root.
    pub fn new() -> Self {
        let memory = Path::new("/dev/shm");
        let directory = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        Self(directory.expect("a temporary directory"))
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes `content` to `path`.
    pub fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.file(path);
        fs::write(path, content).expect("a writable root");
    }

    /// Removes the file at `path`, if it exists.
    pub fn remove(&self, path: &str) {
        let _ = fs::remove_file(self.0.path().join(path));
    }

    /// Creates a symlink to /dev/null at `path`, which can be opened like a device.
    pub fn device(&self, path: &str) {
        let path = self.file(path);
        if !path.exists() {
            std::os::unix::fs::symlink("/dev/null", path).expect("a writable root");
        }
    }

    fn file(&self, path: &str) -> PathBuf {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().expect("below the root")).expect("a writable root");
        path
    }
}

impl Default for Root {
    fn default() -> Self {
        Self::new()
    }
}
