//! The text of `compose.gpus.yaml`, which the service in `compose.yaml` extends. `compose.override.yaml` belongs to the
//! user.

use std::fmt::Write as _;

use super::choice::{GpuType, Selection};
use super::passthrough::{CDI_ALL, Way};
use super::situation::FileGpus;

/// The file's name.
pub const NAME: &str = "compose.gpus.yaml";
/// The variable by which compose.yaml finds the file.
pub const VARIABLE: &str = "GPU_COMPOSE_FILE";
/// The file's former name. If such a file with our first line remains, the GPUs are passed twice.
pub const FORMER_NAME: &str = "compose.override.yaml";
/// The user's own override file, of which compose reads the first that exists.
pub const OVERRIDES: [&str; 4] =
    [FORMER_NAME, "compose.override.yml", "docker-compose.override.yml", "docker-compose.override.yaml"];
/// The first line of our file. A file without it is the user's.
pub const MARK: &str = "# Written by slurminit configure";

/// What to pass to the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// What the image is built for.
    pub gpu_type: GpuType,
    /// How NVIDIA GPUs are passed, if any.
    pub nvidia: Option<Way>,
    /// The GPUs that are passed by their device files.
    pub by_files: Vec<FileGpus>,
    /// The selected GPUs.
    pub selection: Selection,
}

impl Wanted {
    /// Whether compose.yaml is enough.
    pub fn is_plain(&self) -> bool {
        self.nvidia.is_none() && self.by_files.is_empty()
    }

    /// Whether the user's own file contains all of our lines, as the report asks, whatever else it contains.
    pub fn is_met_by(&self, theirs: &str) -> bool {
        let ours = render(self);
        let is_telling = |line: &&str| !line.starts_with('#') && !line.starts_with("image:");
        let mut lines = ours.lines().map(str::trim).filter(is_telling);
        self.is_plain() || lines.all(|line| theirs.lines().any(|their| their.trim() == line))
    }
}

/// Renders the file.
pub fn render(wanted: &Wanted) -> String {
    let Wanted { gpu_type, nvidia, by_files, selection } = wanted;
    let mut text = format!(
        "{MARK} for the GPUs of this host; `slurminit configure` replaces it.\n\
         # A file without the first line is yours, and stays as it is.\n\
         services:\n  slurm:\n    image: slurminit:latest\n    build:\n      args:\n        GPU_TYPE: {}\n",
        gpu_type.as_str()
    );
    if let Some(way) = nvidia {
        text += &nvidia_section(*way, selection);
    }
    text + &files_section(by_files, selection)
}

fn nvidia_section(way: Way, selection: &Selection) -> String {
    let head = "    deploy:\n      resources:\n        reservations:\n          devices:\n";
    let (driver, which) = match (way, selection) {
        (Way::Gpus, Selection::All) => ("nvidia", "count: all".to_owned()),
        (Way::Gpus, Selection::Ids(ids)) => ("nvidia", device_ids(ids.iter().map(ToString::to_string))),
        (Way::Cdi, Selection::All) => ("cdi", device_ids([CDI_ALL.to_owned()])),
        (Way::Cdi, Selection::Ids(ids)) => ("cdi", device_ids(ids.iter().map(|id| format!("nvidia.com/gpu={id}")))),
    };
    format!(
        "{head}            - driver: {driver}\n              {which}\n              capabilities: [gpu, compute, utility]\n"
    )
}

fn device_ids(ids: impl IntoIterator<Item = String>) -> String {
    let quoted: Vec<String> = ids.into_iter().map(|id| format!("'{id}'")).collect();
    format!("device_ids: [{}]", quoted.join(", "))
}

fn files_section(by_files: &[FileGpus], selection: &Selection) -> String {
    let mut devices: Vec<&str> = by_files.iter().filter_map(|gpus| gpus.files.shared).collect();
    match selection {
        Selection::All => devices.extend(by_files.first().map(|_| "/dev/dri")),
        Selection::Ids(ids) => devices.extend(by_files.iter().flat_map(|gpus| {
            ids.iter().filter_map(|id| gpus.render_nodes.get(id.index()?)).map(|node| node.path.as_str())
        })),
    }
    let mut groups: Vec<u32> = by_files.iter().flat_map(FileGpus::groups).collect();
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
