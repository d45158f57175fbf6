//! The text of `compose.gpus.yaml`, which the service in `compose.yaml` extends. `compose.override.yaml` belongs to the
//! user.

use std::fmt::Write as _;

use super::choice::{GpuType, Selection};
use super::passthrough::{CDI_ALL, PassMethod};
use super::situation::FileGpus;
use model::inventory::Vendor;

/// The file's name.
pub const NAME: &str = "compose.gpus.yaml";
/// The variable by which compose.yaml finds the file.
pub const VARIABLE: &str = "GPU_COMPOSE_FILE";
/// The user's own override file, of which compose reads the first that exists.
pub const OVERRIDES: [&str; 4] =
    ["compose.override.yaml", "compose.override.yml", "docker-compose.override.yml", "docker-compose.override.yaml"];
/// The first line of our file. A file without it is the user's.
pub const MARK: &str = "# Written by slurminit configure";

/// What to pass to the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedGpus {
    /// What the image is built for.
    pub gpu_type: GpuType,
    /// The vendors whose GPUs are passed, and how.
    pub given: Vec<(Vendor, PassMethod)>,
    /// The selected GPUs.
    pub selection: Selection,
}

impl WantedGpus {
    /// Whether compose.yaml is enough.
    pub fn is_plain(&self) -> bool {
        self.given.is_empty()
    }

    /// Whether the user's own file contains all lines of the generated file, possibly among others.
    pub fn is_met_by(&self, theirs: &str) -> bool {
        let ours = render(self);
        let is_telling = |line: &&str| !line.starts_with('#') && !line.starts_with("image:");
        let mut lines = ours.lines().map(str::trim).filter(is_telling);
        self.is_plain() || lines.all(|line| theirs.lines().any(|their| their.trim() == line))
    }
}

/// Renders the file.
pub fn render(wanted: &WantedGpus) -> String {
    let WantedGpus { gpu_type, given, selection } = wanted;
    let mut text = format!(
        "{MARK} for the GPUs of this host; `slurminit configure` replaces it.\n\
         # slurminit does not replace a file without the first line.\n\
         services:\n  slurm:\n    image: slurminit:latest\n    build:\n      args:\n        GPU_TYPE: {}\n",
        gpu_type.as_str()
    );
    let mut by_files = Vec::new();
    for (_, way) in given {
        match way {
            PassMethod::Gpus => text += &reservation("nvidia", "count: all", "", selection),
            PassMethod::Cdi => {
                text += &reservation("cdi", &device_ids([CDI_ALL.to_owned()]), "nvidia.com/gpu=", selection)
            }
            PassMethod::Files(gpus) => by_files.push(gpus),
        }
    }
    text + &files_section(&by_files, selection)
}

/// The devices that a driver of Docker's provides: all, or the selected ones by their names after the prefix.
fn reservation(driver: &str, all: &str, prefix: &str, selection: &Selection) -> String {
    let which = match selection {
        Selection::All => all.to_owned(),
        Selection::Ids(ids) => device_ids(ids.iter().map(|id| format!("{prefix}{id}"))),
    };
    format!(
        "    deploy:\n      resources:\n        reservations:\n          devices:\n            - driver: {driver}\n              \
         {which}\n              capabilities: [gpu, compute, utility]\n"
    )
}

fn device_ids(ids: impl IntoIterator<Item = String>) -> String {
    let quoted: Vec<String> = ids.into_iter().map(|id| format!("'{id}'")).collect();
    format!("device_ids: [{}]", quoted.join(", "))
}

fn files_section(by_files: &[&FileGpus], selection: &Selection) -> String {
    let mut devices: Vec<&str> = by_files.iter().filter_map(|gpus| gpus.files.shared).collect();
    match selection {
        Selection::All => devices.extend(by_files.first().map(|_| "/dev/dri")),
        Selection::Ids(ids) => devices.extend(by_files.iter().flat_map(|gpus| {
            ids.iter().filter_map(|id| gpus.render_nodes.get(id.index()?)).map(|node| node.path.as_str())
        })),
    }
    let mut groups: Vec<u32> = by_files.iter().flat_map(|gpus| gpus.groups()).collect();
    groups.sort_unstable();
    groups.dedup();
    let mut text = list("devices", devices.iter().map(|path| format!("{path}:{path}")));
    if !groups.is_empty() {
        text +=
            "    # The groups that own these files on this host, by number: the container knows no group \"render\".\n";
        text += &list("group_add", groups.iter().map(|group| format!("\"{group}\"")));
    }
    let security = || by_files.iter().filter_map(|gpus| gpus.files.security);
    for (_, why) in security() {
        let _ = writeln!(text, "    # {why}");
    }
    text + &list("security_opt", security().map(|(option, _)| option.replacen('=', ":", 1)))
}

/// A key of the service with a list; nothing if the list is empty.
fn list(key: &str, items: impl IntoIterator<Item = String>) -> String {
    let items: String = items.into_iter().map(|item| format!("      - {item}\n")).collect();
    if items.is_empty() { items } else { format!("    {key}:\n{items}") }
}

/// Whether an existing file is ours and may be replaced.
pub fn is_ours(text: &str) -> bool {
    text.lines().next().is_some_and(|line| line.starts_with(MARK))
}
